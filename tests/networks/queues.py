"""Delay lines of queues, in plain Python, and numbers to delay."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.networks import cases


def delayed(x: Any, is_first: Any, k: int, initial: Any = 0) -> np.ndarray:
  """Delays each row `x[:, b]` by a queue that is new at each episode."""
  x, is_first = np.asarray(x), np.asarray(is_first)
  output = np.full_like(x, initial)
  for row in range(x.shape[1]):
    queue = collections.deque()
    for t in range(len(x)):
      if is_first[t, row]:
        queue.clear()
      queue.append(x[t, row])
      if len(queue) > k:
        output[t, row] = queue.popleft()
  return output


def draw(dtype: str, *shape: int, seed: int = 0) -> jax.Array:
  """Draws numbers of any type; they differ from 0 and from each other."""
  numbers = np.random.default_rng(seed).permutation(np.prod(shape)) + 1.0
  if dtype == 'bool':
    numbers = numbers % 3 > 0
  return jnp.asarray(numbers.reshape(shape), dtype)


def warm(module: Any, steps: int, rows: int) -> Any:
  """Returns the carry of a delay of numbers after `steps` steps.

  Row 0 was reset before the last of them.
  """
  x = draw('float32', steps, rows, seed=4)
  is_first = jnp.zeros((steps, rows)).at[-1, 0].set(1)
  start = module.initialize_state(rows)
  return cases.loop(module, start, x, is_first).next_state
