"""Tests of the loss: what enters the advantages, and that they stay finite."""

import dataclasses
from typing import Any

from brax.training.agents.ppo import losses as brax_losses
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.recurrent import LSTM
from brax_nnx_plugin.ppo import losses
from brax_nnx_plugin.ppo.networks import make_network_factory
from tests import fakes
from tests import learners
from tests import segments
from tests import toy_envs
from tests import toy_modules


@pytest.fixture
def gae(monkeypatch):
  """Records what the loss gives Brax's `compute_gae`, and what it gets."""
  calls = []

  def spy(**kwargs):
    targets, advantages = brax_losses.compute_gae(**kwargs)
    calls.append({**kwargs, 'targets': targets, 'advantages': advantages})
    return targets, advantages

  monkeypatch.setattr(losses, 'compute_gae', spy)
  return calls


def _read_network(*unused_args):
  """A network whose value is the second feature of the observation."""
  return fakes.plain_network(toy_modules.Feature(0), toy_modules.Feature(1))


def _lstm_network(observation_size, action_size, rngs):
  size = observation_size[0]
  return PPOAdapter(
    action=Sequential(
      [
        LSTM(size, 3, rngs, trainable_initial_state=True),
        Dense(3, 2 * action_size, rngs),
        toy_modules.NormalSampler(rngs),
      ]
    ),
    value=Sequential([LSTM(size, 3, rngs), Dense(3, 1, rngs)]),
  )


def _loss(functions, variables, data, **coefficients):
  return losses.ppo_loss(
    variables.params,
    variables,
    None,
    data,
    jax.random.PRNGKey(0),
    networks=functions,
    config=learners.loss_config(**coefficients),
  )


def _value_env(values, done=None, truncated=0.0, reward=1.0):
  """One row whose values are given, the bootstrap value last."""
  observations = np.zeros((len(values), 1, 2))
  observations[:, 0, 1] = values
  mask = np.zeros((len(values), 1))
  if done is not None:
    mask[done] = 1
  return toy_envs.TableEnv(observations, mask, truncated, reward)


def _advantages(gae, env, steps, **coefficients):
  functions, variables, data = segments.recorded(_read_network, env, 1, steps)
  _loss(functions, variables, data, **coefficients)
  return np.asarray(gae[-1]['advantages'][:, 0])


@pytest.mark.parametrize('truncated', [False, True])
def test_advantages_cut_the_value_at_terminations_and_mask_truncations(
  gae, truncated
):
  values = [1.0, 2.0, -1.0, 0.5, 3.0]
  env = _value_env(values, done=1, truncated=truncated)
  got = _advantages(gae, env, 4, discounting=0.9, gae_lambda=0.8)
  flag = [0, 1, 0, 0]
  none = [0, 0, 0, 0]
  _, expected = fakes.ref_gae(
    flag if truncated else none,
    none if truncated else flag,
    [1.0] * 4,
    values[:4],
    values[4],
    0.8,
    0.9,
  )
  np.testing.assert_allclose(got, expected, rtol=1e-5)
  # r - v at a termination; nothing is learned from a truncated step.
  assert got[1] == pytest.approx(0.0 if truncated else 1 - 2)


def test_memory_is_cleared_alike_by_both_kinds_of_end():
  traces = []
  for truncated in (False, True):
    env = fakes.ScriptEnv([[1]], truncated)
    functions, variables, data = segments.recorded(
      fakes.count_network, env, 1, 4
    )
    assert np.sum(data.truncation) == truncated
    out, _ = segments.replay(functions, variables, data)
    np.testing.assert_array_equal(data.loc[0, :, 0], out.value[:, 0])
    traces.append(np.asarray(out.value[:, 0]))
  np.testing.assert_array_equal(traces, [[0, 1, 0, 1]] * 2)


@pytest.mark.parametrize('value_after_reset', [30.0, -7.0])
def test_truncated_step_is_masked_and_hides_the_reset_observation(
  gae, value_after_reset
):
  env = _value_env([10.0, 20.0, value_after_reset, 40.0], done=1, truncated=1)
  got = _advantages(gae, env, 3, discounting=1.0, gae_lambda=1.0)
  np.testing.assert_array_equal(got[:2], [1 + 20 - 10, 0])


@pytest.mark.parametrize('value_after_reset', [3.0, 100.0])
def test_done_of_a_step_decides_about_the_value_of_the_next(
  gae, value_after_reset
):
  values = [1.0, 2.0, value_after_reset, 4.0, 5.0]
  env = _value_env(values, done=1, reward=0.0)
  got = _advantages(gae, env, 4, discounting=1.0, gae_lambda=1.0)
  _, expected = fakes.ref_gae(
    [0] * 4, [0, 1, 0, 0], [0.0] * 4, values[:4], 5.0, 1.0, 1.0
  )
  np.testing.assert_allclose(got, expected)
  # 0 - v₁; and 0 + v₁ + (0 - v₁) - v₀. The value after the reset is in neither.
  np.testing.assert_array_equal(got[:2], [-1, -2])


