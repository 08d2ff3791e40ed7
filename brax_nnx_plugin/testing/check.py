"""Runs every law on a module."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from brax_nnx_plugin.testing import calls
from brax_nnx_plugin.testing import carry
from brax_nnx_plugin.testing import children
from brax_nnx_plugin.testing import replay
from brax_nnx_plugin.testing import rows
from brax_nnx_plugin.testing.subject import Subject

# In this order: a law may rely on those before it.
LAWS: dict[str, Callable[[Subject], None]] = {
  'writes': calls.check_writes,
  'finite': calls.check_finite,
  'split': calls.check_split,
  'reset': carry.check_reset,
  'metrics': children.check_metrics,
  'losses': children.check_losses,
  'extras': children.check_extras,
  'replay': replay.check_replay,
  'rows': rows.check_rows,
  'regularization': rows.check_regularization,
  'unroll': replay.check_unroll,
  'statistics': children.check_statistics,
}


def check_module(
  build: Callable[[nnx.Rngs], Any],
  sample_input: Any,
  *,
  batch_size: int = 3,
  steps: int = 5,
  seed: int = 0,
) -> None:
  """Checks that a stateful module keeps the contract that training relies on.

  The laws:
    carry: every leaf has a row per environment, and a step keeps its type.
    writes: a call writes no variable and no attribute, RNG streams aside.
    finite: the first step has finite outputs and gradients.
    split: a module taken apart and put together computes the same.
    reset: a reset carry is a fresh one, and other rows stay as they are.
    metrics: every child is called, and its metrics surface.
    losses: the regularization loss of every child is part of the module's.
    extras: they mirror the carry, and each child gets back its own.
    replay: a step given its extras gives the same again.
    rows: a row does not depend on the others, nor on its place.
    regularization: `[]` or `[B]`, with a mean that no batch size changes.
    unroll: a sequence is a loop of resets and steps.
    statistics: an update reaches every child and writes statistics alone.

  Args:
    build: makes the module from `nnx.Rngs`.
    sample_input: an example of one environment's input, or its shape (an int
      or a tuple of ints), or a pytree of those.
    batch_size: number of rows.
    steps: length of the sequences; at least as long as the module's memory, if
      that ends.
    seed: of weights, inputs and resets.

  Raises:
    AssertionError: if a law is broken; it names the law, the leaf and a way
      out.
    TypeError: if `build` does not make a stateful module.
    ValueError: if there is less than two of rows or steps.
  """
  subject = Subject(build, sample_input, batch_size, steps, seed)
  # What is raised here may be no fault of the module: a wrong sample input.
  carry.check_carry(subject)
  for name, law in LAWS.items():
    try:
      law(subject)
    except AssertionError:
      raise
    except Exception as error:
      fault = f'it raises {type(error).__name__}: {error}'
      subject.fail(name, '', fault, 'The traceback above shows where.')
