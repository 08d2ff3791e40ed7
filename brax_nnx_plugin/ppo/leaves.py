"""Leaves of parameter trees by name: comparing trees, and filling them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def by_name(tree: Any, separator: str = '/') -> dict[str, Any]:
  """Returns the leaves of a tree by the path that leads to them, `a/b/c`."""
  return {
    jax.tree_util.keystr(path, simple=True, separator=separator): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def misfits(
  given: Mapping[str, Any], needed: Mapping[str, Any], verb: str = 'given'
) -> list[str]:
  """Says of each leaf that does not fit why.

  Args:
    given: leaves by name.
    needed: likewise; shapes will do.
    verb: what was done to the given leaves.
  """
  wrong = [
    f'{name}: {verb} {np.shape(given[name])}, needed {np.shape(leaf)}'
    for name, leaf in needed.items()
    if name in given and np.shape(given[name]) != np.shape(leaf)
  ]
  wrong += [f'{name}: not {verb}' for name in needed if name not in given]
  wrong += [f'{name}: not needed' for name in given if name not in needed]
  return wrong


def fill(tree: Any, values: Mapping[str, Any]) -> Any:
  """Replaces the leaves of `tree` that have a value under their name.

  Args:
    tree: says the structure and the types.
    values: arrays by name, as of `by_name`.
  """
  filled = [
    jnp.asarray(values.get(name, leaf), jnp.result_type(leaf))
    for name, leaf in by_name(tree).items()
  ]
  return jax.tree.unflatten(jax.tree.structure(tree), filled)
