"""What every contender of a benchmark can do."""

import abc
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .benchmark_gate import Gate
from .benchmark_tasks import Task


def tree_bytes(tree: Any) -> int:
  """Returns the size of all arrays of a tree, or of what stands for them."""
  return sum(
    int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )


class Contender(abc.ABC):
  """Training of one network by one library."""

  buffer_bytes = 0

  def __init__(self, task: Task):
    self.task = task

  @abc.abstractmethod
  def train(self, gate: Gate) -> None:
    """Trains without end; `gate` is called before each measurement."""

  @abc.abstractmethod
  def acting(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns one rollout as a traceable function, and its arguments.

    The function returns the recorded data, and all else that it made.
    """

  @abc.abstractmethod
  def evaluation(self) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Returns one evaluation likewise, if the library has it."""

  def act(self, gate: Gate) -> None:
    """Repeats rollouts of one training step without end."""
    fn, args = self.acting()
    self.buffer_bytes = tree_bytes(jax.eval_shape(fn, *args)[0])
    _repeat(fn, args, gate)

  def evaluate(self, gate: Gate) -> None:
    """Repeats evaluations without end, if there are any."""
    if found := self.evaluation():
      _repeat(*found, gate)


def _repeat(fn: Any, args: tuple[Any, ...], gate: Gate) -> None:
  jitted = jax.jit(fn)
  while True:
    gate()
    jax.block_until_ready(jitted(*args))
