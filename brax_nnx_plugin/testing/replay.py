"""Laws of the replay: the loss sees what the rollout did."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.networks import contract
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.testing import subject as subjects


def check_replay(subject: subjects.Subject) -> None:
  """Asserts that a step given its extras is the same again."""
  found = subjects.first_difference(
    *(
      subjects.results(out, 'output', 'next_state')
      for out in (subject.replayed, subject.acted[1])
    ),
    tolerance=subject.tolerance,
  )
  if found is not None:
    path, where = found
    fault = (
      'replaying the rollout extras gives something else'
      f'{subjects.when(path, where)}'
    )
    way_out = (
      'Put what is drawn in the rollout_extras and use it when they are given;'
      ' noise of activations comes from keys in the carry.'
    )
    subject.fail('replay', path, fault, way_out)


def check_unroll(subject: subjects.Subject) -> None:
  """Asserts that `unroll` equals a loop of reset and call."""
  module = subject.copy()
  extras = subject.acted[1].rollout_extras
  args = (subject.used, subject.x, subject.is_first, extras)
  variables = contract.variables(module)
  unrolled = stepping.unroll_module(module, *args)
  written = contract.first_written(variables, contract.variables(module))
  if written is not None:
    path, kind = written
    way_out = 'Write no variable but RNG streams outside update_statistics.'
    subject.fail('unroll', path, f'unroll writes this {kind}', way_out)
  _compare(subject, unrolled, subject.replayed)


def _compare(subject: subjects.Subject, unrolled: Any, looped: Any) -> None:
  """Asserts that `unroll` returned what the loop did."""
  found = subjects.first_difference(
    _numbers(subject, unrolled),
    _numbers(subject, looped),
    tolerance=subject.tolerance,
  )
  way_out = (
    'Make unroll compute what reset_rows and __call__ do step by step, or leave'
    ' it to StatefulModule.'
  )
  if found is not None:
    path, where = found
    fault = f'unroll differs from a loop of steps{subjects.when(path, where)}'
    subject.fail('unroll', path, fault, way_out)
  keys = [_paths(out.metrics) for out in (unrolled, looped)]
  for path in sorted(keys[0] ^ keys[1]):
    fault = 'only one of unroll and a step has this metric'
    subject.fail('unroll', f'metrics{path}', fault, way_out)


def _paths(tree: Any) -> set[str]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path) for path, _ in leaves}


def _numbers(subject: subjects.Subject, out: Any) -> dict[str, np.ndarray]:
  """Returns what a sequence gives; of losses the mean alone is defined."""
  named = subjects.results(out)
  if subject.repeatable_loss:
    loss = jnp.mean(out.regularization_loss)
    named['mean regularization_loss'] = np.asarray(loss)
  return named
