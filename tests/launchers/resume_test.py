"""Going on with a run, and starting from the parameters of one."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import jax
import pytest

from brax_nnx_plugin.ppo import checkpoint
from launchers import configs
from launchers import description
from launchers import locking
from launchers import options
from launchers import reporting
from launchers import train_ppo

_ROOT = pathlib.Path(train_ppo.__file__).parents[1]
_TINY = [
  '--num_envs=4',
  '--batch_size=4',
  '--num_minibatches=1',
  '--unroll_length=5',
  '--num_timesteps=300',
  '--num_evals=16',
  '--num_resets_per_eval=0',
  '--num_eval_envs=2',
  '--episode_length=20',
  '--set=network.hidden=8',
]


def _main(*arguments: str) -> int:
  return train_ppo.main(['brax-nnx-train', *arguments])


@pytest.fixture
def run(tmp_path) -> pathlib.Path:
  """The folder of a run of the preset that has not come far."""
  folder = tmp_path / 'runs' / 'first'
  folder.mkdir(parents=True)
  text = description.describe(configs.resolve({}, has_gpu=False))
  (folder / 'config.json').write_text(json.dumps(text))
  return folder


def _told(capsys) -> str:
  """The last line on stderr, which is all that a mistake is told by."""
  err = capsys.readouterr().err
  assert 'Traceback' not in err
  return err.splitlines()[-1]


_MISTAKES = [
  (['--resume=nowhere'], '--resume=nowhere: there is no run'),
  (['--resume={runs}', '--suffix=x'], 'no --suffix'),
  (['--resume={runs}', '--config={runs}/first'], 'no --config'),
  (['--resume={runs}', '--env_name=CheetahRun'], 'contradicts --resume'),
  (['--resume={runs}', '--network=gru'], 'change its network'),
  (['--resume={runs}', '--set=env.ctrl_dt=0.02'], 'change its environment'),
  (['--resume={runs}', '--logdir=elsewhere'], 'not in --logdir=elsewhere'),
  (['--load_checkpoint_path=nowhere'], 'There is no checkpoint in'),
  (['--load_checkpoint_path={runs}/first'], 'There is no checkpoint in'),
]


@pytest.mark.parametrize(('arguments', 'message'), _MISTAKES)
def test_a_mistake_is_told(arguments, message, run, capsys, fake_train):
  fake_train(lambda **kwargs: pytest.fail('training began'))
  named = [argument.format(runs=run.parent) for argument in arguments]

  assert _main(f'--logdir={run.parent}', *named) == 2

  assert message in _told(capsys)
  assert [path.name for path in run.parent.iterdir()] == ['first']
  assert [path.name for path in run.iterdir()] == ['config.json']


@pytest.mark.parametrize(
  'flag', ['--resume', '--resume={runs}', '--resume={run}']
)
def test_a_run_is_found_and_its_flags_hold(flag, run, fake_train):
  older = run.parent / 'older'
  older.mkdir()
  (older / 'config.json').write_text('{}')
  os.utime(older / 'config.json', (0, 0))
  calls: list[Any] = []

  def train(*args, **kwargs):
    calls.append(kwargs)
    kwargs['progress_fn'](100, {})
    return 'make_policy', 'params', {}

  fake_train(train)
  flag = flag.format(runs=run.parent, run=run)
  assert _main(f'--logdir={run.parent}', flag, '--num_timesteps=5000000') == 0

  (arguments,) = calls
  assert arguments['save_checkpoint_path'] == str(run / 'checkpoints')
  assert arguments['num_timesteps'] == 5_000_000
  # Killed before its first checkpoint, it starts anew.
  assert arguments['restore_checkpoint_path'] is None
  config = json.loads((run / 'config.json').read_text())
  assert config['ppo']['num_timesteps'] == 5_000_000


@pytest.mark.parametrize(
  ('error', 'code', 'message'),
  [
    (checkpoint.SaveError('The disk is full.'), 1, 'The disk is full.'),
    (checkpoint.Preempted(signal.SIGINT, 40, 'x'), 0, 'after 40 env steps'),
    (
      checkpoint.Preempted(signal.SIGTERM, 40, 'r/c/40'),
      143,
      '--resume=r goes',
    ),
    (KeyboardInterrupt(), 130, '--resume goes on'),
    (
      jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory'),
      1,
      'memory of the device',
    ),
  ],
)
def test_what_ends_a_run_is_told(
  error, code, message, tmp_path, capsys, fake_train
):
  def train(*args, **kwargs):
    raise error

  fake_train(train)

  assert _main(f'--logdir={tmp_path}') == code
  assert message in _told(capsys)


def test_what_does_not_fit_a_checkpoint_is_told(run, capsys, fake_train):
  step = run / 'checkpoints' / '000000000040'
  step.mkdir(parents=True)
  (step / checkpoint.CONFIG_NAME).write_text('{}')

  def train(*args, **kwargs):
    assert kwargs['restore_checkpoint_path'] == step
    raise ValueError('It cannot go on with num_envs = 3.')

  fake_train(train)

  assert _main(f'--resume={run}') == 2
  assert 'It cannot go on with num_envs = 3.' in _told(capsys)


def test_reports_go_on_where_the_checkpoint_is(tmp_path):
  metrics = {'eval/episode_reward': 5.0, 'eval/episode_reward_std': 1.0}
  first = reporting.Reporter(tmp_path, 100, '', io.StringIO())
  for steps in (0, 20, 40):
    first(steps, metrics)
  first.close()
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"env_steps": 6')  # killed

  second = reporting.Reporter(tmp_path, 100, '', io.StringIO(), begin=40)
  assert second.curves == {'evaluation': [(0, 5.0, 1.0), (20, 5.0, 1.0)]}
  second(40, metrics)
  second.close()

  text = (tmp_path / 'metrics.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  assert [line['env_steps'] for line in lines] == [0, 20, 40]
  seconds = [line['seconds'] for line in lines]
  assert seconds == sorted(seconds)


def _start(logdir: Any, cache: Any, *arguments: str) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, '-m', 'launchers.train_ppo', *arguments],
    env=os.environ
    | {
      'PYTHONPATH': str(_ROOT),
      'JAX_COMPILATION_CACHE_DIR': str(cache),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.3',
    },
    cwd=logdir,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _reported(folder: pathlib.Path) -> list[int]:
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line)['env_steps'] for line in lines]


# That the numbers are those of a run in one piece is tested below `ppo`.
@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path):
  stopped = _start(tmp_path, tmp_path / 'cache', '--logdir=runs', *_TINY)
  assert stopped.stderr is not None
  for line in stopped.stderr:
    if line.startswith('20 of 300 env steps'):
      stopped.send_signal(signal.SIGINT)
      break
  _, err = stopped.communicate()
  assert stopped.returncode == 0, err
  assert 'stopping after this epoch' in err
  (folder,) = (tmp_path / 'runs').iterdir()
  assert f'--resume={folder} goes on' in err
  so_far = _reported(folder)
  assert so_far == list(range(0, so_far[-1] + 20, 20))
  assert 20 <= so_far[-1] < 300

  resumed = _start(tmp_path, tmp_path / 'cache', '--resume')
  _, err = resumed.communicate()

  assert resumed.returncode == 0, err
  assert _reported(folder) == list(range(0, 320, 20))
  assert (folder / 'checkpoints' / '000000000300').exists()


def test_a_new_run_starts_from_the_parameters_of_another(
  run, tmp_path, fake_train
):
  step = run / 'checkpoints' / '000000000040'
  step.mkdir(parents=True)
  (step / checkpoint.CONFIG_NAME).write_text('{}')
  calls: list[Any] = []
  fake_train(lambda **kwargs: calls.append(kwargs) or ('make', 'params', {}))

  flags = [f'--load_checkpoint_path={run}', f'--logdir={tmp_path}/new']
  assert _main(*flags) == 0

  restored = calls[0]['restore_checkpoint_path']
  assert restored == checkpoint.params_only(step)
  assert calls[0]['save_checkpoint_path'].startswith(f'{tmp_path}/new')


def test_a_run_without_a_checkpoint_still_starts_from_those_parameters(
  run, tmp_path, fake_train, capsys
):
  step = run / 'checkpoints' / '000000000040'
  step.mkdir(parents=True)
  (step / checkpoint.CONFIG_NAME).write_text('{}')
  calls: list[Any] = []

  def train(**kwargs):
    calls.append(kwargs['restore_checkpoint_path'])
    kwargs['progress_fn'](0, {'eval/episode_reward': 0.0})
    raise KeyboardInterrupt

  fake_train(train)
  new = f'{tmp_path}/new'
  assert _main(f'--load_checkpoint_path={run}', f'--logdir={new}') == 130
  assert _main(f'--resume={new}') == 130
  assert _main(f'--resume={new}') == 130
  assert calls == [checkpoint.params_only(step)] * 3

  (step / checkpoint.CONFIG_NAME).unlink()
  assert _main(f'--resume={new}') == 2
  assert 'first parameters' in _told(capsys)


def test_two_processes_do_not_train_one_run(run, fake_train, capsys):
  fake_train(lambda **kwargs: pytest.fail('training began'))
  with locking.alone(run):
    assert _main(f'--resume={run}') == 2
  assert 'by another process' in _told(capsys)
  assert [path.name for path in run.iterdir()] == ['config.json']


def test_resume_takes_its_value_either_way():
  assert options.parse(['--resume', 'runs/x'])['resume'] == 'runs/x'
  assert options.parse(['--resume', '--seed=1'])['resume'] == ''
  assert options.parse(['--resume'])['resume'] == ''
