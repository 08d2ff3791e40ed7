"""Layers that project, reshape and route pytrees."""

from collections import OrderedDict
from typing import Any
from typing import NamedTuple

from flax import nnx
from flax.core import FrozenDict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.containers import Splitter
from brax_nnx_plugin.networks.utils import Flattener
from brax_nnx_plugin.networks.utils import Map
from brax_nnx_plugin.networks.utils import Merge
from brax_nnx_plugin.networks.utils import Scale
from tests import fakes
from tests.networks import cases

X = {
  'state': jnp.array([[1.0, 2.0]]),
  'camera': {'left': jnp.array([[3.0]]), 'pair': [jnp.array([[4.0]])]},
}


def _run(spec: Any) -> Any:
  return networks.Filter(spec)((), X).output


@pytest.mark.parametrize(
  ('spec', 'expected'),
  [
    ('state', [[1.0, 2.0]]),
    (('state',), [[1.0, 2.0]]),
    (('camera', 'left'), [[3.0]]),
    (('camera', 'pair', 0), [[4.0]]),
    (lambda x: x['state'][:, 1:], [[2.0]]),
  ],
  ids=['key', 'path of one', 'path', 'path with index', 'function'],
)
def test_filter_takes_an_entry(spec, expected):
  np.testing.assert_array_equal(_run(spec), expected)
  named = _run({'out': spec})
  assert list(named) == ['out']
  np.testing.assert_array_equal(named['out'], expected)


def test_filter_drops_what_it_does_not_name_and_keeps_the_order():
  output = _run({'z': 'state', 'a': ('camera', 'left')})
  assert list(output) == ['z', 'a']


def test_filter_survives_split_and_merge():
  spec = {'z': 'state', 'a': lambda x: x['camera']['left'] * 2}
  merged = nnx.merge(*nnx.split(networks.Filter(spec)))
  output = merged((), X).output
  assert list(output) == ['z', 'a']
  np.testing.assert_array_equal(output['a'], [[6.0]])


def test_filter_does_not_follow_later_changes_of_its_spec():
  spec = {'a': 'state'}
  layer = networks.Filter(spec)
  spec['b'] = 'state'
  assert list(layer((), X).output) == ['a']


@pytest.mark.parametrize('spec', ['speed', ('camera', 'speed')], ids=str)
def test_filter_names_the_missing_key_and_what_there_is(spec):
  has = 'state' if spec == 'speed' else 'left'
  with pytest.raises(ValueError, match=f"'speed'.*{has}"):
    _run(spec)


@pytest.mark.parametrize('spec', [3, ['state'], {'a': 3}], ids=str)
def test_filter_refuses_what_is_no_spec(spec):
  with pytest.raises(TypeError, match='a key, a tuple of keys or a function'):
    networks.Filter(spec)


def test_filter_does_not_take_rows_for_entries():
  # An index into an array would pick one environment of the batch.
  message = r'mapping with an entry 0; it is an array of shape \(1, 2\)'
  with pytest.raises(ValueError, match=message):
    _run(('state', 0))


@pytest.mark.parametrize('index', [-2, 1])
def test_filter_names_the_positions_there_are(index):
  message = rf'there is no {index} in the input; it has \[0\]'
  with pytest.raises(ValueError, match=message):
    _run(('camera', 'pair', index))


class Pair(NamedTuple):
  u: Any
  v: Any


def _leaf(*shape: int, start: float = 0.0) -> jax.Array:
  """Counts up, so that each number says where it came from."""
  return start + jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)


A, B, C = _leaf(2, 2, 2), _leaf(2, start=10), _leaf(2, 1, start=20)
ROWS = [[20.0, 0, 1, 2, 3, 10], [21.0, 4, 5, 6, 7, 11]]  # C, A, B


def _flatten(x: Any, levels: int = 0) -> Any:
  return Flattener(levels)((), x).output


@pytest.mark.parametrize(
  'x',
  [
    {'z': B, 'a': {'n': A, 'b': C}},
    OrderedDict(z=B, a=OrderedDict(n=A, b=C)),
    FrozenDict({'z': B, 'a': {'n': A, 'b': C}}),
    {'z': B, 'a': OrderedDict(n=A, b=C)},
    {'a': [OrderedDict(n=A, b=C)], 'z': B},
    [C, (A, B)],
    Pair(u=[C, A], v={'x': B}),
    {'a': np.asarray(C), 'b': np.asarray(A), 'c': np.asarray(B)},
  ],
  ids=[
    'dict',
    'OrderedDict',
    'FrozenDict',
    'mixed',
    'in a list',
    'sequences',
    'named tuple',
    'numpy',
  ],
)
def test_flattener_joins_all_leaves_row_by_row(x):
  np.testing.assert_array_equal(_flatten(x), ROWS)
  np.testing.assert_array_equal(jax.jit(_flatten)(x), ROWS)
  # Over time: the batch axis is not mistaken for a feature.
  sequence = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 100]), x)
  out = Flattener().unroll((), sequence, jnp.zeros((2, 2))).output
  np.testing.assert_array_equal(out, [ROWS, np.add(ROWS, 100)])


def test_flattener_keeps_as_many_levels_as_asked_for():
  x = OrderedDict(z=Pair(u={'n': A, 'b': C}, v=B), a=[C, (A, B)])
  a, b, c = np.reshape(A, (2, 4)), np.reshape(B, (2, 1)), np.asarray(C)
  join = lambda *parts: np.concatenate(parts, axis=-1)
  one = {'z': join(c, a, b), 'a': join(c, a, b)}
  two = {'z': Pair(join(c, a), b), 'a': [c, join(a, b)]}
  for levels, expected in ((1, one), (2, two)):
    out = _flatten(x, levels)
    assert jax.tree.structure(out) == jax.tree.structure(expected)
    cases.assert_same(out, expected)


