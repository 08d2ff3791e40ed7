"""The configuration of a run that was, read back from its file."""

import json
import pathlib
from typing import Any

from .errors import UserError
from .reporting import CONFIG_NAME

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
  return options | {'resume': str(newest_run('--resume', path))}


def require_same(folder: str, text: dict[str, Any]) -> None:
  """Requires the environment and the network of a run that goes on.

  Args:
    folder: of the run.
    text: the configuration now; see `description`.

  Raises:
    UserError: if they are others.
  """
  before = json.loads((pathlib.Path(folder) / CONFIG_NAME).read_text())
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
    saved = json.loads(file.read_text())
  except OSError as e:
    raise UserError(
      f'{flag}={path}: {file} cannot be read ({e.strerror or e}).'
    ) from None
  except ValueError as e:
    raise UserError(f'{flag}={path}: {file} is not JSON ({e}).') from None
  try:
    environment, network = saved['environment'], saved['network']
    return {
      'suite': environment.get('suite', _OLD_SUITE),
      'env_name': environment['name'],
      'environment': _leaves(environment['config']),
      'hide_observations': tuple(environment['hidden_observations']),
      'delay_observations': environment.get('delay_observations', 0),
      'domain_randomization': environment['domain_randomization'],
      'randomize_eval': environment['randomize_eval'],
      'network': network['kind'],
      'network_factory': _tuples(network['arguments']),
      'ppo': _tuples(saved['ppo']),
      'stop_on_nan': saved.get('stop_on_nan', True),
    }
  except (KeyError, TypeError, AttributeError) as e:
    raise UserError(
      f'{flag}={path}: {file} is not the {CONFIG_NAME} of a run ({e!r} is'
      ' missing or of another kind).'
    ) from None
