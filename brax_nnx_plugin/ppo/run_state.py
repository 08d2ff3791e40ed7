"""All that a run is between two epochs, as arrays by name and back.

The structure is never read from a file: it is that of the fresh run which the
arrays are put into. Typed random keys are kept as their data.
"""

from collections.abc import Mapping
from typing import Any

from flax import struct
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.ppo import leaves
from brax_nnx_plugin.ppo.types import ActorState
from brax_nnx_plugin.ppo.types import TrainingState


@struct.dataclass
class RunState:
  """The numbers of a run.

  Attributes:
    training: one copy.
    actors: one row of the leading axis a device.
    env_keys: of the next resets, likewise.
    key: of the next epoch.
    eval_key: of the next evaluation.
  """

  training: TrainingState
  actors: ActorState
  env_keys: jax.Array
  key: jax.Array
  eval_key: jax.Array


def _is_key(leaf: Any) -> bool:
  dtype = getattr(leaf, 'dtype', None)  # a Python number has none
  return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _data(leaf: Any) -> Any:
  return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _copy_local(leaf: Any) -> np.ndarray:
  """Copies the rows of this process; training may then reuse their memory."""
  shards = {s.index[0].start or 0: s for s in leaf.addressable_shards}
  rows = [np.asarray(shards[start].data) for start in sorted(shards)]
  return np.concatenate(rows)


def gather(tree: Any) -> Any:
  """Copies `[D, ...]` to the host, with the rows of all processes.

  All processes must call it, with trees of one structure.

  Args:
    tree: on the devices, one row each.
  """

  def copy(leaf):
    rows = _copy_local(_data(leaf))
    if jax.process_count() > 1:
      # One process after the other; some arrays of a physics state are empty.
      rows = np.concatenate(multihost_utils.process_allgather(rows))
    return rows

  return jax.tree.map(copy, tree)


def copy_one(tree: Any) -> Any:
  """Copies arrays without a device axis to the host."""
  return jax.tree.map(lambda leaf: np.array(_data(leaf)), tree)


def flatten(tree: Any) -> dict[str, np.ndarray]:
  """Returns arrays by name.

  Args:
    tree: on the host.

  Raises:
    ValueError: if two arrays have one name.
  """
  # Brax's 64-bit counts turn what they are made of into arrays of JAX.
  arrays = {
    name: np.asarray(leaf)
    for name, leaf in leaves.by_name(tree, separator='.').items()
  }
  if len(arrays) != len(jax.tree.leaves(tree)):
    names = [
      jax.tree_util.keystr(path, simple=True, separator='.')
      for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    raise ValueError(
      f'The state of the run has two arrays called {", ".join(twice)}: dict'
      ' keys with a dot in them. Rename them, or save without a state:'
      ' save_checkpoint_path=checkpoint.Folder(path, save_state=False).'
    )
  return arrays


def key_types(tree: Any) -> dict[str, str]:
  """Returns the implementation of every typed key, by its name."""
  return {
    name: str(jax.random.key_impl(leaf))
    for name, leaf in leaves.by_name(tree, separator='.').items()
    if _is_key(leaf)
  }


def _spec(leaf: Any) -> Any:
  return jax.eval_shape(_data, leaf)


def misfits(
  saved: Mapping[str, Any], tree: Any, saved_key_types: Mapping[str, str]
) -> list[str]:
  """Says of each array that does not fit why.

  Args:
    saved: arrays by name.
    tree: of the fresh run.
    saved_key_types: as of `key_types`.
  """
  needed = {n: _spec(x) for n, x in leaves.by_name(tree, '.').items()}
  wrong = leaves.misfits(saved, needed, 'saved')
  wrong += [
    f'{name}: saved {saved[name].dtype}, needed {leaf.dtype}'
    for name, leaf in needed.items()
    if name in saved and saved[name].dtype != leaf.dtype
  ]
  types = key_types(tree)
  wrong += [
    f'{name}: saved {saved_key_types.get(name, "no typed key")}, needed'
    f' {types.get(name, "no typed key")}'
    for name in sorted({*types, *saved_key_types})
    if types.get(name) != saved_key_types.get(name)
  ]
  return wrong


def fill(tree: Any, saved: Mapping[str, Any]) -> Any:
  """Returns `tree` with the saved arrays; check `misfits` before."""

  def wrap(leaf, value):
    if not _is_key(leaf):
      return value
    return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))

  values = [
    wrap(leaf, saved[name]) for name, leaf in leaves.by_name(tree, '.').items()
  ]
  return jax.tree.unflatten(jax.tree.structure(tree), values)
