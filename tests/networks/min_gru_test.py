"""MinGRU: NumPy, the loop, closed forms, and nothing across a reset."""

import functools
from typing import Any

from flax import nnx
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.parallel_recurrent import MinGRU
from tests.networks import cases

STEPS, ROWS, IN, SIZE = 7, 3, 3, 4


def _layer(**kwargs: Any) -> Any:
  """A MinGRU whose biases and initial state are not zero."""
  layer: Any = MinGRU(
    IN, SIZE, nnx.Rngs(0), trainable_initial_state=True, **kwargs
  )
  rng = np.random.default_rng(4)
  noise = lambda p: p + jnp.asarray(rng.normal(0, 0.5, p.shape), p.dtype)
  nnx.update(layer, jax.tree.map(noise, nnx.state(layer, nnx.Param)))
  return layer


def _numpy(layer, start, x, is_first, activation=lambda c: c) -> np.ndarray:
  """The recurrence in float64, step by step; returns all `h`."""
  read = lambda v: np.asarray(v[...], np.float64)
  kernel, bias = read(layer.linear.kernel), read(layer.linear.bias)
  h, outputs = np.asarray(start, np.float64), []
  for x_t, first in zip(np.asarray(x, np.float64), is_first, strict=True):
    gate, candidate = np.split(x_t @ kernel + bias, 2, axis=-1)
    z = 1 / (1 + np.exp(-gate))
    h = np.where(np.asarray(first)[:, None] > 0, read(layer.initial_h), h)
    h = (1 - z) * h + z * activation(candidate)
    outputs.append(h)
  return np.stack(outputs)


def _sequence(steps: int = STEPS, rows: int = ROWS, p: float = 0.3):
  """Draws a start carry, inputs and flags with resets among them."""
  is_first = cases.masks(steps, rows, p=p)
  return cases.draw(SIZE, rows, seed=8), cases.draw(IN, steps, rows), is_first


@pytest.mark.parametrize('activation', [None, nnx.tanh])
@pytest.mark.parametrize('steps', [STEPS, 128])
def test_a_sequence_is_that_of_numpy(activation, steps):
  layer = _layer(activation=activation)
  start, x, is_first = _sequence(steps, p=0.1)
  assert 0 < is_first[1:].sum() < is_first.size / 2
  expected = _numpy(layer, start, x, is_first, activation or (lambda c: c))
  out = jax.jit(layer.unroll)(start, x, is_first)
  np.testing.assert_allclose(out.output, expected, rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(out.next_state, expected[-1], atol=1e-6)


def test_a_step_is_that_of_numpy():
  layer = _layer()
  start, x, _ = _sequence()
  out = layer(start, x[0])
  expected = _numpy(layer, start, x[:1], np.zeros((1, ROWS)))[0]
  np.testing.assert_allclose(out.output, expected, atol=1e-6)
  np.testing.assert_array_equal(out.next_state, out.output)


def test_large_values_are_as_exact_relative_to_their_size():
  layer = _layer(kernel_init=nnx.initializers.normal(30.0))
  start, x, is_first = _sequence(64, p=0.05)
  out = jax.jit(layer.unroll)(1e4 * start, 10 * x, is_first)
  looped = jax.jit(functools.partial(stepping.scan_steps, layer))(
    1e4 * start, 10 * x, is_first, None
  )
  scale = np.abs(looped.output).max()
  assert scale > 1e3
  np.testing.assert_allclose(out.output, looped.output, atol=1e-6 * scale)


def _results(run):
  """Compiles outputs and gradients of `run` over a sequence."""
  graphdef, params = nnx.split(_layer())

  def loss(params, start, x, is_first):
    out = run(nnx.merge(graphdef, params), start, x, is_first)
    weights = jnp.cos(jnp.arange(out.output.size)).reshape(out.output.shape)
    total = jnp.sum(weights * jnp.sin(out.output)) + jnp.sum(out.next_state)
    return total, (out.output, out.next_state)

  grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
  return lambda *args: grad(params, *args)


_unrolled, _looped = _results(MinGRU.unroll), _results(cases.loop)


def _assert_as_the_loop(start, x, is_first) -> None:
  """Compares outputs, the carry, and gradients of weights, carry and inputs."""
  actual, expected = (f(start, x, is_first) for f in (_unrolled, _looped))
  cases.assert_same(actual, expected, 2e-6)
  assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(actual[1][2]))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=STEPS * ROWS, max_size=STEPS * ROWS))
