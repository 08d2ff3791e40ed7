"""Trains several networks with several seeds, and compares them.

    brax-nnx-compare --networks=mlp,lstm --seeds=0,1,2 --threshold=900
    brax-nnx-compare --variant='seen: --hide_observations='
      --variant='hidden: --hide_observations=3:5'

Mistakes in any of the runs are found before the first begins (exit code 2). A
run that fails is told, and the others go on (exit code 1 in the end). A signal
ends the current run with a checkpoint, and the comparison after it; what there
is then is in the table and in the picture, and --resume goes on.
"""

from collections.abc import Sequence
import pathlib
import signal
import sys
from typing import Any

from . import command_line
from . import compare_flags
from . import compare_options
from . import compare_picture
from . import compare_plan
from . import compare_report
from . import options
from . import reporting
from . import train_ppo
from .compare_children import Children
from .compare_options import Request
from .compare_plan import Run
from .errors import UserError

_FAILED = 1
# Shells say so of a program that a signal has ended, plus its number.
_SIGNALLED = 128


def _say(text: Any) -> None:
  print(f'{compare_flags.PROGRAM}: {text}', file=sys.stderr, flush=True)


def _make_folders(
  place: dict[str, Any], checked: Sequence[tuple[Run, dict[str, Any]]]
) -> pathlib.Path:
  """Makes the folder of a comparison, if need be, and those of its runs.

  A run that has not begun is one that can be gone on with.

  Args:
    place: where; see `compare_options.parse`.
    checked: the runs and their configurations.
  """
  if 'resume' in place:
    parent = pathlib.Path(place['resume'])
  else:
    logdir = place.get('logdir', train_ppo.Session.logdir)
    parent = reporting.make_folder(logdir, 'comparison', place.get('suffix'))
  for run, text in checked:
    folder = parent / run.folder
    file = folder / reporting.CONFIG_NAME
    try:
      folder.mkdir(exist_ok=True)
      if not file.exists():
        reporting.write_json(file, text)
    except OSError as e:
      raise UserError(f'{file} cannot be written ({e.strerror or e}).') from e
  return parent


def _failure(code: int) -> str:
  """Says how a run ended that is not finished."""
  if code >= 0:
    return f'failed, exit code {code}'
  return f'killed by {signal.Signals(-code).name}'


class _Comparison:
  """Makes the runs, and writes down what there is after each."""

  def __init__(
    self,
    parent: pathlib.Path,
    request: Request,
    runs: Sequence[Run],
    children: Any,
  ):
    self._parent = parent
    self._request = request
    self._runs = runs
    self._children = children
    self.failures: dict[str, str] = {}

  def write(self) -> None:
    """Writes results, table and picture."""
    results = compare_report.collect(self._parent, self._runs, self.failures)
    compare_report.write(self._parent, self._request, results)
    if any(result.curve.env_steps for result in results):
      picture = self._parent / compare_picture.PICTURE_NAME
      compare_picture.draw(picture, results, self._request.threshold)

  def _train(self, run: Run) -> None:
    folder = self._parent / run.folder
    argv = [options.PROGRAM, *run.flags, f'--resume={folder}']
    answer, code = self._children.call(train_ppo.main, argv)
    code = code if answer is None else answer
    # As a signal ends a run; one may have failed before it could be stopped.
    by_signal = not 0 < code < _SIGNALLED
    if run.is_finished(self._parent):
      return
    if not (self._children.stopped_by and by_signal):
      self.failures[run.folder] = _failure(code)
      _say(f'{run.name}: {self.failures[run.folder]}; its folder is kept.')

  def make_runs(self) -> None:
    """Makes those that are not finished, until a signal comes."""
    self.write()
    for number, run in enumerate(self._runs, 1):
      if self._children.stopped_by:
        return
      title = f'[{number}/{len(self._runs)}] {run.name}'
      if run.is_finished(self._parent):
        print(f'{title}: finished before.', flush=True)
        continue
      print(f'\n{title}', flush=True)
      self._train(run)
      self.write()

  def conclude(self) -> None:
    """Shows the table, and names the files."""
    print(f'\n{(self._parent / compare_report.TABLE_NAME).read_text()}')
    for name in (
      compare_report.TABLE_NAME,
      compare_picture.PICTURE_NAME,
      compare_options.RESULTS_NAME,
    ):
      if (self._parent / name).exists():
        print(f'  {self._parent / name}')
    sys.stdout.flush()


def _interrupted(children: Any, parent: pathlib.Path | None) -> int:
  """Says that a signal has ended the comparison; returns the exit code."""
  if parent is not None:
    _say(f'stopped; --resume={parent} goes on.')
  # As for a single run: once is an orderly end.
  if children.stopped_by == signal.SIGINT and children.signals == 1 and parent:
    return 0
  return _SIGNALLED + children.stopped_by


def _compare(request: Request, place: dict[str, Any], children: Any) -> int:
  """Makes a comparison; returns the exit code of the program."""
  existing = pathlib.Path(place['resume']) if 'resume' in place else None
  count = len(compare_plan.runs(request))
  _say(f'checking {count} run(s), which takes a while.')
  checked, _ = children.call(compare_plan.check_here, request, existing)
  if checked is None:
    if children.stopped_by:
      return _interrupted(children, None)
    _say('the runs could not be checked; see above.')
    return _FAILED
  parent = _make_folders(place, checked)
  runs = [run for run, _ in checked]
  comparison = _Comparison(parent, request, runs, children)
  try:
    comparison.make_runs()
    comparison.conclude()
  except OSError as e:
    _say(
      f'the results cannot be written to {parent} ({e.strerror or e}); the runs'
      f' so far are kept, and --resume={parent} goes on.'
    )
    return _FAILED
  if children.stopped_by:
    return _interrupted(children, parent)
  return _FAILED if comparison.failures else 0


def main(argv: Sequence[str], children: Any = None) -> int:
  """Runs the program; returns its exit code.

  Args:
    argv: name of the program and its arguments.
    children: where runs are made; by default processes of their own.
  """
  children = children or Children()
  try:
    request, place = compare_options.parse(argv[1:])
    if request is None:
      print(compare_flags.help_text())
      return 0
    with children.listening():
      return _compare(request, place, children)
  except UserError as e:
    _say(e)
    return 2


def run() -> None:
  """The console script."""
  command_line.run(main)


if __name__ == '__main__':
  run()
