"""Array operations of JAX in NumPy, by the names they have in JAX.

Each takes arrays and, as keywords, numbers and lists that JSON can hold. It
returns an array, or a list of them.
"""

from collections.abc import Callable
from collections.abc import Mapping
import math
import string
from typing import Any

import numpy as np


def _integer_pow(x, y):
  return x**y if y >= 0 else 1 / x**-y


def _erf(x):
  return np.vectorize(math.erf, otypes=[np.asarray(x).dtype])(x)


def _div(x, y):
  if not np.issubdtype(np.asarray(x).dtype, np.integer):
    return x / y
  # Toward zero, as in C.
  return np.where((x < 0) == (y < 0), 1, -1).astype(x.dtype) * (
    abs(x) // abs(y)
  )


def _select_n(which, *cases):
  if len(cases) == 2:
    return np.where(np.asarray(which).astype(bool), cases[1], cases[0])
  return np.choose(np.asarray(which), cases)


def _broadcast_in_dim(x, shape, broadcast_dimensions):
  lengths = [1] * len(shape)
  for axis, length in zip(broadcast_dimensions, np.shape(x), strict=True):
    lengths[axis] = length
  return np.broadcast_to(np.reshape(x, lengths), shape)


def _slice(x, start, limit, strides):
  return x[tuple(map(slice, start, limit, strides))]


def _split(x, sizes, axis):
  return np.split(x, np.cumsum(sizes)[:-1], axis)


def _dot_general(x, y, contract, batch):
  if not batch[0]:
    return np.tensordot(x, y, axes=contract)
  left = list(string.ascii_lowercase[: x.ndim])
  right = list(string.ascii_uppercase[: y.ndim])
  for pairs in (contract, batch):
    for i, j in zip(*pairs, strict=True):
      right[j] = left[i]

  def free(names, side):
    axes = contract[side] + batch[side]
    return [name for i, name in enumerate(names) if i not in axes]

  out = [left[i] for i in batch[0]] + free(left, 0) + free(right, 1)
  return np.einsum(f'{"".join(left)},{"".join(right)}->{"".join(out)}', x, y)


def _reduce(fn):
  def reduce(x, axes):
    return fn(x, axis=tuple(axes), dtype=x.dtype)

  return reduce


def _reduce_order(fn):
  return lambda x, axes: fn(x, axis=tuple(axes))


def _arg(fn):
  def arg(x, axis, dtype):
    return fn(x, axis=axis).astype(dtype)

  return arg


def _cumsum(x, axis, reverse):
  flip = (lambda a: np.flip(a, axis)) if reverse else (lambda a: a)
  return flip(np.cumsum(flip(x), axis=axis, dtype=x.dtype))


def _block(start, shape, sizes):
  """Returns the slices of a block that is moved to lie inside an array."""
  starts = np.clip(np.asarray(start), 0, np.subtract(shape, sizes))
  return tuple(
    slice(int(a), int(a) + n) for a, n in zip(starts, sizes, strict=True)
  )


def _dynamic_slice(x, *start, sizes):
  return x[_block(np.array(start, int), x.shape, sizes)]


def _dynamic_update_slice(x, update, *start):
  x = np.array(x)
  x[_block(np.array(start, int), x.shape, update.shape)] = update
  return x


def _blocks(indices, shape, sizes, index_map, batching, mode):
  """Yields where each block of a gather or a scatter lies.

  Args:
    indices: `[..., K]`.
    shape: of the array that is read or written.
    sizes: of a block.
    index_map: the axes that the K indices go to.
    batching: pairs of an axis of the array and one of `indices`.
    mode: 'clip' moves blocks inside; 'drop' skips them (yields `None`).

  Yields:
    A position in the leading axes of `indices`, and slices or `None`.
  """
  for position in np.ndindex(indices.shape[:-1]):
    start = np.zeros(len(shape), int)
    start[index_map] = indices[position]
    for axis, row in batching:
      start[axis] = position[row]
    inside = np.all((start >= 0) & (start + sizes <= shape))
    drop = mode == 'drop' and not inside
    yield position, None if drop else _block(start, shape, sizes)


