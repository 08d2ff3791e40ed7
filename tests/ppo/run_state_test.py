"""The state of a run as arrays: keys, tuples, lists, None and empty trees."""

import functools
from typing import Any

from brax.training.acme import running_statistics
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brax_nnx_plugin.ppo import arrays
from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo import run_state


def _through_files(tree: Any, fresh: Any, folder: Any) -> Any:
  """Saves a tree and puts it into a fresh one."""
  copied = run_state.flatten(run_state.copy_one(tree))
  arrays.write(folder, {'state': copied})
  saved = arrays.read(folder, 'state')
  assert run_state.misfits(saved, fresh, run_state.key_types(tree)) == []
  return run_state.fill(fresh, saved)


@pytest.mark.parametrize('impl', ['threefry2x32', 'rbg'])
def test_typed_keys_come_back_as_they_went(tmp_path, impl):
  def keys(seed):
    key = jax.random.key(seed, impl=impl)
    return {'one': key, 'rows': jax.random.split(key, 3)}

  back = _through_files(keys(1), keys(2), tmp_path)

  draw = functools.partial(jax.random.normal, shape=(2,))
  for name, key in keys(1).items():
    assert back[name].dtype == key.dtype
    assert jax.random.key_impl(back[name]) == jax.random.key_impl(key)
    np.testing.assert_array_equal(
      draw(back[name].ravel()[-1]), draw(key.ravel()[-1])
    )


def test_the_structure_is_that_of_the_fresh_run(tmp_path):
  params = {'layers': {i: jnp.full(i + 1, float(i)) for i in range(12)}}
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

  def tree(scale):
    scaled = jax.tree.map(lambda x: scale * x, params)
    return {
      'optimizer': optimizer.init(scaled),
      'lists': [scaled, (), None, {}, (jnp.int32(scale), [jnp.ones(0)])],
      'params': scaled,
    }

  saved = tree(3)
  back = _through_files(saved, tree(1), tmp_path)

  assert jax.tree.structure(back) == jax.tree.structure(saved)
  for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(saved), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
  # '10' comes before '2' as a text.
  assert back['params']['layers'][10].shape == (11,)


def test_misfits_are_named():
  fresh = {'a': jnp.ones(2), 'b': jnp.ones(2), 'k': jax.random.key(0)}
  saved = {'a': np.ones(3), 'c': np.ones(2), 'k': np.zeros(2, np.uint32)}
  kind = run_state.key_types(fresh)['k']
  assert run_state.misfits(saved, fresh, {'k': 'rbg'}) == [
    'a: saved (3,), needed (2,)',
    'b: not saved',
    'c: not needed',
    'a: saved float64, needed float32',
    f'k: saved rbg, needed {kind}',
  ]


def test_two_arrays_of_one_name_are_refused():
  tree = {'a.b': np.ones(1), 'a': {'b': np.ones(1)}}
  with pytest.raises(ValueError, match=r'two arrays called a\.b.*save_state'):
    run_state.flatten(tree)


@pytest.mark.parametrize('count', [1, 2])
def test_rows_are_copied_in_the_order_of_devices(count):
  devices = device_lib.Devices.of(count)
  rows = np.arange(4.0).reshape(count, -1)
  keys = jax.random.split(jax.random.key(0), count)
  doubled = devices.pmap(lambda x, k: (2 * x, k))(rows, keys)
  values, data = run_state.gather(doubled)
  np.testing.assert_array_equal(values, 2 * rows)
  np.testing.assert_array_equal(data, jax.random.key_data(keys))
  assert values.flags.owndata


def test_counts_of_64_bits_are_arrays_of_numpy():
  spec = jax.ShapeDtypeStruct((2,), jnp.float32)
  statistics = running_statistics.init_state(spec)
  copied = run_state.flatten(run_state.copy_one(statistics))
  assert any(name.endswith('hi') for name in copied)
  assert {type(x) for x in copied.values()} == {np.ndarray}
