"""SimpleRNN against NumPy, and through time."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.recurrent import SimpleRNN
from tests.networks import cases

STEPS, ROWS, IN, SIZE = 6, 2, 3, 4


def _layer(**kwargs: Any) -> Any:
  """A SimpleRNN whose biases and initial state are not zero."""
  layer: Any = SimpleRNN(IN, SIZE, nnx.Rngs(0), **kwargs)
  layer.cell.dense_i.bias.set_value(jnp.linspace(-0.4, 0.8, SIZE))
  if layer.initial_h is not None:
    layer.initial_h.set_value(jnp.linspace(-0.5, 0.7, SIZE))
  return layer


def _numpy(layer, start, x, is_first, activation=np.tanh, residual=False):
  """The recurrence in float64, step by step; returns all `h`."""
  read = lambda v: np.asarray(v[...], np.float64)
  w_i, w_h = (read(d.kernel) for d in (layer.cell.dense_i, layer.cell.dense_h))
  bias = read(layer.cell.dense_i.bias)
  initial = 0 if layer.initial_h is None else read(layer.initial_h)
  h, outputs = np.asarray(start, np.float64), []
  for x_t, first in zip(np.asarray(x, np.float64), is_first, strict=True):
    h = np.where(np.asarray(first)[:, None] > 0, initial, h)
    h = activation(x_t @ w_i + bias + h @ w_h + residual * h)
    outputs.append(h)
  return np.stack(outputs)


def _sequence():
  """Draws a start carry, inputs and flags with resets among them."""
  is_first = cases.masks(STEPS, ROWS)
  assert 0 < is_first[1:].sum() < is_first.size
  return cases.draw(SIZE, ROWS, seed=8), cases.draw(IN, STEPS, ROWS), is_first


@pytest.mark.parametrize('trained', [False, True])
@pytest.mark.parametrize('residual', [False, True])
def test_a_sequence_is_that_of_numpy(trained, residual):
  layer = _layer(trainable_initial_state=trained, residual=residual)
  args = _sequence()
  expected = _numpy(layer, *args, residual=residual)
  out = layer.unroll(*args)
  np.testing.assert_allclose(out.output, expected, atol=1e-6)
  np.testing.assert_allclose(out.next_state, expected[-1], atol=1e-6)


def test_the_activation_can_be_chosen():
  layer = _layer(activation=nnx.relu)
  args = _sequence()
  expected = _numpy(layer, *args, activation=lambda v: np.maximum(v, 0))
  out = layer.unroll(*args)
  np.testing.assert_allclose(out.output, expected, rtol=1e-6, atol=1e-6)
  assert out.output.max() > 1


@pytest.mark.parametrize('disturbance', [1e3, np.nan])
def test_nothing_of_an_episode_reaches_the_next(disturbance):
  layer = _layer(trainable_initial_state=True)
  start, x, _ = _sequence()
  is_first = jnp.zeros((STEPS, ROWS)).at[2].set(1.0)
  run = jax.jit(lambda x: layer.unroll(start, x, is_first))
  out, other = run(x), run(x.at[:2].add(disturbance))
  assert np.all(np.any(out.output[:2] != other.output[:2], axis=-1))
  np.testing.assert_array_equal(out.output[2:], other.output[2:])
  np.testing.assert_array_equal(out.next_state, other.next_state)


# With act(v) = v, x W_i = w x and W_h = 1/2 the layer is h' = h/2 + w x.
X = (3.0, 5.0, 7.0)
CLOSED_FORMS = {
  # h3 = s/8 + w (x0/4 + x1/2 + x2)
  (0, 0, 0): (X[0] / 4 + X[1] / 2 + X[2], 1 / 8, 0),
  # h3 = i/4 + w (x1/2 + x2)
  (0, 1, 0): (X[1] / 2 + X[2], 0, 1 / 4),
  (1, 0, 0): (X[0] / 4 + X[1] / 2 + X[2], 0, 1 / 8),
}


@pytest.mark.parametrize('is_first', CLOSED_FORMS)
def test_gradients_flow_through_an_episode_and_end_with_it(is_first):
  flags = jnp.array(is_first, jnp.float32)[:, None]

  def loss(w, start, initial):
    layer: Any = SimpleRNN(
      1, 1, nnx.Rngs(0), trainable_initial_state=True, activation=lambda v: v
    )
    layer.cell.dense_i.kernel.set_value(w[None, None])
    layer.cell.dense_h.kernel.set_value(jnp.array([[0.5]]))
    layer.initial_h.set_value(initial[None])
    out = layer.unroll(start[None, None], jnp.array(X)[:, None, None], flags)
    return out.output[2, 0, 0]

  args = [jnp.array(v) for v in (2.0, 11.0, -5.0)]
  gradients = jax.grad(loss, argnums=(0, 1, 2))(*args)
  np.testing.assert_allclose(gradients, CLOSED_FORMS[is_first], rtol=1e-6)


@pytest.mark.parametrize('kwargs', [{}, {'dtype': jnp.bfloat16}], ids=str)
def test_half_precision_leaves_the_carry_in_full(kwargs):
  layer = _layer(**kwargs)
  start, x, is_first = _sequence()
  out = layer.unroll(start, x.astype(jnp.bfloat16), is_first)
  for leaf in (out.output, out.next_state, layer.initialize_state(2)):
    assert leaf.dtype == jnp.float32
  np.testing.assert_allclose(
    out.output, _layer().unroll(start, x, is_first).output, atol=0.1
  )
