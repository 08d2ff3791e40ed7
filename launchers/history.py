"""The metrics of a run so far, by name, to be drawn."""

import array
from collections.abc import Iterable
import dataclasses
import math

import numpy as np

from .metrics_file import KEYS
from .metrics_file import Line


@dataclasses.dataclass(frozen=True)
class Series:
  """A metric over env steps.

  Attributes:
    steps: env steps, not decreasing, `[n]`.
    values: `[n]`; NaN where one was not finite.
  """

  steps: np.ndarray
  values: np.ndarray

  @property
  def finite(self) -> np.ndarray:
    """The values that are finite."""
    return self.values[np.isfinite(self.values)]


class History:
  """Metrics by name, in 16 bytes for each number.

  Attributes:
    env_steps: the most that were reported.
    seconds: of the run, likewise.
    reports: their number.
  """

  def __init__(self, lines: Iterable[Line] = ()):
    self.env_steps = 0
    self.seconds = 0.0
    self.reports = 0
    self._columns: dict[str, tuple[array.array, array.array]] = {}
    for line in lines:
      self.add(line)

  def add(self, line: Line) -> None:
    """Adds a report."""
    steps = line['env_steps']
    self.env_steps = max(self.env_steps, steps)
    self.seconds = max(self.seconds, line.get('seconds') or 0.0)
    self.reports += 1
    for name, value in line.items():
      if name in KEYS:
        continue
      if name not in self._columns:
        self._columns[name] = array.array('d'), array.array('d')
      column = self._columns[name]
      column[0].append(steps)
      column[1].append(math.nan if value is None else value)

  def names(self) -> list[str]:
    """Returns the names of all metrics, in order."""
    return sorted(self._columns)

  def series(self, name: str) -> Series | None:
    """Returns a metric; `None` if it was never reported."""
    if name not in self._columns:
      return None
    steps, values = (np.array(column) for column in self._columns[name])
    # Training metrics may come late.
    order = np.argsort(steps, kind='stable')
    return Series(steps[order], values[order])


def thinned(values: np.ndarray, limit: int) -> np.ndarray:
  """Chooses points to draw of very many, so that no peak and no gap is lost.

  Args:
    values: `[n]`.
    limit: of the number of points.

  Returns:
    Indices, increasing, at most `limit`: the first, the last, and of each
    stretch the lowest, the highest and, if there is one, a NaN.
  """
  if len(values) <= limit:
    return np.arange(len(values))
  chosen = {0, len(values) - 1}
  for part in np.array_split(np.arange(len(values)), max(limit // 3 - 1, 1)):
    stretch = values[part]
    gaps = np.isnan(stretch)
    if gaps.any():
      chosen.add(int(part[np.argmax(gaps)]))
    if not gaps.all():
      chosen.add(int(part[np.nanargmin(stretch)]))
      chosen.add(int(part[np.nanargmax(stretch)]))
  return np.array(sorted(chosen))
