"""Measures training speed against stock Brax, nnx-ppo and plain JAX.

Every contender trains the same sizes in the same environment, each in a process
of its own but only one at a time, in turn (A B A B ...), so that ratios hold on
a machine whose speed drifts.

    brax-nnx-benchmark --pairs=5
    brax-nnx-benchmark --env=CartpoleBalance --contenders=lstm,mingru
"""

from collections.abc import Callable
from collections.abc import Sequence
import os
import sys
from typing import Any

from absl import app
from absl import flags
import jax

from . import benchmark_report
from .benchmark_children import CONTENDERS
from .benchmark_children import STAGES
from .benchmark_children import Facts
from .benchmark_children import Process
from .benchmark_report import Result
from .benchmark_tasks import Task
from .errors import UserError
from .errors import nearest

_ENV = flags.DEFINE_string(
  'env', 'fast', "'fast', Brax's trivial environment, or one of Playground's."
)
_SIZE = flags.DEFINE_integer('size', 64, 'Units of a layer.', lower_bound=1)
_UNROLL = flags.DEFINE_integer(
  'unroll', 20, 'Network steps of a segment.', lower_bound=1
)
_PAIRS = flags.DEFINE_integer(
  'pairs', 5, 'Measurements of each contender.', lower_bound=1
)
_TRAINING_STEPS = flags.DEFINE_integer(
  'training_steps', 4, 'Training steps of a measurement.', lower_bound=1
)
_CONTENDERS = flags.DEFINE_list(
  'contenders',
  list(CONTENDERS)[:8],
  f'Who takes part, of {", ".join(CONTENDERS)}.',
)

# Nothing compiled before is to be used, and no process may take all memory.
_ENVIRONMENT = {
  'JAX_ENABLE_COMPILATION_CACHE': 'false',
  'XLA_PYTHON_CLIENT_PREALLOCATE': 'false',
}


def start(
  names: Sequence[str], task: Task, make: Callable[..., Any] = Process
) -> tuple[dict[str, Any], dict[str, Result]]:
  """Starts the contenders, one after the other, up to their third epoch.

  Args:
    names: of the contenders; those whose library is missing are left out.
    task: sizes.
    make: makes a process from a name and the task.

  Returns:
    The processes and the beginnings of the results, by name.
  """
  processes, results = {}, {}
  for name in names:
    process = make(name, task)
    try:
      # Some compile again at their second epoch.
      results[name] = Result(process.ready(), process.run(), process.run())
    except ImportError as e:
      print(f'{name} is left out: {e}.', flush=True)
      process.close()
      continue
    processes[name] = process
    first = results[name].first.seconds
    print(f'{name}: first epoch in {first:.1f} s', flush=True)
  return processes, results


def measure(
  stage: str, processes: dict[str, Any], results: dict[str, Result], pairs: int
) -> None:
  """Runs one stage of all contenders in turn, and goes on to the next.

  Args:
    stage: of `STAGES`, in their order.
    processes: as `start` returns them.
    results: likewise; they are added to.
    pairs: measurements of each.
  """
  taking_part = dict(processes)
  if stage != STAGES[0]:
    for name, process in processes.items():
      if isinstance(process.ready(), Facts):
        del taking_part[name]  # it has no such stage
      else:
        process.run()  # compiles
  for _ in range(pairs):
    for name, process in taking_part.items():
      getattr(results[name], stage).append(process.run())
  for name, process in taking_part.items():
    facts = process.end_stage()
    result = results[name]
    result.buffer_bytes = facts.buffer_bytes
    result.peak_bytes = result.peak_bytes or facts.peak_bytes
    result.device = facts.device


def check(names: Sequence[str]) -> None:
  """Raises unless there are contenders of all these names."""
  for name in names:
    if name not in CONTENDERS:
      raise UserError(
        f'There is no contender {name!r}. {nearest(name, list(CONTENDERS))}'
      )


def main(argv: list[str]) -> None:
  """Measures and prints."""
  del argv
  task = Task(
    env_name=_ENV.value,
    size=_SIZE.value,
    unroll_length=_UNROLL.value,
    training_steps=_TRAINING_STEPS.value,
  )
  names = list(dict.fromkeys(_CONTENDERS.value))
  try:
    check(names)
    task.environment()
  except UserError as e:
    sys.exit(f'brax-nnx-benchmark: {e}')
  os.environ.update(_ENVIRONMENT)
  print(f'{task}, JAX {jax.__version__}, {os.cpu_count()} cores', flush=True)
  processes, results = start(names, task)
  try:
    for stage in STAGES:
      measure(stage, processes, results, _PAIRS.value)
      if stage == STAGES[0]:  # what matters most, and first
        print(benchmark_report.ratios(results), flush=True)
    print(benchmark_report.report(task, results))
  finally:
    for process in processes.values():
      process.close()


def run() -> None:
  """The console script."""
  app.run(main)


if __name__ == '__main__':
  run()
