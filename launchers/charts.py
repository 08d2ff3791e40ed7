"""Charts of metrics over env steps, as SVG to be put into a page of HTML.

Colours are those of the page: it sets `--line-0`, `--line-1`, ..., `--grid`,
`--muted` and `--card` for light and for dark screens.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import html

import numpy as np

from .axes import Axis
from .axes import number
from .axes import step_axis
from .axes import steps_in_words
from .axes import value_axis
from .history import Series
from .history import thinned

# Colours that the page knows.
COLOURS = 4

# Points of a curve; a screen shows no more.
_LIMIT = 600
# Up to here each point gets a dot, which says its value to a pointer.
_DOTTED = 60

# Pixels around the area of a plot; what labels on the left need is added.
_TOP, _RIGHT, _BOTTOM, _LEFT = 14, 24, 38, 10
_CHARACTER = 7.0


@dataclasses.dataclass(frozen=True)
class Curve:
  """A line of a chart.

  Attributes:
    label: for a legend, which the page writes.
    series: what it shows.
    spread: half the height of the band around it, `[n]`; `None` for no band.
  """

  label: str
  series: Series
  spread: np.ndarray | None = None

  def thinned(self) -> 'Curve':
    """Returns the part that is drawn."""
    # The difference of two of the largest floats is not finite.
    values = np.clip(self.series.values, -1e300, 1e300)
    chosen = thinned(values, _LIMIT)
    spread = self.spread
    if spread is not None:
      spread = np.clip(spread[chosen], 0, 1e300)
    return Curve(
      self.label, Series(self.series.steps[chosen], values[chosen]), spread
    )

  def edges(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lower and the upper edge, `[n]` each."""
    values = self.series.values
    spread = 0.0 if self.spread is None else np.nan_to_num(self.spread)
    return values - spread, values + spread


@dataclasses.dataclass(frozen=True)
class _Area:
  """Where values are on the paper, in pixels."""

  left: float
  right: float
  top: float
  bottom: float
  x_axis: Axis
  y_axis: Axis

  def x(self, steps: np.ndarray) -> np.ndarray:
    return self.left + self.x_axis.place(steps) * (self.right - self.left)

  def y(self, values: np.ndarray) -> np.ndarray:
    return self.bottom - self.y_axis.place(values) * (self.bottom - self.top)


def _text(x: float, y: float, text: str, anchor: str = 'start') -> str:
  return (
    f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
    f'{html.escape(text)}</text>'
  )


def _runs(values: np.ndarray) -> Iterator[slice]:
  """Yields the stretches without a gap."""
  edges = np.diff(np.isfinite(values).astype(int), prepend=0, append=0)
  starts, ends = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
  for start, end in zip(starts, ends, strict=True):
    yield slice(int(start), int(end))


def _points(x: np.ndarray, y: np.ndarray) -> str:
  return ' '.join(f'{a:.1f},{b:.1f}' for a, b in zip(x, y, strict=True))


def _band(curve: Curve, area: _Area, colour: int) -> Iterator[str]:
  assert curve.spread is not None
  values = curve.series.values
  for run in _runs(values + curve.spread):
    x = area.x(curve.series.steps[run])
    upper = area.y(values[run] + curve.spread[run])
    lower = area.y(values[run] - curve.spread[run])
    points = _points(
      np.concatenate([x, x[::-1]]), np.concatenate([upper, lower[::-1]])
    )
    yield (
      f'<polygon fill="var(--line-{colour})" opacity="0.18" points="{points}"/>'
    )


def _dot(
  curve: Curve, i: int, x: np.ndarray, y: np.ndarray, colour: int
) -> str:
  series = curve.series
  said = f'{steps_in_words(series.steps[i])} env steps: '
  said += number(series.values[i])
  if curve.spread is not None and curve.spread[i] > 0:
    said += f' ± {number(curve.spread[i])}'
  return (
    f'<circle fill="var(--line-{colour})" cx="{x[i]:.1f}" cy="{y[i]:.1f}"'
    f' r="2.5"><title>{html.escape(said)}</title></circle>'
  )


