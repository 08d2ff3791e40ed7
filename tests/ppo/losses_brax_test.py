"""Tests of the loss against Brax's, and of its gradient against differences."""

import dataclasses
import functools
from typing import Any

from brax.training import types as brax_types
from brax.training.agents.ppo import losses as brax_losses
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.recurrent import LSTM
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.ppo import learner as learner_lib
from brax_nnx_plugin.ppo import losses
from brax_nnx_plugin.ppo.schedule import Schedule
from tests import learners
from tests import segments
from tests import toy_envs

NETWORKS = segments.stock_networks()


class _Case:
  """One rollout by a stock network, and other weights to score it under."""

  def __init__(self, **coefficients: Any):
    env = segments.wrapped(toy_envs.DriftEnv(), episode_length=5)
    config = learners.train_config(
      env,
      num_envs=4,
      batch_size=4,
      num_minibatches=2,
      unroll_length=6,
      **coefficients,
    )
    self.functions = segments.network_functions(env, lambda *a, **k: NETWORKS)
    self.config = config.loss
    learner = learner_lib.Learner(
      env, self.functions, config, Schedule.of(config, 1)
    )
    state: Any = learner.init(
      jax.random.PRNGKey(0), jax.random.PRNGKey(1), jnp.zeros(3)
    )
    self.acting = state.variables
    self.statistics = segments.stock_statistics()
    state = dataclasses.replace(state, normalizer_params=self.statistics)
    actors = segments.first_actors(env, self.functions, self.acting, 4)
    _, self.data = jax.jit(learner.collect)(
      state, actors, jax.random.PRNGKey(2)
    )
    self.variables = jax.tree.map(
      lambda a, b: 0.7 * a + 0.3 * b,
      self.acting,
      segments.init(self.functions, seed=9),
    )

  def transition(self) -> brax_types.Transition:
    """The rollout as Brax's loss takes it."""
    data = self.data
    observation = jnp.asarray(data.observation)
    last = jnp.asarray(data.last_observation)[:, None]
    make: Any = brax_types.Transition
    return make(
      observation=observation,
      action=jnp.tanh(data.extras),
      reward=data.reward,
      discount=1 - data.done,
      next_observation=jnp.concatenate([observation[:, 1:], last], axis=1),
      extras={
        'state_extras': {'truncation': data.truncation},
        'policy_extras': {
          'raw_action': data.extras,
          'log_prob': data.log_likelihood,
          'value': data.value,
          'distribution_params': NETWORKS.policy_network.apply(
            self.statistics, self.acting.params.policy, observation
          ),
        },
      },
    )

  def ours(self, params: Any) -> Any:
    return losses.ppo_loss(
      params,
      self.variables,
      self.statistics,
      self.data,
      jax.random.PRNGKey(3),
      networks=self.functions,
      config=self.config,
    )

  def brax(self, params: Any) -> Any:
    config: Any = self.config
    return brax_losses.compute_ppo_loss(
      params,
      self.statistics,
      self.transition(),
      jax.random.PRNGKey(3),
      NETWORKS,
      entropy_cost=config.entropy_cost,
      discounting=config.discounting,
      reward_scaling=config.reward_scaling,
      gae_lambda=config.gae_lambda,
      clipping_epsilon=config.clipping_epsilon,
      normalize_advantage=config.normalize_advantage,
      vf_coefficient=config.vf_loss_coefficient,
      clipping_epsilon_value=config.clipping_epsilon_value,
    )


