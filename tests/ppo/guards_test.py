"""Runs that go bad: what is said, and what is left of them."""

import dataclasses
import functools
import os
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo import guards
from brax_nnx_plugin.ppo.training_run import TrainingRun
from brax_nnx_plugin.ppo.types import TrainingDiverged
from tests import fakes
from tests import learners
from tests import small_runs

_NAN = float('nan')
_normalized_lstm = functools.partial(
  small_runs.small_lstm, normalize_inputs=True
)


class BadEnv(fakes.ScriptEnv):
  """Says something that is not finite once, in one row, by the clock.

  A small run has four rows, which take eight steps in a training step.
  """

  def __init__(
    self,
    at: int,
    reward: float = 1.0,
    observation: float = 0.0,
    device: int | None = None,
  ):
    super().__init__([[3], [], [1, 9], []])
    self._at = at
    self._reward = reward
    self._observation = observation
    self._device = device

  def step(self, state: Any, action: Any) -> Any:
    now = state.info['clock'] == self._at
    now &= jnp.arange(len(now)) == 1
    if self._device is not None:
      now &= jax.lax.axis_index('i') == self._device
    state = super().step(state, action)
    bad = jnp.where(now[:, None], self._observation, state.obs)
    return state.replace(
      obs=state.obs if self._observation == 0 else bad,
      reward=jnp.where(now, self._reward, state.reward),
    )


def _train(env: Any, **overrides: Any) -> Any:
  """A small run in a batched environment."""
  settings = {'environment': env, 'wrap_env': False, 'episode_length': None}
  return small_runs.small_train(**(settings | overrides))


def _all_finite(tree: Any) -> bool:
  """Whether all leaves are."""
  return all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(tree))


@pytest.mark.filterwarnings('ignore:Observations are normalized twice')
def test_what_is_left_is_what_the_last_finite_step_left():
  settings: dict[str, Any] = {
    'network_factory': _normalized_lstm,
    'normalize_observations': True,
  }
  # The second training step of an epoch of ten.
  with pytest.raises(TrainingDiverged) as caught:
    _train(BadEnv(at=12, observation=_NAN), **settings)

  error = caught.value
  assert error.metric == 'observation'
  assert error.env_steps == small_runs.STEP
  assert str(error) == (
    'observation is not finite in the training step after 32 env steps.'
  )
  # The same first step, in an epoch of one: weights and both statistics.
  _, params, _ = _train(
    BadEnv(at=-1), num_timesteps=small_runs.STEP, **settings
  )
  assert int(params[0].count) == small_runs.STEP
  jax.tree.map(np.testing.assert_array_equal, error.params, params)


@pytest.fixture(scope='module')
def diverged(tmp_path_factory):
  """A run whose fourth training step, of two an epoch, has a bad reward."""
  folder = tmp_path_factory.mktemp('diverged')
  seen: dict[str, Any] = {'folder': folder, 'params': [], 'reports': []}
  with pytest.raises(TrainingDiverged) as caught:
    _train(
      BadEnv(at=28, reward=_NAN),
      num_evals=6,
      save_checkpoint_path=str(folder),
      policy_params_fn=lambda step, make, p: seen['params'].append((step, p)),
      progress_fn=lambda step, metrics: seen['reports'].append(step),
    )
  return seen | {'error': caught.value}


def test_a_bad_reward_is_named_with_its_step(diverged):
  assert diverged['error'].metric == 'reward'
  assert diverged['error'].env_steps == 3 * small_runs.STEP
  assert _all_finite(diverged['error'].params)


def test_callbacks_and_checkpoints_see_only_finite_parameters(diverged):
  assert diverged['reports'] == [2 * small_runs.STEP]
  assert [step for step, _ in diverged['params']] == [0, 2 * small_runs.STEP]
  assert os.listdir(diverged['folder']) == ['000000000064']
  _, saved = checkpoint.load(diverged['folder'])
  assert _all_finite(saved)
  jax.tree.map(
    np.testing.assert_array_equal, saved[1:], diverged['params'][-1][1][1:]
  )


def test_the_error_can_be_sent_to_another_process(diverged):
  copy = pickle.loads(pickle.dumps(diverged['error']))

  assert str(copy) == str(diverged['error'])
  assert copy.env_steps == diverged['error'].env_steps


def test_who_allows_it_trains_on_as_brax_would():
  with guards.allow_non_finite():
    _, params, _ = _train(
      BadEnv(at=12, reward=_NAN), num_timesteps=3 * small_runs.STEP
    )

  assert not _all_finite(params[1:])
  # Only within.
  assert guards.active()


@pytest.mark.slow
def test_the_guard_changes_no_finite_number():
  settings: dict[str, Any] = {
    'num_timesteps': 3 * small_runs.STEP,
    'normalize_observations': True,
  }
  _, guarded, metrics = small_runs.small_train(**settings)
  with guards.allow_non_finite():
    _, plain, plain_metrics = small_runs.small_train(**settings)

  jax.tree.map(np.testing.assert_array_equal, guarded, plain)
  assert metrics.keys() == plain_metrics.keys()
  for name, value in metrics.items():
    if not name.endswith(('sps', 'walltime')):
      np.testing.assert_array_equal(value, plain_metrics[name], name)


