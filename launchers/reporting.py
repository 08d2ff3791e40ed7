"""What a run leaves behind and shows: metrics, a picture, and progress."""

from collections.abc import Mapping
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import threading
import time
from typing import Any
from typing import TextIO

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo.types import TrainingDiverged

from . import back_ends
from . import locking
from . import metrics_file
from . import progress
from . import report_html
from .errors import UserError
from .history import History
from .metrics_file import Line
from .metrics_file import MetricsFile
from .metrics_file import scalars
from .replacing import replacing
from .reward_picture import REWARDS
from .reward_picture import Point
from .reward_picture import draw
from .reward_picture import reward_points
from .tolerance import Tolerance

CONFIG_NAME = 'config.json'
METRICS_NAME = 'metrics.jsonl'
PICTURE_NAME = 'reward.png'
REPORT_NAME = 'report.html'
CHECKPOINTS_NAME = 'checkpoints'
EXPORTED_NAME = 'exported'

# Seconds without a new picture, for each second that was spent on one.
_REST = 20

# What is said when something fails: failure, consequence, and perhaps that it
# works again.
_NO_CONFIG = f'{CONFIG_NAME} could not be written', 'it will be tried again'
_NO_METRICS = (
  f'METRICS ARE NOT SAVED: {METRICS_NAME} could not be written',
  'training goes on, and the metrics will be written as soon as that works',
  f'{METRICS_NAME} is complete again.',
)
_LOST = 'its end is lost'
_GOES_ON = 'training goes on without'


def make_folder(logdir: str, env_name: str, suffix: str | None) -> pathlib.Path:
  """Makes a new folder for a run, named by environment and time.

  Args:
    logdir: the folder it goes into; made if it does not exist.
    env_name: begins the name.
    suffix: ends it.

  Raises:
    UserError: if it cannot be made or written to.
  """
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  if suffix and ('/' in suffix or os.sep in suffix):
    raise UserError(f'--suffix={suffix} must be a name, not a path.')
  name = '-'.join(filter(None, (env_name, now, suffix)))
  for number in range(1, 100):
    folder = pathlib.Path(logdir, name if number == 1 else f'{name}-{number}')
    try:
      pathlib.Path(logdir).mkdir(parents=True, exist_ok=True)
      folder.mkdir()
    except OSError as e:
      # Another run of this second has the name; a file in the way has not.
      if isinstance(e, FileExistsError) and folder.exists():
        continue
      raise UserError(
        f'--logdir={logdir}: the folder {folder} cannot be made'
        f' ({e.strerror or e}).'
      ) from e
    return folder
  raise UserError(f'--logdir={logdir} has too many runs called {name}.')


def write_json(path: pathlib.Path, tree: Any) -> None:
  """Writes a file of readable JSON, as a whole or not at all."""
  with replacing(path) as partial:
    partial.write_text(json.dumps(tree, indent=2) + '\n')


def _past(folder: pathlib.Path, begin: int) -> back_ends.Past:
  """Reads what was reported before a checkpoint, and since."""
  lines = metrics_file.read(folder / METRICS_NAME)
  return back_ends.Past(
    [line for line in lines if line['env_steps'] < begin],
    [line for line in lines if line['env_steps'] >= begin],
    begin,
  )