def _gather(
  x, indices, *, sizes, offset, collapsed, index_map, batching, mode, fill
):
  kept = [n for axis, n in enumerate(sizes) if axis not in collapsed]
  lead = indices.shape[:-1]
  result = np.empty((*lead, *kept), x.dtype)
  for position, block in _blocks(
    indices, x.shape, sizes, index_map, batching, mode
  ):
    if block is None:
      result[position] = np.nan if fill is None else fill
    else:
      result[position] = x[block].reshape(kept)
  rank = result.ndim
  return np.moveaxis(result, range(len(lead), rank), offset)


def _scatter(
  x, indices, updates, *, window, inserted, index_map, batching, mode, add
):
  result = np.array(x)
  lead = indices.ndim - 1
  updates = np.moveaxis(updates, window, range(lead, updates.ndim))
  shape = iter(updates.shape[lead:])
  sizes = [1 if axis in inserted else next(shape) for axis in range(x.ndim)]
  for position, block in _blocks(
    indices, x.shape, sizes, index_map, batching, mode
  ):
    if block is not None:
      update = updates[position].reshape(sizes)
      result[block] = result[block] + update if add else update
  return result


OPERATIONS: Mapping[str, Callable[..., Any]] = {
  # Element by element.
  'abs': np.abs,
  'add': np.add,
  'and': np.bitwise_and,
  'atan2': np.arctan2,
  'cbrt': np.cbrt,
  'ceil': np.ceil,
  'clamp': lambda low, x, high: np.minimum(np.maximum(x, low), high),
  'convert': lambda x, dtype: np.asarray(x).astype(dtype),
  'cos': np.cos,
  'div': _div,
  'eq': np.equal,
  'erf': _erf,
  'exp': np.exp,
  'exp2': np.exp2,
  'expm1': np.expm1,
  'floor': np.floor,
  'ge': np.greater_equal,
  'gt': np.greater,
  'integer_pow': _integer_pow,
  'is_finite': np.isfinite,
  'le': np.less_equal,
  'log': np.log,
  'log1p': np.log1p,
  'logistic': lambda x: 1 / (1 + np.exp(-x)),
  'lt': np.less,
  'max': np.maximum,
  'min': np.minimum,
  'mul': np.multiply,
  'ne': np.not_equal,
  'neg': np.negative,
  'not': np.invert,
  'or': np.bitwise_or,
  'pow': np.power,
  'rem': np.fmod,
  'rint': np.rint,
  'rsqrt': lambda x: 1 / np.sqrt(x),
  'select_n': _select_n,
  'sign': np.sign,
  'sin': np.sin,
  'sqrt': np.sqrt,
  'square': np.square,
  'sub': np.subtract,
  'tan': np.tan,
  'tanh': np.tanh,
  'xor': np.bitwise_xor,
  # Of whole arrays.
  'argmax': _arg(np.argmax),
  'argmin': _arg(np.argmin),
  'broadcast_in_dim': _broadcast_in_dim,
  'concatenate': lambda *parts, axis: np.concatenate(parts, axis=axis),
  'cumsum': _cumsum,
  'dot_general': _dot_general,
  'dynamic_slice': _dynamic_slice,
  'dynamic_update_slice': _dynamic_update_slice,
  'gather': _gather,
  'reduce_and': _reduce_order(np.all),
  'reduce_max': _reduce_order(np.max),
  'reduce_min': _reduce_order(np.min),
  'reduce_or': _reduce_order(np.any),
  'reduce_prod': _reduce(np.prod),
  'reduce_sum': _reduce(np.sum),
  'reshape': np.reshape,
  'rev': lambda x, axes: np.flip(x, axes),
  'scatter': _scatter,
  'slice': _slice,
  'split': _split,
  'stack': lambda *parts, axis: np.stack(parts, axis),
  'transpose': np.transpose,
}
