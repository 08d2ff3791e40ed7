"""Changes of single entries of a configuration: `--set ppo.seed=3`."""

import ast
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import inspect
import json
from typing import Any

from .errors import UserError
from .errors import nearest

GROUPS = ('ppo', 'env', 'network')
_LIKE = 'ppo.learning_rate=3e-4, env.ctrl_dt=0.02 or network.hidden=128'


def _read(text: str) -> Any:
  """Reads a value: JSON or a Python literal; anything else is a string."""
  for read in (json.loads, ast.literal_eval):
    try:
      return read(text)
    except (ValueError, SyntaxError):
      pass
  return text


def parse(items: Sequence[str]) -> dict[str, dict[str, Any]]:
  """Reads the values of --set.

  Args:
    items: as 'group.entry=value', with a group of `GROUPS`.

  Returns:
    Values by entry, by group.

  Raises:
    UserError: for an item that is none, or an entry that is there twice.
  """
  changes: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
  for item in items:
    name, equals, text = item.partition('=')
    group, _, entry = name.partition('.')
    if not (equals and entry) or group not in GROUPS:
      raise UserError(f'--set {item} must look like {_LIKE}.')
    if entry in changes[group]:
      raise UserError(f'--set {name} is there twice.')
    changes[group][entry] = _read(text)
  return changes


def _fits(value: Any, example: Any) -> Any:
  """Returns `value` in the type of `example`; `None` if it has another one."""
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  if isinstance(example, (bool, str)):
    return value if type(value) is type(example) else None
  if isinstance(example, int):
    whole = isinstance(value, int) or (is_number and value.is_integer())
    return int(value) if is_number and whole else None
  if isinstance(example, float):
    return value if is_number else None
  if isinstance(example, (list, tuple)):
    if not isinstance(value, (list, tuple)):
      return None
    items = [_fits(item, example[0]) for item in value] if example else value
    return None if None in items else tuple(items)
  return value


def check(
  group: str,
  changes: Mapping[str, Any],
  known: Mapping[str, inspect.Parameter],
  current: Mapping[str, Any],
  where: str = '--set',
) -> dict[str, Any]:
  """Checks changes against the parameters of a function.

  Args:
    group: of the changes.
    changes: values by name.
    known: the parameters that may be changed.
    current: arguments so far; their types, or else those of the defaults, are
      what is needed.
    where: begins what is said of a mistake.

  Returns:
    The changes in the types that are needed.

  Raises:
    UserError: for a name that is not known or a value of another type.
  """
  checked = {}
  for name, value in changes.items():
    if name not in known:
      raise UserError(
        f'{where} {group}.{name}: there is no such entry.'
        f' {nearest(name, known)}'
      )
    parameter = known[name]
    default = (
      None if parameter.default is parameter.empty else parameter.default
    )
    example = current.get(name, default)
    if value is None and default is None:
      checked[name] = None
      continue
    fitting = _fits(value, example)
    if fitting is None:
      raise UserError(
        f'{where} {group}.{name} must be a {type(example).__name__}, as'
        f' {example!r}; got {value!r}.'
      )
    checked[name] = fitting
  return checked


def set_hidden(
  value: Any, arguments: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
  """Works out what --set network.hidden means for a network factory.

  Args:
    value: units of every layer and of every memory, or the sizes of the dense
      layers of both sides.
    arguments: of the factory so far.
    known: its parameters.

  Raises:
    UserError: if it is neither, or the factory has no such layers.
  """
  sizes = [n for n in known if n.endswith('_hidden_layer_sizes')]
  memories = [n for n in known if n.endswith('_memory_size')]
  items = value if isinstance(value, (list, tuple)) else [value]
  is_size = lambda n: type(n) is int and n > 0
  if not sizes or not items or not all(map(is_size, items)):
    raise UserError(
      f'--set network.hidden={value} must be a whole number of units, or a list'
      ' of them such as [128,64], for a network with hidden layers.'
    )
  if isinstance(value, (list, tuple)):
    return dict.fromkeys(sizes, tuple(value))

  def current(name):
    return arguments.get(name, known[name].default)

  return {name: (value,) * len(current(name)) for name in sizes} | {
    name: value for name in memories if current(name) is not None
  }


def parse_json(text: str) -> dict[str, Any]:
  """Reads --playground_config_overrides into dotted names.

  Raises:
    UserError: if it is not a JSON object.
  """
  flag = '--playground_config_overrides'
  try:
    tree = json.loads(text)
  except json.JSONDecodeError as e:
    raise UserError(f'{flag} is not JSON: {e}.') from None
  if not isinstance(tree, dict):
    raise UserError(
      f'{flag} must be a JSON object, as {{"ctrl_dt": 0.02}}; got {text}.'
    )

  def flatten(tree: dict[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
      if isinstance(value, dict):
        yield from flatten(value, f'{prefix}{key}.')
      else:
        yield f'{prefix}{key}', value

  return dict(flatten(tree, ''))
