"""What a benchmark found, in words and columns."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import statistics

from .benchmark_gate import Lap
from .benchmark_tasks import Task

# Who is compared with whom, if both took part.
_RATIOS = (
  ('mlp', 'brax-mlp'),
  ('mlp', 'nnx-ppo-mlp'),
  ('lstm', 'nnx-ppo-lstm'),
  ('lstm-wide-critic', 'nnx-ppo-lstm-wide-critic'),
  ('lstm', 'by-hand-lstm'),
  ('lstm', 'scanned-lstm'),
  ('mingru', 'lstm'),
)


@dataclasses.dataclass
class Result:
  """Measurements of one contender.

  Attributes:
    start: what comes before the first training step: networks, environments.
    first: the first epoch, with tracing and compiling.
    second: the second, in which some compile again.
    train: further epochs.
    act: the rollouts of one training step each.
    evaluate: evaluations; empty if there are none.
    buffer_bytes: of the rollout that one training step learns from.
    peak_bytes: the most memory in use by the end of training.
    device: what it ran on.
  """

  start: Lap
  first: Lap
  second: Lap
  train: list[Lap] = dataclasses.field(default_factory=list)
  act: list[Lap] = dataclasses.field(default_factory=list)
  evaluate: list[Lap] = dataclasses.field(default_factory=list)
  buffer_bytes: int = 0
  peak_bytes: int = 0
  device: str = ''


def _median(laps: Sequence[Lap]) -> float:
  return statistics.median(lap.seconds for lap in laps)


def _milliseconds(seconds: float | None) -> str:
  return '-' if seconds is None else f'{1e3 * seconds:,.1f}'


def columns(task: Task, result: Result) -> dict[str, str]:
  """Returns what the table says of one contender, by heading."""
  epoch = _median(result.train)
  act = _median(result.act) if result.act else None
  # An epoch runs training steps, each of which acts once.
  learn = None if act is None else epoch / task.training_steps - act
  warm_up = (result.first, result.second)
  compiling = sum(lap.xla_seconds for lap in warm_up)
  trace = sum(lap.seconds for lap in warm_up) - compiling - 2 * epoch
  evaluate = _median(result.evaluate) if result.evaluate else None
  return {
    'env steps/s': f'{task.env_steps / epoch:,.0f}',
    'start s': f'{result.start.seconds:.1f}',
    'trace s': f'{max(trace, 0.0):.1f}',
    'compile s': f'{compiling:.1f}',
    'peak MiB': f'{result.peak_bytes / 2**20:,.0f}',
    'buffer KiB': f'{result.buffer_bytes / 2**10:,.0f}',
    'act ms': _milliseconds(act),
    'learn ms': _milliseconds(learn),
    'evaluate ms': _milliseconds(evaluate),
  }


def table(rows: Mapping[str, Mapping[str, str]]) -> str:
  """Lays out rows of equal columns, the name of a row first."""
  headings = list(next(iter(rows.values())))
  lines = [['', *headings]]
  lines += [[name, *row.values()] for name, row in rows.items()]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    '  '.join(
      [line[0].ljust(widths[0])]
      + [
        cell.rjust(width)
        for cell, width in zip(line[1:], widths[1:], strict=True)
      ]
    )
    for line in lines
  )


def ratio(a: Sequence[Lap], b: Sequence[Lap]) -> str:
  """Says how much faster `a` is than `b`, lap by lap."""

  def quotients(get: Callable[[Lap], float]) -> list[float]:
    return [get(y) / get(x) for x, y in zip(a, b, strict=True)]

  by_clock = quotients(lambda lap: lap.seconds)
  by_cpu = quotients(lambda lap: lap.cpu_seconds)
  return (
    f'median {statistics.median(by_clock):.2f}, from {min(by_clock):.2f} to'
    f' {max(by_clock):.2f}; by CPU time {statistics.median(by_cpu):.2f}'
  )


def comparisons(names: Sequence[str]) -> list[tuple[str, str]]:
  """Returns which pairs of contenders to compare."""
  known = [(a, b) for a, b in _RATIOS if a in names and b in names]
  return known or [(name, names[0]) for name in names[1:]]


def ratios(results: Mapping[str, Result]) -> str:
  """Says how fast contenders train, each as a multiple of another."""
  return '\n'.join(
    f'{a} / {b}, pair by pair: {ratio(results[a].train, results[b].train)}'
    for a, b in comparisons(list(results))
  )


def report(task: Task, results: Mapping[str, Result]) -> str:
  """Lays out all that was measured.

  Args:
    task: sizes.
    results: by contender.
  """
  if not results:
    return 'Nobody took part.'
  devices = dict.fromkeys(result.device for result in results.values())
  rows = {name: columns(task, result) for name, result in results.items()}
  return f'On {", ".join(devices)}:\n{table(rows)}'
