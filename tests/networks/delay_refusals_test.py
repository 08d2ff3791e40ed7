"""A delay line: what it refuses, and what it says about it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.delay import Delay


@pytest.mark.parametrize('kwargs', [{}, {'k': 2, 'k_steps': 2}], ids=str)
def test_a_delay_that_is_missing_or_given_twice_is_refused(kwargs):
  with pytest.raises(TypeError, match='once, as k_steps or as k; got k_steps='):
    Delay(3, **kwargs)


@pytest.mark.parametrize('steps', [0, -1, 2.0, True, '2'], ids=repr)
@pytest.mark.parametrize('name', ['k', 'k_steps'])
def test_a_delay_that_is_no_positive_int_is_refused(name, steps):
  with pytest.raises(ValueError, match=f'at least 1; got k_steps={steps!r}'):
    Delay(3, **{name: steps})


def test_numpy_ints_are_ints():
  steps: Any = np.int32(2)
  assert Delay(3, steps).k_steps == 2


@pytest.mark.parametrize('sample', [{}, {'a': {}}, None], ids=str)
def test_a_sample_without_arrays_is_refused(sample):
  with pytest.raises(ValueError, match='at least one array; the sample has'):
    Delay(sample, 2)


def test_a_sample_that_is_no_shape_and_no_array_is_refused():
  with pytest.raises(TypeError, match='Delay needs an int, a tuple of ints'):
    Delay({'a': 'text'}, 2)


@pytest.mark.parametrize(
  ('dtype', 'value'),
  [
    ('uint8', -1),
    ('uint8', 256),
    ('int32', 0.5),
    ('int32', 2**31),
    ('int32', float('inf')),
    ('bool', 0.5),
    ('bool', 2),
    ('float32', 1e39),
    ('float16', 70000),
    ('float32', float('nan')),
    ('float32', '0'),
    ('float32', None),
    ('float32', np.zeros(2)),
  ],
  ids=str,
)
def test_an_initial_value_that_does_not_fit_is_refused(dtype, value):
  leaf = jnp.zeros(2, dtype)
  for sample in (leaf, {'wide': jnp.zeros((), 'float32'), 'leaf': leaf}):
    with pytest.raises(ValueError, match=f'initial_value=.*type {dtype}'):
      Delay(sample, 2, value)


@pytest.mark.parametrize(
  ('dtype', 'value'),
  [
    ('uint8', 255.0),
    ('uint32', 2**32 - 1),
    ('int32', np.int64(-3)),
    ('bool', 1.0),
    ('bfloat16', 3e38),
    ('float32', float('-inf')),
    ('float32', jnp.float32(0.5)),
    ('float32', 2),
  ],
  ids=str,
)
def test_an_initial_value_that_fits_is_taken(dtype, value):
  layer = Delay(jnp.zeros((), dtype), 1, value)
  out = layer(layer.initialize_state(1), jnp.zeros(1, dtype)).output
  assert out.dtype == dtype
  np.testing.assert_array_equal(out, np.asarray([value], out.dtype))


SAMPLE = {'a': 2, 'b': jnp.zeros((), jnp.int32)}


@pytest.mark.parametrize(
  ('x', 'expected'),
  [
    ({'a': jnp.zeros((3, 2))}, r"'b': 'int32\[3\]'.*the input is {'a':"),
    ((jnp.zeros((3, 2)),) * 2, r'asks for {.*the input is \('),
    (
      {'a': jnp.zeros((3, 4)), 'b': jnp.zeros(3, int)},
      r'float32\[3, 2\].*float32\[3, 4\]',
    ),
    (
      {'a': jnp.zeros((3, 2)), 'b': jnp.zeros(3)},
      r"'b': 'int32\[3\]'.*'b': 'float32\[3\]'",
    ),
    (
      {'a': jnp.zeros((1, 2)), 'b': jnp.zeros(3, int)},
      r'float32\[3, 2\].*float32\[1, 2\]',
    ),
    (
      {'a': jnp.zeros(2), 'b': jnp.zeros(3, int)},
      r'float32\[3, 2\].*float32\[2\]',
    ),
  ],
  ids=['entry', 'container', 'shape', 'type', 'batch', 'no batch'],
)
def test_an_input_unlike_the_sample_is_refused(x, expected):
  layer = Delay(SAMPLE, 2)
  state = layer.initialize_state(3)
  with pytest.raises(ValueError, match=f'Delay: its sample_input.*{expected}'):
    layer(state, x)
  sequence = jax.tree.map(lambda v: v[None], x)
  with pytest.raises(ValueError, match='Delay: its sample_input'):
    layer.unroll(state, sequence, jnp.zeros((1, 3)))
