"""Saving beside training: its errors, its patience, and full disks."""

import errno
import os
import pathlib
import pickle
import resource
import threading
import time
from typing import Any

import numpy as np
import pytest

from brax_nnx_plugin.ppo import arrays
from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import saving

_PARAMS = {'a': np.arange(3.0)}
_STATE = saving.State({'b': np.random.default_rng(0).normal(size=50_000)}, {})


def _saver(path: Any, **options: Any) -> saving.Saver:
  return saving.Saver(saving.Folder(path, **options))


def _steps(path: Any) -> list[str]:
  return sorted(p.name.lstrip('0') for p in pathlib.Path(path).iterdir())


def test_only_the_newest_keeps_its_state(tmp_path):
  saver = _saver(tmp_path, max_to_keep=2)
  for step in (1, 2, 3):
    saver.save(step, _PARAMS, {}, _STATE)
  saver.wait()
  assert _steps(tmp_path) == ['2', '3']
  assert _steps(tmp_path / '000000000002') == [
    'leaves.json',
    'network.json',
    'params',
  ]
  assert 'state' in _steps(tmp_path / '000000000003')


@pytest.fixture
def gate(monkeypatch):
  """Saving waits until this is set."""
  event = threading.Event()
  write = arrays.write

  def wait_and_write(*args):
    event.wait(60)
    write(*args)

  monkeypatch.setattr(arrays, 'write', wait_and_write)
  yield event
  event.set()


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, gate):
  saver = _saver(tmp_path)
  saver.save(1, _PARAMS, {})
  assert checkpoint.latest(tmp_path) is None
  gate.set()
  saver.wait()
  assert _steps(tmp_path) == ['1']


def test_the_next_save_waits_but_not_for_ever(tmp_path, gate):
  saver = _saver(tmp_path, timeout=0.1)
  saver.save(1, _PARAMS, {})
  begin = time.monotonic()
  with pytest.raises(saving.SaveError, match=r'step 1 .*after 0\.1 seconds'):
    saver.save(2, _PARAMS, {})
  assert time.monotonic() - begin < 10


@pytest.mark.parametrize('asynchronous', [True, False])
def test_a_failure_is_one_clear_error_and_the_last_one_stays(
  tmp_path, monkeypatch, asynchronous
):
  saver = _saver(tmp_path, asynchronous=asynchronous)
  saver.save(1, _PARAMS, {}, _STATE)
  saver.wait()

  def fail(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  def save_and_wait():
    saver.save(2, _PARAMS, {}, _STATE)
    saver.wait()

  with monkeypatch.context() as broken:
    broken.setattr(arrays, 'write', fail)
    with pytest.raises(saving.SaveError) as error:
      save_and_wait()
  text = str(error.value)
  for word in ('env step 2', 'No space left', str(tmp_path / '000000000001')):
    assert word in text
  assert _steps(tmp_path) == ['1']
  assert (tmp_path / '000000000001' / 'run.json').exists()
  saver.wait()  # it is said once
  save_and_wait()
  assert _steps(tmp_path) == ['1', '2']


def test_a_disk_that_fills_up_while_orbax_writes(tmp_path):
  saving.write(tmp_path, 1, _PARAMS, {}, _STATE)
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    with pytest.raises(saving.SaveError, match='000000000001'):
      saving.write(tmp_path, 2, _PARAMS, {}, _STATE)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert _steps(tmp_path) == ['1']
  saved = arrays.read(tmp_path / '000000000001', 'state')
  np.testing.assert_array_equal(saved['b'], _STATE.arrays['b'])


def test_a_folder_that_is_gone_or_is_none(tmp_path):
  saver = _saver(tmp_path / 'run')
  saver.save(1, _PARAMS, {})
  saver.wait()
  (tmp_path / 'run').rename(tmp_path / 'moved')
  (tmp_path / 'run').write_text('a file')
  saver.save(2, _PARAMS, {})
  with pytest.raises(saving.SaveError, match='step 2 could not be saved'):
    saver.wait()
  assert _steps(tmp_path / 'moved') == ['1']


def test_savers_of_one_step_do_not_disturb_each_other(tmp_path):
  savers = [_saver(tmp_path) for _ in range(3)]
  for i, saver in enumerate(savers):
    saver.save(1, {'a': np.full(2, float(i))}, {}, _STATE)
  for saver in savers:
    saver.wait()
  assert _steps(tmp_path) == ['1']
  folder = checkpoint.find(tmp_path)
  assert arrays.read(folder, 'params')['a'][0] in (0, 1, 2)
  assert arrays.read(folder, 'state').keys() == {'b'}


@pytest.mark.parametrize(
  ('options', 'word'),
  [
    ({'max_to_keep': 0}, 'max_to_keep'),
    ({'keep_states': 0}, 'keep_states'),
    ({'timeout': -1}, 'timeout'),
  ],
)
def test_options_are_checked(options, word):
  with pytest.raises(ValueError, match=word):
    saving.Folder('x', **options)


def test_a_folder_is_a_path():
  folder = saving.Folder(pathlib.Path('a') / 'b')
  assert os.fspath(folder) == os.path.join('a', 'b')
  assert saving.Folder.of(folder) is folder
  assert saving.Folder.of('a') == saving.Folder('a')


def test_nothing_is_pickled(tmp_path, monkeypatch):
  def fail(*_, **__):
    raise AssertionError('pickled')

  for name in ('dump', 'dumps', 'load', 'loads'):
    monkeypatch.setattr(pickle, name, fail)
  saving.write(tmp_path, 1, _PARAMS, {}, _STATE)
  assert arrays.read(tmp_path / '000000000001', 'state').keys() == {'b'}
