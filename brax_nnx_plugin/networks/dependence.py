"""What a result depends on, read off the traced program; nothing is run."""

from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters import partial_eval


def depends_on(fn: Callable[..., Any], *args: Any) -> Any:
  """Tells which leaves of its arguments the result of `fn` depends on.

  Exact as far as the program tells: `x * 0` depends on `x`, an argument that
  only a scan carries along unused does not count.

  Args:
    fn: a traceable function that returns a pytree of arrays.
    *args: pytrees of arrays or of `jax.ShapeDtypeStruct`.

  Returns:
    A tuple like `args` with a bool in place of each leaf.
  """
  jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
  _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
  return jax.tree.unflatten(jax.tree.structure(args), used)
