"""Layers that project, reshape and route pytrees."""

from collections.abc import Callable
from collections.abc import Mapping
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import entries
from brax_nnx_plugin.networks import pytrees
from brax_nnx_plugin.networks.containers import NamedContainer
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


class Filter(StatefulModule):
  """Takes entries out of a nested input.

  Args of the constructor:
    spec: a dict from output names to where the entry comes from: a key, a
      tuple of keys (a path), or a function of the whole input. The output is a
      dict with the same names. A key or a path instead of a dict takes that
      one entry, and the output is the entry itself.
  """

  def __init__(self, spec: Any):
    sources = spec.values() if isinstance(spec, Mapping) else [spec]
    for source in sources:
      if not isinstance(source, (str, tuple, Callable)):
        raise TypeError(
          'Filter takes a key, a tuple of keys or a function for each entry;'
          f' got {source!r}, a {type(source).__name__}.'
        )
    self.spec = (
      tuple(spec.items()) if isinstance(spec, Mapping) else (('', spec),)
    )
    self.single = not isinstance(spec, Mapping)

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    output = {}
    for name, source in self.spec:
      if callable(source):
        output[name] = source(x)
        continue
      output[name] = x
      for key in (source,) if isinstance(source, str) else source:
        output[name] = entries.take('Filter', output[name], key)
    if self.single:
      output = output['']
    return StatefulModuleOutput(state, output, jnp.array(0.0), {}, None)


def _flat(x: Any, where: str) -> jax.Array:
  """Joins all leaves `[B, ...]` of `x`, which is at `where`, to `[B, n]`."""
  parts = {}
  for path, leaf in jax.tree.leaves_with_path(pytrees.plain(x)):
    name, leaf = where + jax.tree_util.keystr(path), jnp.asarray(leaf)
    if not leaf.ndim:
      raise ValueError(
        f'Flattener: {name} is one number for the whole batch; a leaf must be'
        ' [B, ...].'
      )
    parts[name] = leaf.reshape((leaf.shape[0], math.prod(leaf.shape[1:])))
  if not parts:
    raise ValueError(f'Flattener: there is nothing to flatten in {where}.')
  return entries.concatenate('Flattener', parts)


class Flattener(StatefulModule):
  """Joins the leaves of any pytree to one array, row by row.

      y = [a.reshape(B, -1), b.reshape(B, -1), ...]

  Input: leaves `[B, ...]`; a leaf `[B]` is one column. Output `[B, n]`. The
  order is that of `jax.tree.leaves` with every mapping as a dict, so it does
  not depend on the kind of mapping nor on the order of its keys. Leaves of
  different types are promoted as by `jnp.concatenate`: uint8 alone stays uint8.
  """

  def __init__(self, preserve_levels: int = 0):
    """Initializes the layer.

    Args:
      preserve_levels: how many levels of dicts, lists and tuples to keep, from
        the top; what is below each is flattened. Mappings come out as dicts.

    Raises:
      ValueError: if that is no int from 0 on.
    """
    is_int = isinstance(preserve_levels, numbers.Integral)
    if not is_int or isinstance(preserve_levels, bool) or preserve_levels < 0:
      raise ValueError(
        'Flattener: preserve_levels must be an int, 0 or more; got'
        f' {preserve_levels!r}.'
      )
    self.preserve_levels = int(preserve_levels)

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    output = self._descend(x, 0, 'input')
    return StatefulModuleOutput(state, output, jnp.array(0.0), {}, None)

  def _descend(self, x: Any, depth: int, where: str) -> Any:
    """Keeps the levels from `depth` on and flattens what is below them."""
    if depth == self.preserve_levels:
      return _flat(x, where)
    if isinstance(x, Mapping):
      items: Any = x.items()
    elif isinstance(x, (list, tuple)):
      items = enumerate(x)
    else:
      raise ValueError(
        f'Flattener: preserve_levels is {self.preserve_levels}, but'
        f' {where} is {entries.describe(x)} at level {depth}, with no'
        f' levels below. Ask for at most {depth}.'
      )
    parts = {
      k: self._descend(v, depth + 1, f'{where}[{k!r}]') for k, v in items
    }
    if not parts:
      raise ValueError(f'Flattener: there is nothing to flatten in {where}.')
    if isinstance(x, Mapping):
      return parts
    if hasattr(x, '_fields'):  # a named tuple takes its fields one by one
      return type(x)(*parts.values())
    return type(x)(parts.values())


class Scale(StatefulModule):
  """Multiplies every leaf by a fixed number.

  Input and output: a pytree of `[B, ...]`. A leaf of floats keeps its type;
  whole numbers and booleans become float32.
  """

  def __init__(self, factor: float):
    """Initializes the layer.

    Args:
      factor: the number.

    Raises:
      ValueError: if it is no finite number.
    """
    is_number = isinstance(factor, numbers.Real)
    if not is_number or isinstance(factor, bool) or not math.isfinite(factor):
      raise ValueError(
        f'Scale needs a finite Python or NumPy number; got {factor!r}, a'
        f' {type(factor).__name__}.'
      )
    self.factor = float(factor)

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    def scale(leaf):
      leaf = jnp.asarray(leaf)
      if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        leaf = leaf.astype(jnp.float32)
      return leaf * self.factor

    output = jax.tree.map(scale, x)
    return StatefulModuleOutput(state, output, jnp.array(0.0), {}, None)


class Map(NamedContainer):
  """Runs each child on the entry of its name.

  Input: a mapping with an entry per child; others are dropped. Output: a dict
  with what each child returns under the same names.
  """

  def route(self, run, x):
    """Feeds each child its entry of `x`."""
    kind = type(self).__name__
    return {k: run(k, entries.take(kind, x, k)) for k in self.names}


class Merge(NamedContainer):
  """Runs its children on the same input and merges the dicts they return.

  Output: one dict with the entries of all; no two children may return the same
  name.
  """

  def route(self, run, x):
    """Feeds every child the same input and merges what they return."""
    kind = type(self).__name__
    merged: dict[Any, Any] = {}
    owners: dict[Any, Any] = {}
    for name in self.names:
      output = run(name, x)
      if not isinstance(output, Mapping):
        raise TypeError(
          f'{kind}: child {name!r} must return a dict; it returned'
          f' {entries.describe(output)}. To name whole outputs use Parallel.'
        )
      for key in output:
        if key in owners:
          raise ValueError(
            f'{kind}: children {owners[key]!r} and {name!r} both return'
            f' {key!r}. Rename one of the entries.'
          )
        owners[key] = name
      merged.update(output)
    return merged
