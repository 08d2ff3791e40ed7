"""Copies on devices, and the check that they agree."""

from typing import Any

from brax.training import pmap as brax_pmap
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo.training_run import TrainingRun
from tests import small_runs


@pytest.mark.parametrize(('limit', 'count'), [(None, 2), (1, 1), (99, 2)])
def test_a_limit_takes_the_first_devices(limit, count):
  devices = device_lib.Devices.of(limit)

  assert devices.count == count
  assert list(devices.local) == jax.local_devices()[:count]


@pytest.mark.parametrize('limit', [0, -1])
def test_no_devices_is_an_error(limit):
  with pytest.raises(ValueError, match=f'max_devices_per_host.*{limit}'):
    device_lib.Devices.of(limit)


def test_one_device_has_no_axis_to_combine_over():
  assert device_lib.Devices.of(1).axis_name is None
  assert device_lib.Devices.of(2).axis_name == 'i'


@pytest.mark.parametrize('count', [1, 2])
@pytest.mark.parametrize(
  'leaf',
  [
    np.float32(3.5),
    np.arange(6).reshape(2, 3),
    jax.random.PRNGKey(3),
    jax.random.key(3),
    jax.random.split(jax.random.key(3), 4),
    np.zeros((0, 2)),
  ],
  ids=['scalar', 'matrix', 'raw key', 'typed key', 'typed keys', 'empty'],
)
def test_every_device_gets_a_copy(count, leaf):
  devices = device_lib.Devices.of(count)

  copies = devices.replicate({'a': leaf})['a']

  assert copies.shape == (count, *jnp.shape(leaf))
  assert [shard.device for shard in copies.addressable_shards] == list(
    devices.local
  )
  plain = jnp.asarray(leaf)
  assert copies.dtype == plain.dtype
  one = device_lib.first({'a': copies})['a']
  assert one.dtype == plain.dtype
  assert bool(jnp.all(one == plain))
  assert device_lib.drifted_leaves({'a': copies}) == []


def test_copies_can_be_mapped_over():
  devices = device_lib.Devices.of(2)
  tree = devices.replicate({'a': jnp.array([1.0, 2.0])})

  rank = devices.pmap(lambda t: t['a'] + jax.lax.axis_index('i'))(tree)

  np.testing.assert_array_equal(rank, [[1, 2], [2, 3]])


def test_weak_types_become_definite():
  tree = {'weak': jnp.asarray(1.0), 'python': 2, 'strong': jnp.zeros(2)}

  stripped = device_lib.strip_weak_type(tree)

  assert tree['weak'].weak_type
  assert not any(x.weak_type for x in jax.tree.leaves(stripped))
  assert stripped['weak'] == 1.0
  assert stripped['python'].dtype == jnp.int32


def _with_second_copy(leaf: Any, copy: Any) -> Any:
  """Replaces what the second device has of a replicated leaf."""
  shards = [shard.data for shard in leaf.addressable_shards]
  shards[1] = jax.device_put(copy, shards[1].device)
  return jax.make_array_from_single_device_arrays(
    leaf.shape, leaf.sharding, shards
  )


@pytest.mark.parametrize('last', [2.5, np.nan])
def test_swapped_elements_drift_though_their_sum_does_not(last):
  devices = device_lib.Devices.of(2)
  tree = devices.replicate(
    {'kernel': jnp.array([1.0, 2.0, last]), 'bias': jnp.ones(3)}
  )

  tree['kernel'] = _with_second_copy(
    tree['kernel'], np.array([[2.0, 1.0, last]], np.float32)
  )

  if not np.isnan(last):
    brax_pmap.assert_is_replicated(tree)
  assert device_lib.drifted_leaves(tree) == ["['kernel']"]


def test_equal_nans_do_not_drift():
  tree = device_lib.Devices.of(2).replicate({'a': jnp.array([np.nan, 1.0])})

  assert device_lib.drifted_leaves(tree) == []


def test_a_typed_key_that_differs_drifts():
  keys = device_lib.Devices.of(2).pmap(jax.random.key)(jnp.arange(2))

  assert device_lib.drifted_leaves({'key': keys}) == ["['key']"]


@pytest.fixture(scope='module')
def lstm_run():
  """Three training steps of an LSTM with statistics, on two devices."""
  run = TrainingRun(
    small_runs.config(
      max_devices_per_host=2,
      num_timesteps=3 * small_runs.STEP,
      network_factory=lambda *args, **kwargs: small_runs.small_lstm(
        *args, normalize_inputs=True, **kwargs
      ),
    )
  )
  run.train_round()
  return run


def test_training_keeps_the_devices_in_step(lstm_run):
  brax_pmap.assert_is_replicated(lstm_run.state)
  for leaf in jax.tree.leaves(lstm_run.state):
    first, second = (np.asarray(s.data) for s in leaf.addressable_shards)
    np.testing.assert_array_equal(first, second)
  assert device_lib.drifted_leaves(lstm_run.state) == []
  # Devices act differently all the same: other rows, other noise.
  positions = np.asarray(lstm_run.actors.env_state.obs)
  assert not np.array_equal(positions[0], positions[1])


def test_a_drifted_leaf_of_a_training_state_is_named(lstm_run):
  leaves, treedef = jax.tree.flatten(lstm_run.state)
  paths = jax.tree_util.tree_leaves_with_path(lstm_run.state)
  index, name = next(
    (i, jax.tree_util.keystr(path))
    for i, (path, leaf) in enumerate(paths)
    if 'params' in jax.tree_util.keystr(path) and leaf.shape[1:] == (2,)
  )
  second = np.asarray(leaves[index].addressable_shards[1].data)

  leaves[index] = _with_second_copy(leaves[index], second[:, ::-1])

  assert device_lib.drifted_leaves(jax.tree.unflatten(treedef, leaves)) == [
    name
  ]
  assert second[0, 0] != second[0, 1]
