"""Equal noise, equal inputs: the variational bottlenecks of nnx-ppo 0.3."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from nnx_ppo.networks import variational as theirs
import numpy as np
import pytest

from brax_nnx_plugin.networks import variational as ours
from tests.networks import cases

SIZE, ROWS, STEPS = 3, 3, 20
WEIGHTS = {'kl_weight': 0.7, 'min_std': 0.01}
AR1 = WEIGHTS | {'ar1_weight': 1.5, 'backprop_through_time': False}
PAIRS: dict[str, tuple[Any, Any, Any]] = {
  'plain': (ours.VariationalBottleneck, theirs.VariationalBottleneck, WEIGHTS),
  'ar1': (
    ours.AR1VariationalBottleneck,
    theirs.AR1VariationalBottleneck,
    AR1,
  ),
}


def _pair(name: str) -> tuple[Any, Any]:
  """Makes a layer on both sides; either takes `Rngs` or a stream of them."""
  mine, other, kwargs = PAIRS[name]
  return mine(SIZE, nnx.Rngs(0), **kwargs), other(SIZE, nnx.Rngs(0), **kwargs)


def _their_keys(rows: jax.Array) -> jax.Array:
  """Returns keys that draw, when used as they are, what our rows draw."""
  # They draw with a row's key itself, and then split the next one from the same
  # key: a key used twice. Ours is folded with the count first.
  keys = jax.random.wrap_key_data(rows[:, :-1])
  return jax.vmap(jax.random.fold_in)(keys, rows[:, -1])


def _their_state(state: Any) -> Any:
  """Writes a carry of ours as they have it."""
  if not isinstance(state, dict):
    return _their_keys(state)
  # They mark a missing last latent by NaN, ours by a flag: a NaN in the carry
  # sets off `jax_debug_nans`, and hides one that is a fault.
  last_z = jnp.where(state['valid'][:, None], state['last_z'], jnp.nan)
  return {'keys': _their_keys(state['keys']), 'last_z': last_z}


@pytest.mark.parametrize('name', PAIRS)
def test_twenty_steps_with_resets_give_the_same_numbers(name):
  layer, other = _pair(name)
  x = cases.draw(2 * SIZE, STEPS, ROWS)
  is_first = cases.masks(STEPS, ROWS, p=0.2)
  start = layer.initialize_state(ROWS)
  unrolled = layer.unroll(start, x, is_first)
  state = start
  outs = []
  for t in range(STEPS):
    state = layer.reset_rows(is_first[t], state)
    outs.append(other(_their_state(state), x[t]))
    state = layer(state, x[t]).next_state
    if name == 'ar1':
      last_z = outs[-1].next_state['last_z']
      np.testing.assert_allclose(state['last_z'], last_z, atol=1e-6)
  expected: Any = jax.tree.map(
    lambda *leaves: jnp.stack(leaves),
    *[(out.output, out.regularization_loss, out.metrics) for out in outs],
  )
  actual = unrolled.output, unrolled.regularization_loss, unrolled.metrics
  cases.assert_same(actual, expected, 1e-6)


@pytest.mark.parametrize('name', PAIRS)
def test_one_step_has_the_same_gradient(name):
  layer, other = _pair(name)
  x = cases.draw(2 * SIZE, ROWS)
  state = layer(layer.initialize_state(ROWS), x + 1).next_state

  def loss(module, state):
    def f(x):
      out = module(state, x)
      return jnp.sum(jnp.sin(out.output)) + jnp.sum(out.regularization_loss)

    return f

  np.testing.assert_allclose(
    jax.grad(loss(layer, state))(x),
    jax.grad(loss(other, _their_state(state)))(x),
    atol=1e-6,
  )
