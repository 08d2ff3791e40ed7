"""What a comparison leaves: its results as JSON, a table, and a picture."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

from matplotlib.ticker import EngFormatter

from . import metrics_file
from .compare_options import RESULTS_NAME
from .compare_options import Request
from .compare_plan import Run
from .compare_statistics import Curve
from .compare_statistics import Spread
from .reporting import METRICS_NAME

TABLE_NAME = 'comparison.md'


@dataclasses.dataclass(frozen=True)
class Result:
  """What has become of a run.

  Attributes:
    run: which one.
    curve: what it has measured.
    state: 'finished', 'unfinished', 'not begun', or how it failed.
  """

  run: Run
  curve: Curve
  state: str


def collect(
  parent: pathlib.Path, runs: Sequence[Run], failures: Mapping[str, str]
) -> list[Result]:
  """Reads what there is of the runs.

  Args:
    parent: folder of the comparison.
    runs: all of it.
    failures: how runs failed, by folder.
  """
  results = []
  for run in runs:
    curve = Curve.of(metrics_file.read(parent / run.folder / METRICS_NAME))
    state = 'unfinished' if curve.env_steps or curve.missing else 'not begun'
    if run.is_finished(parent):
      state = 'finished'
    results.append(Result(run, curve, failures.get(run.folder, state)))
  return results


def grouped(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
  """Returns the results by variant and network, in their order."""
  groups: dict[tuple[str, str], list[Result]] = {}
  for result in results:
    key = result.run.variant, result.run.network
    groups.setdefault(key, []).append(result)
  return groups


def task(results: Sequence[Result], variant: str) -> str:
  """Returns what a variant is called: by its label, or its environment."""
  names = (r.run.env_name for r in results if r.run.variant == variant)
  return variant or next(names, '')


def _final(result: Result) -> float | None:
  return result.curve.final(result.run.env_steps)


def _finished(results: Sequence[Result]) -> list[Curve]:
  return [r.curve for r in results if r.state == 'finished']


def _of_all(text: str, count: int, total: int) -> str:
  """Says of how many seeds a number is, unless it is of all."""
  return text if count == total else f'{text} ({count} of {total} seeds)'


def _mean(spread: Spread, total: int) -> str:
  if spread.mean is None:
    return '-'
  text = f'{spread.mean:.4g}'
  if spread.std:
    # Two digits of the deviation, and the mean as far as these go.
    digits = min(max(1 - math.floor(math.log10(spread.std)), 0), 6)
    text = f'{spread.mean:.{digits}f} ± {spread.std:.{digits}f}'
  elif spread.std is not None:
    text += ' ± 0'
  return _of_all(text, spread.count, total)


def _count(steps: float) -> str:
  """Writes 655360 as 655k."""
  return EngFormatter(sep='')(float(f'{steps:.3g}'))


def _steps(spread: Spread, total: int) -> str:
  """Writes env steps from the lowest to the highest."""
  if spread.low is None or spread.high is None:
    return '-'
  ends = dict.fromkeys(map(_count, (spread.low, spread.high)))
  return _of_all(' to '.join(ends), spread.count, total)


def _row(results: Sequence[Result], threshold: float | None) -> list[str]:
  count = len(results)
  done = _finished(results)
  best = Spread.of(max(r.curve.rewards, default=None) for r in results)
  seconds = Spread.of(curve.seconds for curve in done)
  speed = Spread.of(curve.last / max(curve.seconds, 1e-9) for curve in done)
  row = [
    str(count),
    _mean(Spread.of(map(_final, results)), count),
    '-' if best.high is None else f'{best.high:.4g}',
  ]
  if threshold is not None:
    reached = Spread.of(r.curve.reached(threshold) for r in results)
    # A run that is not finished may still reach it.
    never = not reached.count and len(done) == count
    row.append('never' if never else _steps(reached, count))
  row.append(_mean(seconds, count))
  row.append('-' if speed.mean is None else f'{speed.mean:,.0f}')
  return row


def _notes(results: Sequence[Result]) -> list[str]:
  """Says what is missing."""
  notes = [
    f'- {r.run.name}: {r.state}, reported up to {r.curve.last:,} of'
    f' {r.run.env_steps:,} env steps.'
    for r in results
    if r.state != 'finished'
  ]
  for r in results:
    if r.curve.missing:
      steps = ', '.join(f'{n:,}' for n in r.curve.missing)
      notes.append(
        f'- {r.run.name}: the reward is not finite, and left out, at {steps}'
        ' env steps.'
      )
  return notes


def table(results: Sequence[Result], threshold: float | None) -> str:
  """Writes the results as a table of Markdown.

  Args:
    results: of all runs.
    threshold: reward whose first reaching is told; `None` for none.
  """
  header = ['Network', 'Seeds', 'Final reward', 'Best evaluation']
  if threshold is not None:
    header.append(f'Env steps to {threshold:g}')
  header += ['Wall time [s]', 'Env steps/s']
  variants = list(dict.fromkeys(r.run.variant for r in results))
  header = ['Task', *header] if len(variants) > 1 else header
  rows = [header, ['---'] * len(header)]
  for (variant, network), group in grouped(results).items():
    row = [f'`{network}`', *_row(group, threshold)]
    rows.append([task(results, variant), *row] if len(variants) > 1 else row)
  lines = [f'| {" | ".join(row)} |' for row in rows]
  text = (
    'Mean ± sample standard deviation over seeds (n − 1; of one seed none).'
    ' Final reward: last evaluation of finished runs. Best evaluation: highest'
    ' of any seed at any time.'
  )
  if threshold is not None:
    text += (
      ' Env steps to a reward: first evaluation with it or more, from the'
      ' earliest to the latest seed.'
    )
  text += (
    ' Wall time and env steps per second: finished runs, compiling and'
    ' evaluations included.'
  )
  notes = _notes(results)
  return '\n'.join([*lines, '', text, *([''] if notes else []), *notes, ''])


def _replace(path: pathlib.Path, text: str) -> None:
  partial = path.with_name(path.name + '.partial')
  partial.write_text(text)
  os.replace(partial, path)


def _as_json(result: Result, threshold: float | None) -> dict[str, Any]:
  curve = result.curve
  reached = None if threshold is None else curve.reached(threshold)
  run = dataclasses.asdict(result.run)
  return {
    **run,
    'state': result.state,
    'env_steps_reported': curve.last,
    'seconds': curve.seconds,
    'final_reward': _final(result),
    'best_reward': max(curve.rewards, default=None),
    'env_steps_to_threshold': reached,
    'evaluations': {
      'env_steps': curve.env_steps,
      'rewards': curve.rewards,
      'not_finite_at': curve.missing,
    },
  }


def write(
  parent: pathlib.Path, request: Request, results: Sequence[Result]
) -> None:
  """Writes the results and the table; nobody sees half a file.

  Args:
    parent: folder of the comparison.
    request: what was asked for.
    results: of all runs.
  """
  threshold = request.threshold
  tree = {
    'request': dataclasses.asdict(request),
    'runs': [_as_json(result, threshold) for result in results],
  }
  _replace(parent / RESULTS_NAME, json.dumps(tree, indent=2) + '\n')
  _replace(parent / TABLE_NAME, table(results, threshold))
