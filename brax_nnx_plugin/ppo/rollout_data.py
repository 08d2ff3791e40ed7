"""What a rollout leaves behind: recorded segments, and how to read them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo.types import Rollout


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ObservationLeaf:
  """Stands for a leaf of the observation; a pytree without leaves."""

  index: int


def without_observation(extras: Any, observation: Any) -> Any:
  """Replaces what is an observation itself by an `ObservationLeaf`.

  A raw input that an embedded `Normalizer` hands on would be stored twice. What
  is the observation is seen while tracing: it is the same array, not an equal
  one.

  Args:
    extras: rollout extras.
    observation: what the network was given when it made them.
  """
  index = {id(leaf): i for i, leaf in enumerate(jax.tree.leaves(observation))}

  def replace(leaf):
    known = id(leaf) in index
    return ObservationLeaf(index[id(leaf)]) if known else leaf

  return jax.tree.map(replace, extras)


def full_extras(data: Rollout) -> Any:
  """Returns the rollout extras as the network emitted them."""
  leaves = jax.tree.leaves(data.observation)
  is_known = lambda n: isinstance(n, ObservationLeaf)
  return jax.tree.map(
    lambda n: leaves[n.index] if is_known(n) else n,
    data.extras,
    is_leaf=is_known,
  )


def end_carry(start_carry: Any, last_carry: Any, rows: jax.Array) -> Any:
  """Returns the carry that each of some segments ended with.

  It is the one that the next segment of the environment started from, before
  the reset; so it need not be stored.

  Args:
    start_carry: of all segments, `[N, ...]`, as `collect` lays them out.
    last_carry: of the actors after the last segment, `[B, ...]`.
    rows: which segments, `[M]`.
  """

  def pick(start, last):
    count, envs_ = start.shape[0], last.shape[0]
    is_last = rows >= count - envs_
    following = start[jnp.minimum(rows + envs_, count - 1)]
    shape = (-1, *[1] * (start.ndim - 1))
    return jnp.where(is_last.reshape(shape), last[rows % envs_], following)

  return jax.tree.map(pick, start_carry, last_carry)


def map_rollout(rollout: Rollout, with_time: Any, without: Any) -> Rollout:
  """Maps one function over leaves that have a time axis, one over the rest."""
  rest = ('start_carry', 'start_is_first', 'last_observation', 'end_carry')
  return dataclasses.replace(
    rollout,
    **{
      name: jax.tree.map(without if name in rest else with_time, value)
      for name, value in vars(rollout).items()
    },
  )
