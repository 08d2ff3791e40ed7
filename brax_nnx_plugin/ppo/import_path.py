"""Networks of a user's own, by the name that the user gives: 'module:name'."""

from collections.abc import Callable
import functools
import importlib
import inspect
from typing import Any

from brax_nnx_plugin.ppo.networks import make_network_factory


def load(path: str) -> Any:
  """Imports what a path names.

  Only ever called with a path that the caller wrote, never with one that a file
  holds.

  Args:
    path: 'package.module:function'.

  Raises:
    ValueError: if there is no such thing, or importing its module fails.
  """
  module_name, colon, name = path.partition(':')
  if not (colon and module_name and name):
    raise ValueError(
      f'{path!r} must name a function as package.module:function.'
    )
  try:
    found = importlib.import_module(module_name)
  except (Exception, SystemExit) as e:  # whatever the module does
    raise ValueError(
      f'{path!r}: the module {module_name} cannot be imported'
      f' ({type(e).__name__}: {e}).'
    ) from e
  for part in name.split('.'):
    if not hasattr(found, part):
      raise ValueError(f'{path!r}: {module_name} has no {name}.')
    found = getattr(found, part)
  return found


def parameters(function: Any) -> dict[str, inspect.Parameter]:
  """Returns what a factory, or a function that builds, is called with."""
  function = getattr(function, 'build', function)
  return dict(inspect.signature(function).parameters)


def factory(path: str, **kwargs: Any) -> Callable[..., Any]:
  """Returns the network factory that a path names.

  Args:
    path: of a network factory, or of a function `build(observation_size,
      action_size, rngs, ...)` that returns a module.
    **kwargs: further arguments of that function.

  Raises:
    ValueError: as `load`, or if it is no such function.
  """
  found = load(path)
  if not callable(found):
    raise ValueError(
      f'{path!r} is a {type(found).__name__}. It must be a function'
      ' build(observation_size, action_size, rngs), or a network factory.'
    )
  build = getattr(found, 'build', None)
  if build is None and 'preprocess_observations_fn' in parameters(found):
    return functools.partial(found, **kwargs) if kwargs else found
  build = build or found
  return make_network_factory(
    functools.partial(build, **kwargs) if kwargs else build
  )
