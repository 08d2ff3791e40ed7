"""The picture of a comparison: a panel per variant, a curve per network."""

from collections.abc import Sequence
import os
import pathlib
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from .compare_report import Result
from .compare_report import grouped
from .compare_report import task
from .compare_statistics import Curve
from .compare_statistics import band

PICTURE_NAME = 'comparison.png'

# Of Okabe and Ito, to be told apart by the colour-blind too; lines and markers
# differ as well.
_COLOURS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
  '#000000',
)
_LINES = ('-', '--', '-.', ':')
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
_CAPTION = 'line: mean over seeds; band: lowest to highest seed'
_COLUMNS = 3
# At 100 dots per inch a picture is 800 wide; it is drawn for sharper screens.
_WIDTH = 8.0
_DPI = 200


def _style(number: int) -> dict[str, Any]:
  return {
    'color': _COLOURS[number % len(_COLOURS)],
    'linestyle': _LINES[number % len(_LINES)],
    'marker': _MARKERS[number % len(_MARKERS)],
  }


def _draw_curves(
  axes: Any, network: str, curves: Sequence[Curve], style: dict[str, Any]
) -> bool:
  """Draws the curves of one network as one, and what goes beyond it thinly.

  Returns:
    Whether something does.
  """
  common = band(curves)
  seeds = f'{common.count} of {len(curves)} seeds'
  if common.count == len(curves):
    seeds = '1 seed' if common.count == 1 else f'{common.count} seeds'
  axes.plot(
    common.env_steps,
    common.mean,
    label=f'{network}, {seeds}',
    linewidth=2,
    markersize=5,
    zorder=3,
    **style,
  )
  axes.fill_between(
    common.env_steps,
    common.low,
    common.high,
    color=style['color'],
    alpha=0.2,
    linewidth=0,
  )
  end = common.env_steps[-1] if common.env_steps.size else 0
  beyond = False
  for curve in curves:
    points = [
      point
      for point in zip(curve.env_steps, curve.rewards, strict=True)
      if point[0] >= end
    ]
    if len(points) > 1:
      thin = {**style, 'linewidth': 0.8, 'alpha': 0.7, 'markersize': 3}
      axes.plot(*zip(*points, strict=True), **thin)
      beyond = True
  return beyond


def _draw_panel(
  axes: Any, groups: dict[str, Sequence[Curve]], threshold: float | None
) -> bool:
  """Draws a panel; returns whether it has thin lines."""
  beyond = [
    _draw_curves(axes, network, curves, _style(number))
    for number, (network, curves) in enumerate(groups.items())
  ]
  if threshold is not None:
    axes.axhline(threshold, color='0.4', linewidth=0.8, linestyle=(0, (1, 2)))
  axes.xaxis.set_major_formatter(EngFormatter(sep=''))
  axes.grid(alpha=0.3)
  return any(beyond)


def _add_legends(figure: Any, panels: Sequence[Any]) -> None:
  """Explains the curves: once for all panels if they have the same."""
  labels = [axes.get_legend_handles_labels()[1] for axes in panels]
  if all(other == labels[0] for other in labels):
    handles = panels[0].get_legend_handles_labels()[0]
    figure.legend(
      handles, labels[0], loc='outside upper center', ncols=4, fontsize=9
    )
    return
  for axes in panels:
    axes.legend(fontsize=9, framealpha=0.9)


def draw(
  path: pathlib.Path, results: Sequence[Result], threshold: float | None
) -> None:
  """Draws reward over env steps; a viewer never sees half a picture.

  A line is the mean over seeds, from the first to the last evaluation that all
  seeds have; its band goes from the lowest to the highest seed. What single
  seeds have beyond is drawn thinly.

  Args:
    path: of the PNG file.
    results: of all runs.
    threshold: reward to draw a line at.
  """
  panels: dict[str, dict[str, Sequence[Curve]]] = {}
  for (variant, network), group in grouped(results).items():
    curves = panels.setdefault(variant, {})
    curves[network] = [result.curve for result in group]
  columns = min(len(panels), _COLUMNS)
  rows = -(-len(panels) // columns)
  figure = Figure(
    figsize=(_WIDTH, 0.6 + 3.6 * rows), dpi=_DPI, layout='constrained'
  )
  FigureCanvasAgg(figure)
  grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
  caption = _CAPTION
  for axes in grid.flat[len(panels) :]:
    axes.set_visible(False)
  for axes, (variant, groups) in zip(grid.flat, panels.items(), strict=False):
    if _draw_panel(axes, groups, threshold):
      caption = f'{_CAPTION}; thin: single seeds that have more'
    axes.set_title(task(results, variant), fontsize=11)
  _add_legends(figure, list(grid.flat)[: len(panels)])
  figure.supxlabel(f'Training [env steps]\n{caption}', fontsize=10)
  figure.supylabel('Reward of an episode [sum over its steps]', fontsize=10)
  partial = path.with_name(path.name + '.partial')
  figure.savefig(partial, format='png')
  os.replace(partial, path)
