"""Processes of their own, and signals that come meanwhile."""

import os
import signal
import sys
import threading
import time

import pytest

from launchers.compare_children import Children
from launchers.errors import UserError


def _add(one, two):
  print('adding')
  return os.getpid(), one + two


def _refuse():
  raise UserError('No.')


def _fail():
  raise ValueError('a fault')


def _be_killed():
  os.kill(os.getpid(), signal.SIGKILL)


def _wait(path):
  """Ends when it is interrupted, and says by which signals."""
  seen = []
  previous = signal.signal(signal.SIGINT, lambda s, _: seen.append(s))
  with open(path, 'w') as file:
    file.write(str(os.getpid()))
  while not seen:
    time.sleep(0.01)
  signal.signal(signal.SIGINT, previous)
  return seen


def test_another_process_answers(capfd):
  (pid, total), code = Children().call(_add, 1, 2)
  assert (total, code) == (3, 0)
  assert pid != os.getpid()
  assert capfd.readouterr().out == 'adding\n'


def test_a_mistake_of_the_user_comes_back():
  with pytest.raises(UserError, match=r'^No\.$'):
    Children().call(_refuse)


def test_a_fault_is_told_and_takes_nothing_with_it(capfd):
  assert Children().call(_fail) == (None, 1)
  assert 'ValueError: a fault' in capfd.readouterr().err
  assert Children().call(_be_killed) == (None, -signal.SIGKILL)
  assert Children().call(sys.getrecursionlimit)[1] == 0


def _interrupt_when_there(path):
  while not (path.exists() and path.read_text()):
    time.sleep(0.01)
  os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_is_passed_on_once(tmp_path):
  children = Children()
  thread = threading.Thread(
    target=_interrupt_when_there, args=(tmp_path / 'x',)
  )
  before = signal.getsignal(signal.SIGINT)
  thread.start()
  with children.listening():
    answer, code = children.call(_wait, str(tmp_path / 'x'))
  thread.join()
  assert (answer, code) == ([signal.SIGINT], 0)
  assert (children.stopped_by, children.signals) == (signal.SIGINT, 1)
  assert signal.getsignal(signal.SIGINT) == before


def test_an_interrupt_that_nobody_handles_is_no_traceback(capfd):
  children = Children()
  thread = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
  with children.listening():
    thread.start()
    answer, code = children.call(time.sleep, 60)
  assert (answer, code) == (None, 128 + signal.SIGINT)
  assert 'Traceback' not in capfd.readouterr().err
