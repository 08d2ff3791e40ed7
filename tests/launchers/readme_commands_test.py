"""The commands of the README run, in a folder with a run in it."""

import contextlib
import importlib.util
import pathlib
import shlex
from typing import Any

import pytest

from launchers import benchmark
from launchers import compare
from launchers import play
from launchers import rendering
from launchers import train_ppo
from tests import readme_text

_TINY = [
  '--num_envs=2',
  '--batch_size=2',
  '--num_minibatches=1',
  '--num_updates_per_batch=1',
  '--unroll_length=2',
  '--num_timesteps=8',
  '--num_evals=2',
  '--num_resets_per_eval=0',
  '--num_eval_envs=2',
  '--episode_length=4',
  '--action_repeat=1',
]
# These need what training leaves; for the others, to begin is enough.
_TRAINED = ('--export', '--resume', '--num_videos')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with a small run, `runs/NAME`."""
  folder = tmp_path_factory.mktemp('folder')
  code = train_ppo.main(['brax-nnx-train', f'--logdir={folder}/runs', *_TINY])
  assert code == 0
  (run,) = (folder / 'runs').iterdir()
  run.rename(run.with_name('NAME'))
  return folder


@pytest.fixture(autouse=True)
def nothing_drawn(monkeypatch):
  """Leaves OpenGL alone, which may end the process where there is no screen."""
  monkeypatch.setattr(rendering, '_refusals', ['nothing is drawn here'])


def _code(command: str) -> int:
  arguments = shlex.split(command)[1:]
  given = {argument.split('=')[0] for argument in arguments}
  tiny = [flag for flag in _TINY if flag.split('=')[0] not in given]
  # A run that goes on has the sizes it had.
  more = [] if '--resume' in given else tiny
  return train_ppo.main(['brax-nnx-train', *arguments, *more])


@pytest.mark.slow
@pytest.mark.parametrize('command', readme_text.commands('brax-nnx-train'))
def test_training_commands_run(command, folder, monkeypatch, fake_train):
  monkeypatch.chdir(folder)
  began: list[Any] = []

  def train(**kwargs):
    began.append(kwargs['environment'])
    return None, None, {}

  if not any(flag in command for flag in _TRAINED):
    fake_train(train)
  code = _code(command)
  if '--use_wandb' in command and importlib.util.find_spec('wandb') is None:
    assert (code, began) == (2, [])
    return
  assert code == 0
  only_shown = '--help' in command or '--dry_run' in command
  trained = any(flag in command for flag in _TRAINED)
  assert len(began) == (0 if only_shown or trained else 1)


@pytest.mark.slow
@pytest.mark.parametrize('command', readme_text.commands('brax-nnx-play'))
def test_playing_commands_run(command, folder, monkeypatch, capsys):
  monkeypatch.chdir(folder)
  short = ['--episodes=2', '--episode_length=4']
  assert play.main([*shlex.split(command), *short]) == 0
  out, err = capsys.readouterr()
  assert 'mean' in out
  assert ('no video: nothing is drawn here' in err) is ('--video' in command)
  if '--activations' in command:
    assert pathlib.Path('memory.png').exists()


class _Here:
  """Checks in this process what is to be compared, and trains nothing."""

  stopped_by = signals = 0

  def __init__(self) -> None:
    self.trained: list[Any] = []

  def listening(self) -> Any:
    return contextlib.nullcontext()

  def call(self, function: Any, *arguments: Any) -> tuple[Any, int]:
    if function is not train_ppo.main:
      return function(*arguments), 0
    self.trained.append(arguments)
    return 0, 0


@pytest.mark.slow
@pytest.mark.parametrize('command', readme_text.commands('brax-nnx-compare'))
def test_comparisons_begin(command, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  here = _Here()
  compare.main(shlex.split(command), here)
  (folder,) = (tmp_path / 'runs').iterdir()
  runs = [path for path in folder.iterdir() if path.is_dir()]
  assert len(here.trained) == len(runs) > 1
  assert (folder / 'comparison.md').exists()


@pytest.mark.slow
@pytest.mark.parametrize('command', readme_text.commands('brax-nnx-benchmark'))
def test_benchmarks_begin(command, monkeypatch):
  began: list[Any] = []

  def start(names, task):
    began.append((names, task))
    return {}, {}

  monkeypatch.setattr(benchmark, 'start', start)
  monkeypatch.setattr(benchmark.os, 'environ', {})
  assert benchmark.main(shlex.split(command)) == 0
  assert len(began) == 1
