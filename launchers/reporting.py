"""What a run leaves behind and shows: metrics, a picture, and progress."""

from collections.abc import Mapping
import datetime
import json
import math
import os
import pathlib
import shutil
import threading
import time
from typing import Any
from typing import TextIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
import numpy as np
import tqdm

from .errors import UserError

CONFIG_NAME = 'config.json'
METRICS_NAME = 'metrics.jsonl'
PICTURE_NAME = 'reward.png'
CHECKPOINTS_NAME = 'checkpoints'
EXPORTED_NAME = 'exported'

# Where a mean reward and its standard deviation are found, best first.
_REWARDS = {
  'evaluation': ('eval/episode_reward', 'eval/episode_reward_std'),
  'training': ('episode/sum_reward', None),
}

# Env steps, mean, standard deviation.
Point = tuple[int, float, float]


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
  """Writes a file of readable JSON."""
  path.write_text(json.dumps(tree, indent=2) + '\n')


def scalars(metrics: Mapping[str, Any]) -> dict[str, float | None]:
  """Returns the metrics that are one number; `None` where it is not finite."""
  numbers = {
    name: float(np.asarray(value))
    for name, value in metrics.items()
    if np.ndim(value) == 0
  }
  return {
    name: value if math.isfinite(value) else None
    for name, value in numbers.items()
  }


def reward_points(
  env_steps: int, metrics: Mapping[str, Any]
) -> dict[str, Point]:
  """Finds the rewards in metrics of any kind, by where they were measured."""
  points: dict[str, Point] = {}
  for source, (mean, std) in _REWARDS.items():
    if metrics.get(mean) is not None:
      spread = float(metrics.get(std, 0.0)) if std else 0.0
      points[source] = env_steps, float(metrics[mean]), spread
  return points


def draw(
  path: pathlib.Path, curves: Mapping[str, list[Point]], title: str
) -> None:
  """Draws reward over env steps, with a band of one standard deviation.

  A viewer never sees half a picture: it is written aside and then renamed.

  Args:
    path: of the PNG file.
    curves: points by the name of the curve.
    title: above the axes.
  """
  figure = Figure(figsize=(7, 4.5), dpi=120, layout='constrained')
  FigureCanvasAgg(figure)
  axes: Any = figure.subplots()
  for name, points in curves.items():
    steps, mean, std = np.array(points).T
    axes.plot(steps, mean, marker='o', markersize=3, label=name)
    if std.any():
      axes.fill_between(
        steps,
        mean - std,
        mean + std,
        alpha=0.2,
        linewidth=0,
        label=f'{name}, ± 1 standard deviation',
      )
  axes.set_title(title)
  axes.set_xlabel('Training [env steps]')
  axes.set_ylabel('Reward of an episode [sum over its steps]')
  axes.xaxis.set_major_formatter(EngFormatter())
  axes.grid(alpha=0.3)
  axes.legend()
  partial = path.with_name(path.name + '.partial')
  figure.savefig(partial, format='png')
  os.replace(partial, path)


def _duration(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))


class _Bar:
  """Progress on a terminal."""

  def __init__(self, total: int, stream: TextIO, begin: int):
    # A terminal may report a size of 0, for which tqdm draws nothing.
    size = shutil.get_terminal_size()
    self._bar = tqdm.tqdm(
      total=total,
      initial=begin,
      file=stream,
      unit=' env steps',
      unit_scale=True,
      ncols=size.columns,
      nrows=size.lines,
    )

  def update(self, env_steps: int, reward: str) -> None:
    if reward:
      self._bar.set_postfix_str(reward, refresh=False)
    self._bar.update(env_steps - self._bar.n)
    self._bar.refresh()

  def close(self) -> None:
    self._bar.close()


class _Lines:
  """Progress in a file or a pipe: the same, a line each time."""

  def __init__(self, total: int, stream: TextIO, begin: int):
    self._total = total
    self._stream = stream
    self._last = begin, time.monotonic()

  def update(self, env_steps: int, reward: str) -> None:
    steps, then = self._last
    self._last = env_steps, time.monotonic()
    parts = [f'{env_steps:,} of {self._total:,} env steps']
    if env_steps > steps:
      speed = (env_steps - steps) / max(self._last[1] - then, 1e-6)
      left = max(self._total - env_steps, 0) / speed
      parts += [f'{speed:,.0f} env steps/s', f'{_duration(left)} left']
    print(', '.join(filter(None, [*parts, reward])), file=self._stream)
    self._stream.flush()

  def close(self) -> None:
    pass


def _lines_before(file: pathlib.Path, env_steps: int) -> list[dict[str, Any]]:
  """Returns the lines of metrics before a step, whole ones only."""
  found = []
  for line in file.read_text().splitlines() if file.exists() else []:
    try:
      found.append(json.loads(line))
    except json.JSONDecodeError:
      break  # the run was killed while it wrote
  return [line for line in found if line['env_steps'] < env_steps]


class Reporter:
  """A progress callback of `train`; takes any metrics, on any thread.

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
  ):
    """Starts to report, or goes on to.

    Args:
      folder: of the run.
      total: env steps that will be taken.
      title: of the picture.
      stream: for progress; a bar if it is a terminal.
      begin: env steps of the checkpoint that the run goes on from; what was
        reported from there on will be again.
    """
    self.curves: dict[str, list[Point]] = {}
    self._folder = folder
    self._title = title
    self._env_steps = begin
    # Training metrics come from a thread of the runtime.
    self._lock = threading.Lock()
    before = _lines_before(folder / METRICS_NAME, begin)
    seconds = before[-1]['seconds'] if before else 0.0
    self._start = time.monotonic() - seconds
    for line in before:
      self._remember(line['env_steps'], line)
    self._file = (folder / METRICS_NAME).open('w')
    self._file.writelines(json.dumps(line) + '\n' for line in before)
    self._file.flush()
    kind = _Bar if stream.isatty() else _Lines
    self._progress = kind(total, stream, begin)

  def _remember(self, env_steps: int, metrics: Mapping[str, Any]) -> bool:
    """Adds to the curves; returns whether there was anything to add."""
    points = reward_points(env_steps, metrics)
    for source, point in points.items():
      self.curves.setdefault(source, []).append(point)
    return bool(points)

  def __call__(self, env_steps: int, metrics: Mapping[str, Any]) -> None:
    """Writes a line of metrics, redraws the picture, and shows progress."""
    with self._lock:
      line = {
        'env_steps': int(env_steps),
        'seconds': round(time.monotonic() - self._start, 3),
        **scalars(metrics),
      }
      self._file.write(json.dumps(line) + '\n')
      self._file.flush()
      if self._remember(int(env_steps), metrics):
        draw(self._folder / PICTURE_NAME, self.curves, self._title)
      # Evaluations and training metrics may overtake each other.
      self._env_steps = max(self._env_steps, int(env_steps))
      self._progress.update(self._env_steps, self.last_reward())

  def last_reward(self) -> str:
    """Returns the newest reward in words; nothing if there is none."""
    for source in _REWARDS:
      if self.curves.get(source):
        _, mean, std = self.curves[source][-1]
        spread = f' ± {std:.4g}' if std else ''
        return f'{source} reward {mean:.4g}{spread}'
    return ''

  def close(self) -> None:
    """Ends the reports."""
    self._progress.close()
    self._file.close()
