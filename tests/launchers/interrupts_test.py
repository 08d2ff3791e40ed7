"""Ctrl-C where Python would forget it."""

import subprocess
import sys

import pytest

_PROGRAM = """
import gc, signal, time
from launchers import interrupts
{insist}
def callback(phase, info):
  gc.callbacks.remove(callback)
  signal.raise_signal(signal.SIGINT)
gc.callbacks.append(callback)
try:
  gc.collect()
  time.sleep({seconds})
except KeyboardInterrupt:
  print('interrupted')
"""


@pytest.mark.parametrize(
  ('insist', 'seconds', 'told'),
  [('interrupts.insist()', 60, 'interrupted\n'), ('', 0.2, '')],
)
def test_an_interrupt_in_the_garbage_collection_comes_again(
  insist, seconds, told
):
  program = _PROGRAM.format(insist=insist, seconds=seconds)
  output = subprocess.run(
    [sys.executable, '-c', program],
    capture_output=True,
    text=True,
    check=True,
  )
  assert output.stdout == told


def test_other_exceptions_are_shown_as_before():
  program = (
    'from launchers import interrupts\ninterrupts.insist()\n'
    'class Odd:\n  def __del__(self): raise ValueError("odd")\nOdd()\n'
  )
  output = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, check=True
  )
  assert 'ValueError: odd' in output.stderr