def test_outputs_and_gradients_are_those_of_the_loop_for_any_resets(bits):
  start, x, _ = _sequence()
  is_first = jnp.asarray(np.reshape(bits, (STEPS, ROWS)), jnp.float32)
  _assert_as_the_loop(start, x, is_first)


@pytest.mark.parametrize('shape', [(1, 3), (2, 1), (1, 1)], ids=str)
@pytest.mark.parametrize('flag', [0.0, 1.0])
def test_a_single_step_or_row_is_that_of_the_loop(shape, flag):
  start, x, _ = _sequence(*shape)
  _assert_as_the_loop(start, x, jnp.full(shape, flag))


@pytest.mark.parametrize('dtype', [bool, np.int32, np.float32])
def test_flags_may_be_of_any_type(dtype):
  start, x, is_first = _sequence()
  expected = _unrolled(start, x, is_first)[0][1][0]
  out = _layer().unroll(start, x, np.asarray(is_first, dtype))
  np.testing.assert_allclose(out.output, expected, atol=1e-6)


# Steps are composed in pairs: each place of a reset meets other compositions.
PLACES = range(1, STEPS)


def _reset_at(place):
  """A sequence in which rows 0 and 1 begin anew at `place`, row 2 does not."""
  start, x, _ = _sequence()
  return start, x, jnp.zeros((STEPS, ROWS)).at[place, :2].set(1.0)


@pytest.mark.parametrize('disturbance', [1e3, np.inf, np.nan])
def test_nothing_of_an_episode_reaches_the_next(disturbance):
  for place in PLACES:
    start, x, is_first = _reset_at(place)
    (_, (output, end)), _ = _unrolled(start, x, is_first)
    disturbed = x.at[:place].add(disturbance)
    (_, (other, other_end)), _ = _unrolled(start, disturbed, is_first)
    assert np.all(np.any(output[:place] != other[:place], axis=-1))
    np.testing.assert_array_equal(output[place:, :2], other[place:, :2])
    np.testing.assert_array_equal(end[:2], other_end[:2])
    assert np.all(np.any(end[2:] != other_end[2:], axis=-1))


@jax.jit
def _gradients_after(place, start, x, is_first):
  """Gradients of what rows 0 and 1 say from `place` on."""

  def loss(initial_h, start, x):
    layer = _layer()
    layer.initial_h.set_value(initial_h)
    sums = jnp.sum(layer.unroll(start, x, is_first).output[:, :2], axis=(1, 2))
    return jnp.sum(jnp.where(jnp.arange(STEPS) >= place, sums, 0))

  return jax.grad(loss, argnums=(0, 1, 2))(jnp.ones(SIZE), start, x)


@pytest.mark.parametrize('value', [np.inf, np.nan])
@pytest.mark.parametrize('where', ['carry', 'input'])
def test_what_is_not_finite_does_not_reach_gradients_past_a_reset(where, value):
  for place in PLACES:
    start, x, is_first = _reset_at(place)
    clean = _gradients_after(place, start, x, is_first)
    if where == 'carry':
      start = start.at[:2].set(value)
    else:
      x = x.at[place - 1, :2].set(value)
    initial_h, dstart, dx = _gradients_after(place, start, x, is_first)
    np.testing.assert_array_equal(initial_h, clean[0])
    np.testing.assert_array_equal(dx[place:], clean[2][place:])
    assert np.all(initial_h != 0) and np.all(dx[place:, :2] != 0)
    if where == 'carry':
      np.testing.assert_array_equal(dstart, 0)


def test_a_carry_that_is_reset_at_once_may_be_anything():
  _, x, is_first = _sequence()
  is_first = is_first.at[0].set(1.0)
  zeros = jnp.zeros((ROWS, SIZE))
  clean, nan = (_unrolled(s, x, is_first) for s in (zeros, zeros + np.nan))
  cases.assert_same(nan, clean)
  np.testing.assert_array_equal(nan[1][1], 0)


