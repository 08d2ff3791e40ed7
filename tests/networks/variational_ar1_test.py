"""The autoregressive penalty: its numbers, its gradients, its resets."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.variational import AR1VariationalBottleneck
from tests.networks import cases

SIZE, ROWS, STEPS = 2, 3, 6


def _layer(**kwargs: Any) -> AR1VariationalBottleneck:
  kwargs = {'kl_weight': 0.0} | kwargs
  return AR1VariationalBottleneck(SIZE, nnx.Rngs(0), **kwargs)


def _used(layer: Any, x: jax.Array) -> Any:
  """Returns a carry from within an episode."""
  return layer(layer.initialize_state(ROWS), x).next_state


@pytest.mark.parametrize('fresh', [True, False])
def test_the_penalty_is_the_double_loop_over_episodes(fresh):
  layer = _layer(kl_weight=0.5, ar1_weight=3.0)
  x = cases.draw(2 * SIZE, STEPS, ROWS)
  is_first = cases.masks(STEPS, ROWS)
  start = layer.initialize_state(ROWS) if fresh else _used(layer, x[-1])
  out = layer.unroll(start, x, is_first)
  z = np.asarray(out.output, np.float64)
  expected = np.zeros((STEPS, ROWS))
  for b in range(ROWS):
    last = None if fresh else np.asarray(start['last_z'][b], np.float64)
    for t in range(STEPS):
      last = None if is_first[t, b] else last
      if last is not None:
        expected[t, b] = np.mean((z[t, b] - last) ** 2)
      last = z[t, b]
  np.testing.assert_allclose(out.metrics['l2_diff'], expected, atol=1e-5)
  kl = out.metrics['kl_divergence']
  np.testing.assert_allclose(
    out.regularization_loss, 0.5 * kl + 3.0 * expected, atol=1e-5
  )
  assert np.sum(expected > 0) > STEPS  # there are episodes longer than a step
  np.testing.assert_array_equal(out.next_state['last_z'], out.output[-1])
  assert np.all(out.next_state['valid'])


def _frozen(layer: Any, start: Any, x: jax.Array, is_first: jax.Array) -> Any:
  """Makes a loss of `x` whose last latents are those of the `x` given here."""
  carries = [start]
  for t in range(STEPS - 1):
    carry = layer.reset_rows(is_first[t], carries[-1])
    carries.append(layer(carry, x[t]).next_state)
  carries = jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries)
  carries = jax.vmap(layer.reset_rows)(is_first, carries)

  def loss(x):
    return jnp.sum(jax.vmap(layer)(carries, x).regularization_loss)

  return loss


@pytest.mark.parametrize('through_time', [True, False])
def test_gradients_are_those_of_finite_differences(through_time):
  layer = _layer(backprop_through_time=through_time)
  x = cases.draw(2 * SIZE, STEPS, ROWS)
  is_first = jnp.zeros((STEPS, ROWS)).at[3, 0].set(1.0)
  start = _used(layer, x[-1])

  def loss(x):
    return jnp.sum(layer.unroll(start, x, is_first).regularization_loss)

  gradient = jax.jit(jax.grad(loss))(x)
  # The same keys draw the same noise, so the loss is a function of x. Without
  # gradients through time it is one of the latest latent alone.
  measured = loss if through_time else _frozen(layer, start, x, is_first)
  np.testing.assert_allclose(measured(x), loss(x), rtol=1e-5)
  bumps = 0.03 * jnp.eye(x.size).reshape(x.size, *x.shape)
  up, down = (jax.jit(jax.vmap(measured))(x + sign * bumps) for sign in (1, -1))
  slopes = ((up - down) / 0.06).reshape(x.shape)
  np.testing.assert_allclose(gradient, slopes, atol=3e-3)


def test_only_gradients_through_time_reach_the_step_before():
  x = cases.draw(2 * SIZE, STEPS, ROWS)
  is_first = jnp.zeros((STEPS, ROWS)).at[3, 0].set(1.0)
  for through_time in (True, False):
    layer = _layer(backprop_through_time=through_time)
    start = _used(layer, x[-1])

    def late(x, start, layer=layer):
      loss = layer.unroll(start, x, is_first).regularization_loss
      return jnp.sum(loss[3:])

    dx, dstart = jax.grad(late, (0, 1), allow_int=True)(x, start)
    assert np.all(dx[3, 1:, :SIZE] != 0)
    assert np.all((dx[2, 1:, :SIZE] != 0) == through_time)
    np.testing.assert_array_equal(dx[2, 0], 0)  # row 0 was reset
    np.testing.assert_array_equal(dx[:2], 0)
    np.testing.assert_array_equal(dstart['last_z'], 0)


@pytest.mark.parametrize('garbage', [np.nan, np.inf, 1e30])
def test_what_is_stored_in_a_row_without_a_last_latent_does_not_matter(
  garbage,
):
  layer = _layer(kl_weight=1.0)
  x = cases.draw(2 * SIZE, STEPS, ROWS)
  is_first = jnp.zeros((STEPS, ROWS)).at[0, 0].set(1.0)
  clean = _used(layer, x[-1])
  clean['valid'] = clean['valid'].at[1].set(False)
  # Row 0 is reset before the first step, row 1 never had a latent.
  dirty = dict(clean, last_z=clean['last_z'].at[:2].set(garbage))

  def loss(x, state):
    out = layer.unroll(state, x, is_first)
    return jnp.sum(out.regularization_loss) + jnp.sum(out.output), out

  grad = jax.jit(jax.grad(loss, (0, 1), has_aux=True, allow_int=True))
  (dx, dstate), out = grad(x, clean)
  (dirty_dx, dirty_dstate), dirty_out = grad(x, dirty)
  cases.assert_same(dirty_out, out)
  np.testing.assert_array_equal(dirty_dx, dx)
  np.testing.assert_array_equal(dirty_dstate['last_z'], dstate['last_z'])
  assert np.all(np.isfinite(dx))
  np.testing.assert_array_equal(dstate['last_z'][:2], 0)
  assert np.all(dstate['last_z'][2] != 0)
  cases.assert_same(cases.loop(layer, dirty, x, is_first), out, 1e-6)


def test_a_reset_forgets_the_latent_and_keeps_the_keys():
  layer = _layer()
  used = _used(layer, cases.draw(2 * SIZE, ROWS))
  fresh = layer.reset_state(used)
  np.testing.assert_array_equal(fresh['keys'], used['keys'])
  np.testing.assert_array_equal(fresh['last_z'], 0)
  assert not np.any(fresh['valid'])
  assert np.all(used['valid'])
  initial = layer.initialize_state(ROWS)
  cases.assert_same(initial['last_z'], fresh['last_z'])
  cases.assert_same(initial['valid'], fresh['valid'])


def test_the_weight_of_the_penalty_may_be_zero():
  layer = _layer(ar1_weight=0.0)
  x = cases.draw(2 * SIZE, STEPS, ROWS)
  out = layer.unroll(_used(layer, x[-1]), x, jnp.zeros((STEPS, ROWS)))
  np.testing.assert_array_equal(out.regularization_loss, 0)
  assert np.all(out.metrics['l2_diff'] > 0)
