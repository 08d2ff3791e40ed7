"""Checks of single parameters of `train`, for `config`."""

from collections.abc import Iterable
import inspect
import math
import operator
from typing import Any
from typing import cast
import warnings

import jax

from brax_nnx_plugin.networks.types import StatefulModule


def require(condition: bool, message: str) -> None:
  """Raises a `ValueError` unless the condition holds."""
  if not condition:
    raise ValueError(message)


def _nearest(target: int, candidates: Iterable[int]) -> int:
  """Returns the candidate nearest to `target`, the smaller of two."""
  return min(candidates, key=lambda n: (abs(n - target), n), default=target)


def require_whole(config: Any, low: int, *names: str) -> None:
  """Requires whole numbers of at least `low`."""
  for name in names:
    value = getattr(config, name)
    message = f'{name} must be a whole number of at least {low}; got {value}.'
    try:
      require(operator.index(value) >= low, message)
    except TypeError:
      raise ValueError(message) from None


def require_finite(
  config: Any, *names: str, low: float = -math.inf, optional: bool = False
) -> None:
  """Requires finite numbers of at least `low`.

  Args:
    config: has them as attributes.
    *names: of the attributes.
    low: what they must reach.
    optional: whether they may be `None`.
  """
  need = 'a finite number' + (
    f' of at least {low:g}' if low > -math.inf else ''
  )
  for name in names:
    value = getattr(config, name)
    if value is None and optional:
      continue
    message = f'{name} must be {need}; got {value}.'
    try:
      number = float(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
      raise ValueError(message) from None
    require(math.isfinite(number) and number >= low, message)


def require_schedule(config: Any, name: str, low: float = -math.inf) -> None:
  """Requires a finite number, or a function of the number of gradient steps.

  Args:
    config: has it as an attribute.
    name: of the attribute.
    low: what a number must reach.
  """
  schedule = getattr(config, name)
  if not callable(schedule):
    require_finite(config, name, low=low)
    return
  try:
    value = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), 'int32'))
  except Exception as e:
    raise ValueError(
      f'{name} is a function that cannot be traced as one of the number of'
      f' gradient steps so far, an int32: {e}. Use a schedule of optax.'
    ) from e
  shape = getattr(value, 'shape', None)
  require(
    shape == (),
    f'{name} must return one number for a number of gradient steps; got'
    f' {value}.',
  )


def require_segments(
  num_envs: int, batch_size: int, num_minibatches: int, device_count: int
) -> None:
  """Requires that training steps use whole segments of every environment.

  The error names the nearest numbers that do and divide over the devices.
  """
  segments = batch_size * num_minibatches
  if segments % num_envs == 0:
    return
  better_batch_size = _nearest(
    batch_size,
    (
      n
      for n in range(1, 2 * (batch_size + num_envs * device_count))
      if n * num_minibatches % num_envs == 0 and n % device_count == 0
    ),
  )
  better_num_envs = _nearest(
    num_envs,
    (
      n
      for n in range(1, segments + 1)
      if segments % n == 0 and n % device_count == 0
    ),
  )
  raise ValueError(
    f'batch_size * num_minibatches = {batch_size} * {num_minibatches} ='
    f' {segments} is not a multiple of num_envs = {num_envs}. Each training'
    ' step uses whole segments of every environment: choose batch_size ='
    f' {better_batch_size}, or num_envs = {better_num_envs}.'
  )


def require_factory(factory: Any) -> None:
  """Requires what Brax's network factories can be called with.

  Raises:
    TypeError: if it cannot, with the way out.
  """
  if isinstance(factory, StatefulModule) or not callable(factory):
    raise TypeError(
      'network_factory must be a function that makes networks; got a'
      f' {type(factory).__name__}. Write a function build(observation_size,'
      ' action_size, rngs) that returns the module, and give'
      ' ppo.networks.make_network_factory(build).'
    )
  try:
    signature = inspect.signature(factory)
  except (TypeError, ValueError):  # of no Python function
    return
  try:
    signature.bind((1,), 1, preprocess_observations_fn=None)
  except TypeError as e:
    raise TypeError(
      'network_factory is called as network_factory(observation_size,'
      f' action_size, preprocess_observations_fn=...), but {e}. If it is a'
      ' function build(observation_size, action_size, rngs), give'
      ' ppo.networks.make_network_factory(build).'
    ) from None


def warn_of_two_normalizers(statistics: Any) -> None:
  """Warns if a network has statistics, with Brax's normalizer in front."""
  if jax.tree.leaves(statistics):
    warnings.warn(
      'Observations are normalized twice: by normalize_observations=True'
      ' and by statistics embedded in the network. The former also makes'
      ' replayed likelihoods differ from the acting ones; leave it False.',
      stacklevel=5,
    )