# With z = 1/2 and c = w x the layer is h' = h/2 + w x/2.
X = (3.0, 5.0, 7.0)
CLOSED_FORMS = {
  # h3 = s/8 + w (x0/4 + x1/2 + x2)/2
  (0, 0, 0): ((X[0] / 4 + X[1] / 2 + X[2]) / 2, 1 / 8, 0),
  # h3 = i/4 + w (x1/2 + x2)/2
  (0, 1, 0): ((X[1] / 2 + X[2]) / 2, 0, 1 / 4),
  # h3 = i/2 + w x2/2
  (1, 0, 1): (X[2] / 2, 0, 1 / 2),
  (1, 0, 0): ((X[0] / 4 + X[1] / 2 + X[2]) / 2, 0, 1 / 8),
}


@pytest.mark.parametrize('is_first', CLOSED_FORMS)
def test_gradients_flow_through_an_episode_and_end_with_it(is_first):
  flags = jnp.array(is_first, jnp.float32)[:, None]

  def loss(w, start, initial):
    layer: Any = MinGRU(1, 1, nnx.Rngs(0), trainable_initial_state=True)
    layer.linear.kernel.set_value(jnp.array([[0.0, 1.0]]) * w)
    layer.initial_h.set_value(initial[None])
    out = layer.unroll(start[None, None], jnp.array(X)[:, None, None], flags)
    return out.output[2, 0, 0]

  args = [jnp.array(v) for v in (2.0, 11.0, -5.0)]
  gradients = jax.grad(loss, argnums=(0, 1, 2))(*args)
  np.testing.assert_allclose(gradients, CLOSED_FORMS[is_first], rtol=1e-6)


def test_a_sequence_has_no_loop_over_time():
  layer = _layer()
  jaxpr = str(jax.make_jaxpr(layer.unroll)(*_sequence()))
  assert 'scan[' not in jaxpr and 'while[' not in jaxpr
  assert jaxpr.count('dot_general[') == 1


def test_a_bounded_candidate_bounds_the_carry():
  layer = _layer(activation=nnx.tanh)
  _, x, is_first = _sequence()
  out = layer.unroll(jnp.zeros((ROWS, SIZE)), 1e3 * x, 0 * is_first)
  assert np.abs(out.output).max() <= 1


@pytest.mark.parametrize('kwargs', [{}, {'dtype': jnp.bfloat16}], ids=str)
@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float32])
def test_half_precision_leaves_the_carry_in_full(kwargs, dtype):
  layer = _layer(**kwargs)
  start, x, is_first = _sequence()
  args = start, x.astype(dtype), is_first
  out, looped = layer.unroll(*args), cases.loop(layer, *args)
  cases.assert_same(out.output, looped.output, 1e-6)
  for leaf in (out.output, out.next_state, layer.initialize_state(2)):
    assert leaf.dtype == jnp.float32
  # Half precision has 8 bits: the result is near that of full precision.
  np.testing.assert_allclose(
    out.output, _layer().unroll(start, x, is_first).output, atol=0.1
  )


def test_the_initial_state_is_trained_only_on_demand():
  names = lambda m: set(nnx.to_pure_dict(nnx.state(m, nnx.Param)))
  plain = MinGRU(IN, SIZE, nnx.Rngs(0))
  assert names(plain) == {'linear'}
  assert names(_layer()) == {'linear', 'initial_h'}
  np.testing.assert_array_equal(plain.initialize_state(2), 0)
  fresh = _layer()
  for carry in (fresh.initialize_state(2), fresh.reset_state(jnp.ones((2, 4)))):
    np.testing.assert_array_equal(carry, [fresh.initial_h[...]] * 2)


def test_linear_keywords_reach_the_linear_map():
  layer = MinGRU(IN, SIZE, nnx.Rngs(0), use_bias=False)
  assert layer.linear.bias is None
  assert layer.linear.kernel.shape == (IN, 2 * SIZE)
