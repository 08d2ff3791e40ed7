"""The program as users meet it, with training replaced."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from brax_nnx_plugin.ppo.types import TrainingDiverged
from launchers import compare
from launchers import train_ppo

_ROOT = pathlib.Path(train_ppo.__file__).parents[1]
_TINY = [
  '--num_envs=4',
  '--batch_size=4',
  '--num_minibatches=1',
  '--unroll_length=5',
  '--num_timesteps=40',
  '--num_evals=3',
  '--num_resets_per_eval=0',
  '--num_eval_envs=2',
  '--episode_length=20',
  '--set=network.hidden=8',
]
_ONE = ('--networks=mlp,gru', '--seeds=0', *_TINY)
_TWO = (*_ONE, '--seeds=0:2')


class _Here:
  """Does in this process what another one would do."""

  stopped_by = 0
  signals = 0

  @contextlib.contextmanager
  def listening(self):
    yield

  def call(self, function, *arguments):
    return function(*arguments), 0


@pytest.fixture
def trained(fake_train):
  """The runs that were trained, in order; `fail` and `stop` may be set."""

  class Trained(list):
    fail: str = ''
    stop: str = ''
    children = _Here()

  runs = Trained()

  def train(*args, **kwargs):
    checkpoints = pathlib.Path(kwargs['save_checkpoint_path'])
    name = checkpoints.parent.name
    runs.append(name)
    reward = 10.0 * kwargs['seed'] + (1.0 if 'gru' in name else 0.0)
    kwargs['progress_fn'](0, {'eval/episode_reward': 0.0})
    if name == runs.stop == runs.fail:
      runs.children.stopped_by, runs.children.signals = signal.SIGINT, 1
    if name == runs.fail:
      raise TrainingDiverged('training/v_loss', 20, ())
    if name == runs.stop:
      runs.children.stopped_by, runs.children.signals = signal.SIGINT, 1
      return 'make_policy', 'params', {}
    kwargs['progress_fn'](40, {'eval/episode_reward': reward})
    step = checkpoints / f'{40:012d}'
    step.mkdir(parents=True)
    (step / 'network.json').write_text('{}')
    return 'make_policy', 'params', {}

  fake_train(train)
  return runs


def _main(trained, *arguments):
  trained.children = _Here()
  return compare.main(['brax-nnx-compare', *arguments], trained.children)


def _results(folder):
  tree = json.loads((folder / 'comparison.json').read_text())
  return {run['folder']: run for run in tree['runs']}


def test_all_runs_are_made_and_compared(tmp_path, capsys, trained):
  assert _main(trained, *_TWO, f'--logdir={tmp_path}', '--suffix=x') == 0

  assert trained == ['mlp-seed0', 'gru-seed0', 'mlp-seed1', 'gru-seed1']
  (folder,) = tmp_path.iterdir()
  assert folder.name.startswith('comparison-')
  assert folder.name.endswith('-x')
  results = _results(folder)
  assert [results[name]['final_reward'] for name in trained] == [0, 1, 10, 11]
  assert (folder / 'comparison.png').exists()
  for name in trained:
    config = json.loads((folder / name / 'config.json').read_text())
    assert config['network']['kind'] == name[:3]
    assert config['seed'] == int(name[-1])
    assert config['ppo']['num_envs'] == 4
  captured = capsys.readouterr()
  assert '[4/4] gru, seed 1' in captured.out
  # Mean of 1 and 11, and the root of 2 * 25 / (2 - 1).
  assert '| `gru` | 2 | 6.0 ± 7.1 | 11 |' in captured.out
  assert str(folder / 'comparison.md') in captured.out


def test_a_run_that_fails_takes_no_other_with_it(tmp_path, capsys, trained):
  trained.fail = 'mlp-seed0'
  assert _main(trained, *_ONE, f'--logdir={tmp_path}') == 1
  assert trained == ['mlp-seed0', 'gru-seed0']
  (folder,) = tmp_path.iterdir()
  assert _results(folder)['mlp-seed0']['state'] == 'failed, exit code 1'
  captured = capsys.readouterr()
  assert 'training/v_loss is not finite' in captured.err
  assert '| `mlp` | 1 | - | 0 |' in captured.out
  assert (
    'mlp, seed 0: failed, exit code 1, reported up to 0 of 40' in captured.out
  )

  trained.clear()
  trained.fail = ''
  assert _main(trained, f'--resume={folder}') == 0
  assert trained == ['mlp-seed0']
  assert 'gru, seed 0: finished before' in capsys.readouterr().out


def test_a_run_that_fails_when_a_signal_comes_has_failed(tmp_path, trained):
  trained.stop = trained.fail = 'mlp-seed0'
  assert _main(trained, *_ONE, f'--logdir={tmp_path}') == 0
  assert trained == ['mlp-seed0']
  (folder,) = tmp_path.iterdir()
  assert _results(folder)['mlp-seed0']['state'] == 'failed, exit code 1'


def test_a_signal_ends_it_and_it_goes_on(tmp_path, capsys, trained):
  trained.stop = 'mlp-seed0'
  assert _main(trained, *_ONE, f'--logdir={tmp_path}') == 0
  assert trained == ['mlp-seed0']
  (folder,) = tmp_path.iterdir()
  states = [run['state'] for run in _results(folder).values()]
  assert states == ['unfinished', 'not begun']
  captured = capsys.readouterr()
  assert f'--resume={folder} goes on' in captured.err
  assert 'gru, seed 0: not begun' in captured.out

  trained.clear()
  trained.stop = ''
  arguments = (*_ONE, f'--logdir={tmp_path}', f'--resume={folder}')
  assert _main(trained, *arguments) == 0
  assert trained == ['mlp-seed0', 'gru-seed0']


def test_a_seed_may_be_added(tmp_path, trained):
  arguments = ('--networks=mlp', '--seeds=0', f'--logdir={tmp_path}', *_TINY)
  assert _main(trained, *arguments) == 0
  (folder,) = tmp_path.iterdir()
  assert _main(trained, f'--resume={folder}', '--seeds=0,3') == 0
  assert trained == ['mlp-seed0', 'mlp-seed3']
  assert list(_results(folder)) == trained


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (['--networks=mlp,ltsm'], 'ltsm, seed 0: --network=ltsm'),
    (['--variant=a:', '--variant=b: --num_envs=127'], 'b, mlp, seed 0: '),
    (['--seeds=x'], "'x' is neither"),
    (['--logdir={file}'], 'cannot be made'),
    (['--suffix=a/b'], '--suffix=a/b'),
    (['--resume={tmp_path}'], 'there is no comparison'),
  ],
)
def test_a_mistake_is_one_line_before_anything_is_made(
  tmp_path, capsys, trained, arguments, words
):
  (tmp_path / 'file').write_text('')
  given = [
    a.format(tmp_path=tmp_path, file=tmp_path / 'file') for a in arguments
  ]
  named = [f'--logdir={tmp_path}/runs', '--networks=mlp', *_TINY, *given]
  assert _main(trained, *named) == 2
  captured = capsys.readouterr()
  line = captured.err.splitlines()[-1]
  assert line.startswith('brax-nnx-compare: ')
  assert words in line
  assert 'Traceback' not in captured.err
  assert captured.out == ''
  assert trained == []
  assert not (tmp_path / 'runs').exists()


def test_results_that_cannot_be_written_are_told(
  tmp_path, capsys, trained, monkeypatch
):
  def fail(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(compare.compare_picture, 'draw', fail)
  assert _main(trained, *_ONE, f'--logdir={tmp_path}') == 1
  line = capsys.readouterr().err.splitlines()[-1]
  assert 'No space left on device' in line
  assert '--resume=' in line


def _start(folder, *arguments):
  return subprocess.Popen(
    [sys.executable, '-m', 'launchers.compare', *arguments],
    env=os.environ
    | {
      'PYTHONPATH': str(_ROOT),
      'XLA_FLAGS': '',
      'JAX_DISABLE_MOST_OPTIMIZATIONS': 'true',
    },
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.mark.slow
def test_an_interrupt_ends_the_run_and_the_comparison(tmp_path):
  stopped = _start(tmp_path, '--networks=mlp', '--seeds=0,1', *_TINY)
  assert stopped.stderr is not None
  for line in stopped.stderr:
    if line.startswith('0 of 40 env steps'):
      stopped.send_signal(signal.SIGINT)
      break
  out, err = stopped.communicate()
  assert 'Traceback' not in err
  (folder,) = (tmp_path / 'runs').iterdir()
  assert f'--resume={folder.relative_to(tmp_path)} goes on' in err
  assert 'mlp, seed 1: not begun' in out
  assert stopped.returncode == 0
  states = [run['state'] for run in _results(folder).values()]
  assert states == ['unfinished', 'not begun']
  assert (folder / 'comparison.png').exists()
