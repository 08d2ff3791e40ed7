"""The report of a run: one page that needs nothing but a browser."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import html
import math
import shlex
from typing import Any

import numpy as np

from . import charts
from .axes import number
from .axes import steps_in_words
from .history import History
from .progress import duration
from .report_figures import figures
from .report_figures import network_figures
from .report_style import STYLE
from .reward_picture import REWARDS

# Loads nothing from anywhere.
_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)

# A page that is open shows new numbers, but never closes what is being read.
_RELOAD = """<script>
setInterval(() => {
  if (!document.querySelector('details.asked[open]')) location.reload();
}, 30000);
</script>"""

_STATUS = {
  'running': 'running',
  'finished': 'finished',
  'stopped': 'stopped, can go on',
  'diverged': 'diverged',
  'failed': 'failed',
}


_PARTS = {
  'environment': 'Environment',
  'network': 'Network',
  'ppo': 'PPO',
  'rest': 'Seed and other settings',
  'versions': 'Versions',
}


@dataclasses.dataclass(frozen=True)
class Run:
  """What a report says, apart from metrics.

  Attributes:
    title: of the run.
    folder: of the run, as one would type it.
    total: env steps that will have been taken.
    config: the whole configuration; see `description.describe`.
    status: 'running', 'finished', 'stopped', 'diverged' or 'failed'.
    note: more on that, in a sentence.
    time: of the report, in words.
  """

  title: str
  folder: str
  total: int
  config: Mapping[str, Any]
  status: str = 'running'
  note: str = ''
  time: str = ''


def _e(text: Any) -> str:
  """Returns text as HTML shows it."""
  return html.escape(str(text))


def _cards(history: History, run: Run) -> Iterator[tuple[str, str, str]]:
  """Yields the headline numbers: what, how much, and a remark."""
  share = f' ({100 * history.env_steps / run.total:.0f} %)' if run.total else ''
  yield (
    'Env steps',
    steps_in_words(history.env_steps),
    f'of {steps_in_words(run.total)}{share}',
  )
  for source, (mean, std) in REWARDS.items():
    rewards = history.series(mean)
    if rewards is None or not len(rewards.finite):
      continue
    spread = history.series(std) if std else None
    remark = f'{source}, at {steps_in_words(rewards.steps[-1])} env steps'
    if spread is not None and math.isfinite(spread.values[-1]):
      remark = f'± {number(spread.values[-1])}, {remark}'
    yield 'Last reward', number(rewards.values[-1]), remark
    best = int(np.nanargmax(rewards.values))
    where = f'{source}, at {steps_in_words(rewards.steps[best])} env steps'
    yield 'Best reward', number(rewards.values[best]), where
    break
  for name in ('training/sps', 'episode/sps'):
    speeds = history.series(name)
    if speeds is not None and len(speeds.finite):
      speed = float(speeds.finite[-1])
      yield 'Throughput', number(speed), 'env steps/s of training'
      break
  yield 'Time', duration(history.seconds), _time_left(history, run)


def _time_left(history: History, run: Run) -> str:
  if run.status != 'running' or not 0 < history.env_steps < run.total:
    return 'compiling and evaluations included'
  left = history.seconds * (run.total / history.env_steps - 1)
  return f'about {duration(left)} left'


def _metric_table(history: History) -> Iterator[str]:
  """Yields a table of everything that was reported."""
  if not history.names():
    return
  yield (
    '<details class="card asked"><summary>All metrics</summary>'
    '<div class="scroll"><table><tr><th>Name</th><th class="number">Last</th>'
    '<th class="number">Lowest</th><th class="number">Highest</th><th></th>'
    '</tr>'
  )
  for name in history.names():
    series = history.series(name)
    assert series is not None
    finite = series.finite
    ends = ('', '')
    if len(finite):
      ends = number(finite.min()), number(finite.max())
    cells = ''.join(
      f'<td class="number">{_e(text)}</td>'
      for text in (number(series.values[-1]), *ends)
    )
    yield (
      f'<tr><td>{_e(name)}</td>{cells}<td>{charts.sparkline(series)}</td></tr>'
    )
  yield '</table></div></details>'


def _leaves(tree: Any, prefix: str = '') -> Iterator[tuple[str, str]]:
  if isinstance(tree, Mapping) and tree:
    for name, value in tree.items():
      yield from _leaves(value, f'{prefix}.{name}' if prefix else str(name))
  else:
    if isinstance(tree, list | tuple):
      tree = ', '.join(map(str, tree))
    yield prefix, '–' if tree is None else str(tree)


def _configuration(config: Mapping[str, Any]) -> Iterator[str]:
  """Yields tables of the configuration, one for each part."""
  parts = {k: v for k, v in config.items() if isinstance(v, Mapping)}
  rest = {k: v for k, v in config.items() if k not in parts}
  if rest:
    parts['rest'] = rest
  for part, tree in parts.items():
    rows = ''.join(
      f'<tr><td>{_e(name)}</td><td class="value">{_e(value)}</td></tr>'
      for name, value in _leaves(tree)
    )
    yield (
      f'<details class="card asked"><summary>'
      f'{_e(_PARTS.get(part, part))}</summary>'
      f'<div class="scroll"><table>{rows}</table></div></details>'
    )


def _what_next(run: Run) -> Iterator[str]:
  """Yields the commands that go on with the run or use it."""
  network = str(run.config.get('network', {}).get('kind', ''))
  own = f' --network={shlex.quote(network)}' if ':' in network else ''
  folder = shlex.quote(run.folder)
  named = f', {network!r}' if own else ''
  yield '<h2>Use it</h2><div class="card">'
  for title, code in (
    ('Go on with it', f'brax-nnx-train --resume={folder}'),
    ('Play it', f'brax-nnx-play {folder}{own}'),
    ('Run it again, changed', f'brax-nnx-train --config={folder} --seed=1'),
    (
      'Load the policy in Python',
      'from brax_nnx_plugin.ppo import checkpoint\n\n'
      f'policy = checkpoint.load_policy({run.folder!r}{named})',
    ),
  ):
    yield f'<p>{title}</p><pre>{_e(code)}</pre>'
  yield '</div>'


def _body(history: History, run: Run) -> Iterator[str]:
  yield (
    f'<header><h1>{_e(run.title)}</h1><span class="status {_e(run.status)}">'
    f'{_e(_STATUS[run.status])}</span>'
  )
  time = ''
  if run.time:
    time = f', as of {run.time}'
    if run.status == 'running':
      # A run that is killed cannot say so.
      time += '; if that is long ago it was killed, and can go on'
  note = f'<p>{_e(run.note)}</p>' if run.note else ''
  yield f'{note}<p>{_e(run.folder)}{_e(time)}</p></header>'
  yield '<dl class="numbers">'
  for name, value, remark in _cards(history, run):
    yield (
      f'<div><dt>{_e(name)}</dt><dd>{_e(value)}<small>{_e(remark)}</small></dd>'
      '</div>'
    )
  yield '</dl>'
  if not history.reports:
    yield '<p class="empty">Nothing has been reported yet.</p>'
  yield from figures(history)
  yield from network_figures(history)
  yield '<h2>Numbers and configuration</h2>'
  yield from _metric_table(history)
  yield from _configuration(run.config)
  yield from _what_next(run)
  yield (
    f'<footer>{history.reports:,} reports, as in metrics.jsonl beside this'
    ' page. Long curves are drawn with fewer points; peaks and gaps are'
    ' kept.</footer>'
  )


def render(history: History, run: Run) -> str:
  """Writes the report.

  Args:
    history: the metrics so far.
    run: what else is said.

  Returns:
    A whole HTML page, which loads nothing.
  """
  reload = _RELOAD if run.status == 'running' else ''
  return (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    f'<title>{_e(run.title)}: {_e(run.status)}</title>'
    f'<style>{STYLE}</style></head><body>\n'
    + '\n'.join(_body(history, run))
    + f'\n{reload}</body></html>\n'
  )
