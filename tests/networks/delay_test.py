"""A delay line: the input of k steps ago, of this episode only."""

import collections

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.delay import Delay
from tests.networks import cases
from tests.networks import queues

DTYPES = ('float32', 'bfloat16', 'int32', 'uint8', 'bool')


@pytest.mark.parametrize(
  ('dtype', 'k'), [*((d, 3) for d in DTYPES), ('float32', 1), ('int32', 9)]
)
def test_output_is_the_input_of_k_steps_ago_in_this_episode(dtype, k):
  x, is_first = queues.draw(dtype, 8, 3, 2), cases.masks(8, 3)
  layer = Delay(jnp.zeros(2, dtype), k)
  state = layer.initialize_state(3)
  expected = queues.delayed(x, is_first, k)
  for run in (cases.loop, Delay.unroll):
    output = run(layer, state, x, is_first).output
    assert output.dtype == dtype
    np.testing.assert_array_equal(output, expected)
  assert k == 9 or np.any(expected)


@pytest.mark.parametrize(
  ('dtype', 'initial'),
  [('float32', -0.5), ('int32', -7), ('uint8', 255), ('bool', True)],
)
def test_the_initial_value_comes_out_first(dtype, initial):
  x, is_first = queues.draw(dtype, 5, 2), jnp.zeros((5, 2)).at[3, 1].set(1)
  layer = Delay(jnp.zeros((), dtype), 2, initial)
  state = layer.initialize_state(2)
  expected = queues.delayed(x, is_first, 2, initial)
  for run in (cases.loop, Delay.unroll):
    np.testing.assert_array_equal(
      run(layer, state, x, is_first).output, expected
    )


def test_a_reset_in_the_middle_of_the_ring_only_affects_its_row():
  layer = Delay((), k_steps=3)
  # Steps:                    0  1  2  3  4  5  6  7  8
  x = jnp.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]] * 2).T
  is_first = jnp.zeros((9, 2)).at[4, 0].set(1)
  out = cases.loop(layer, layer.initialize_state(2), x, is_first)
  np.testing.assert_array_equal(
    out.output.T, [[0, 0, 0, 1, 0, 0, 0, 5, 6], [0, 0, 0, 1, 2, 3, 4, 5, 6]]
  )
  np.testing.assert_array_equal(out.next_state['index'], [0, 0])


def test_a_delay_longer_than_the_episodes_never_sees_an_input():
  layer = Delay((), k_steps=4)
  x = 1.0 + jnp.arange(12.0)[:, None]
  is_first = (jnp.arange(12) % 4 == 0)[:, None]
  out = layer.unroll(layer.initialize_state(1), x, is_first)
  np.testing.assert_array_equal(out.output, np.zeros((12, 1)))


def test_structured_inputs_keep_their_structure_and_types():
  sample = {'image': jnp.zeros((2, 2), jnp.uint8), 'touch': ((), 3)}
  layer = Delay(sample, k=2)
  x = {
    'image': queues.draw('uint8', 5, 2, 2, 2),
    'touch': (queues.draw('float32', 5, 2), queues.draw('float32', 5, 2, 3)),
  }
  is_first = jnp.zeros((5, 2)).at[3, 0].set(1)
  ordered = collections.OrderedDict(reversed(x.items()))
  for given_x in (x, ordered):
    for run in (cases.loop, Delay.unroll):
      state = layer.initialize_state(2)
      out = run(layer, state, given_x, is_first)
      cases.assert_same(
        out.output, jax.tree.map(lambda v: queues.delayed(v, is_first, 2), x)
      )
      assert jax.tree.structure(out.next_state) == jax.tree.structure(state)


def test_a_64_bit_example_stands_for_what_jax_makes_of_it():
  layer = Delay(np.zeros(2), 1)
  out = layer(layer.initialize_state(3), np.ones((3, 2)))
  assert out.output.dtype == jnp.zeros(()).dtype


def test_a_masked_reset_touches_nothing_but_the_counter():
  state = queues.warm(Delay((), 3), 4, 2)
  reset = Delay((), 3).reset_rows(jnp.array([0.0, 1.0]), state)
  assert reset['buffer'] is state['buffer']
  assert reset['index'] is state['index']
  np.testing.assert_array_equal(state['count'], [1, 3])
  np.testing.assert_array_equal(reset['count'], [1, 0])
  parent = networks.Sequential([Delay((), 3)])
  (reset,) = stepping.reset_rows(parent, jnp.array([1, 0]), [state])
  assert reset['buffer'] is state['buffer']
  np.testing.assert_array_equal(reset['count'], [0, 3])


def test_a_full_reset_is_the_initial_carry():
  layer = Delay({'a': 2, 'b': jnp.zeros((), jnp.int32)}, 3, initial_value=5)
  fresh = layer.initialize_state(2)
  x = {'a': jnp.ones((2, 2)), 'b': jnp.ones(2, jnp.int32)}
  cases.assert_same(layer.reset_state(layer(fresh, x).next_state), fresh)
  buffer = fresh['buffer']
  assert buffer['a'].shape == (2, 3, 2) and np.all(buffer['a'] == 5)
  assert fresh['index'].dtype == fresh['count'].dtype == jnp.int32


def test_a_delay_has_no_variables_and_a_stable_graph():
  graphdef, variables = nnx.split(Delay({'b': 2, 'a': 3}, 2))
  assert not jax.tree.leaves(variables)
  other = nnx.graphdef(Delay({'b': 2, 'a': 3}, k=2))
  assert graphdef == other and hash(graphdef) == hash(other)
  assert graphdef != nnx.graphdef(Delay({'b': 2, 'a': 3}, 3))


def test_the_sample_and_the_initial_value_do_not_get_into_the_carry_as_nan():
  state = Delay(jnp.full(2, jnp.nan), 2).initialize_state(1)
  np.testing.assert_array_equal(state['buffer'], np.zeros((1, 2, 2)))


def test_a_delay_stands_anywhere_in_a_network():
  rngs = nnx.Rngs(0)
  sample = {'joints': jnp.zeros(3), 'speed': jnp.zeros(())}
  net = networks.Sequential(
    [
      Delay(sample, k=2),
      networks.Filter('joints'),
      networks.Normalizer(3),
      networks.Dense(3, 2, rngs),
      Delay(2, k_steps=1),
    ]
  )
  x = {'joints': cases.draw(3, 6, 2), 'speed': cases.draw((), 6, 2)}
  is_first = cases.masks(6, 2)
  state = net.initialize_state(2)
  looped = cases.loop(net, state, x, is_first)
  unrolled = net.unroll(state, x, is_first)
  cases.assert_same(unrolled.next_state, looped.next_state, 1e-6)
  cases.assert_same(unrolled.output, looped.output, 1e-6)
  delayed = queues.delayed(x['joints'], is_first, 2)
  np.testing.assert_array_equal(unrolled.rollout_extras[2], delayed)
  projected = net[3]((), jnp.asarray(delayed) / 10).output
  np.testing.assert_allclose(
    unrolled.output, queues.delayed(projected, is_first, 1), atol=1e-6
  )
