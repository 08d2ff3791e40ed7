"""Rings: the inputs of the last steps, one ring per environment.

A *ring* of length k is a dict:
  buffer: a pytree of `[B, k, ...]`, the last k inputs.
  index: `[B]` int32, the slot to write next; it holds the oldest input.
  count: `[B]` int32, inputs of this episode so far, at most k.

The input of d steps ago is d slots before `index`, and belongs to this episode
if `count >= d`. So an episode begins with `count = 0` and nothing else: the
buffer stays, and what is left in it is never read.

The functions are pure. `delay` makes a layer of them, and `graph` shares one
ring among all connections that leave a population.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Ring = dict[str, Any]


def length(ring: Ring) -> int:
  """Returns how many steps the ring reaches back."""
  return jax.tree.leaves(ring['buffer'])[0].shape[1]


def restart(ring: Ring, is_first: jax.Array) -> Ring:
  """Forgets the past of the rows where `is_first` `[B]` is nonzero.

  All rows go on writing to the slots they would have, and the buffer is not
  touched.
  """
  is_first = jnp.asarray(is_first).astype(bool)
  return {**ring, 'count': jnp.where(is_first, 0, ring['count'])}


def look_back(ring: Ring, steps: int, initial: Any) -> Any:
  """Reads the input of `steps` steps ago, before this step's is pushed.

  Args:
    ring: a ring at least `steps` long.
    steps: 1 for the newest input in the ring.
    initial: a number per leaf, read where the episode is younger than `steps`.

  Returns:
    A pytree of `[B, ...]`.
  """
  past = _read(ring['buffer'], (ring['index'] - steps) % length(ring))
  return _select(ring['count'] >= steps, past, initial)


def push(ring: Ring, x: Any) -> Ring:
  """Writes the input of a step, `[B, ...]`, over the oldest one."""
  size = length(ring)
  return {
    'buffer': _write(ring['buffer'], ring['index'], x),
    'index': (ring['index'] + 1) % size,
    'count': jnp.minimum(ring['count'] + 1, size),
  }


def after(ring: Ring, reads: Sequence[Any], x: Any) -> Any:
  """Returns `x`, the next input, but available only after `reads`.

  XLA writes the buffer in place if it knows that all reads come before the
  write; otherwise it copies the whole buffer at each step.

  Args:
    ring: the ring that is read, and that `x` is pushed to.
    reads: all that this step reads of it.
    x: `[B, ...]`.
  """
  # True, but the compiler cannot know.
  always = ring['index'] >= 0
  for read in reads:
    x = _select(always, x, read)
  return x


def push_sequence(ring: Ring, x: Any, is_first: jax.Array) -> Ring:
  """Does what `restart` and `push` do step by step.

  Args:
    ring: the ring before the first reset.
    x: the inputs, `[T, B, ...]`.
    is_first: `[T, B]`, nonzero where the ring is restarted before the step.

  Returns:
    The ring after the last step.
  """
  size, steps = length(ring), len(is_first)
  kept = min(steps, size)
  index = ring['index']
  slots = (index[:, None] + np.arange(steps - kept, steps)) % size
  newest = jax.tree.map(lambda v: jnp.swapaxes(v[steps - kept :], 0, 1), x)
  count = _counts(ring['count'], is_first)[-1] + 1
  return {
    'buffer': _write(ring['buffer'], slots, newest),
    'index': (index + steps) % size,
    'count': jnp.minimum(count, size),
  }


def look_back_sequence(
  ring: Ring, x: Any, is_first: jax.Array, initial: Any
) -> Any:
  """Does what `look_back` over the whole length does step by step.

  The history of a row is its ring from the oldest input on, then `x`; the
  output is that history from its beginning.

  Args:
    ring: the ring before the first reset.
    x: the inputs, `[T, B, ...]`.
    is_first: `[T, B]`, nonzero where the ring is restarted before the step.
    initial: as in `look_back`.

  Returns:
    A pytree of `[T, B, ...]`.
  """
  size, steps = length(ring), len(is_first)
  slots = (ring['index'][:, None] + np.arange(min(steps, size))) % size
  oldest = _read(ring['buffer'], slots)

  def shift(old, new):
    old = jnp.swapaxes(old, 0, 1)
    return jnp.concatenate([old, new[: steps - len(old)]])

  past = jax.tree.map(shift, oldest, x)
  return _select(_counts(ring['count'], is_first) >= size, past, initial)


def _counts(count: jax.Array, is_first: jax.Array) -> jax.Array:
  """Returns the inputs of the episode before each step `[T, B]`, unbounded."""
  steps = jnp.arange(len(is_first), dtype=jnp.int32)[:, None]
  start = jnp.where(jnp.asarray(is_first).astype(bool), steps, -1)
  start = jax.lax.cummax(start, axis=0)
  return jnp.where(start < 0, count + steps, steps - start)


def _rows(slots: jax.Array) -> jax.Array:
  return jnp.arange(len(slots)).reshape((-1,) + (1,) * (slots.ndim - 1))


def _read(buffer: Any, slots: jax.Array) -> Any:
  """Reads the slots `[B]` or `[B, n]` of each row."""
  at = lambda b: b.at[_rows(slots), slots].get(mode='promise_in_bounds')
  return jax.tree.map(at, buffer)


def _write(buffer: Any, slots: jax.Array, x: Any) -> Any:
  """Writes the slots `[B]` or `[B, n]` of each row, no slot twice."""

  def put(b, v):
    at = b.at[_rows(slots), slots]
    return at.set(v, mode='promise_in_bounds', unique_indices=True)

  return jax.tree.map(put, buffer, x)


def _select(valid: jax.Array, past: Any, initial: Any) -> Any:
  """Takes `past` where `valid`, else `initial`; the rest may be NaN."""

  def select(leaf, value):
    mask = valid.reshape(valid.shape + (1,) * (leaf.ndim - valid.ndim))
    return jnp.where(mask, leaf, jnp.asarray(value, leaf.dtype))

  return jax.tree.map(select, past, initial)