class Reporter:
  """A progress callback of `train`; takes any metrics, on any thread.

  Nothing that fails here ends training: it is told, and training goes on.

  Attributes:
    curves: the rewards so far, by where they were measured.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    total: int,
    title: str,
    stream: TextIO,
    begin: int = 0,
    config: Mapping[str, Any] | None = None,
    wanted: back_ends.Wanted = back_ends.NOTHING,
  ):
    """Starts to report, or goes on to.

    Of a run that goes on, no file changes before the first report: only then is
    it sure that it does.

    Args:
      folder: of the run.
      total: env steps that will be taken.
      title: of the picture.
      stream: for progress; a bar if it is a terminal.
      begin: env steps of the checkpoint that the run goes on from; what was
        reported from there on will be again.
      config: the whole configuration; see `description.describe`.
      wanted: where else metrics are to go.

    Raises:
      UserError: if the folder cannot be written to, or a back end not start.
    """
    self.curves: dict[str, list[Point]] = {}
    self._folder = folder
    self._config = config
    self._run = report_html.Run(title, str(folder), total, config or {})
    self._env_steps = begin
    # Training metrics come from a thread of the runtime.
    self._lock = threading.Lock()
    self._next_drawing = 0.0
    self._closed = False
    self._claim = contextlib.ExitStack()
    self._claim.enter_context(locking.alone(folder))
    try:
      past = _past(folder, begin)
    except OSError as e:
      raise UserError(
        f'{folder / METRICS_NAME} cannot be read ({e.strerror or e}).'
      ) from e
    # Of a run that goes on, nothing is sure before the first report.
    self._reported = not past.kept and not past.dropped
    self._history = History(past.kept)
    self._start = time.monotonic() - self._history.seconds
    for line in past.kept:
      self._remember(line)
    self._file = MetricsFile(folder / METRICS_NAME, past.kept)
    try:
      self._back_ends = back_ends.start(wanted, folder, config or {}, past)
      if self._reported:
        self._file.flush()
        self._write_report()
    except OSError as e:
      raise UserError(
        f'The folder {folder} cannot be written to ({e.strerror or e}).'
      ) from e
    self._progress = progress.make(total, stream, begin)
    self._tolerate = Tolerance(self._progress.say).of

  def _remember(self, line: Line) -> None:
    points = reward_points(line['env_steps'], line)
    for source, point in points.items():
      self.curves.setdefault(source, []).append(point)

  def __call__(self, env_steps: int, metrics: Mapping[str, Any]) -> None:
    """Writes a line of metrics, redraws the pictures, and shows progress."""
    with self._lock:
      if self._closed:
        return
      line = {
        'env_steps': int(env_steps),
        'seconds': round(time.monotonic() - self._start, 3),
        **scalars(metrics),
      }
      self._reported = True
      self._keep(line)
      self._history.add(line)
      self._remember(line)
      self._draw(at_once=any(name.startswith('eval/') for name in line))
      # Evaluations and training metrics may overtake each other.
      self._env_steps = max(self._env_steps, int(env_steps))
      with contextlib.suppress(Exception):  # a terminal that was closed
        self._progress.update(self._env_steps, self.last_reward())

  def _keep(self, line: Line) -> None:
    """Writes the line, and at first what the run now is."""
    if self._config is not None:
      with self._tolerate(*_NO_CONFIG):
        write_json(self._folder / CONFIG_NAME, self._config)
        self._config = None  # once is enough
    with self._tolerate(*_NO_METRICS):
      self._file.write(line)
    for back_end in self._back_ends:
      with self._tolerate(f'{back_end.name} failed', _GOES_ON):
        back_end.write(line)

  def _draw(self, at_once: bool) -> None:
    """Redraws, but for frequent reports spends little of the time on it."""
    begin = time.monotonic()
    if not at_once and begin < self._next_drawing:
      return
    if self.curves:
      with self._tolerate(f'{PICTURE_NAME} could not be drawn', _GOES_ON):
        draw(self._folder / PICTURE_NAME, self.curves, self._run.title)
    with self._tolerate(f'{REPORT_NAME} could not be written', _GOES_ON):
      self._write_report()
    end = time.monotonic()
    self._next_drawing = end + _REST * (end - begin)

  def _write_report(self) -> None:
    now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    run = dataclasses.replace(self._run, time=now)
    with replacing(self._folder / REPORT_NAME) as partial:
      page = report_html.render(self._history, run)
      # A folder may have a name that is no text.
      partial.write_text(page, encoding='utf-8', errors='backslashreplace')

  def last_reward(self) -> str:
    """Returns the newest reward in words; nothing if there is none."""
    for source in REWARDS:
      if self.curves.get(source):
        _, mean, std = self.curves[source][-1]
        spread = f' ± {std:.4g}' if std else ''
        return f'{source} reward {mean:.4g}{spread}'
    return ''

  def close(self, status: str = 'finished', note: str = '') -> None:
    """Ends the reports.

    Args:
      status: how the run ended; see `report_html.Run`.
      note: more on that, in a sentence.
    """
    with self._lock:
      if self._closed:
        return
      self._closed = True
      with contextlib.suppress(Exception):  # a terminal that was closed
        self._progress.close()
      if self._reported:
        with self._tolerate(f'{METRICS_NAME} could not be completed', _LOST):
          self._file.flush()
        self._run = dataclasses.replace(self._run, status=status, note=note)
        self._draw(at_once=True)
      self._file.close()
      for back_end in self._back_ends:
        with self._tolerate(f'{back_end.name} did not end', _LOST):
          back_end.close(status == 'finished')
      self._claim.close()

  def __enter__(self) -> 'Reporter':
    return self

  def __exit__(
    self, kind: Any, error: BaseException | None, trace: Any
  ) -> None:
    self.close(*_ending(error))


def _ending(error: BaseException | None) -> tuple[str, str]:
  """Returns how a run ended, and more on that."""
  if error is None:
    return 'finished', ''
  if isinstance(error, TrainingDiverged):
    return 'diverged', str(error)
  if isinstance(error, checkpoint.Preempted):
    return 'stopped', f'Stopped after {error.env_steps:,} env steps.'
  if isinstance(error, KeyboardInterrupt):
    return 'stopped', 'Interrupted; it goes on from its newest checkpoint.'
  return 'failed', str(error) or type(error).__name__
