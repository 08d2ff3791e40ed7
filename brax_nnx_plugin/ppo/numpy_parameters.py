"""What of a JAX primitive's parameters an operation of NumPy needs to know."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


class UnsupportedError(ValueError):
  """There is no operation for a part of the network."""


def _mode(eqn: Any) -> str:
  names = {'FILL_OR_DROP': 'drop', 'CLIP': 'clip', 'PROMISE_IN_BOUNDS': 'clip'}
  mode = jax.lax.GatherScatterMode.from_any(eqn.params['mode']).name
  if mode not in names:
    raise UnsupportedError(f'mode {mode}')
  return names[mode]


def _fill(eqn: Any) -> Any:
  """Returns what JAX puts where there is nothing to read; `None` for NaN."""
  value, dtype = eqn.params['fill_value'], eqn.outvars[0].aval.dtype
  if value is None:
    if dtype.kind not in 'biu':
      return None
    if dtype.kind == 'b':
      return True
    info = np.iinfo(dtype)
    return info.min if dtype.kind == 'i' else info.max
  return None if np.isnan(value) else np.asarray(value).item()


def _gather(eqn: Any) -> dict[str, Any]:
  numbers = eqn.params['dimension_numbers']
  batching = numbers.operand_batching_dims
  rows = numbers.start_indices_batching_dims
  return {
    'sizes': eqn.params['slice_sizes'],
    'offset': numbers.offset_dims,
    'collapsed': (*numbers.collapsed_slice_dims, *batching),
    'index_map': numbers.start_index_map,
    'batching': tuple(zip(batching, rows, strict=True)),
    'mode': _mode(eqn),
    'fill': _fill(eqn),
  }


def _scatter(eqn: Any) -> dict[str, Any]:
  numbers = eqn.params['dimension_numbers']
  batching = numbers.operand_batching_dims
  rows = numbers.scatter_indices_batching_dims
  return {
    'window': numbers.update_window_dims,
    'inserted': (*numbers.inserted_window_dims, *batching),
    'index_map': numbers.scatter_dims_to_operand_dims,
    'batching': tuple(zip(batching, rows, strict=True)),
    'mode': _mode(eqn),
    'add': eqn.primitive.name == 'scatter-add',
  }


def _round(eqn: Any) -> str:
  if int(eqn.params['rounding_method']) != 1:  # to even
    raise UnsupportedError('rounding away from zero')
  return 'rint'


def _slice(eqn: Any) -> dict[str, Any]:
  start = eqn.params['start_indices']
  return {
    'start': start,
    'limit': eqn.params['limit_indices'],
    'strides': eqn.params['strides'] or (1,) * len(start),
  }


def _dot_general(eqn: Any) -> dict[str, Any]:
  contract, batch = eqn.params['dimension_numbers']
  return {'contract': contract, 'batch': batch}


def _arg(eqn: Any) -> dict[str, Any]:
  (axis,) = eqn.params['axes']
  return {'axis': axis, 'dtype': str(np.dtype(eqn.params['index_dtype']))}


def _take(**names: str) -> Callable[[Any], dict[str, Any]]:
  """Returns a function that takes parameters of a primitive by name."""
  return lambda eqn: {new: eqn.params[old] for new, old in names.items()}


def _new_shape(eqn: Any) -> dict[str, Any]:
  return {'shape': eqn.outvars[0].aval.shape}


_RENAMED: dict[str, str | Callable[[Any], str]] = {
  'convert_element_type': 'convert',
  'expand_dims': 'reshape',
  'round': _round,
  'scatter-add': 'scatter',
  'squeeze': 'reshape',
}
# By the name of the primitive; all others have no parameters that matter.
_PARAMETERS: dict[str, Callable[[Any], dict[str, Any]]] = {
  'argmax': _arg,
  'argmin': _arg,
  'broadcast_in_dim': _take(
    shape='shape', broadcast_dimensions='broadcast_dimensions'
  ),
  'concatenate': _take(axis='dimension'),
  'convert_element_type': lambda eqn: {
    'dtype': str(np.dtype(eqn.params['new_dtype']))
  },
  'cumsum': _take(axis='axis', reverse='reverse'),
  'dot_general': _dot_general,
  'dynamic_slice': _take(sizes='slice_sizes'),
  'expand_dims': _new_shape,
  'gather': _gather,
  'integer_pow': _take(y='y'),
  **{
    f'reduce_{name}': _take(axes='axes')
    for name in ('and', 'max', 'min', 'or', 'prod', 'sum')
  },
  'reshape': _new_shape,
  'rev': _take(axes='dimensions'),
  'scatter': _scatter,
  'scatter-add': _scatter,
  'slice': _slice,
  'split': _take(sizes='sizes', axis='axis'),
  'squeeze': _new_shape,
  'stack': _take(axis='axis'),
  'transpose': _take(axes='permutation'),
}


def _plain(value: Any) -> Any:
  """Turns a parameter into what JSON has."""
  if isinstance(value, (tuple, list)):
    return [_plain(v) for v in value]
  if value is None or isinstance(value, (bool, float, str)):
    return value
  return int(value)


def operation(eqn: Any) -> tuple[str, dict[str, Any]]:
  """Returns the name of an operation, and what goes with it.

  Args:
    eqn: a primitive with its parameters.

  Returns:
    A name, of `numpy_operations` if it is there, and a JSON-compatible dict.

  Raises:
    UnsupportedError: if the parameters are unusual.
  """
  name = eqn.primitive.name
  renamed: Any = _RENAMED.get(name, name)
  read = _PARAMETERS.get(name)
  found = {} if read is None else read(eqn)
  return (
    renamed if isinstance(renamed, str) else renamed(eqn),
    {key: _plain(value) for key, value in found.items()},
  )
