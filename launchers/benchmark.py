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

from absl import flags
import jax

from . import benchmark_report
from . import command_line
from .benchmark_children import CONTENDERS
from .benchmark_children import STAGES
from .benchmark_children import Facts
from .benchmark_children import Process
from .benchmark_report import Result
from .benchmark_tasks import Task
from .errors import UserError
from .errors import nearest

PROGRAM = 'brax-nnx-benchmark'

_USAGE = f"""{PROGRAM}: speed, against stock Brax, nnx-ppo and plain JAX.

    {PROGRAM} --pairs=5
    {PROGRAM} --env=CartpoleBalance --contenders=lstm,mingru

Every contender trains the same sizes in the same environment, in turn. First
come the ratios of env steps per second, pair by pair; then for each contender
the seconds to start, trace and compile, the largest memory of its process, the
bytes of what a training step records ("buffer"), and the milliseconds that a
training step spends on acting and on learning, and an evaluation takes.
"""


def _define() -> flags.FlagValues:
  values = flags.FlagValues()
  kwargs: dict[str, Any] = {'flag_values': values, 'module_name': 'Flags'}
  flags.DEFINE_boolean('help', False, 'Show this text.', **kwargs)
  flags.DEFINE_string(
    'env',
    'fast',
    "'fast', Brax's trivial environment, or one of Playground's.",
    **kwargs,
  )
  for name, default, text in (
    ('size', 64, 'Units of a layer.'),
    ('unroll', 20, 'Network steps of a segment.'),
    ('pairs', 5, 'Measurements of each contender.'),
    ('training_steps', 4, 'Training steps of a measurement.'),
  ):
    flags.DEFINE_integer(name, default, text, lower_bound=1, **kwargs)
  flags.DEFINE_list(
    'contenders',
    list(CONTENDERS)[:8],
    f'Who takes part, of {", ".join(CONTENDERS)}.',
    **kwargs,
  )
  return values


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


def main(argv: Sequence[str]) -> int:
  """Measures and prints; returns the exit code.

  Args:
    argv: name of the program and its arguments.
  """
  try:
    given, rest = command_line.read(_define(), PROGRAM, argv[1:])
    if given['help']:
      print(f'{_USAGE}{_define().get_help()}')
      return 0
    if rest:
      raise UserError(f'{rest[0]!r} is not a flag. See {PROGRAM} --help.')
    task = Task(
      env_name=given['env'],
      size=given['size'],
      unroll_length=given['unroll'],
      training_steps=given['training_steps'],
    )
    names = list(dict.fromkeys(given['contenders']))
    check(names)
    task.environment()
  except UserError as e:
    print(f'{PROGRAM}: {e}', file=sys.stderr)
    return 2
  os.environ.update(_ENVIRONMENT)
  print(f'{task}, JAX {jax.__version__}, {os.cpu_count()} cores', flush=True)
  processes, results = start(names, task)
  try:
    for stage in STAGES:
      measure(stage, processes, results, given['pairs'])
      if stage == STAGES[0]:  # what matters most, and first
        print(benchmark_report.ratios(results), flush=True)
    print(benchmark_report.report(task, results))
  finally:
    for process in processes.values():
      process.close()
  return 0


def run() -> None:
  """The console script."""
  command_line.run(main)


if __name__ == '__main__':
  run()