@pytest.mark.slow
def test_what_one_device_sees_stops_all():
  config = small_runs.config(
    # Seen by one device, at the end of a training step: nothing that the
    # devices share is touched by it.
    environment=BadEnv(at=23, observation=float('inf'), device=1),
    wrap_env=False,
    num_timesteps=3 * small_runs.STEP,
    max_devices_per_host=2,
  )
  run = TrainingRun(config)

  with pytest.raises(TrainingDiverged, match='^observation .* after 64 env'):
    run.train_round()

  assert device_lib.drifted_leaves(run.state) == []
  assert _all_finite(run.state)


@pytest.fixture(scope='module')
def step_parts():
  """What a training step starts with, and what it says."""
  rig = learners.make_rig(
    fakes.ScriptEnv([[], []]), learners.small_factory('mlp')
  )
  row = lambda tree: jax.tree.map(lambda x: x[0], tree)
  state, actors = row(rig.state), row(rig.actors)
  shapes = jax.eval_shape(rig.learner.collect, state, actors, rig.keys[0])[1]
  data = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)
  losses = ('policy_loss', 'v_loss', 'entropy_loss', 'total_loss', 'kl_mean')
  metrics = {name: jnp.ones((2, 3)) for name in (*losses, 'network/a_loss')}
  return data, metrics, state


def _first_bad(data: Any, metrics: Any, before: Any, after: Any) -> str | None:
  """The name of what went bad first, on one device."""
  find = functools.partial(guards.first_bad, axis_name='i')
  found = jax.vmap(find, axis_name='i')(
    *jax.tree.map(lambda x: x[None], (data, metrics, before, after))
  )
  names = guards.names(data.observation, metrics, before)
  return None if found[0] == guards.NOTHING else names[int(found[0])]


def _spoil(metrics: Any, **minibatches: Any) -> Any:
  """Metrics that are not finite in the given minibatches."""
  spoiled = dict(metrics)
  for name, (epoch, minibatch) in minibatches.items():
    spoiled[name] = metrics[name].at[epoch, minibatch].set(_NAN)
  return spoiled


@pytest.mark.parametrize(
  ('minibatches', 'name'),
  [
    ({}, None),
    ({'v_loss': (1, 0), 'total_loss': (1, 0)}, 'training/v_loss'),
    # In the order of the gradient steps.
    ({'policy_loss': (1, 0), 'v_loss': (0, 2)}, 'training/v_loss'),
    ({'total_loss': (0, 1), 'policy_loss': (0, 2)}, 'training/total_loss'),
    # What is only reported may be what it likes.
    ({'kl_mean': (0, 0), 'network/a_loss': (0, 0)}, None),
  ],
)
def test_the_first_loss_is_named(step_parts, minibatches, name):
  data, metrics, state = step_parts

  assert _first_bad(data, _spoil(metrics, **minibatches), state, state) == name


def _change_first(tree: Any, value: float) -> Any:
  """Changes one number of the first leaf."""
  leaves, treedef = jax.tree.flatten(tree)
  leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].set(value)
  return jax.tree.unflatten(treedef, leaves)


def test_a_parameter_that_is_lost_is_named_and_one_that_was_is_not(step_parts):
  data, metrics, state = step_parts
  variables = _change_first(state.variables, float('inf'))
  lost = dataclasses.replace(state, variables=variables)

  name = _first_bad(data, metrics, state, lost)
  assert name is not None
  assert name.startswith('variables.params.policy.')
  assert _first_bad(data, metrics, lost, lost) is None


def test_a_cause_is_named_before_what_it_does(step_parts):
  data, metrics, state = step_parts
  lost = dataclasses.replace(
    state, variables=_change_first(state.variables, _NAN)
  )
  metrics = _spoil(metrics, policy_loss=(0, 0))
  args = metrics, state, lost

  assert _first_bad(data, *args) == 'training/policy_loss'
  data = dataclasses.replace(data, reward=_change_first(data.reward, _NAN))
  assert _first_bad(data, *args) == 'reward'
  last = _change_first(data.last_observation, -float('inf'))
  data = dataclasses.replace(data, last_observation=last)
  assert _first_bad(data, *args) == 'observation'


def test_the_bad_entry_of_a_dict_observation_is_named(step_parts):
  data, metrics, state = step_parts
  good = {'clock': jnp.zeros((2, 4, 1), jnp.int32), 'state': data.observation}
  bad = good | {'state': data.observation.at[1, 2, 0].set(_NAN)}
  last = {name: entry[:, 0] for name, entry in good.items()}
  data = dataclasses.replace(data, observation=bad, last_observation=last)

  assert _first_bad(data, metrics, state, state) == 'observation.state'
