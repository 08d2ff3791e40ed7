"""Tests of embedded statistics in training: what enters them, and when."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo.evaluation import Evaluator
from tests import learners
from tests import toy_envs


def _statistics(tree):
  """Maps the names of the normalizer's three variables to their values."""
  found = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    for name in ('mean', 'M2', 'counter'):
      if name in jax.tree_util.keystr(path):
        found[name] = np.asarray(leaf)
  assert len(found) == 3
  return found


def _rig(kind, env, **kwargs):
  factory = learners.small_factory(kind, normalize_inputs=True)
  return learners.make_rig(env, factory, **kwargs)


@pytest.mark.parametrize(
  ('kind', 'epochs'),
  [('mlp', 4), pytest.param('lstm', 1, marks=pytest.mark.slow)],
)
def test_statistics_are_those_of_the_raw_rollout_inputs(kind, epochs):
  rows, steps, rounds = 2, 4, 3
  rng = np.random.default_rng(0)
  observations = rng.normal(5, 2, size=(steps * rounds + 1, rows, 2))
  env = toy_envs.TableEnv(observations)
  rig = _rig(
    kind, env, num_envs=rows, unroll_length=steps, num_updates_per_batch=epochs
  )
  evaluator = Evaluator(
    env,
    rig.learner.networks,
    num_eval_envs=rows,
    episode_length=3,
    action_repeat=1,
    key=jax.random.PRNGKey(0),
    deterministic=False,
  )
  for k in range(1, rounds + 1):
    rig.step()
    # Once per step of the rollout, not per epoch; not the bootstrap
    # observation, which is the one after the last.
    seen = observations[: k * steps].reshape((-1, 2))
    found = _statistics(rig.variables.statistics)
    assert found['counter'] == k * steps * rows
    np.testing.assert_allclose(found['mean'], seen.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(
      found['M2'] / found['counter'], seen.var(axis=0), atol=1e-4
    )
    evaluator.run(device_lib.first(rig.state), {})
    for name, value in _statistics(rig.variables.statistics).items():
      np.testing.assert_array_equal(value, found[name])


def test_statistics_are_of_all_devices_together():
  # Device 0 sees 0 and device 1 sees 2: the mean is 1 and the variance 1.
  env = toy_envs.TableEnv(np.zeros((8, 1, 2)))
  rig = _rig('mlp', env, device_count=2, num_envs=2, batch_size=2)
  env_state = rig.actors.env_state
  shift = jnp.array([[0.0], [2.0]])
  rig.actors = dataclasses.replace(
    rig.actors,
    env_state=env_state.replace(
      obs=env_state.obs + shift[..., None],
      info={**env_state.info, 'shift': shift},
    ),
  )
  rig.step()
  found = _statistics(rig.state.variables.statistics)
  np.testing.assert_array_equal(found['counter'], [16, 16])
  np.testing.assert_allclose(found['mean'], np.ones((2, 2)), rtol=1e-6)
  np.testing.assert_allclose(found['M2'] / 16, np.ones((2, 2)), rtol=1e-6)
  assert not device_lib.drifted_leaves(rig.state)


def test_two_devices_find_the_statistics_of_one_on_the_union():
  # Rows of one device, or the same rows spread over two.
  observations = np.random.default_rng(0).normal(5, 2, size=(8, 1, 2))
  both = np.concatenate([observations, observations + 2], axis=1)
  one = _rig('mlp', toy_envs.TableEnv(both), num_envs=2, batch_size=2)
  two = _rig(
    'mlp',
    toy_envs.TableEnv(observations),
    device_count=2,
    num_envs=2,
    batch_size=2,
  )
  env_state = two.actors.env_state
  shift = jnp.array([[0.0], [2.0]])
  two.actors = dataclasses.replace(
    two.actors,
    env_state=env_state.replace(
      obs=env_state.obs + shift[..., None],
      info={**env_state.info, 'shift': shift},
    ),
  )
  one.step()
  two.step()
  expected = _statistics(one.variables.statistics)
  for name, value in _statistics(two.variables.statistics).items():
    np.testing.assert_allclose(value, expected[name], rtol=1e-5)


def test_optimizer_has_no_slot_for_statistics():
  env = toy_envs.TableEnv(np.zeros((8, 2, 2)))
  rig = _rig('lstm', env)
  state = device_lib.first(rig.state)
  size = lambda tree: sum(np.size(leaf) for leaf in jax.tree.leaves(tree))
  assert size(state.variables.statistics) == 2 + 2 + 1
  # Adam: two moments of each parameter, and a count.
  assert size(state.optimizer_state) == 2 * size(state.variables.params) + 1
  names = [
    jax.tree_util.keystr(path)
    for path, _ in jax.tree_util.tree_leaves_with_path(
      (state.optimizer_state, state.variables.params)
    )
  ]
  assert not any(
    word in name for name in names for word in ('statistics', 'counter', 'M2')
  )


@dataclasses.dataclass(frozen=True)
class _NeverFolds:
  """A network whose `update_statistics` does nothing."""

  inner: object

  def __getattr__(self, name):
    return getattr(self.inner, name)

  def update_statistics(self, variables, extras, axis_name):
    del extras, axis_name
    return variables


def test_statistics_change_by_folding_only():
  observations = np.random.default_rng(0).normal(5, 2, size=(16, 2, 2))
  rig = _rig('mlp', toy_envs.TableEnv(observations))
  before = rig.variables
  networks = _NeverFolds(rig.learner.networks)
  learner = dataclasses.replace(rig.learner, networks=networks)
  rig = dataclasses.replace(rig, learner=learner)
  rig.step()
  rig.step()
  for a, b in zip(
    jax.tree.leaves(before.statistics),
    jax.tree.leaves(rig.variables.statistics),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)
  for a, b in zip(
    jax.tree.leaves(before.params),
    jax.tree.leaves(rig.variables.params),
    strict=True,
  ):
    assert not np.array_equal(a, b)
