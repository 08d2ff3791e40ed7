"""Checks of the module contract on one traced step.

They run on abstract values when a network is made, before anything compiles.
"""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks.types import StatefulModuleOutput


def _name(path: Any) -> str:
  return '/'.join(str(part) for part in path)


def variables(module: nnx.Module) -> dict[Any, tuple[nnx.Variable, Any]]:
  """Maps paths to variables and their values, RNG streams left out."""
  return {
    path: (node, node.get_raw_value())
    for path, node in nnx.iter_graph(module)
    if isinstance(node, nnx.Variable) and not isinstance(node, nnx.RngState)
  }


def first_written(before: Any, after: Any) -> tuple[str, str] | None:
  """Returns path and class of a variable that was written, if one was.

  Args:
    before: the `variables` of a module.
    after: those of the same module later.
  """
  for path in [*before, *(p for p in after if p not in before)]:
    old, new = before.get(path), after.get(path)
    if old is None or new is None or old[1] is not new[1]:
      variable, _ = new or old or (None, None)
      return _name(path), type(variable).__name__
  return None


def call_without_writes(module: Any, state: Any, x: Any) -> Any:
  """Calls `module` and raises if the call wrote a variable.

  Args:
    module: a stateful module.
    state: its carry.
    x: its input.

  Returns:
    What the module returned.

  Raises:
    ValueError: if a variable other than an RNG stream was written.
  """
  before = variables(module)
  out = module(state, x)
  written = first_written(before, variables(module))
  if written is not None:
    path, kind = written
    raise ValueError(
      f'__call__ of {type(module).__name__} wrote the variable {path!r} (a'
      f' {kind}). A forward pass must not change what a later one computes, or'
      ' the loss replays another network than the one that acted. Keep'
      ' per-episode memory in the carry (initialize_state, reset_state), and'
      ' fold running statistics in update_statistics. (nnx.jit and nnx.remat'
      ' write back what they read: inside a layer use jax.jit or jax.checkpoint'
      ' on arrays.)'
    )
  return out


def check_fresh_carry(module: Any, state: Any, batch_size: int) -> None:
  """Raises if a fresh carry has not one row per environment, or a reset none.

  Args:
    module: whose carry it is.
    state: what `initialize_state(batch_size)` returned.
    batch_size: number of rows.

  Raises:
    ValueError: naming the first leaf that is wrong.
  """
  kind = type(module).__name__
  for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    if jnp.shape(leaf)[:1] != (batch_size,):
      raise ValueError(
        f'{kind}.initialize_state({batch_size}) returns a carry whose leaf'
        f' {jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}. Every leaf'
        ' needs one row per environment: [batch_size, ...].'
      )
  reset = module.reset_state(state)
  check_carry(module, state, reset, what='reset_state')


def check_carry(
  module: Any, state: Any, next_state: Any, what: str = 'a step'
) -> None:
  """Raises if a step changes the structure, shape or dtype of the carry.

  Args:
    module: whose carry it is.
    state: the carry before the step.
    next_state: the carry after it.
    what: what was done in between, for the error.

  Raises:
    ValueError: naming the first leaf that differs.
  """
  kind = type(module).__name__
  old, new = jax.tree.structure(state), jax.tree.structure(next_state)
  if old != new:
    raise ValueError(
      f'{kind}: {what} turns a carry {old} into {new}. The carry must keep'
      ' its structure.'
    )
  pairs = zip(
    jax.tree_util.tree_leaves_with_path(state),
    jax.tree.leaves(next_state),
    strict=True,
  )
  for (path, a), b in pairs:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
      raise ValueError(
        f'{kind}: {what} turns the carry leaf'
        f' {jax.tree_util.keystr(path)} from {a.dtype}{list(a.shape)} into'
        f' {b.dtype}{list(b.shape)}. A carry must keep its shape and dtype.'
      )


def check_ppo_output(
  module: Any, out: Any, batch_size: int, action_size: int
) -> None:
  """Raises if one step of a whole network is not something PPO can train.

  Args:
    module: the network.
    out: what one step on `batch_size` rows returned.
    batch_size: number of rows.
    action_size: what the environment takes.

  Raises:
    TypeError: if it is not a `StatefulModuleOutput` of a `PPONetworkOutput`.
    ValueError: if a shape is wrong.
  """
  kind = type(module).__name__
  fields = StatefulModuleOutput.__dataclass_fields__
  if not all(hasattr(out, field) for field in fields):
    raise TypeError(
      f'{kind}.__call__ must return a StatefulModuleOutput; it returned a'
      f' {type(out).__name__}.'
    )
  ppo = out.output
  names = ('actions', 'loglikelihoods', 'value_estimates')
  if not all(hasattr(ppo, name) for name in names):
    raise TypeError(
      f'The output of {kind} must be a PPONetworkOutput; it is a'
      f' {type(ppo).__name__}. End the network in a PPOAdapter(action=...,'
      ' value=...).'
    )
  rows = (batch_size,)
  for name in names[1:]:
    for leaf in jax.tree.leaves(getattr(ppo, name)):
      if leaf.shape != rows:
        raise ValueError(
          f'{kind}: {name} must have one number per row, shape {rows}; got'
          f' {leaf.shape}.'
        )
  if len(jax.tree.leaves(ppo.value_estimates)) != 1:
    raise ValueError(f'{kind} must estimate one value per row.')
  size = sum(leaf.shape[-1] for leaf in jax.tree.leaves(ppo.actions))
  if size != action_size:
    raise ValueError(
      f'{kind} returns actions of size {size}, but the environment takes'
      f' {action_size}.'
    )
  shape = jnp.shape(out.regularization_loss)
  if shape not in ((), rows):
    raise ValueError(
      f'{kind}: regularization_loss must be one number or one per row, shape'
      f' () or {rows}; got {shape}.'
    )
