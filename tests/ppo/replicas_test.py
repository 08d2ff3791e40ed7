"""1, 2 and 4 devices: one gradient, equal copies, noise of their own.

The tests use the devices there are; the last one runs them all on four.
"""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo import rollout_data
from brax_nnx_plugin.ppo.learner import Learner
from brax_nnx_plugin.ppo.training_run import TrainingRun
from tests import hosts
from tests import learners
from tests import small_runs

_COUNTS = [
  pytest.param(
    n,
    marks=pytest.mark.skipif(
      n > jax.local_device_count(), reason='run by the last test'
    ),
  )
  for n in (1, 2, 4)
]
_ROWS, _STEPS = 4, 5


class PlainDescent(Learner):
  """Takes the gradient as it is, so that a step shows it."""

  optimizer: Any = optax.sgd(1.0)


def _rig(device_count: int) -> learners.Rig:
  """An LSTM with embedded statistics; one minibatch of 8 segments."""
  return learners.drift_rig(
    learners.small_factory('lstm', normalize_inputs=True),
    learner_class=PlainDescent,
    device_count=device_count,
    num_envs=_ROWS,
    batch_size=2 * _ROWS,
    num_minibatches=1,
    num_updates_per_batch=1,
    unroll_length=_STEPS,
    # As in Brax, a device standardises the advantages of its own rows and draws
    # noise for their entropy; the gradient is then none of the batch alone.
    normalize_advantage=False,
    entropy_cost=0.0,
  )


@functools.cache
def _batch() -> Any:
  """A global batch `[8, T, ...]`, recorded on one device, and its state."""
  rig = _rig(1)
  collect = rig.devices.pmap(rig.learner.collect)
  _, data = collect(rig.state, rig.actors, rig.keys)
  # As NumPy arrays they are on no device yet.
  return jax.tree.map(np.asarray, device_lib.first((rig.state, data)))


def _learn(device_count: int) -> Any:
  """Learns once from the global batch, spread over devices.

  Returns the copies of the parameters and of the statistics afterwards.
  """
  state, data = _batch()
  rig = _rig(device_count)
  learner = rig.learner

  def learn(state, data):
    rows = jnp.arange(data.done.shape[0])
    carry = (state.optimizer_state, state.variables.params)
    (_, params, _), _ = learner.minibatch_step(
      (*carry, jax.random.PRNGKey(0)), rows, state=state, data=data
    )
    extras = rollout_data.full_extras(data)
    time_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), extras)
    variables = learner.networks.update_statistics(
      state.variables, time_first, learner.axis_name
    )
    return params, variables.statistics

  spread = jax.tree.map(
    lambda x: x.reshape((device_count, -1, *x.shape[1:])), data
  )
  return rig.devices.pmap(learn)(rig.devices.replicate(state), spread)


@functools.cache
def _learned(device_count: int) -> Any:
  return _learn(device_count)


@pytest.mark.parametrize('count', _COUNTS)
def test_a_global_batch_gives_one_gradient(count):
  before = _batch()[0].variables.params
  gradient = lambda after: jax.tree.map(
    lambda a, b: np.asarray(a - b), before, device_lib.first(after[0])
  )
  expected, actual = gradient(_learned(1)), gradient(_learned(count))
  for (path, leaf), other in zip(
    jax.tree_util.tree_leaves_with_path(expected),
    jax.tree.leaves(actual),
    strict=True,
  ):
    name = jax.tree_util.keystr(path)
    assert np.abs(leaf).max() > 1e-4, name
    np.testing.assert_allclose(other, leaf, atol=1e-5, err_msg=name)


@pytest.mark.parametrize('count', _COUNTS)
def test_a_global_batch_gives_one_set_of_statistics(count):
  before = jax.tree.leaves(_batch()[0].variables.statistics)
  expected, actual = (
    jax.tree.leaves(device_lib.first(_learned(n)[1])) for n in (1, count)
  )
  assert any(
    not np.array_equal(a, b) for a, b in zip(before, expected, strict=True)
  )
  for leaf, other in zip(expected, actual, strict=True):
    np.testing.assert_allclose(other, leaf, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('count', _COUNTS)
def test_copies_stay_equal_leaf_by_leaf(count):
  assert device_lib.drifted_leaves(_learned(count)) == []


@functools.cache
def _run(device_count: int) -> TrainingRun:
  run = TrainingRun(
    small_runs.config(
      num_timesteps=3 * small_runs.STEP,
      max_devices_per_host=device_count,
      normalize_observations=True,
      network_factory=functools.partial(
        small_runs.small_lstm, normalize_inputs=True
      ),
    )
  )
  run.train_round()
  return run


@pytest.mark.filterwarnings('ignore:Observations are normalized twice')
@pytest.mark.parametrize('count', _COUNTS)
def test_a_run_keeps_copies_equal_leaf_by_leaf(count):
  run = _run(count)
  leaves = jax.tree.leaves(run.state)
  assert all(len(leaf.addressable_shards) == count for leaf in leaves)
  assert device_lib.drifted_leaves(run.state) == []


def _acting_run(device_count: int) -> tuple[TrainingRun, list[Any]]:
  """A run that only acts, and the list that its segments go to."""
  run = TrainingRun(
    small_runs.config(
      max_devices_per_host=device_count, network_factory=small_runs.small_lstm
    )
  )
  collect = run._devices.pmap(run._learner.collect)
  segments = []

  def act(state, actors, keys):
    actors, data = collect(state, actors, keys)
    segments.append(data)
    return state, actors, {}

  run._run_epoch = act
  return run, segments


@pytest.mark.parametrize('count', _COUNTS)
def test_noise_differs_on_every_device_row_and_step(count):
  run, segments = _acting_run(count)
  run.train_round()
  run.train_round()
  noise = []
  for data in segments:
    # The raw action is what else has the shape of a location.
    (raw,) = (
      x for x in jax.tree.leaves(data.extras) if x.shape == data.loc.shape
    )
    noise.append(np.asarray((raw - data.loc) / data.scale).ravel())
  noise = np.concatenate(noise)
  assert noise.size == 2 * small_runs.STEP
  assert np.diff(np.sort(noise)).min() > 1e-5
  assert 0.5 < noise.std() < 1.5


@pytest.mark.slow
@pytest.mark.skipif(
  jax.local_device_count() >= 4, reason='this is the run on four'
)
def test_all_of_this_holds_on_four_devices():
  ((code, text, _),) = hosts.finish(
    hosts.start('-m', 'pytest', '-q', os.path.abspath(__file__), devices=4)
  )
  assert code == 0, text
  assert '15 passed, 1 skipped' in text
