"""Metrics for TensorBoard and Weights & Biases, which are optional packages."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import importlib
import json
import os
import pathlib
import time
from typing import Any
from typing import Protocol

from .errors import UserError
from .metrics_file import Line

_PROJECT = 'brax-nnx-plugin'

# Packages by the flag that needs them: name to import, and to install.
_PACKAGES = {
  'use_tb': ('tensorboardX', 'tensorboardX'),
  'use_wandb': ('wandb', 'wandb'),
}

_EVENTS = 'events.out.tfevents.*'

# Keeps which run of Weights & Biases a folder belongs to.
WANDB_NAME = 'wandb.json'


@dataclasses.dataclass(frozen=True)
class Wanted:
  """What the flags ask for.

  Attributes:
    use_tb: write events for TensorBoard.
    use_wandb: log to Weights & Biases.
    wandb_project: there; by default $WANDB_PROJECT, or the name of the package.
    wandb_entity: user or team there; by default the user's own.
  """

  use_tb: bool = False
  use_wandb: bool = False
  wandb_project: str | None = None
  wandb_entity: str | None = None

  @classmethod
  def of(cls, options: Mapping[str, Any]) -> 'Wanted':
    """Takes what it needs out of the flags that were given."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: options[name] for name in names if name in options})

  def check(self) -> None:
    """Requires what the flags need.

    Raises:
      UserError: if a package is missing, or flags contradict.
    """
    for flag, (module, package) in _PACKAGES.items():
      if getattr(self, flag):
        try:
          importlib.import_module(module)
        except ImportError as e:
          raise UserError(
            f'--{flag} needs the package {package}, which cannot be imported'
            f' ({e}); pip install {package} puts it right.'
          ) from None
    for flag in ('wandb_project', 'wandb_entity'):
      if getattr(self, flag) is not None and not self.use_wandb:
        raise UserError(f'--{flag} has no meaning without --use_wandb.')


NOTHING = Wanted()


@dataclasses.dataclass(frozen=True)
class Past:
  """What was reported before a run goes on.

  Attributes:
    kept: lines before the checkpoint.
    dropped: lines from there on, which will be reported again.
    begin: env steps of the checkpoint; 0 for a new run.
  """

  kept: Sequence[Line] = ()
  dropped: Sequence[Line] = ()
  begin: int = 0


class BackEnd(Protocol):
  """Takes the metrics of a run. Any method may fail.

  Attributes:
    name: for people.
  """

  name: str

  def write(self, line: Line) -> None:
    """Takes a line of metrics."""

  def close(self, succeeded: bool) -> None:
    """Ends the run, or its part of today."""


def _finite(line: Line) -> dict[str, float]:
  """Returns the metrics of a line that are finite."""
  others = ('env_steps', 'seconds')
  return {
    name: value
    for name, value in line.items()
    if value is not None and name not in others
  }


