"""Gradients through time: all steps of an episode, and no further."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from tests import fakes
from tests.networks import cases

A, W = 0.5, 2.0
X = (3.0, 5.0, 7.0)


def _last_output(w, a, start, is_first):
  cell = fakes.LinCell(0.0, 0.0)
  cell.w.set_value(w)
  cell.a.set_value(a)
  x = jnp.array(X).reshape(3, 1, 1)
  flags = jnp.array(is_first, jnp.float32).reshape(3, 1)
  return cell.unroll(start.reshape(1, 1), x, flags).output[2, 0, 0]


def _gradients(is_first):
  args = [jnp.array(v) for v in (W, A, 11.0)]
  return jax.grad(_last_output, argnums=(0, 1, 2))(*args, is_first)


def test_the_gradient_flows_through_all_steps_of_a_segment():
  # h' = a h + w x from h = s, so the output after three steps is
  # a³ s + w (a² x0 + a x1 + x2).
  x0, x1, x2 = X
  dw, da, ds = _gradients([0, 0, 0])
  np.testing.assert_allclose(dw, A**2 * x0 + A * x1 + x2, rtol=1e-6)
  np.testing.assert_allclose(
    da, 3 * A**2 * 11.0 + W * (2 * A * x0 + x1), rtol=1e-6
  )
  np.testing.assert_allclose(ds, A**3, rtol=1e-6)


def test_the_gradient_stops_at_a_reset():
  # A reset after t=0 leaves w (a x1 + x2) of the output above.
  _, x1, x2 = X
  dw, da, ds = _gradients([0, 1, 0])
  np.testing.assert_allclose(dw, x2 + A * x1, rtol=1e-6)
  np.testing.assert_allclose(da, W * x1, rtol=1e-6)
  assert ds == 0.0


MEMORIES = {
  'lstm': lambda: cases.trained_lstm(nnx.Rngs(0)),
  'lstm_plain': lambda: cases.trained_lstm(nnx.Rngs(0), use_optimized=False),
  'gru': lambda: cases.trained_gru(nnx.Rngs(0)),
}


@pytest.mark.parametrize('name', MEMORIES)
def test_nothing_of_an_episode_reaches_the_next(name):
  module = MEMORIES[name]()
  x = cases.draw(3, 5, 2)
  is_first = jnp.zeros((5, 2)).at[2].set(1.0)
  state = module(module.initialize_state(2), x[0]).next_state
  run = jax.jit(lambda x: module.unroll(state, x, is_first))
  out, other = run(x), run(x.at[:2].add(1e3))
  assert np.all(np.any(out.output[:2] != other.output[:2], axis=-1))
  np.testing.assert_array_equal(out.output[2:], other.output[2:])
  jax.tree.map(np.testing.assert_array_equal, out.next_state, other.next_state)


@pytest.mark.parametrize('name', MEMORIES)
def test_no_gradient_crosses_a_reset(name):
  module = MEMORIES[name]()
  x = cases.draw(3, 5, 2)
  is_first = jnp.zeros((5, 2)).at[2, 0].set(1.0)
  state = module(module.initialize_state(2), x[0]).next_state

  def loss(state, x):
    return jnp.sum(module.unroll(state, x, is_first).output[2:])

  dstate, dx = jax.jit(jax.grad(loss, argnums=(0, 1)))(state, x)
  # Row 0 is reset, row 1 is not.
  for leaf in (*jax.tree.leaves(dstate), dx[0], dx[1]):
    assert np.all(leaf[0] == 0)
    assert np.any(leaf[1] != 0)


@pytest.mark.parametrize('name', MEMORIES)
def test_a_trained_initial_state_learns_wherever_an_episode_begins(name):
  graphdef, params, rest = nnx.split(MEMORIES[name](), nnx.Param, ...)
  x = cases.draw(3, 3, 2)
  state = nnx.merge(graphdef, params, rest)(
    nnx.merge(graphdef, params, rest).initialize_state(2), x[0]
  ).next_state

  @jax.jit
  def gradient(is_first):
    def loss(params):
      module = nnx.merge(graphdef, params, rest)
      return jnp.sum(module.unroll(state, x, is_first).output)

    return jax.grad(loss)(params)

  for step in (0, 2):  # at the start of a segment, and within
    grads = gradient(jnp.zeros((3, 2)).at[step, 1].set(1.0))
    assert np.all(grads['initial_h'][...] != 0)
  for leaf in jax.tree.leaves(
    nnx.filter_state(gradient(jnp.zeros((3, 2))), _is_initial)
  ):
    assert np.all(leaf == 0)


def _is_initial(path, value):
  del value
  return str(path[0]).startswith('initial')


def test_a_trained_initial_state_has_the_gradient_of_finite_differences():
  lstm: Any = cases.trained_lstm(nnx.Rngs(0))
  x = cases.draw(3, 3, 2)
  is_first = jnp.zeros((3, 2)).at[1, 0].set(1.0)
  state = lstm(lstm.initialize_state(2), x[0]).next_state

  def loss(initial_c):
    copy = nnx.merge(*nnx.split(lstm))
    copy.initial_c = nnx.Param(initial_c)
    return jnp.sum(jnp.square(copy.unroll(state, x, is_first).output))

  value = lstm.initial_c[...]
  loss = jax.jit(loss)
  gradient = jax.grad(loss)(value)
  step = 1e-2
  for i in range(value.size):
    up, down = (loss(value.at[i].add(d)) for d in (step, -step))
    np.testing.assert_allclose(gradient[i], (up - down) / (2 * step), atol=1e-4)


def test_containers_pass_gradients_on():
  rngs = nnx.Rngs(0)
  net: Any = networks.Sequential(
    [fakes.LinCell(A, W), networks.Dense(1, 1, rngs)]
  )
  x = jnp.array(X).reshape(3, 1, 1)

  def loss(x):
    out = net.unroll([jnp.zeros((1, 1)), ()], x, jnp.zeros((3, 1)))
    return out.output[2, 0, 0]

  kernel = net[1].linear.kernel[0, 0]
  # The LinCell's output times the kernel: d/dx = k w (a², a, 1).
  expected = kernel * W * np.array([A**2, A, 1.0])
  np.testing.assert_allclose(jax.grad(loss)(x).ravel(), expected, rtol=1e-6)
