"""Laws that every module keeps, over the table of modules."""

from typing import Any
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.containers import AbstractContainer
from tests.networks import cases
from tests.networks import table


class Step(NamedTuple):
  """A module of the table and one compiled step of it."""

  name: str
  module: Any
  state: Any
  x: Any
  call: Any
  out: Any
  before: Any
  after: Any


def _settled(module: Any, name: str) -> Any:
  """Returns a carry that no fresh episode has."""
  is_first = jnp.zeros((2, cases.BATCH))
  x = table.inputs(name, 2, cases.BATCH, seed=5)
  start = module.initialize_state(cases.BATCH)
  return cases.loop(nnx.clone(module), start, x, is_first).next_state


@pytest.fixture(scope='module', params=table.CASES)
def step(request) -> Step:
  """One step from a used carry; tests must not change the module."""
  name = request.param
  module = table.build(name)
  state = _settled(module, name)
  x = table.inputs(name, cases.BATCH)
  before, f = cases.pure(module, lambda m, *args: m(*args))
  call = jax.jit(f)
  out, after = call(before, state, x, None)
  return Step(name, module, state, x, call, out, before, after)


def _signature(tree: Any) -> Any:
  shapes = jax.tree.map(lambda a: (a.shape, str(a.dtype)), tree)
  return jax.tree.structure(tree), jax.tree.leaves(shapes)


def test_a_step_keeps_the_type_of_the_carry(step):
  fresh = step.module.initialize_state(cases.BATCH)
  assert _signature(step.out.next_state) == _signature(fresh)
  assert _signature(step.state) == _signature(fresh)


def test_every_leaf_of_the_carry_has_one_row_per_environment(step):
  for rows in (1, 2):
    leaves = jax.tree.leaves(step.module.initialize_state(rows))
    assert all(leaf.shape[0] == rows for leaf in leaves)


def test_a_call_writes_nothing_but_rng_streams(step):
  is_stream = nnx.filterlib.to_predicate(nnx.RngState)
  before, after = nnx.to_flat_state(step.before), nnx.to_flat_state(step.after)
  assert [path for path, _ in before] == [path for path, _ in after]
  for (path, old), (_, new) in zip(before, after, strict=True):
    if not is_stream(path, old):
      jax.tree.map(
        np.testing.assert_array_equal, old.get_value(), new.get_value()
      )


def test_split_and_merge_change_nothing(step):
  direct = table.build(step.name)(step.state, step.x)
  merged = nnx.merge(*nnx.split(table.build(step.name)))
  cases.assert_same(merged(step.state, step.x), direct)


def test_rows_do_not_mix(step):
  order = jnp.array([2, 0, 1])
  permute = lambda tree: jax.tree.map(lambda a: a[order], tree)
  state, x, extras = step.state, step.x, step.out.rollout_extras
  out, _ = step.call(step.before, state, x, extras)
  moved, _ = step.call(step.before, permute(state), permute(x), permute(extras))
  expected = permute(jax.tree.map(_as_rows, out))
  cases.assert_same(jax.tree.map(_as_rows, moved), expected, 1e-6)


def _as_rows(leaf: jax.Array) -> jax.Array:
  """Gives a number that belongs to the whole batch to every row."""
  return leaf if leaf.ndim else jnp.broadcast_to(leaf, (cases.BATCH,))


def test_doubling_the_batch_keeps_the_mean_regularization(step):
  twice = lambda tree: jax.tree.map(lambda a: jnp.concatenate([a, a]), tree)
  doubled, _ = step.call(
    step.before,
    twice(step.state),
    twice(step.x),
    twice(step.out.rollout_extras),
  )
  loss = step.out.regularization_loss
  assert loss.shape in ((), (cases.BATCH,))
  np.testing.assert_allclose(
    jnp.mean(doubled.regularization_loss), jnp.mean(loss), rtol=1e-6
  )


def test_some_modules_of_the_table_do_regularize():
  x = table.inputs('penalty', cases.BATCH)
  assert table.build('penalty')((), x).regularization_loss.min() > 0


def test_reset_gives_the_initial_carry(step):
  fresh = step.module.initialize_state(cases.BATCH)
  reset = step.module.reset_state(step.state)
  cases.assert_same(cases.without_keys(reset), cases.without_keys(fresh))


def test_the_used_carry_differs_from_a_fresh_one(step):
  fresh = jax.tree.leaves(step.module.initialize_state(cases.BATCH))
  used = jax.tree.leaves(step.state)
  changed = [np.any(a != b) for a, b in zip(fresh, used, strict=True)]
  # Not all: after two steps a ring of two slots is at its first slot again.
  assert np.mean(changed) >= 0.5 if changed else not fresh


def test_carry_extras_and_metrics_have_an_entry_per_child(step):
  cases.assert_mirrors(step.module, step.state)
  cases.assert_mirrors(step.module, step.out.next_state)
  cases.assert_mirrors(step.module, step.out.rollout_extras)
  cases.assert_mirrors(step.module, step.out.metrics)


def _kinds(module: Any, tree: Any) -> Any:
  """Returns the type of each container's entry, `list` or `dict`."""
  if not isinstance(module, AbstractContainer):
    return ()
  return (type(tree), [_kinds(module[k], tree[k]) for k in module.names])


def test_extras_are_lists_and_dicts_where_the_carry_is(step):
  extras = step.out.rollout_extras
  assert _kinds(step.module, extras) == _kinds(step.module, step.state)


@pytest.mark.parametrize('name', table.POLICIES)
def test_replaying_the_extras_reproduces_the_action_and_its_score(name):
  module = table.build(name)
  state, x = _settled(module, name), table.inputs(name, cases.BATCH)
  acted = module(state, x)
  again = module(state, x, acted.rollout_extras)  # the stream has moved on
  cases.assert_same(again.output, acted.output)
  other = module(state, x)
  for a, b in zip(
    jax.tree.leaves(acted.output.actions),
    jax.tree.leaves(other.output.actions),
    strict=True,
  ):
    assert np.all(a != b)