def test_flattener_leaves_flat_leaves_as_they_are():
  x = {'z': C, 'a': (C, C)}
  cases.assert_same(_flatten({'z': C, 'a': C}, 1), {'z': C, 'a': C})
  np.testing.assert_array_equal(_flatten(x, 1)['z'], C)


@pytest.mark.parametrize(
  ('dtypes', 'expected'),
  [
    (['uint8'], 'uint8'),
    (['uint8', 'uint8'], 'uint8'),
    (['uint8', 'float32'], 'float32'),
    (['bool', 'float32'], 'float32'),
    (['bool', 'int32'], 'int32'),
    (['int32', 'bfloat16'], 'bfloat16'),
  ],
  ids=str,
)
def test_flattener_promotes_types(dtypes, expected):
  x = [jnp.ones((2, 3), dtype) for dtype in dtypes]
  out = _flatten(x)
  assert out.dtype == expected
  np.testing.assert_array_equal(out.astype(jnp.float32), 1)


@pytest.mark.parametrize(
  ('x', 'levels', 'message'),
  [
    ({}, 0, 'nothing to flatten in input'),
    ((), 1, 'nothing to flatten in input'),
    ({'a': {}, 'b': A}, 1, r"nothing to flatten in input\['a'\]"),
    ({'a': jnp.array(1.0)}, 0, r"input\['a'\] is one number for the whole"),
    ({'a': A, 'b': A[:1]}, 0, r"must agree; .*input\['b'\]\": \(1, 4\)"),
    (A, 1, r'preserve_levels is 1, but input is an array.* at level 0'),
    (
      {'a': [B]},
      3,
      r"levels is 3, but input\['a'\]\[0\] .*\(2,\) at level 2.* most 2",
    ),
  ],
)
def test_flattener_says_what_it_cannot_flatten(x, levels, message):
  with pytest.raises(ValueError, match=f'Flattener.*{message}'):
    _flatten(x, levels)


@pytest.mark.parametrize('levels', [-1, 1.0, True, None, 'all'])
def test_flattener_refuses_what_is_no_number_of_levels(levels):
  message = f'preserve_levels must be an int, 0 or more; got {levels!r}'
  with pytest.raises(ValueError, match=message):
    Flattener(levels)


@pytest.mark.parametrize(
  'factor', [2, -0.5, np.float32(0.25), np.int32(3), 0], ids=repr
)
def test_scale_multiplies_every_leaf(factor):
  x = {'a': A, 'b': [C]}
  out = Scale(factor)((), x).output
  cases.assert_same(out, jax.tree.map(lambda leaf: leaf * float(factor), x))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_scale_keeps_the_type_of_floats(dtype):
  x = jnp.array([[1.0, -3.0]], dtype)
  out = Scale(np.float64(0.5))((), x).output
  assert out.dtype == dtype
  np.testing.assert_array_equal(out.astype(jnp.float32), [[0.5, -1.5]])


@pytest.mark.parametrize('dtype', ['uint8', 'int32', 'bool'])
@pytest.mark.parametrize('x64', [False, True])
def test_scale_turns_whole_numbers_into_float32(dtype, x64):
  with jax.enable_x64(x64):
    x = jnp.array([[0, 1, 200]], dtype)
    out = Scale(2)((), x).output
    assert out.dtype == jnp.float32
    # 2 x 200 does not fit into a byte.
    expected = 2.0 * np.asarray(x).astype(np.float32)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
  'factor',
  [float('nan'), float('inf'), '2', None, True, 1j, np.ones(1), jnp.ones(())],
  ids=repr,
)
def test_scale_refuses_what_is_no_finite_number(factor):
  with pytest.raises(ValueError, match='Scale needs a finite'):
    Scale(factor)


def test_map_gives_each_child_its_entry_and_drops_the_others():
  net = Map(z=fakes.Echo(), a=Scale(2))
  state = {'z': C + 5, 'a': ()}
  out = net(state, {'a': C, 'b': C, 'z': A[0]})
  assert list(out.output) == ['z', 'a']
  cases.assert_same(out.output, {'z': C + 5, 'a': 2 * C})
  cases.assert_same(out.next_state, {'z': A[0][:, :1], 'a': ()})


def test_merge_gives_every_child_the_same_input_and_merges_their_dicts():
  net = Merge(
    one=Splitter(z=1, a=1),
    two=networks.Parallel({'count': fakes.Count(), 'b': Scale(2)}),
  )
  x = _leaf(3, 2)
  out = net(net.initialize_state(3), x)
  assert list(out.output) == ['z', 'a', 'count', 'b']
  expected = {'z': x[:, :1], 'a': x[:, 1:], 'count': jnp.zeros((3, 1))}
  cases.assert_same(out.output, expected | {'b': 2 * x})
  assert net.names == ('one', 'two')
  np.testing.assert_array_equal(out.next_state['two']['count'], [1, 1, 1])


def test_merge_takes_any_mapping():
  wrap = lambda kind, name: networks.Filter(lambda x: kind({name: x['u']}))
  net = Merge(b=wrap(OrderedDict, 'c'), a=wrap(FrozenDict, 'a'))
  out = net(net.initialize_state(2), {'u': C})
  cases.assert_same(out.output, {'c': C, 'a': C})
