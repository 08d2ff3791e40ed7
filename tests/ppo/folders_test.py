"""Folders of checkpoints: whole or not there, found, cleaned and pruned."""

import os
import pathlib
import socket
import time

import pytest

from brax_nnx_plugin.ppo import folders


def _save(parent, step, text='whole', state=True):
  """Saves a checkpoint without arrays."""
  with folders.writing(parent, step) as folder:
    if state:
      (folder / folders.STATE_NAME).mkdir()
      (folder / folders.RUN_NAME).write_text('{}')
    (folder / folders.CONFIG_NAME).write_text(text)


def _names(parent):
  return sorted(p.name for p in pathlib.Path(parent).iterdir())


def test_a_folder_appears_when_it_is_filled(tmp_path):
  with folders.writing(tmp_path / 'new', 12) as folder:
    (folder / folders.CONFIG_NAME).write_text('')
    assert folders.latest(tmp_path / 'new') is None
    assert folders.latest(folder) is None
  assert _names(tmp_path / 'new') == ['000000000012']
  assert folders.find(tmp_path / 'new').name == '000000000012'


@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
def test_nothing_is_left_of_what_fails(tmp_path, error):
  _save(tmp_path, 5, 'old')
  with pytest.raises(error), folders.writing(tmp_path, 5) as folder:
    (folder / folders.CONFIG_NAME).write_text('new')
    raise error
  assert _names(tmp_path) == ['000000000005']
  assert (folders.find(tmp_path) / folders.CONFIG_NAME).read_text() == 'old'


def test_two_savers_of_one_step_leave_one_whole_checkpoint(tmp_path):
  with folders.writing(tmp_path, 5) as first:
    (first / 'a').write_text('')
    (first / folders.CONFIG_NAME).write_text('first')
    _save(tmp_path, 5, 'second')
  assert _names(tmp_path) == ['000000000005']
  assert _names(tmp_path / '000000000005') == ['a', folders.CONFIG_NAME]


def _leave(parent, owner, age):
  """Leaves a half-written checkpoint of some age, in seconds."""
  folder = parent / f'000000000007.partial-{owner}-0123abcd'
  (folder / 'params').mkdir(parents=True)
  for path in (folder / 'params', folder):
    os.utime(path, (time.time() - age,) * 2)
  return folder


@pytest.mark.parametrize(
  ('owner', 'age', 'stays'),
  [
    ('HOST-4194305', 100, False),  # no process has this number
    ('HOST-4194305', 10, True),
    ('HOST-1', 100, True),  # one has
    ('HOST-1', 4000, False),
    ('elsewhere-9-4194305', 100, True),
    ('elsewhere-9-4194305', 4000, False),
    ('HOST-OWN', 100, False),  # the same number, before this program
  ],
)
def test_what_killed_savers_left_is_cleaned(tmp_path, owner, age, stays):
  owner = owner.replace('HOST', socket.gethostname())
  folder = _leave(tmp_path, owner.replace('OWN', str(os.getpid())), age)
  folders.clean(tmp_path)
  assert folder.exists() == stays


def test_what_is_being_written_is_not_cleaned(tmp_path):
  with folders.writing(tmp_path, 5) as folder:
    os.utime(folder, (0, 0))
    folders.clean(tmp_path)
    (folder / folders.CONFIG_NAME).write_text('')
  assert _names(tmp_path) == ['000000000005']


def test_old_checkpoints_go_and_lose_their_states(tmp_path):
  for step in (1, 2, 3, 4, 90):
    _save(tmp_path, step)
  # 90 is another run's.
  folders.prune(tmp_path, 4, max_to_keep=3, keep_states=1)
  assert [int(name) for name in _names(tmp_path)] == [2, 3, 4, 90]
  kept = [int(p.parent.name) for p in tmp_path.glob(f'*/{folders.RUN_NAME}')]
  assert sorted(kept) == [4, 90]
  assert len(list(tmp_path.glob(f'*/{folders.STATE_NAME}'))) == 2
  assert len(list(tmp_path.glob(f'*/{folders.CONFIG_NAME}'))) == 4


def test_all_are_kept_unless_said_otherwise(tmp_path):
  for step in (1, 2):
    _save(tmp_path, step)
  folders.prune(tmp_path, 2, max_to_keep=None, keep_states=2)
  assert len(list(tmp_path.glob(f'*/{folders.RUN_NAME}'))) == 2
