"""Laws of the carry: it keeps its type, and a reset begins it anew."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.testing import subject as subjects

_ROWS = (
  'Give every leaf of the carry one row per environment, [batch_size, ...].'
)
_FIXED = (
  'The carry must keep structure, shapes and types; state the dtype where it is'
  ' made, and cast to it in __call__.'
)
_RESET = (
  'Let reset_state return what initialize_state does for every row; noise keys'
  ' alone may be kept.'
)


def _type(leaf: Any) -> str:
  """Names shape and dtype; a weak one is another, as to a compiler it is."""
  weak = ' (weak)' if leaf.weak_type else ''
  return f'{leaf.dtype}{list(leaf.shape)}{weak}'


def _check_rows(subject: subjects.Subject, batch_size: int) -> None:
  """Asserts that every leaf of a fresh carry is an array with rows."""
  carry = subject.copy().initialize_state(batch_size)
  for path, leaf in jax.tree_util.tree_leaves_with_path(carry):
    name = 'carry' + jax.tree_util.keystr(path)
    if not isinstance(leaf, (jax.Array, np.ndarray)):
      fault = f'initialize_state returns a {type(leaf).__name__}, not an array'
      subject.fail('carry', name, fault, _ROWS)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      fault = 'it is a typed PRNG key, which no segment shuffle can carry'
      way_out = 'Carry jax.random.key_data(key), one row per environment.'
      subject.fail('carry', name, fault, way_out)
    if leaf.shape[:1] != (batch_size,):
      fault = f'initialize_state({batch_size}) gives it shape {leaf.shape}'
      subject.fail('carry', name, fault, _ROWS)


def _compare_types(subject: Any, before: Any, after: Any, what: str) -> None:
  """Asserts that `what` keeps the type of the carry."""
  old, new = jax.tree.structure(before), jax.tree.structure(after)
  if old != new:
    subject.fail('carry', 'carry', f'{what} turns {old} into {new}', _FIXED)
  leaves = jax.tree_util.tree_leaves_with_path(before)
  for (path, a), b in zip(leaves, jax.tree.leaves(after), strict=True):
    if _type(a) != _type(b):
      name = 'carry' + jax.tree_util.keystr(path)
      fault = f'{what} turns {_type(a)} into {_type(b)}'
      subject.fail('carry', name, fault, _FIXED)


def check_carry(subject: subjects.Subject) -> None:
  """Asserts that every leaf has rows, and that a step keeps its type."""
  for batch_size in (subject.batch_size, subject.batch_size + 1):
    _check_rows(subject, batch_size)
  graphdef, variables = nnx.split(subject.copy())

  def trace(variables, x):
    module = nnx.merge(graphdef, variables)
    state = module.initialize_state(subject.batch_size)
    reset = module.reset_state(state)
    out = module(state, x)
    subject.check_output(out)
    return state, out.next_state, reset

  x = subjects.take(subject.x, 0)
  fresh, following, reset = jax.eval_shape(trace, variables, x)
  _compare_types(subject, fresh, following, 'a step')
  _compare_types(subject, fresh, reset, 'reset_state')


def check_reset(subject: subjects.Subject) -> None:
  """Asserts that a reset gives a fresh carry, to the rows it is asked for."""
  if not jax.tree.leaves(subject.fresh):
    return
  noise = subject.noise
  reset = subject.copy().reset_state(subject.used)
  fresh = subjects.numbers('carry', subject.fresh)
  for path, leaf in subjects.numbers('carry', reset).items():
    if path not in noise and np.any(subjects.differing(leaf, fresh[path], 0.0)):
      fault = 'reset_state of a used carry is not what initialize_state returns'
      subject.fail('reset', path, fault, _RESET)
  flags = jnp.arange(subject.batch_size) % 2 == 0
  reset = stepping.reset_rows(
    subject.copy(), flags.astype(jnp.float32), subject.used
  )
  used = subjects.numbers('carry', subject.used)
  for path, leaf in subjects.numbers('carry', reset).items():
    kept = ~np.asarray(flags)
    if np.any(subjects.differing(leaf[kept], used[path][kept], 0.0)):
      fault = 'reset_rows changes rows that are not flagged'
      way_out = 'Write flagged rows alone, by jnp.where on the flags.'
      subject.fail('reset', path, fault, way_out)
  _check_behaviour(subject, flags, reset, noise)


def _check_behaviour(
  subject: subjects.Subject, flags: Any, reset: Any, noise: frozenset[str]
) -> None:
  """Asserts that what follows `reset_rows` follows a fresh carry as well."""

  def begin(path, fresh, kept):
    name = 'carry' + jax.tree_util.keystr(path)
    return kept if name in noise else fresh

  fresh = jax.tree_util.tree_map_with_path(begin, subject.fresh, reset)
  expected = stepping.select_rows(flags, fresh, subject.used)
  never = jnp.zeros_like(subject.is_first)
  runs = [
    subject.run(subject.copy(), start, subject.x, never, None)[1]
    for start in (reset, expected)
  ]
  found = subjects.first_difference(
    *(subjects.numbers('output', out.output) for out in runs),
    tolerance=subject.tolerance,
  )
  if found is not None:
    path, where = found
    fault = (
      'what follows reset_rows is not what follows a fresh carry'
      f'{subjects.when(path, where)}'
    )
    way_out = 'Let reset_rows do to flagged rows what reset_state does to all.'
    subject.fail('reset', path, fault, way_out)