@pytest.mark.parametrize(('rows', 'steps'), [(3, 5), (4, 4)])
def test_loss_scans_time_and_not_rows(gae, rows, steps):
  observations = np.random.default_rng(0).normal(size=(steps + 1, rows, 2))
  env = toy_envs.TableEnv(observations, rewards=observations[..., 1])
  functions, variables, data = segments.recorded(
    fakes.echo_network, env, rows, steps
  )
  assert data.reward.shape == (rows, steps)
  _loss(functions, variables, data)
  seen = np.asarray(observations[..., 0], np.float32)
  np.testing.assert_array_equal(gae[-1]['values'][1:], seen[: steps - 1])
  np.testing.assert_array_equal(gae[-1]['bootstrap_value'], seen[steps - 1])
  np.testing.assert_array_equal(gae[-1]['rewards'], env.rewards[:steps])


def _is_finite(tree: Any) -> bool:
  return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
  ('ended', 'truncated', 'finite'),
  [(True, False, True), (True, True, True), (False, False, False)],
)
def test_value_that_is_masked_out_may_be_nan(ended, truncated, finite):
  observations = np.random.default_rng(0).normal(size=(4, 2, 2))
  done = np.zeros((4, 2))
  done[2, 0] = ended
  env = toy_envs.TableEnv(observations, done, truncated)
  functions, variables, data = segments.recorded(_lstm_network, env, 2, 3)
  data = dataclasses.replace(
    data, last_observation=data.last_observation.at[0].set(jnp.nan)
  )

  def loss(params):
    replaced = dataclasses.replace(variables, params=params)
    return _loss(functions, replaced, data)

  (value, metrics), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(
    variables.params
  )
  # Without an end the value counts, and the NaN must show.
  assert _is_finite(value) == finite
  assert _is_finite(grads) == finite
  assert not finite or _is_finite(metrics)


def _normalized_advantages(functions, variables, data):
  """A / N is what the policy loss has as gradient of the old log-likelihood.

  With ρ = exp(new - old) = 1, inside the clip, -mean(ρ A) has the derivative
  A / N by `old`.
  """

  def policy_loss(log_likelihood):
    replaced = dataclasses.replace(data, log_likelihood=log_likelihood)
    return _loss(functions, variables, replaced)[1]['policy_loss']

  old = data.log_likelihood
  return np.asarray(jax.jit(jax.grad(policy_loss))(old)) * old.size


def test_two_short_segments_are_worth_one_long_one():
  observations = np.random.default_rng(0).normal(size=(9, 1, 2))
  done = np.zeros((9, 1))
  done[3] = 1
  env = toy_envs.TableEnv(observations, done, rewards=observations[..., 1])
  functions, variables, long = segments.recorded(_lstm_network, env, 1, 8)
  # The carry before the second half is read from segments of 4 steps; it is
  # the stale one, since the half begins with a reset.
  halves = segments.record(env, functions, variables, 1, 4, 2)
  cut = lambda x: x.reshape((2, 4, *x.shape[2:]))
  short = dataclasses.replace(
    jax.tree.map(
      cut,
      dataclasses.replace(
        long, start_carry=None, start_is_first=None, last_observation=None
      ),
    ),
    start_carry=halves.start_carry,
    start_is_first=halves.start_is_first,
    last_observation=jnp.stack(
      [long.observation[0, 4], long.last_observation[0]]
    ),
  )
  assert short.reward.shape == (2, 4)
  np.testing.assert_array_equal(short.start_is_first, [1, 1])
  assert all(
    np.any(leaf[1] != 0) for leaf in jax.tree.leaves(short.start_carry)
  )

  first, second = (
    _normalized_advantages(functions, variables, data).ravel()
    for data in (long, short)
  )
  assert np.std(first) == pytest.approx(1.0, abs=1e-3)
  np.testing.assert_allclose(first, second, atol=1e-6)
  moved = [  # ρ ≠ 1, or the policy loss is the mean of A, which is 0
    dataclasses.replace(
      data, log_likelihood=data.log_likelihood + 0.3 * data.reward
    )
    for data in (long, short)
  ]
  a, b = (_loss(functions, variables, data)[1] for data in moved)
  assert abs(a['policy_loss']) > 1e-2
  for name, value in a.items():
    np.testing.assert_allclose(value, b[name], atol=1e-6, err_msg=name)


def test_constant_advantage_is_normalized_to_zero():
  env = _value_env([2.0, 2.0, 2.0])
  functions, variables, data = segments.recorded(_read_network, env, 1, 1)
  np.testing.assert_array_equal(
    _normalized_advantages(functions, variables, data), [[0.0]]
  )


def test_training_on_minibatches_of_one_step_stays_finite():
  env = toy_envs.TableEnv(np.ones((8, 1, 2)))
  rig = learners.make_rig(
    env,
    make_network_factory(_lstm_network),
    num_envs=1,
    batch_size=1,
    num_minibatches=1,
    unroll_length=1,
    learning_rate=1e-3,
  )
  for _ in range(2):
    metrics = rig.step()
    np.testing.assert_array_equal(metrics['policy_loss'], 0.0)
    assert _is_finite(metrics)
  assert _is_finite(rig.variables)
