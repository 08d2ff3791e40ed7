"""`unroll` is a loop of reset and call: outputs, carries and gradients."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import stepping
from tests import fakes
from tests.networks import cases
from tests.networks import table

# Nothing is multiplied or added here, so not even the last bit may differ.
EXACT = ('filter', 'count', 'echo')
SHAPES = (
  (cases.STEPS, cases.BATCH),
  (1, cases.BATCH),
  (cases.STEPS, 1),
  (1, 1),
)


def _run_both(module, state, x, is_first, extras) -> tuple[Any, Any]:
  """Returns the outputs of `unroll` and of the loop, from the same module."""
  args = (state, x, is_first, extras)
  unrolled = stepping.unroll_module(nnx.clone(module), *args)
  return unrolled, cases.loop(nnx.clone(module), *args)


def _assert_equal_runs(unrolled, looped, atol) -> None:
  """Compares runs; of numbers for a whole batch only the mean is defined."""
  for name in ('next_state', 'output', 'metrics', 'rollout_extras'):
    cases.assert_same(getattr(unrolled, name), getattr(looped, name), atol)
  losses = unrolled.regularization_loss, looped.regularization_loss
  np.testing.assert_allclose(*map(jnp.mean, losses), rtol=0, atol=1e-6)
  if losses[0].shape == losses[1].shape:
    np.testing.assert_allclose(*losses, rtol=0, atol=atol)


def _recorded(module, name, steps, batch) -> tuple[Any, ...]:
  """Acts for a while; returns what a replay needs: carry, x, mask, extras."""
  x = table.inputs(name, steps, batch)
  is_first = cases.masks(steps, batch, p=0.4)
  warm = (table.inputs(name, 2, batch, seed=7), jnp.zeros((2, batch)))
  actor = nnx.clone(module)
  fresh = actor.initialize_state(batch)
  state = cases.loop(actor, fresh, *warm).next_state
  extras = cases.loop(actor, state, x, is_first).rollout_extras
  return state, x, is_first, extras


@pytest.mark.parametrize('name', table.CASES)
def test_unroll_equals_the_loop(name):
  module = table.build(name)
  recorded = _recorded(module, name, *SHAPES[0])
  atol = 0.0 if name in EXACT else 1e-6
  _assert_equal_runs(*_run_both(module, *recorded), atol)


@pytest.mark.parametrize('name', ['nested', 'recurrent_policy', 'sampler'])
@pytest.mark.parametrize('shape', SHAPES[1:], ids=str)
def test_unroll_equals_the_loop_for_one_step_or_row(name, shape):
  module = table.build(name)
  recorded = _recorded(module, name, *shape)
  _assert_equal_runs(*_run_both(module, *recorded), 1e-6)


@pytest.mark.parametrize('flags', ['none', 'all'])
def test_unroll_equals_the_loop_without_and_with_only_resets(flags):
  module = table.build('nested')
  state, x, is_first, extras = _recorded(module, 'nested', *SHAPES[0])
  is_first = jnp.full_like(is_first, float(flags == 'all'))
  both = _run_both(module, state, x, is_first, extras)
  _assert_equal_runs(*both, 1e-6)


@pytest.mark.parametrize('name', table.CASES)
def test_unroll_from_a_fresh_start_without_extras_has_the_shapes_of_a_loop(
  name,
):
  x, is_first = table.inputs(name, 4, 2), jnp.zeros((4, 2))

  def both():
    module = table.build(name)
    args = (module.initialize_state(2), x, is_first)
    outs = stepping.unroll_module(module, *args), cases.loop(module, *args)
    return [(o.next_state, o.output, o.rollout_extras) for o in outs]

  shapes = lambda tree: jax.tree.map(lambda a: (a.shape, a.dtype), tree)
  unrolled, looped = jax.eval_shape(both)
  assert shapes(unrolled) == shapes(looped)


@pytest.mark.parametrize(
  'name', ['nested', pytest.param('recurrent_policy', marks=pytest.mark.slow)]
)
def test_gradients_through_unroll_are_those_through_the_loop(name):
  module = table.build(name)
  state, x, is_first, extras = _recorded(module, name, 3, cases.BATCH)
  graphdef, params, rest = nnx.split(module, nnx.Param, ...)

  def loss(run):
    def f(params, state, x, rest):
      # Variables may only be written at the trace level that made them.
      rest = jax.tree.map(lambda leaf: leaf, rest)
      copy = nnx.merge(graphdef, params, rest)
      out = run(copy, state, x, is_first, extras)
      numbers = [v for k, v in _floats(out).items() if 'entropy' not in k]
      return sum(jnp.mean(jnp.sin(v)) for v in numbers)

    return jax.grad(f, argnums=(0, 1, 2), allow_int=True)

  run = lambda m, *a: stepping.unroll_module(m, *a)
  grads = jax.jit(lambda *a: (loss(run)(*a), loss(cases.loop)(*a)))
  unrolled, looped = grads(params, state, x, rest)
  cases.assert_same(_floats(unrolled), _floats(looped), 1e-6)
  sizes = {k: np.abs(v).max() for k, v in _floats(unrolled[0]).items()}
  assert all(sizes.values()), sizes  # every weight is used


def _floats(tree: Any) -> dict[str, Any]:
  """Maps paths to the leaves that have gradients."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    jax.tree_util.keystr(path): leaf
    for path, leaf in leaves
    if jnp.issubdtype(leaf.dtype, jnp.floating)
  }


def _memory_nets() -> dict[str, Any]:
  """Networks whose output is the trace of the carry inside."""
  rngs = nnx.Rngs(0)
  sequential = networks.Sequential
  return {
    'count': cases.Exposed(fakes.Count()),
    'lincell': cases.Exposed(fakes.LinCell(0.5, 2.0)),
    'lstm': sequential(
      [networks.Dense(1, 3, rngs), cases.Exposed(cases.trained_lstm(rngs))]
    ),
    'gru': networks.Parallel(
      a=sequential(
        [networks.Dense(1, 3, rngs), cases.Exposed(cases.trained_gru(rngs))]
      ),
      b=cases.Exposed(fakes.Echo()),
    ),
  }


@pytest.mark.parametrize('name', ['count', 'lincell', 'lstm', 'gru'])
def test_replay_has_the_carries_of_acting_for_any_episode_ends(name):
  module = _memory_nets()[name]
  steps, rows = 8, 3
  x = cases.draw(1, steps, rows)
  graphdef, variables = nnx.split(module)

  @jax.jit
  def act(state, x, done):
    m = nnx.merge(graphdef, variables)
    out = m(stepping.reset_rows(m, done, state), x)
    return out.next_state, out.output

  @jax.jit
  def replay(state, done):
    out = nnx.merge(graphdef, variables).unroll(state, x, done)
    return out.next_state, out.output

  for seed in range(50):
    done = cases.masks(steps, rows, seed=seed)
    start = state = act(module.initialize_state(rows), x[-1], done[0])[0]
    trace = []
    for t in range(steps):
      state, carry = act(state, x[t], done[t])
      trace.append(carry)
    acted = jax.tree.map(lambda *leaves: np.stack(leaves), *trace)
    cases.assert_same(replay(start, done), (state, acted), 1e-6)
