"""What a network is shown: the axes of an observation, and what it may lack.

A critic often reads entries of the observation that a robot does not have. They
may be left out wherever the action provably does not depend on them.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import step_program


def _entries(tree: Any) -> Mapping[str, Any]:
  return tree if isinstance(tree, Mapping) else {'': tree}


def leading_axes(spec: Any, observation: Any) -> tuple[int, ...]:
  """Returns the axes before the features.

  Args:
    spec: shapes of one observation, as `ModuleFunctions.observation_spec`.
    observation: `[..., *shape]`, or a dict of those; not all entries need be
      there.

  Raises:
    ValueError: if the features have another shape than the network was made
      for, or entries disagree in the axes before them.
  """
  if isinstance(spec, Mapping) != isinstance(observation, Mapping):
    raise ValueError(
      'The network was made for'
      f' {_describe(spec)}; got {_describe(observation)}.'
    )
  found = {}
  known = _entries(spec)
  for name, leaf in _entries(observation).items():
    if name not in known:
      continue
    features, shape = known[name].shape, jnp.shape(leaf)
    count = len(shape) - len(features)
    if count < 0 or shape[count:] != features:
      raise ValueError(
        f'The observation{f" {name!r}" if name else ""} has shape {shape}; the'
        f' network was made for {features}, possibly with a batch axis before'
        ' it.'
      )
    found[name] = shape[:count]
  if len(set(found.values())) > 1:
    raise ValueError(
      'The entries of the observation must have the same rows; the axes before'
      f' the features are {found}.'
    )
  return next(iter(found.values()), ())


def _describe(observation: Any) -> str:
  if isinstance(observation, Mapping):
    return f'a dict with the entries {sorted(observation)}'
  return f'one array of shape {jnp.shape(observation)}'


def completed(
  spec: Any, observation: Any, needed: Callable[[], Collection[str]]
) -> Any:
  """Fills in zeros for entries that are missing and not needed.

  Args:
    spec: as for `leading_axes`.
    observation: likewise.
    needed: returns the entries that must be there; called if any is missing.

  Raises:
    ValueError: if one of them is missing; the message names it.
  """
  if not isinstance(spec, Mapping) or not isinstance(observation, Mapping):
    return observation
  missing = [name for name in spec if name not in observation]
  if not missing:
    return observation
  required = needed()
  if lacking := [name for name in missing if name in required]:
    raise ValueError(
      f'The observation lacks {lacking}, which the result depends on; it has'
      f' {sorted(observation)}.'
    )
  rows = leading_axes(spec, observation)
  blank = {n: jnp.zeros(rows + spec[n].shape, spec[n].dtype) for n in missing}
  return {**observation, **blank}


def entries_read(
  functions: Any,
  params: Any,
  deterministic: bool = True,
  output: Any = lambda out: out.action,
) -> frozenset[str]:
  """Returns the entries of the observation that the action depends on.

  Args:
    functions: the network.
    params: the triple (normalizer, policy, value); shapes will do.
    deterministic: act by the mode of the distribution.
    output: takes what counts as the action out of a `NetworkOutput`.
  """
  program = step_program.trace(
    functions,
    step_program.specs(params),
    functions.observation_spec,
    deterministic=deterministic,
    output=output,
  )
  return frozenset(program.observation)


def spec_of(observation_size: Any) -> Any:
  """Returns the shapes of one observation.

  Args:
    observation_size: as Brax gives it: a shape, or a dict of shapes.
  """
  return jax.tree.map(
    lambda n: jax.ShapeDtypeStruct(
      tuple(n) if isinstance(n, (tuple, list)) else (n,), jnp.float32
    ),
    observation_size,
    is_leaf=lambda n: isinstance(n, (tuple, list)),
  )


def plain_size(observation_size: Any) -> Any:
  """Reads an observation size as stock Brax writes it into checkpoints.

  Args:
    observation_size: a shape, or a dict of shapes; in place of a shape there
      may be a dict of `shape` and `dtype`.
  """
  if not isinstance(observation_size, Mapping):
    return observation_size
  if set(observation_size) == {'shape', 'dtype'}:
    return tuple(observation_size['shape'])
  return {name: plain_size(size) for name, size in observation_size.items()}
