"""The charts in the report of a run."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import html

from . import charts
from .axes import number
from .charts import Curve
from .history import History
from .reward_picture import REWARDS

# Network metrics that are shown without being asked for.
_OPEN = 12

_SMALL = 400, 230
_WIDE = 940, 310

# Title, unit, and where the values are: of the last epoch, or of the newest
# gradient steps if training is reported too.
_LEARNING = (
  ('Policy loss', '', 'policy_loss'),
  ('Value loss', '', 'v_loss'),
  ('Entropy loss', '', 'entropy_loss'),
  ('Total loss', '', 'total_loss'),
  ('KL divergence', 'nats, from the acting policy', 'kl_mean'),
  ('Throughput of training', 'env steps/s', 'sps'),
  ('Carry drift', 'mean |replayed − recorded|', 'carry_drift'),
)


def _figure(title: str, unit: str, curves: list[Curve], wide: bool) -> str:
  """Returns a chart with its title and newest values."""
  draw: Callable[..., str] = lambda size: charts.chart(curves, title, *size)
  drawing = draw(_SMALL)
  if wide:
    drawing = (
      f'<div class="wide">{draw(_WIDE)}</div>'
      f'<div class="narrow">{drawing}</div>'
    )
  last = number(curves[0].series.values[-1])
  return (
    f'<figure><figcaption>{html.escape(title)}<span>{html.escape(last)}</span></figcaption>'
    f'<p class="unit">{html.escape(unit)}{_legend(curves)}</p>{drawing}'
    '</figure>'
  )


def _legend(curves: list[Curve]) -> str:
  """Names the curves, if there are several."""
  if len(curves) < 2:
    return ''
  return ''.join(
    f'<span style="--mark: var(--line-{i % charts.COLOURS})">'
    f'{html.escape(curve.label)}</span>'
    for i, curve in enumerate(curves)
  )


def _curves(history: History, names: Mapping[str, str]) -> list[Curve]:
  """Returns those of the metrics that there are, by name and label."""
  series = {label: history.series(name) for name, label in names.items()}
  return [Curve(label, s) for label, s in series.items() if s is not None]


def _measured(
  history: History, names: Mapping[str, tuple[str, str | None]]
) -> list[Curve]:
  """Returns means of episodes with their spread, by where they are from."""
  curves = []
  for label, (mean, std) in names.items():
    series = history.series(mean)
    if series is None:
      continue
    found = history.series(std) if std else None
    spread = None
    if found is not None and len(found.steps) == len(series.steps):
      spread = found.values
    curves.append(Curve(label, series, spread))
  return curves


def figures(history: History) -> Iterator[str]:
  """Yields the charts, but for those of a network's own metrics.

  Args:
    history: the metrics so far.
  """
  rewards = _measured(history, REWARDS)
  if rewards:
    yield '<h2>Reward</h2>'
    unit = 'sum over the steps of an episode'
    if any(curve.spread is not None for curve in rewards):
      unit += '; band: ± 1 standard deviation'
    yield _figure('Reward of an episode', unit, rewards, wide=True)
  found = []
  lengths = {
    'evaluation': ('eval/avg_episode_length', 'eval/std_episode_length'),
    'training': ('episode/length', None),
  }
  if curves := _measured(history, lengths):
    found.append(_figure('Length of an episode', 'env steps', curves, False))
  for title, unit, name in _LEARNING:
    names = {f'training/{name}': 'epoch', f'episode/{name}': 'running mean'}
    if curves := _curves(history, names):
      found.append(_figure(title, unit, curves, False))
  if found:
    yield f'<h2>Learning</h2><div class="charts">{"".join(found)}</div>'


def network_figures(history: History) -> Iterator[str]:
  """Yields the charts of what the network itself reports.

  Args:
    history: the metrics so far.
  """
  found = []
  for name in history.names():
    prefix, _, rest = name.partition('/network/')
    if not rest:
      continue
    twin = prefix == 'episode' and history.series(f'training/network/{rest}')
    if not twin:
      names = {
        f'training/network/{rest}': 'epoch',
        f'episode/network/{rest}': 'running mean',
      }
      curves = _curves(history, names)
      found.append(_figure(rest, 'mean', curves, False))
  if not found:
    return
  state = 'open' if len(found) <= _OPEN else 'class="asked"'
  yield (
    f'<h2>Network</h2><details {state}><summary>{len(found)} metrics of the'
    f' network</summary><div class="charts">{"".join(found)}</div></details>'
  )
