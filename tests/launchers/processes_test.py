"""The flags that make a run one of several processes."""

import json
import socket

import jax
import pytest

from brax_nnx_plugin.ppo import checkpoint
from launchers import options
from launchers import processes
from launchers import train_ppo
from launchers.errors import UserError
from tests import hosts

_ADDRESS = '--coordinator_address=localhost:8476'
_ALL = [_ADDRESS, '--num_processes=2', '--process_id=1']


def _settings(*arguments):
  return processes.settings(options.parse(arguments))


def test_without_flags_there_is_one_process(monkeypatch):
  monkeypatch.setattr(jax.distributed, 'initialize', pytest.fail)
  assert _settings('--num_envs=4') is None
  processes.connect({}, 'program')
  with processes.together():
    pass


def test_a_failure_of_one_process_is_its_own():
  with pytest.raises(KeyError), processes.together():
    raise KeyError


def test_environments_are_made_on_devices_of_this_process(monkeypatch):
  before = jax.devices
  (local,) = jax.local_devices()[:1]
  monkeypatch.setattr(jax, 'local_devices', lambda backend=None: [local])
  with processes.local_devices_only():
    assert jax.devices is before
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with processes.local_devices_only():
    assert jax.devices() == jax.devices('cpu') == [local]
  assert jax.devices is before


def test_flags_are_those_of_jax():
  assert _settings(*_ALL) == {
    'coordinator_address': 'localhost:8476',
    'num_processes': 2,
    'process_id': 1,
  }
  assert _settings('--distributed=auto') == {}


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (_ALL[:1], ['needs --num_processes and --process_id', '10.0.0.1:8476']),
    (_ALL[1:], ['--num_processes, --process_id needs --coordinator_address']),
    ([_ALL[0], _ALL[2]], ['needs --num_processes too']),
    ([*_ALL, '--distributed=auto'], ['--distributed=auto', 'leave out']),
    ([*_ALL[:2], '--process_id=2'], ['--process_id=2', '--num_processes=2']),
    ([*_ALL, '--process_id=-1'], ['process_id=-1', 'non-negative']),
    ([*_ALL, '--num_processes=0'], ['num_processes=0', 'positive']),
    ([*_ALL, '--coordinator_address=here'], ['=here', '10.0.0.1:8476']),
    ([*_ALL, '--coordinator_address=h:0'], ['=h:0', 'free port']),
    ([*_ALL, '--coordinator_address=h:99999'], ['=h:99999', 'free port']),
    (['--distributed=slurm'], ['distributed=slurm', 'auto']),
  ],
)
def test_mistakes_are_one_line_before_anything_starts(
  monkeypatch, capsys, arguments, words
):
  monkeypatch.setattr(jax.distributed, 'initialize', pytest.fail)
  assert train_ppo.main(['brax-nnx-train', *arguments]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  for word in words:
    assert word in line


def test_processes_are_joined_before_jax_is_used(monkeypatch):
  calls = []
  monkeypatch.setattr(
    jax.distributed, 'initialize', lambda **kwargs: calls.append(kwargs)
  )
  monkeypatch.setattr(
    jax, 'default_backend', lambda: calls.append('used') or 'cpu'
  )
  assert train_ppo.main(['brax-nnx-train', *_ALL, '--env_name=None']) == 2
  expected = _settings(*_ALL)
  assert expected is not None
  assert calls[0].items() >= expected.items()
  assert 0 < calls[0]['initialization_timeout'] < 1000
  assert calls[1] == 'used'


def test_a_port_that_is_taken_is_told(monkeypatch):
  monkeypatch.setattr(jax.distributed, 'initialize', pytest.fail)
  with socket.create_server(('', 0)) as taken:
    port = taken.getsockname()[1]
    flags = [*_ALL, f'--coordinator_address=localhost:{port}', '--process_id=0']
    with pytest.raises(UserError, match=f'{port}: process 0 cannot listen'):
      processes.connect(options.parse(flags), 'program')


@pytest.mark.parametrize(
  ('error', 'words'),
  [(ValueError('no address'), 'Slurm'), (RuntimeError('called late'), 'late')],
)
def test_what_jax_refuses_is_told(monkeypatch, error, words):
  def initialize(**kwargs):
    raise error

  monkeypatch.setattr(jax.distributed, 'initialize', initialize)
  with pytest.raises(UserError, match=words):
    processes.connect({'distributed': 'auto'}, 'program')


@pytest.mark.slow
def test_a_process_that_is_missing_is_told_in_time():
  code = """
from launchers import processes
options = dict(
  coordinator_address='localhost:%s', num_processes=2, process_id=%d)
processes.connect(options, 'program', timeout=2)
"""
  ports = hosts.free_port(), hosts.free_port()
  started = [
    hosts.start('-c', code % (port, i)) for i, port in enumerate(ports)
  ]
  for port, result in zip(ports, hosts.finish(*started), strict=True):
    status, _, errors = result
    assert status == 2
    (line,) = errors.splitlines()
    assert line.startswith('program: not all of 2 processes have met')
    assert f'localhost:{port} within 2 seconds' in line


_TINY = [
  '--num_envs=4',
  '--batch_size=4',
  '--num_minibatches=1',
  '--unroll_length=2',
  '--num_timesteps=16',
  '--num_evals=2',
  '--num_resets_per_eval=0',
  '--num_eval_envs=2',
  '--episode_length=4',
  '--policy_hidden_layer_sizes=4',
  '--value_hidden_layer_sizes=4',
  '--memory_size=4',
]


def _launch(logdirs, *arguments):
  """Starts the program in as many processes as there are folders."""
  address = f'--coordinator_address=localhost:{hosts.free_port()}'
  return hosts.finish(
    *(
      hosts.start(
        '-m',
        'launchers.train_ppo',
        address,
        f'--num_processes={len(logdirs)}',
        f'--process_id={i}',
        f'--logdir={logdir}',
        *arguments,
      )
      for i, logdir in enumerate(logdirs)
    )
  )


@pytest.mark.slow
def test_two_processes_leave_one_folder(tmp_path):
  logdir = tmp_path / 'runs'
  (code, out, errors), other = _launch([logdir, logdir], *_TINY)
  assert code == 0, errors
  assert 'device(s) of 2 processes' in errors
  assert '16 of 16' in errors
  assert other[0] == 0, other[2]
  # Gloo, which connects CPUs, has a line of its own.
  said = (other[1] + other[2]).splitlines()
  assert [line for line in said if not line.startswith('[Gloo]')] == []
  (folder,) = logdir.iterdir()
  assert str(folder) in out
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['env_steps'] for line in lines] == [0, 16]
  assert (folder / 'reward.png').exists()
  checkpoint.load_policy(folder)


@pytest.mark.slow
def test_what_stops_one_process_stops_the_others(tmp_path):
  (tmp_path / 'file').touch()
  logdirs = [tmp_path / 'file' / 'below', tmp_path / 'runs']
  (code, _, errors), other = _launch(logdirs, *_TINY)
  assert code == 2
  assert 'cannot be made' in errors.splitlines()[-1]
  assert other[0] == 2
  assert 'process 0 cannot start; see what it says' in other[2]
  assert not (tmp_path / 'runs').exists()
