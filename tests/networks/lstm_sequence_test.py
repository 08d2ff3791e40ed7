"""The LSTM's own backward pass against differentiating its steps."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from brax_nnx_plugin.networks import LSTM
from brax_nnx_plugin.networks import StatefulModule
from brax_nnx_plugin.networks import lstm_sequence
from brax_nnx_plugin.networks import stepping


def _weighted(out):
  """A number that every output and the last carry have a share in."""
  leaves = jax.tree.leaves((out.output, out.next_state))
  return sum(
    jnp.sum(jnp.sin(leaf + jnp.arange(leaf.size).reshape(leaf.shape)))
    for leaf in leaves
  )


def _case(steps, batch, is_first, dtype=jnp.float32, **kwargs):
  layer = LSTM(3, 4, nnx.Rngs(0), trainable_initial_state=True, **kwargs)
  keys = iter(jax.random.split(jax.random.key(1), 5))
  initials: Any = (layer.initial_c, layer.initial_h)
  for initial in initials:
    initial[...] = jax.random.normal(next(keys), (4,))
  x = jax.random.normal(next(keys), (steps, batch, 3), dtype)
  state = tuple(jax.random.normal(next(keys), (batch, 4)) for _ in range(2))
  return layer, state, x, jnp.asarray(is_first)


def _gradients(method, layer, state, x, is_first):
  graphdef, params = nnx.split(layer)

  def loss(params, state, x):
    return _weighted(method(nnx.merge(graphdef, params), state, x, is_first))

  return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(params, state, x)


def _scanned(layer, state, x, is_first):
  return stepping.scan_steps(layer, state, x, is_first, None)


_FIRST = {
  'none': np.zeros((6, 2)),
  'in the middle': np.eye(6, 2, -2),
  'at the start': np.eye(6, 2),
  'always': np.ones((6, 2)),
  'one row, one step': np.zeros((1, 1)),
  'one row, one step, reset': np.ones((1, 1)),
}


@pytest.mark.parametrize('name', _FIRST)
def test_outputs_and_gradients_are_those_of_the_steps(name):
  first = _FIRST[name]
  layer, state, x, is_first = _case(first.shape[0], first.shape[1], first)
  ours = layer.unroll(state, x, is_first)
  steps = _scanned(layer, state, x, is_first)
  for got, want in zip(
    jax.tree.leaves((ours.output, ours.next_state)),
    jax.tree.leaves((steps.output, steps.next_state)),
    strict=True,
  ):
    np.testing.assert_allclose(got, want, atol=1e-6)
  got = _gradients(LSTM.unroll, layer, state, x, is_first)
  want = _gradients(_scanned, layer, state, x, is_first)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
  # Of weights, bias, both initial states, both carries and the input.
  assert len(jax.tree.leaves(got)) == 8


def test_gradients_are_finite_differences():
  layer, state, x, is_first = _case(3, 2, _FIRST['in the middle'][1:4])
  graphdef, params = nnx.split(layer)

  def loss(params, state, x):
    return _weighted(nnx.merge(graphdef, params).unroll(state, x, is_first))

  jax.test_util.check_grads(
    loss, (params, state, x), order=1, modes=['rev'], atol=2e-2, rtol=2e-2
  )


def test_what_a_reset_discards_may_be_anything():
  layer, state, x, is_first = _case(6, 2, _FIRST['at the start'])
  state = jax.tree.map(lambda leaf: leaf.at[0].set(jnp.nan), state)
  assert jnp.isfinite(layer.unroll(state, x, is_first).output).all()
  gradients = _gradients(LSTM.unroll, layer, state, x, is_first)
  assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_works_under_vmap():
  layer, state, x, is_first = _case(6, 2, _FIRST['in the middle'])
  many = jax.vmap(lambda x: _gradients(LSTM.unroll, layer, state, x, is_first))
  got = many(jnp.stack([x, 2 * x]))
  want = _gradients(LSTM.unroll, layer, state, 2 * x, is_first)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a[1], b, atol=1e-5)


class _Halved(LSTM):
  """Steps in a way of its own."""

  def __call__(self, state, x, rollout_extras=None):
    return super().__call__(state, x / 2, rollout_extras)


class _Kept(LSTM):
  """Resets in a way of its own."""

  def reset_rows(self, is_first, state):
    return state


_OTHERS = {
  'another gate': {'gate_fn': nnx.hard_sigmoid},
  'another activation': {'activation_fn': nnx.relu},
  'four products': {'use_optimized': False},
  'half precision': {'dtype': jnp.bfloat16},
}


@pytest.mark.parametrize('name', _OTHERS)
def test_other_cells_are_scanned(name, monkeypatch):
  case = _case(6, 2, _FIRST['in the middle'], **_OTHERS[name])
  monkeypatch.delattr(lstm_sequence, 'run')
  out, want = case[0].unroll(*case[1:]), _scanned(*case)
  np.testing.assert_array_equal(out.output, want.output)


def test_a_part_of_the_cell_that_was_replaced_counts():
  layer, state, x, is_first = _case(6, 2, _FIRST['in the middle'])
  plain = layer.unroll(state, x, is_first)
  cell: Any = layer.cell
  biased = nnx.Linear(3, 16, rngs=nnx.Rngs(0))
  biased.kernel = cell.dense_i.kernel
  biased.bias = nnx.Param(jnp.ones(16))
  cell.dense_i = biased
  out = layer.unroll(state, x, is_first)
  want = _scanned(layer, state, x, is_first)
  np.testing.assert_array_equal(out.output, want.output)
  assert not np.allclose(out.output, plain.output)


def test_a_plain_cell_is_not_scanned(monkeypatch):
  case = _case(6, 2, _FIRST['in the middle'])
  monkeypatch.setattr(stepping, 'scan_steps', pytest.fail)
  graphdef, params = nnx.split(case[0])
  jax.jit(lambda p: nnx.merge(graphdef, p).unroll(*case[1:]).output)(params)


@pytest.mark.parametrize('kind', [_Halved, _Kept])
def test_other_ways_to_step_and_reset_count(kind):
  _, state, x, is_first = _case(6, 2, _FIRST['in the middle'])
  layer = kind(3, 4, nnx.Rngs(0))
  assert isinstance(layer, StatefulModule)
  out = layer.unroll(state, x, is_first)
  want = _scanned(layer, state, x, is_first)
  np.testing.assert_array_equal(out.output, want.output)
  plain = LSTM(3, 4, nnx.Rngs(0)).unroll(state, x, is_first)
  assert not np.allclose(out.output, plain.output)


def test_wrong_rows_are_named():
  layer, state, x, is_first = _case(6, 2, _FIRST['none'])
  with pytest.raises(ValueError, match='initialize_state'):
    layer.unroll(jax.tree.map(lambda s: s[:1], state), x, is_first)
