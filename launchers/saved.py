"""The configuration of a run that was, read back from its file."""

import functools
import json
import pathlib
from typing import Any

from .errors import UserError
from .reporting import CONFIG_NAME

# In the configuration of a run that did not begin with random parameters.
SOURCE_NAME = 'load_checkpoint_path'
# Of runs that were saved when there was no other.
_OLD_SUITE = 'playground'


def _leaves(tree: dict[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested dicts to dotted names."""
  flat: dict[str, Any] = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      flat |= _leaves(value, f'{prefix}{key}.')
    else:
      flat[f'{prefix}{key}'] = value
  return flat


def _tuples(arguments: dict[str, Any]) -> dict[str, Any]:
  """Gives arguments of functions the type they had; JSON has only lists."""
  return {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in arguments.items()
  }


def newest_run(flag: str, path: str) -> pathlib.Path:
  """Finds the folder of a run.

  Args:
    flag: that named it, for the error.
    path: of the folder, or of one that runs are in.

  Raises:
    UserError: if there is none.
  """
  folder = pathlib.Path(path)
  if (folder / CONFIG_NAME).exists():
    return folder
  runs = [file.parent for file in folder.glob(f'*/{CONFIG_NAME}')]
  if not runs:
    raise UserError(
      f'{flag}={path}: there is no run, a folder with a {CONFIG_NAME}.'
    )
  return max(runs, key=lambda run: (run / CONFIG_NAME).stat().st_mtime)


def resumed(options: dict[str, Any], logdir: str) -> dict[str, Any]:
  """Names the run to go on with, if one is to.

  Args:
    options: the flags that were given.
    logdir: where runs are if no flag says so.

  Raises:
    UserError: if there is none, or other flags contradict.
  """
  if 'resume' not in options:
    return options
  for name in ('suffix', 'config', 'load_checkpoint_path'):
    if name in options:
      raise UserError(f'--resume goes on with a run as it was; no --{name}.')
  path = options['resume'] or options.get('logdir', logdir)
  run = newest_run('--resume', path)
  inside = pathlib.Path(options.get('logdir', '/')).resolve()
  if inside not in (run.resolve(), *run.resolve().parents):
    raise UserError(
      f'--resume={path} goes on where the run is, and that is not in'
      f' --logdir={options["logdir"]}; leave one of them out.'
    )
  return options | {'resume': str(run)}


def require_same(folder: str, text: dict[str, Any]) -> None:
  """Requires the environment and the network of a run that goes on.

  Args:
    folder: of the run.
    text: the configuration now; see `description`.

  Raises:
    UserError: if they are others.
  """
  before = json.loads(
    (pathlib.Path(folder) / CONFIG_NAME).read_text('utf-8-sig')
  )
  before['environment'].setdefault('suite', _OLD_SUITE)
  # Runs from before there were delays had none.
  before['environment'].setdefault('delay_observations', 0)
  now = json.loads(json.dumps(text))
  for part in ('environment', 'network'):
    if now[part] != before[part]:
      raise UserError(
        f'--resume goes on with a run as it was, and these flags change its'
        f' {part}. Leave them out, or start a new run with'
        f' --config={folder} --load_checkpoint_path={folder}.'
      )


def _entry(saved: Any, name: str, kind: type, default: Any = None) -> Any:
  """Returns an entry of a configuration.

  Args:
    saved: the whole configuration.
    name: of the entry, dotted.
    kind: that it must be of.
    default: what it is if it is not there; `None` if it has to be.

  Raises:
    ValueError: if it is not there, or of another kind.
  """
  value = saved
  for key in name.split('.'):
    value = value.get(key) if isinstance(value, dict) else None
  value = default if value is None else value
  if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
    what = 'is missing' if value is None else f'is {value!r}'
    raise ValueError(f'{name} {what}, and must be of the kind {kind.__name__}')
  return value


def _preset(saved: Any) -> dict[str, Any]:
  """Returns a configuration in the form of a preset.

  Raises:
    ValueError: if it is none; the message names the entry.
  """
  entry = functools.partial(_entry, saved)
  hidden = entry('environment.hidden_observations', list)
  delay = entry('environment.delay_observations', int, 0)
  for name, numbers in (('hidden', hidden), ('delay', [delay])):
    if not all(type(n) is int and n >= 0 for n in numbers):
      raise ValueError(
        f'environment.{name}_observations is {numbers}, and must be whole'
        ' numbers of at least 0'
      )
  return {
    'suite': entry('environment.suite', str, _OLD_SUITE),
    'env_name': entry('environment.name', str),
    'environment': _leaves(entry('environment.config', dict)),
    'hide_observations': tuple(hidden),
    'delay_observations': delay,
    'domain_randomization': entry('environment.domain_randomization', bool),
    'randomize_eval': entry('environment.randomize_eval', bool),
    'network': entry('network.kind', str),
    'network_factory': _tuples(entry('network.arguments', dict)),
    'ppo': _tuples(entry('ppo', dict)),
    'stop_on_nan': entry('stop_on_nan', bool, True),
  }


def first_parameters(folder: Any) -> str | None:
  """Returns the checkpoint that a run had its first parameters from, if any.

  Args:
    folder: of the run; its configuration has been read before.
  """
  text = pathlib.Path(folder, CONFIG_NAME).read_text('utf-8-sig')
  return json.loads(text).get(SOURCE_NAME)


def read(path: Any, flag: str = '--config') -> dict[str, Any]:
  """Reads the configuration of a run, in the form of a preset.

  Args:
    path: of the file, or of the folder of the run.
    flag: that named it, for the error.

  Raises:
    UserError: if there is none, or it cannot be read.
  """
  file = pathlib.Path(path)
  if file.is_dir():
    file = file / CONFIG_NAME
  try:
    # Some editors begin a file with a mark.
    saved = json.loads(file.read_text('utf-8-sig'))
  except OSError as e:
    raise UserError(
      f'{flag}={path}: {file} cannot be read ({e.strerror or e}).'
    ) from None
  except ValueError as e:
    raise UserError(f'{flag}={path}: {file} is not JSON ({e}).') from None
  try:
    return _preset(saved)
  except ValueError as e:
    raise UserError(
      f'{flag}={path}: {file} is not the {CONFIG_NAME} of a run: {e}.'
    ) from None
