"""All laws at once, over random networks.

Single steps run as they are. One program per network runs sequences in every
way there is: stepped by a scan while acting, and unrolled as a whole while
replaying, under `vmap` and on a doubled batch; both with gradients, on two
devices, with NaN checks on. The tests compare the results with one another.
"""

from typing import Any
from typing import NamedTuple

from flax import nnx
from hypothesis import HealthCheck
from hypothesis import Phase
from hypothesis import given
from hypothesis import seed
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import contract
from brax_nnx_plugin.networks import normalizer
from brax_nnx_plugin.networks import stepping
from tests.networks import cases
from tests.networks import random_trees

ROWS = 2
DEPTHS = (0, 0, 1, 1, 1, 1, 2, 2, 3, 4)
SEEDS = range(8)
TREES = 25


class Probe(NamedTuple):
  """What the one program returns, per device."""

  acted: Any
  acted_gradient: Any
  unrolled: Any
  unrolled_gradient: Any
  statistics: Any


def _numbers(tree: Any) -> list[jax.Array]:
  """Lists the leaves that have gradients; entropies are fresh estimates."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return [
    leaf
    for path, leaf in leaves
    if jnp.issubdtype(leaf.dtype, jnp.floating)
    and 'entropy' not in jax.tree_util.keystr(path)
  ]


def _with_mirror(tree: Any, axis: int) -> Any:
  """Appends the rows in reversed order."""
  mirrored = lambda a: jnp.concatenate([a, jnp.flip(a, axis)], axis)
  return jax.tree.map(mirrored, tree)


def _stacked(tree: Any) -> Any:
  return jax.tree.map(lambda a: jnp.stack([a, a]), tree)


def _probe(module: Any, used: Any, x: jax.Array, is_first: jax.Array) -> Probe:
  """Runs `module` in all ways on one device.

  Args:
    module: what is tested.
    used: a carry to start from, `[B, ...]`.
    x: `[T, B, F]`.
    is_first: `[T, B]`.
  """
  graphdef, params, rest = nnx.split(module, nnx.Param, ...)

  def copy(params):
    # Variables may only be written at the trace level that made them.
    return nnx.merge(graphdef, params, jax.tree.map(lambda a: a, rest))

  def loss(params, run, *args):
    out = run(copy(params), *args)
    terms = _numbers((out.output, out.regularization_loss))
    return sum(jnp.mean(jnp.sin(term)) for term in terms), out

  def gradient(run, *args):
    grad = jax.value_and_grad(loss, has_aux=True)
    (_, out), gradient = grad(params, run, *args)
    return out, gradient

  # A sampled action is a constant, so acting has the gradient of a replay.
  acted = gradient(stepping.scan_steps, used, x, is_first, None)
  extras = acted[0].rollout_extras
  over_time = (_with_mirror(a, 1) for a in (x, is_first, extras))
  unrolled = jax.vmap(lambda *args: gradient(stepping.unroll_module, *args))(
    *_stacked((_with_mirror(used, 0), *over_time))
  )

  merged = copy(params)
  stepping.update_module_statistics(merged, extras, 'i')
  statistics = nnx.state(merged, normalizer.Statistic)
  return Probe(*acted, *unrolled, statistics)


def _check_steps(module: Any, x: jax.Array) -> Any:
  """Asserts the laws of single steps; returns a used carry."""
  same = cases.assert_same
  signature = lambda tree: jax.tree.map(lambda a: (a.shape, a.dtype), tree)
  # A copy of the variables: a merged module shares those it is given.
  graphdef, variables = nnx.split(module)
  merged = nnx.merge(graphdef, jax.tree.map(lambda a: a, variables))
  fresh = merged.initialize_state(ROWS)
  out = contract.call_without_writes(merged, fresh, x)
  used = out.next_state
  assert signature(used) == signature(fresh)
  reset = merged.reset_state(used)
  same(cases.without_keys(reset), cases.without_keys(fresh))
  for tree in (used, out.rollout_extras, out.metrics):
    cases.assert_mirrors(module, tree)
  # Where both have drawn as often, splitting and merging has changed nothing.
  same(module(fresh, x), out)
  return used


def _check_runs(probe: Probe) -> None:
  """Asserts the laws of sequences on the results of one device."""
  same = cases.assert_same
  out = jax.tree.map(lambda a: a[0], probe.unrolled)
  same(jax.tree.map(lambda a: a[1], probe.unrolled), out, 1e-6)
  acted = probe.acted
  same(out.next_state, _with_mirror(acted.next_state, 0), 1e-5)
  for name in ('output', 'rollout_extras'):
    expected = _with_mirror(getattr(acted, name), 1)
    same(getattr(out, name), expected, 1e-5)
  np.testing.assert_allclose(
    np.mean(out.regularization_loss),
    np.mean(acted.regularization_loss),
    rtol=1e-5,
    atol=1e-6,
  )
  gradient = jax.tree.map(lambda a: a[0], probe.unrolled_gradient)
  same(gradient, probe.acted_gradient, 2e-5)


def _check_tree(description: Any, top: str, steps: int, flags: list[bool]):
  """Builds a network, runs the program on two devices, asserts the laws."""
  module = random_trees.network(description, top, nnx.Rngs(0))
  x = cases.draw(random_trees.SIZE, 2, steps, ROWS)
  is_first = jnp.array(flags[: 2 * steps * ROWS], jnp.float32)
  with jax.debug_nans(True):
    used = _check_steps(module, x[0, 0])
    run = jax.pmap(lambda *args: _probe(module, *args), axis_name='i')
    probe = run(_stacked(used), x, is_first.reshape(2, steps, ROWS))
  for device in range(2):
    _check_runs(jax.tree.map(lambda a, d=device: a[d], probe))
  for leaf in jax.tree.leaves(probe.statistics):
    np.testing.assert_array_equal(leaf[0], leaf[1])


@pytest.mark.slow
@pytest.mark.parametrize('number', SEEDS)
def test_random_networks_keep_all_laws(number):
  @seed(number)
  @settings(
    max_examples=TREES,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # shrinking compiles hundreds of programs
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
  )
  @given(
    description=st.sampled_from(DEPTHS).flatmap(random_trees.descriptions),
    top=st.sampled_from(random_trees.TOPS),
    steps=st.integers(2, 3),
    flags=st.lists(st.booleans(), min_size=12, max_size=12),
  )
  def check(description, top, steps, flags):
    _check_tree(description, top, steps, flags)

  check()
  jax.clear_caches()  # no program is used twice, and all are kept
