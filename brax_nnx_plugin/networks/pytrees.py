"""Structured inputs: shapes, examples and the mappings that hold them."""

from collections.abc import Mapping
import numbers
from typing import Any

import jax
import jax.numpy as jnp


def plain(tree: Any) -> Any:
  """Turns every mapping into a dict; JAX tells OrderedDict and dict apart."""
  is_mapping = lambda node: isinstance(node, Mapping)

  def convert(node):
    return {k: plain(v) for k, v in node.items()} if is_mapping(node) else node

  return jax.tree.map(convert, tree, is_leaf=is_mapping)


def _is_size(n: Any) -> bool:
  is_int = isinstance(n, numbers.Integral) and not isinstance(n, bool)
  return is_int and int(n) >= 0


def is_shape(shape: Any) -> bool:
  """Returns whether `shape` is an int, 0 or more, or a sequence of those."""
  if isinstance(shape, (tuple, list)):
    # A named tuple has entries, not axes.
    return not hasattr(shape, '_fields') and all(map(_is_size, shape))
  return _is_size(shape)


def specs(kind: str, tree: Any) -> Any:
  """Reads shapes and examples as abstract arrays.

  Args:
    kind: who asks, for the error.
    tree: an int, a tuple of ints or an example array, none with a batch axis,
      or a pytree of those. Shapes are of floats; an example has its own type.

  Returns:
    A pytree of `jax.ShapeDtypeStruct`, its mappings dicts.

  Raises:
    TypeError: for anything else.
  """

  def spec(leaf):
    if is_shape(leaf):
      shape = (leaf,) if isinstance(leaf, numbers.Integral) else tuple(leaf)
      return jax.ShapeDtypeStruct(shape, jnp.zeros(()).dtype)
    if hasattr(leaf, 'shape') and hasattr(leaf, 'dtype'):
      if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise TypeError(
          f'{kind} cannot take a typed PRNG key; give it jax.random.key_data.'
        )
      return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    raise TypeError(
      f'{kind} needs an int, a tuple of ints, an example array, or a pytree'
      f' of those; got {leaf!r}, a {type(leaf).__name__}.'
    )

  return jax.tree.map(spec, plain(tree), is_leaf=is_shape)
