"""Running stateful modules over time: resets, sequences, statistics.

`types` says what a module is; here is how one is stepped. Modules are duck
typed: those of other libraries that keep the contract, but know neither
`reset_rows` nor `unroll`, run as well.
"""

import dataclasses
import inspect
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp


def select_rows(mask: jax.Array, on_true: Any, on_false: Any) -> Any:
  """Takes the rows of `on_true` where `mask` is set, else of `on_false`.

  Args:
    mask: `[B]` of any dtype; nonzero means set (Brax's `done` is float).
    on_true: a pytree of `[B, ...]`.
    on_false: likewise, with the same structure.

  Returns:
    A pytree of `[B, ...]`. What is not selected may be anything, NaN included.
  """
  mask = jnp.asarray(mask).astype(bool)

  def select(a, b):
    return jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - 1)), a, b)

  return jax.tree.map(select, on_true, on_false)


def reset_rows(module: Any, is_first: jax.Array, state: Any) -> Any:
  """Resets the carry of the rows that begin an episode.

  The one place where memory is cleared: acting, replay, evaluation and
  inference all call it, before the step that sees the first observation.

  Args:
    module: whose carry it is.
    is_first: `[B]`, nonzero where the next input is the first of an episode.
    state: the carry, `[B, ...]`.

  Returns:
    The carry; rows with `is_first == 0` are bitwise unchanged.
  """
  if not jax.tree.leaves(state):
    return state
  method = getattr(module, 'reset_rows', None)
  if method is not None:
    return method(is_first, state)
  return select_rows(is_first, module.reset_state(state), state)


def scan_steps(
  module: Any,
  state: Any,
  x: Any,
  is_first: jax.Array,
  rollout_extras: Any,
) -> Any:
  """Runs `module` step by step over time; the reference for every `unroll`."""
  graphdef, rngs, variables = nnx.split(module, nnx.RngState, ...)

  def step(carry, inputs):
    state, rngs = carry
    x, is_first, extras = inputs
    # Tracing may only touch variables made inside the scan, hence the copy.
    copy = nnx.merge(graphdef, rngs, variables)
    out = copy(reset_rows(copy, is_first, state), x, extras)
    carry = (out.next_state, nnx.state(copy, nnx.RngState))
    return carry, dataclasses.replace(out, next_state=())

  (state, rngs), out = jax.lax.scan(
    step, (state, rngs), (x, is_first, rollout_extras)
  )
  nnx.update(module, rngs)
  loss = out.regularization_loss
  if loss.ndim == 1:  # one number a step: give it a batch axis to add up with
    loss = loss[:, None]
  return dataclasses.replace(out, next_state=state, regularization_loss=loss)


def fold_steps(
  module: Any, state: Any, x: Any, is_first: jax.Array, rollout_extras: Any
) -> Any:
  """Runs a memoryless `module` on all rows of all steps at once."""
  steps, batch = is_first.shape

  def fold(leaf):
    return leaf.reshape((steps * batch,) + leaf.shape[2:])

  def unfold(leaf):
    leaf = jnp.asarray(leaf)
    if leaf.ndim and leaf.shape[0] == steps * batch:
      return leaf.reshape((steps, batch) + leaf.shape[1:])
    return leaf  # a number for the whole batch, such as a scalar metric

  out = module(state, jax.tree.map(fold, x), jax.tree.map(fold, rollout_extras))
  return dataclasses.replace(jax.tree.map(unfold, out), next_state=state)


def unroll_module(
  module: Any,
  state: Any,
  x: Any,
  is_first: jax.Array,
  rollout_extras: Any = None,
) -> Any:
  """Calls `module.unroll`, or scans a module that does not have it."""
  unroll = getattr(module, 'unroll', None)
  if unroll is None:
    return scan_steps(module, state, x, is_first, rollout_extras)
  return unroll(state, x, is_first, rollout_extras)


def update_module_statistics(
  module: Any, rollout_extras: Any, axis_name: str | None
) -> None:
  """Calls `module.update_statistics`, with `axis_name` if there is one.

  Args:
    module: any module with `update_statistics`.
    rollout_extras: `[T, B, ...]`.
    axis_name: the device axis, or `None` on one device.

  Raises:
    TypeError: on several devices, if the method takes no `axis_name`.
  """
  if axis_name is None:
    module.update_statistics(rollout_extras)
    return
  parameters = inspect.signature(module.update_statistics).parameters
  kinds = [p.kind for p in parameters.values()]
  if 'axis_name' not in parameters and inspect.Parameter.VAR_KEYWORD not in (
    kinds
  ):
    raise TypeError(
      f'{type(module).__name__}.update_statistics takes no `axis_name`, so'
      ' its statistics would differ from device to device. Add the keyword'
      ' `axis_name=None` and combine the batch over it with jax.lax.psum, or'
      ' train on one device (max_devices_per_host=1).'
    )
  module.update_statistics(rollout_extras, axis_name=axis_name)