def _line(curve: Curve, area: _Area, colour: int) -> Iterator[str]:
  values = curve.series.values
  x, y = area.x(curve.series.steps), area.y(values)
  width = 1.8 if len(values) < _LIMIT / 3 else 1.0
  for run in _runs(values):
    alone = run.stop - run.start == 1
    if not alone:
      yield (
        f'<polyline fill="none" stroke="var(--line-{colour})"'
        f' stroke-width="{width}" stroke-linejoin="round"'
        f' points="{_points(x[run], y[run])}"/>'
      )
    if alone or len(values) <= _DOTTED:
      for i in range(run.start, run.stop):
        yield _dot(curve, i, x, y, colour)


def _grid(area: _Area) -> Iterator[str]:
  for value, label in area.y_axis.ticks:
    y = float(area.y(np.array(value)))
    yield (
      f'<line stroke="var(--grid)" x1="{area.left:.1f}" x2="{area.right:.1f}"'
      f' y1="{y:.1f}" y2="{y:.1f}"/>'
    )
    yield _text(area.left - 6, y + 4, label, 'end')
  for value, label in area.x_axis.ticks:
    x = float(area.x(np.array(value)))
    yield (
      f'<line stroke="var(--grid)" x1="{x:.1f}" x2="{x:.1f}"'
      f' y1="{area.bottom:.1f}" y2="{area.bottom + 4:.1f}"/>'
    )
    yield _text(x, area.bottom + 16, label, 'middle')
  yield _text(
    (area.left + area.right) / 2, area.bottom + 31, 'env steps', 'middle'
  )
  if area.y_axis.logarithmic:
    yield _text(_LEFT, _TOP - 2, 'logarithmic')


def chart(curves: Sequence[Curve], title: str, width: int, height: int) -> str:
  """Draws curves over env steps.

  Args:
    curves: at least one.
    title: what a reader of the screen is told.
    width: in pixels at full size; it may be shown smaller.
    height: likewise.

  Returns:
    An element `svg`; a sentence if there is no finite value.
  """
  drawn = [curve.thinned() for curve in curves]
  if not any(len(curve.series.finite) for curve in drawn):
    return '<p class="empty">No finite value was reported.</p>'
  y_axis = value_axis(
    np.concatenate([edge for curve in drawn for edge in curve.edges()]),
    count=height // 45,
  )
  widest = max([len(label) for _, label in y_axis.ticks], default=0)
  left = _LEFT + 4 + _CHARACTER * widest
  all_steps = np.concatenate([curve.series.steps for curve in drawn])
  area = _Area(
    left,
    width - _RIGHT,
    _TOP,
    height - _BOTTOM,
    step_axis(all_steps, count=width // 90),
    y_axis,
  )
  parts = list(_grid(area))
  for i, curve in enumerate(drawn):
    if curve.spread is not None:
      parts += _band(curve, area, i % COLOURS)
  for i, curve in enumerate(drawn):
    parts += _line(curve, area, i % COLOURS)
  label = html.escape(f'{title} over env steps')
  return (
    f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}">'
    f'{"".join(parts)}</svg>'
  )


def sparkline(series: Series, width: int = 110, height: int = 24) -> str:
  """Draws the shape of a metric and nothing else; empty for a single value."""
  curve = Curve('', series).thinned()
  if len(curve.series.finite) < 2:
    return ''
  axes = step_axis(series.steps, 1), value_axis(curve.series.values, 1)
  area = _Area(2, width - 2, 3, height - 3, *axes)
  x, y = area.x(curve.series.steps), area.y(curve.series.values)
  lines = ''.join(
    f'<polyline fill="none" stroke="var(--line-0)" stroke-width="1.3"'
    f' points="{_points(x[run], y[run])}"/>'
    for run in _runs(curve.series.values)
  )
  return (
    f'<svg class="spark" aria-hidden="true" viewBox="0 0 {width} {height}">'
    f'{lines}</svg>'
  )
