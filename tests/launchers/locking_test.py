"""Two processes and one run."""

import subprocess
import sys

import pytest

from launchers import locking
from launchers.errors import UserError

_HOLD = """
import pathlib, sys, time
from launchers import locking
with locking.alone(pathlib.Path(sys.argv[1])):
  print('held', flush=True)
  time.sleep(600)
"""


def test_another_process_is_told_until_the_first_is_killed(tmp_path):
  process = subprocess.Popen(
    [sys.executable, '-c', _HOLD, str(tmp_path)], stdout=subprocess.PIPE
  )
  assert process.stdout is not None
  assert process.stdout.readline() == b'held\n'
  with (
    pytest.raises(UserError, match='by another process'),
    locking.alone(tmp_path),
  ):
    pass
  process.kill()
  process.communicate()
  with locking.alone(tmp_path):
    pass


def test_nothing_is_left_in_the_folder(tmp_path):
  with locking.alone(tmp_path):
    assert not list(tmp_path.iterdir())
  with locking.alone(tmp_path):
    pass
  assert not list(tmp_path.iterdir())
