"""Devices: mapping a function over them and keeping copies in step.

Brax's `pmap` over the axis 'i', on JAX versions with and without
`jax.device_put_replicated`. With several processes (`jax.distributed`) the axis
goes over the devices of all of them, one process after the other; arrays hold
the rows of their own process.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import hashlib
from typing import Any

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

AXIS_NAME = 'i'


def first(tree: Any) -> Any:
  """Returns the first local copy of a replicated tree."""

  def take(leaf):
    shard = leaf.addressable_shards[0]
    # However it got there, it shall not look new to a compiled program.
    return jax.device_put(shard.data.squeeze(0), shard.device)

  return jax.tree.map(take, tree)


def strip_weak_type(tree: Any) -> Any:
  """Gives every leaf a definite dtype, which saves a compilation."""

  def strip(leaf):
    leaf = jnp.asarray(leaf)
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if is_key else leaf.astype(leaf.dtype)

  return jax.tree.map(strip, tree)


@dataclasses.dataclass(frozen=True)
class Devices:
  """The devices of a run.

  Attributes:
    everywhere: of all processes together, in the order of the processes.
    local: of this process.
  """

  everywhere: tuple[Any, ...]
  local: tuple[Any, ...]

  @classmethod
  def of(cls, max_devices_per_host: int | None) -> 'Devices':
    """Takes the devices of every process, at most `max_devices_per_host` each.

    Args:
      max_devices_per_host: `None` for all.

    Raises:
      ValueError: if it is not positive, or processes have unlike many devices.
    """
    if max_devices_per_host is not None and max_devices_per_host < 1:
      raise ValueError(
        'max_devices_per_host must be at least 1, or None for all; got'
        f' {max_devices_per_host}.'
      )
    by_process = [jax.local_devices(i) for i in range(jax.process_count())]
    sizes = [len(devices) for devices in by_process]
    if len(set(sizes)) > 1:
      raise ValueError(
        'All processes must have the same number of devices; in the order of'
        f' their index they have {sizes}. Hide some, as with'
        ' CUDA_VISIBLE_DEVICES.'
      )
    used = [tuple(devices[:max_devices_per_host]) for devices in by_process]
    return cls(sum(used, ()), used[jax.process_index()])

  @property
  def count(self) -> int:
    """Devices of all processes together."""
    return len(self.everywhere)

  @property
  def axis_name(self) -> str | None:
    """The mapped axis, if there is more than one device to combine over."""
    return AXIS_NAME if self.count > 1 else None

  def own(self, rows: jax.Array) -> jax.Array:
    """Takes the rows of this process out of `[count, ...]`."""
    if len(self.local) == self.count:
      return rows
    start = self.everywhere.index(self.local[0])
    return rows[start : start + len(self.local)]

  def average(self, metrics: Any) -> Any:
    """Averages over the devices of all processes, inside a mapped function.

    With one process there is nothing to do: it sees what every device has.
    """
    if len(self.local) == self.count:
      return metrics
    return jax.lax.pmean(metrics, AXIS_NAME)

  def pmap(self, fn: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    """Maps `fn` over the leading axis of its arguments, one row a device."""
    return jax.pmap(fn, axis_name=AXIS_NAME, devices=self.everywhere, **kwargs)

  def replicate(self, tree: Any) -> Any:
    """Copies every leaf to every local device, behind a new leading axis."""
    mesh = jax.sharding.Mesh(np.array(self.local), (AXIS_NAME,))
    spec = jax.sharding.PartitionSpec(AXIS_NAME)
    sharding = jax.sharding.NamedSharding(mesh, spec)

    def copy(leaf):
      stacked = jnp.broadcast_to(leaf, (len(self.local), *leaf.shape))
      return jax.device_put(stacked, sharding)

    return jax.tree.map(copy, strip_weak_type(tree))


def _to_numpy(copy: Any) -> np.ndarray:
  """Reads one copy; equal numbers get equal bytes."""
  array = np.asarray(copy)
  if not np.issubdtype(array.dtype, np.floating):
    return array
  return np.where(np.isnan(array), np.nan, array + 0.0).astype(array.dtype)


def drifted_leaves(tree: Any) -> list[str]:
  """Names the leaves whose copies differ between devices or processes.

  Compares element by element, where Brax's `pmap.assert_is_replicated` compares
  one sum; equal NaNs are equal. Processes compare hashes. All of them must call
  it, with trees of one structure.

  Args:
    tree: replicated, with a leading device axis.
  """
  drifted: dict[str, bool] = {}
  hashes: dict[str, bytes] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    copies = [_to_numpy(s.data) for s in leaf.addressable_shards]
    name = jax.tree_util.keystr(path)
    drifted[name] = not all(
      np.array_equal(copies[0], c, equal_nan=True) for c in copies
    )
    hashes[name] = copies[0].tobytes()
  elsewhere = differing_between_processes(hashes)
  return [n for n, differs in drifted.items() if differs or n in elsewhere]


def differing_between_processes(values: Mapping[str, bytes]) -> list[str]:
  """Names what is not the same in all processes.

  All processes must call it at the same point, with the same names.

  Args:
    values: any bytes, by name.
  """
  if jax.process_count() == 1 or not values:
    return []
  hashes = [
    np.frombuffer(hashlib.sha256(value).digest(), np.uint32)
    for value in values.values()
  ]
  everywhere = multihost_utils.process_allgather(np.stack(hashes))
  same = (everywhere == everywhere[:1]).all(axis=(0, 2))
  return [name for name, s in zip(values, same, strict=True) if not s]


def synchronize_hosts() -> None:
  """Waits until every process is here."""
  if jax.process_count() == 1:
    return
  ones = jnp.ones([jax.local_device_count()])
  total = jax.pmap(lambda x: jax.lax.psum(x, AXIS_NAME), AXIS_NAME)(ones)
  jax.block_until_ready(total)