@pytest.mark.parametrize(
  'coefficients',
  [
    {},
    {'clipping_epsilon_value': 0.05},
    {'bootstrap_on_timeout': True},
    {'normalize_advantage': False, 'reward_scaling': 3.0, 'gae_lambda': 0.6},
    {'clipping_epsilon': 0.1, 'vf_loss_coefficient': 2.0, 'discounting': 0.7},
  ],
)
def test_loss_metrics_and_gradient_are_those_of_brax(coefficients):
  case = _Case(**coefficients)
  params = case.variables.params
  # Terminated and truncated, within and at the end of segments.
  data = case.data
  assert np.sum(data.truncation[:, -1]) + np.sum(data.done[:, -1]) > 0
  assert 0 < np.sum(data.truncation) < np.sum(data.done)

  grad = functools.partial(jax.value_and_grad, has_aux=True)
  (loss, metrics), grads = jax.jit(grad(case.ours))(params)
  (expected, brax_metrics), brax_grads = jax.jit(grad(case.brax))(params)
  np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-6)
  for name, value in brax_metrics.items():
    np.testing.assert_allclose(
      metrics[name], value, rtol=1e-6, atol=1e-6, err_msg=name
    )
  assert metrics.keys() == brax_metrics.keys()
  assert metrics['kl_mean'] > 1e-3  # the weights do differ
  for a, b in zip(
    jax.tree.leaves(grads), jax.tree.leaves(brax_grads), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  'option',
  [
    {'clipping_epsilon_value': 0.05},
    {'bootstrap_on_timeout': True},
    {'clipping_epsilon': 0.1},
    {'normalize_advantage': False},
  ],
)
def test_each_option_changes_the_loss(option):
  # Or the comparison with Brax would not see whether it is passed on.
  plain, case = _Case(), _Case(**option)
  a = plain.ours(plain.variables.params)[0]
  b = case.ours(case.variables.params)[0]
  assert abs(a - b) > 1e-4


def test_time_out_adds_the_discounted_value_of_the_state_that_acted():
  plain = _Case(discounting=0.8)
  case = _Case(discounting=0.8, bootstrap_on_timeout=True)
  value = NETWORKS.value_network.apply(
    case.statistics, case.acting.params.value, case.data.observation
  )
  # r + γ V(s) where the environment says time_out: `DriftEnv` where it ends.
  ended = case.data.done * (1 - case.data.truncation)
  assert np.sum(ended) > 0
  np.testing.assert_array_equal(case.data.time_out, ended)
  np.testing.assert_allclose(
    case.data.reward, plain.data.reward + 0.8 * ended * value, rtol=1e-5
  )


def _tiny_lstm(observation_size, action_size, rngs):
  size = observation_size[0]
  cell = lambda: LSTM(size, 3, rngs, trainable_initial_state=True)
  return PPOAdapter(
    action=Sequential(
      [cell(), Dense(3, 2 * action_size, rngs), NormalTanhSampler(rngs, 0.1)]
    ),
    value=Sequential([cell(), Dense(3, 1, rngs)]),
  )


def test_gradient_equals_finite_differences(monkeypatch):
  env = segments.wrapped(toy_envs.DriftEnv(), episode_length=3)
  functions = segments.module_functions(env, _tiny_lstm)
  variables = segments.init(functions)
  data = segments.record(env, functions, variables, 2, 5)
  assert np.sum(data.done) > 2
  # Targets and advantages are constants of the loss; with fixed ones nothing
  # else is hidden from the differences. They are large, so that both losses
  # weigh, and ρ = 1 is in the smooth part of the clip.
  targets, advantages = jax.random.normal(jax.random.PRNGKey(8), (2, 5, 2))
  monkeypatch.setattr(
    losses, 'compute_gae', lambda **unused: (targets, advantages)
  )

  @jax.jit
  def loss(params):
    config = learners.loss_config(entropy_cost=0.3)
    return losses.ppo_loss(
      params,
      variables,
      None,
      data,
      jax.random.PRNGKey(0),
      networks=functions,
      config=config,
    )[0]

  grads = jax.grad(loss)(variables.params)
  assert all(np.any(leaf) for leaf in jax.tree.leaves(grads))
  jax.test_util.check_grads(
    loss, (variables.params,), order=1, modes=['rev'], eps=1e-2, rtol=2e-2
  )
