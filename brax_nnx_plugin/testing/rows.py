"""Laws of the batch: its rows are environments that know nothing of another."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.testing import subject as subjects

_ROWS = 'Work on each row by itself: no mean, shuffle or count over the batch.'


def _numbers(subject: subjects.Subject, out: Any) -> dict[str, np.ndarray]:
  """Returns the numbers of a call that have rows."""
  named = subjects.results(out)
  if subject.repeatable_loss and jnp.ndim(out.regularization_loss):
    loss = out.regularization_loss
    named |= subjects.numbers('regularization_loss', loss)
  for path, leaf in named.items():
    if leaf.shape[:1] != (subject.batch_size,):
      fault = (
        f'a batch of {subject.batch_size} rows gives it shape {leaf.shape}'
      )
      way_out = 'Give it one row per environment, [B, ...].'
      subject.fail('rows', path, fault, way_out)
  return named


def _joined(*parts: Any) -> jax.Array:
  return jnp.asarray(np.concatenate(parts))


def check_rows(subject: subjects.Subject) -> None:
  """Asserts that rows can be moved, and that one does not see another."""
  args = subject.step_inputs(1)
  expected = _numbers(subject, subject.copy()(*args))
  order = np.roll(np.arange(subject.batch_size), 1)
  moved = subject.copy()(*subjects.take(args, order))
  found = subjects.first_difference(
    _numbers(subject, moved),
    {k: v[order] for k, v in expected.items()},
    tolerance=subject.tolerance,
  )
  if found is not None:
    fault = 'permuted rows do not give permuted results'
    subject.fail('rows', found[0], fault, _ROWS)
  mixed = jax.tree.map(
    lambda a, b: _joined(b[:1], a[1:]), args, subject.step_inputs(0)
  )
  after = _numbers(subject, subject.copy()(*mixed))
  others = slice(1, None)
  found = subjects.first_difference(
    {k: v[others] for k, v in after.items()},
    {k: v[others] for k, v in expected.items()},
    tolerance=subject.tolerance,
  )
  if found is not None:
    fault = 'another input to row 0 changes the other rows'
    subject.fail('rows', found[0], fault, _ROWS)


def check_regularization(subject: subjects.Subject) -> None:
  """Asserts that the mean loss is that of a row, whatever the batch size."""
  args = subject.step_inputs(1)
  loss = subject.copy()(*args).regularization_loss
  shapes = ((), (subject.batch_size,))
  if jnp.shape(loss) not in shapes:
    fault = f'its shape is {jnp.shape(loss)}, not one of {shapes}'
    way_out = 'Return one number per row, or one that is a mean over rows.'
    subject.fail('regularization', 'regularization_loss', fault, way_out)
  if not subject.repeatable_loss:
    return
  twice = jax.tree.map(lambda leaf: _joined(leaf, leaf), args)
  doubled = subject.copy()(*twice).regularization_loss
  a, b = np.asarray(jnp.mean(doubled)), np.asarray(jnp.mean(loss))
  if np.any(subjects.differing(a, b, subject.tolerance)):
    fault = f'its mean is {b} for a batch and {a} for the same batch twice'
    way_out = 'Return one number per row, or the mean over rows, not the sum.'
    subject.fail('regularization', 'regularization_loss', fault, way_out)