class TensorBoard:
  """Events in the folder of the run.

  They are written when they are given, not on a thread of their own: that of
  `SummaryWriter` dies on a full disk, and its queue then blocks who writes.
  """

  name = 'TensorBoard'

  def __init__(
    self, folder: pathlib.Path, config: Mapping[str, Any], past: Past
  ):
    """Writes nothing before the first line comes.

    Args:
      folder: of the run.
      config: shown as text.
      past: of the run. If it has events, those from `begin` on are declared
        void; if not, they are written now.
    """
    self._folder = folder
    self._config = config
    self._past = past
    self._goes_on = any(folder.glob(_EVENTS))
    self._begun = False
    self._writer: Any = None
    # The present file, if nothing was written to it yet.
    self._unread: set[pathlib.Path] = set()

  def _open(self) -> None:
    from tensorboardX import event_file_writer

    before = {*self._folder.glob(_EVENTS)}
    # The number makes names differ that are of the same second.
    self._writer = event_file_writer.EventsWriter(
      str(self._folder / 'events'), f'.{len(before)}'
    )
    self._unread = {*self._folder.glob(_EVENTS)} - before
    if not self._begun:
      self._begin()

  def _begin(self) -> None:
    from tensorboardX import summary
    from tensorboardX.proto import event_pb2

    if self._goes_on:
      log: Any = event_pb2.SessionLog  # pyright: ignore
      self._add(self._past.begin, session_log=log(status=log.START))
    else:
      for line in self._past.kept:
        self._add_line(line)
    text = f'```\n{json.dumps(self._config, indent=2)}\n```'
    self._add(self._past.begin, summary=summary.text('config', text))

  def _add(self, env_steps: int, **what: Any) -> None:
    from tensorboardX.proto import event_pb2

    event: Any = event_pb2.Event  # pyright: ignore
    self._writer.write_event(
      event(step=env_steps, wall_time=time.time(), **what)
    )

  def _add_line(self, line: Line) -> None:
    from tensorboardX.proto import summary_pb2

    summary: Any = summary_pb2.Summary  # pyright: ignore
    values = [
      summary.Value(tag=name, simple_value=value)
      for name, value in _finite(line).items()
    ]
    self._add(line['env_steps'], summary=summary(value=values))

  def write(self, line: Line) -> None:
    try:
      if self._writer is None:
        self._open()
      self._add_line(line)
      self._writer.flush()  # pyright: ignore
      self._begun, self._unread = True, set()
    except Exception:
      # Nothing can be read behind half an event; the next one begins a file.
      self._writer = None
      for file in self._unread:
        file.unlink(missing_ok=True)
      raise

  def close(self, succeeded: bool) -> None:
    del succeeded
    if self._writer is not None:
      self._writer.close()


class WeightsAndBiases:
  """A run of Weights & Biases.

  Its own steps must never go back, and env steps do when training metrics come
  late. So it counts reports itself and has env steps as the x axis.
  """

  name = 'Weights & Biases'

  def __init__(
    self,
    folder: pathlib.Path,
    config: Mapping[str, Any],
    past: Past,
    wanted: Wanted,
  ):
    """Begins a run there, or goes on with the one of the folder.

    Args:
      folder: of the run, which gives it its name.
      config: of the run.
      past: of the run; what it has there is not logged again.
      wanted: the flags.

    Raises:
      UserError: if it cannot begin.
    """
    wandb: Any = importlib.import_module('wandb')
    file = folder / WANDB_NAME
    known = json.loads(file.read_text())['id'] if file.exists() else None
    project = wanted.wandb_project or os.environ.get('WANDB_PROJECT')
    try:
      self._run = wandb.init(
        project=project or _PROJECT,
        entity=wanted.wandb_entity,
        name=folder.name,
        dir=str(folder),
        config=dict(config),
        id=known,
        resume='allow' if known else None,
      )
    except Exception as e:
      raise UserError(
        f'--use_wandb: Weights & Biases cannot start a run ({e}). Run `wandb'
        ' login` first, or set WANDB_MODE=offline to upload it later.'
      ) from e
    file.write_text(json.dumps({'id': self._run.id}) + '\n')
    self._run.define_metric('env_steps')
    self._run.define_metric('*', step_metric='env_steps')
    self._logged = {self._key(line) for line in past.dropped if known}
    for line in () if known else past.kept:
      self.write(line)

  @staticmethod
  def _key(line: Line) -> tuple[int, frozenset[str]]:
    return line['env_steps'], frozenset(line)

  def write(self, line: Line) -> None:
    if self._key(line) not in self._logged:
      self._run.log(_finite(line) | {'env_steps': line['env_steps']})

  def close(self, succeeded: bool) -> None:
    self._run.finish(exit_code=0 if succeeded else 1)


def start(
  wanted: Wanted,
  folder: pathlib.Path,
  config: Mapping[str, Any],
  past: Past,
) -> list[BackEnd]:
  """Starts what the flags ask for.

  Args:
    wanted: the flags.
    folder: of the run.
    config: the whole configuration; see `description.describe`.
    past: what was reported before.

  Raises:
    UserError: if one cannot start.
  """
  back_ends: list[BackEnd] = []
  if wanted.use_tb:
    back_ends.append(TensorBoard(folder, config, past))
  if wanted.use_wandb:
    back_ends.append(WeightsAndBiases(folder, config, past, wanted))
  return back_ends
