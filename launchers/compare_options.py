"""What a command line asks to be compared."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import math
import pathlib
import re
import shlex
from typing import Any

from . import command_line
from . import compare_flags
from . import options
from .errors import UserError

# In the folder of a comparison: what was asked for, and what came of it.
RESULTS_NAME = 'comparison.json'
# What may change when a comparison goes on.
_MAY_CHANGE = ('num_timesteps', 'export')


def _seeds(text: str) -> tuple[int, ...]:
  """Reads `'0,3:5'` as 0, 3, 4."""
  seeds = command_line.parse_ranges('--seeds', text)
  if not seeds:
    raise UserError(f'--seeds={text} names none; as in --seeds=0,1,2.')
  return tuple(dict.fromkeys(seeds))


@dataclasses.dataclass(frozen=True)
class Variant:
  """A variant of the task.

  Attributes:
    label: its name.
    flags: of training, for it alone.
  """

  label: str = ''
  flags: tuple[str, ...] = ()

  @classmethod
  def parse(cls, text: str) -> 'Variant':
    """Reads `'label: flags'`.

    Raises:
      UserError: if it is not of this form.
    """
    label, colon, rest = text.partition(':')
    label = label.strip()
    if not colon or not re.fullmatch(r'\w[\w .+=-]*', label):
      raise UserError(
        f"--variant='{text}' must be 'label: flags', as in 'hidden:"
        " --hide_observations=3:5', with a label of letters, digits, spaces and"
        ' any of _ . + = -'
      )
    try:
      arguments = shlex.split(rest)
    except ValueError as e:
      raise UserError(f"--variant='{text}': {e}.") from None
    own, _ = compare_flags.split(arguments)
    if own:
      raise UserError(
        f"--variant='{text}': --{min(own)} holds for all variants; give it"
        ' outside.'
      )
    compare_flags.training_flags(arguments, f"--variant='{text}': ")
    return cls(label, tuple(arguments))


@dataclasses.dataclass(frozen=True)
class Request:
  """What is to be compared.

  Attributes:
    networks: as --network names them.
    seeds: of each network in each variant.
    variants: as they are written on the command line; none for the task as it
      is.
    flags: of training, for all runs.
    config: of a former run to start from.
    threshold: reward whose first reaching is looked for.
  """

  networks: tuple[str, ...] = ('mlp', 'lstm')
  seeds: tuple[int, ...] = (0, 1, 2)
  variants: tuple[str, ...] = ()
  flags: tuple[str, ...] = ()
  config: str | None = None
  threshold: float | None = None

  def parsed_variants(self) -> list[Variant]:
    """Returns the variants, at least one."""
    return [Variant.parse(text) for text in self.variants] or [Variant()]

  def changed(
    self, own: Mapping[str, Any], arguments: Sequence[str]
  ) -> 'Request':
    """Returns the request with what a command line says.

    Args:
      own: the flags of a comparison.
      arguments: those of training; none to keep them.

    Raises:
      UserError: if something is asked for twice, or not at all.
    """
    changes: dict[str, Any] = {
      name: own[name] for name in ('config', 'threshold') if name in own
    }
    if 'networks' in own:
      changes['networks'] = tuple(name.strip() for name in own['networks'])
    if 'seeds' in own:
      changes['seeds'] = _seeds(own['seeds'])
    if 'variant' in own:
      changes['variants'] = tuple(own['variant'])
    if arguments:
      compare_flags.training_flags(arguments, '')
      changes['flags'] = tuple(arguments)
    if not math.isfinite(changes.get('threshold', 0.0)):
      raise UserError('--threshold must be a number, as 900.')
    request = dataclasses.replace(self, **changes)
    labels = [variant.label for variant in request.parsed_variants()]
    for flag, names in (('networks', request.networks), ('variant', labels)):
      if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f'--{flag}: {min(twice)!r} is there twice.')
    if not request.networks or not all(request.networks):
      raise UserError('--networks must name networks, as in mlp,lstm.')
    return request


def _require_kinds(request: Request) -> None:
  """Requires entries that a file may have otherwise.

  Raises:
    TypeError: if one is of another kind; the message names it.
  """
  for name in ('networks', 'seeds', 'variants', 'flags'):
    kind = int if name == 'seeds' else str
    items = getattr(request, name)
    if type(items) is not tuple or any(type(i) is not kind for i in items):
      raise TypeError(f'{name} is {items!r}')
  if not isinstance(request.config, str | None):
    raise TypeError(f'config is {request.config!r}')
  if not isinstance(request.threshold, int | float | None):
    raise TypeError(f'threshold is {request.threshold!r}')


def _read(folder: str) -> Request:
  """Reads what a comparison was asked for."""
  file = pathlib.Path(folder, RESULTS_NAME)
  try:
    saved = json.loads(file.read_text())['request']
    lists = {k: tuple(v) for k, v in saved.items() if isinstance(v, list)}
    request = Request(**(saved | lists))
    _require_kinds(request)
    return request
  except OSError as e:
    raise UserError(
      f'--resume={folder}: there is no comparison, a folder with a'
      f' {RESULTS_NAME} ({e.strerror or e}).'
    ) from None
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise UserError(
      f'--resume={folder}: {file} is not of a comparison ({e!r}).'
    ) from None


def _going_on(saved: Request, arguments: list[str]) -> list[str]:
  """Returns the flags of training of a comparison that goes on.

  Raises:
    UserError: if they would make other runs of those that are there.
  """
  before, changes = options.parse(saved.flags), list[str]()
  for name, value in compare_flags.training_flags(arguments, '').items():
    if name not in _MAY_CHANGE and before.get(name) != value:
      raise UserError(
        f'--resume goes on with a comparison as it was, and --{name} was not'
        f' {value!r}. Leave it out, or start a new comparison.'
      )
    if before.get(name) != value:
      changes.append(f'--{name}={str(value).lower()}')
  return [*saved.flags, *changes]


def parse(
  arguments: Sequence[str],
) -> tuple[Request | None, dict[str, Any]]:
  """Reads a command line.

  Args:
    arguments: of the program, its name left out.

  Returns:
    What is asked for, `None` if it is help, and where: `resume`, or `logdir`
    and `suffix`, as far as they were given.

  Raises:
    UserError: for whatever can be seen without making an environment.
  """
  own, rest = compare_flags.split(arguments)
  if own.get('help'):
    return None, {}
  if 'resume' not in own:
    place = {k: own[k] for k in ('logdir', 'suffix') if k in own}
    return Request().changed(own, rest), place
  saved = _read(own['resume'])
  if own.get('config', saved.config) != saved.config:
    raise UserError(
      f'--resume goes on with a comparison as it was, and --config was'
      f' {saved.config or "not given"}. Leave it out.'
    )
  request = saved.changed(own, _going_on(saved, rest))
  return request, {'resume': own['resume']}
