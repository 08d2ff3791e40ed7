"""Named entries: given to a constructor, taken out of an input, joined."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def describe(x: Any) -> str:
  """Returns what `x` is, in words for an error."""
  shape = getattr(x, 'shape', None)
  if shape is not None:
    return f'an array of shape {shape}'
  return f'a {type(x).__name__}'


def named(kind: str, entries: Any, kwargs: Mapping[str, Any]) -> Any:
  """Returns the named arguments of a constructor: one dict, or keywords.

  Args:
    kind: who asks, for the error.
    entries: the dict, or `None`.
    kwargs: the keywords; empty if there is a dict.

  Raises:
    ValueError: if there are both.
    TypeError: if `entries` is no mapping.
  """
  if entries is None:
    return kwargs
  if not isinstance(entries, Mapping):
    raise TypeError(
      f'{kind} takes one dict or keyword arguments; got {describe(entries)}.'
      ' Give every entry a name.'
    )
  if kwargs:
    raise ValueError(
      f'{kind} takes either one dict or keyword arguments, not both: got'
      f' {list(entries)} and {list(kwargs)}.'
    )
  return entries


def take(kind: str, x: Any, key: Any) -> Any:
  """Returns `x[key]`, of a mapping or, by position, of a list or tuple.

  Args:
    kind: who asks, for the error.
    x: the input.
    key: which entry.

  Raises:
    ValueError: if `x` has no entries, or none of that name.
  """
  if isinstance(x, Mapping):
    keys, found = list(x), key in x
  elif isinstance(x, (list, tuple)) and isinstance(key, int):
    keys, found = list(range(len(x))), -len(x) <= key < len(x)
  else:
    raise ValueError(
      f'{kind}: the input must be a mapping with an entry {key!r}; it is'
      f' {describe(x)}.'
    )
  if not found:
    raise ValueError(
      f'{kind}: there is no {key!r} in the input; it has {keys}.'
    )
  return x[key]


def concatenate(kind: str, parts: Mapping[Any, Any]) -> jax.Array:
  """Joins named arrays `[..., n]` on the last axis, in their order.

  Args:
    kind: who asks, for the error.
    parts: the arrays; all other axes must agree.

  Raises:
    ValueError: if a part is no array with rows and features, or axes differ.
  """
  for name, part in parts.items():
    if len(getattr(part, 'shape', ())) < 2:
      raise ValueError(
        f'{kind} joins arrays with rows and features, but {name!r} is'
        f' {describe(part)}. Make it [B, n] first (see Flattener).'
      )
  if len({part.shape[:-1] for part in parts.values()}) > 1:
    shapes = {name: part.shape for name, part in parts.items()}
    raise ValueError(
      f'{kind} joins on the last axis, so all other axes must agree; the'
      f' shapes are {shapes}.'
    )
  return jnp.concatenate(list(parts.values()), axis=-1)
