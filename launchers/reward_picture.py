"""The reward of a run over its env steps, as a picture."""

from collections.abc import Mapping
import math
import pathlib
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
import numpy as np

from .replacing import replacing

# Where a mean reward and its standard deviation are found, best first.
REWARDS = {
  'evaluation': ('eval/episode_reward', 'eval/episode_reward_std'),
  'training': ('episode/sum_reward', None),
}

# Env steps, mean, standard deviation.
Point = tuple[int, float, float]


def reward_points(
  env_steps: int, metrics: Mapping[str, float | None]
) -> dict[str, Point]:
  """Finds the rewards in metrics of any kind, by where they were measured.

  Args:
    env_steps: of the report.
    metrics: scalars; `None` for one that is not finite, which becomes NaN.
  """
  points: dict[str, Point] = {}
  for source, (mean, std) in REWARDS.items():
    if mean in metrics:
      reward = metrics[mean]
      spread = metrics.get(std) if std else None
      mean_or_nan = math.nan if reward is None else reward
      points[source] = env_steps, mean_or_nan, spread or 0.0
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
  with replacing(path) as partial:
    figure.savefig(partial, format='png')
