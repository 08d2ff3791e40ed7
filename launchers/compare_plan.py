"""The runs of a comparison, all of them checked before the first begins."""

from collections.abc import Callable
import dataclasses
import json
import pathlib
import re
from typing import Any

import jax

from brax_nnx_plugin.ppo import checkpoint

from . import compare_flags
from . import configs
from . import description
from . import environments
from . import longer
from . import networks
from . import options
from . import planning
from . import train_ppo
from .compare_options import Request
from .compare_options import Variant
from .errors import UserError
from .reporting import CONFIG_NAME

# More of both may be asked for later; see `longer.fitted`.
_MAY_GROW = ('num_timesteps', 'num_evals')


@dataclasses.dataclass(frozen=True)
class Run:
  """One run of a comparison.

  Attributes:
    variant: label of the task's variant; empty if there is only one.
    network: as --network names it.
    seed: of all randomness.
    folder: its name within the folder of the comparison.
    flags: of training, of this run alone.
    env_name: what it is trained in.
    env_steps: how many it will take.
  """

  variant: str
  network: str
  seed: int
  folder: str
  flags: tuple[str, ...]
  env_name: str = ''
  env_steps: int = 0

  @property
  def name(self) -> str:
    """What it is called on a terminal."""
    parts = self.variant, self.network, f'seed {self.seed}'
    return ', '.join(filter(None, parts))

  def is_finished(self, parent: pathlib.Path) -> bool:
    """Whether its last checkpoint is there, within `parent`."""
    newest = checkpoint.latest(parent / self.folder)
    return newest is not None and int(newest.name) >= self.env_steps


def _folder(variant: Variant, network: str, seed: int) -> str:
  parts = variant.label, network, f'seed{seed}'
  return '-'.join(re.sub(r'[^\w.+=]+', '_', part) for part in parts if part)


def runs(request: Request) -> list[Run]:
  """Returns the runs that are asked for, all networks of a seed together.

  Raises:
    UserError: if two would have one folder.
  """
  planned: dict[str, Run] = {}
  any_memory = any(map(networks.has_memory_size, request.networks))
  for seed in request.seeds:
    for variant in request.parsed_variants():
      for network in request.networks:
        flags = (*request.flags, *variant.flags)
        if any_memory:
          flags = tuple(compare_flags.for_network(flags, network))
        flags += (f'--network={network}', f'--seed={seed}')
        run = Run(
          variant=variant.label,
          network=network,
          seed=seed,
          folder=_folder(variant, network, seed),
          flags=flags,
        )
        if run.folder in planned:
          raise UserError(
            f'{run.name} and {planned[run.folder].name} would share the folder'
            f' {run.folder}; choose other labels.'
          )
        planned[run.folder] = run
  return list(planned.values())


def _config_file(parent: pathlib.Path, run: Run) -> pathlib.Path:
  return parent / run.folder / CONFIG_NAME


def _require_same(file: pathlib.Path, now: dict[str, Any]) -> None:
  """Requires a run that is there to be the one that is asked for.

  Raises:
    UserError: if it is another.
  """
  try:
    before = json.loads(file.read_text())
    known = [before[part] for part in ('environment', 'network', 'ppo')]
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise UserError(f'{file} cannot be read ({e!r}).') from None
  now = json.loads(json.dumps(now))
  for part, saved in zip(('environment', 'network', 'ppo'), known, strict=True):
    for name in saved.keys() | now[part].keys():
      if name in _MAY_GROW:
        continue
      if saved.get(name) != now[part].get(name):
        raise UserError(
          f'{file.parent} is a run with another {part} ({name}); start a new'
          ' comparison, or choose another label.'
        )


def _remembering(load: Callable[..., Any]) -> Callable[..., Any]:
  """Makes each environment once; making one takes seconds."""
  made: dict[Any, Any] = {}

  def load_once(env_name: str, config: Any, *changes: Any) -> Any:
    key = env_name, config.to_json(), *changes
    if key not in made:
      made[key] = load(env_name, config, *changes)
    return made[key]

  return load_once


def check(
  request: Request, parent: pathlib.Path | None, has_gpu: bool
) -> list[tuple[Run, dict[str, Any]]]:
  """Checks all runs; nothing is compiled, and nothing written.

  Args:
    request: what is asked for.
    parent: folder of a comparison that goes on.
    has_gpu: whether jax has one.

  Returns:
    The runs and their whole configurations; see `description.describe`.

  Raises:
    UserError: for the first that cannot be made.
  """
  load = _remembering(environments.load)
  checked = []
  steps: dict[tuple[Any, ...], int] = {}
  for run in runs(request):
    try:
      given = options.parse(run.flags)
      if parent is not None and _config_file(parent, run).exists():
        folder = str(parent / run.folder)
        fitted, _ = longer.fitted(given | {'resume': folder})
        given |= {k: v for k, v in fitted.items() if k in _MAY_GROW}
      if request.config is not None:
        given['config'] = request.config
      config = configs.resolve(given, has_gpu)
      kind = run.variant, run.network, *map(given.get, _MAY_GROW)
      if kind not in steps:  # a seed changes nothing
        arguments = train_ppo.train_arguments(config, load=load)
        steps[kind] = planning.plan(arguments).total_env_steps
      text = description.describe(config)
      if parent is not None and _config_file(parent, run).exists():
        _require_same(_config_file(parent, run), text)
    except UserError as e:
      raise UserError(f'{run.name}: {e}') from None
    run = dataclasses.replace(
      run, env_name=config.env_name, env_steps=steps[kind]
    )
    checked.append((run, text))
  return checked


def check_here(
  request: Request, parent: pathlib.Path | None
) -> list[tuple[Run, dict[str, Any]]]:
  """As `check`, with the devices of this process."""
  return check(request, parent, jax.default_backend() == 'gpu')
