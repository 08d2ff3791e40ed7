"""How far a run is, on a terminal and elsewhere."""

import io
import os
import pathlib
import pty
import subprocess
import sys
import types

from launchers import progress


def test_time_left_is_that_of_the_steps_left(monkeypatch):
  stream = io.StringIO()
  now = iter([100.0, 110.0, 130.0])
  monkeypatch.setattr(progress.time, 'monotonic', lambda: next(now))
  lines = progress._Lines(1000, stream, 0)
  lines.update(100, '')
  lines.update(300, 'reward 1')
  # 100 steps in 10 s, 900 left: 90 s. 200 in 20 s, 700 left: 70 s.
  assert stream.getvalue().splitlines() == [
    '100 of 1,000 env steps, 10 env steps/s, 0:01:30 left',
    '300 of 1,000 env steps, 10 env steps/s, 0:01:10 left, reward 1',
  ]


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def test_the_first_piece_is_no_measure_for_the_rest(monkeypatch):
  monkeypatch.setattr(progress, '_TICK', 60.0)
  stream = _Terminal()
  bar = progress._Bar(1000, stream, 100)
  assert 'starting' in stream.getvalue()
  monkeypatch.setattr(bar._bar, '_time', lambda: now)
  now = bar._bar.start_t + 80.0
  monkeypatch.setattr(progress.time, 'time', lambda: now)
  bar.update(100, 'reward 1')  # before training
  bar.update(200, 'reward 2')
  shown = stream.getvalue().split('\r')[-1]
  assert 'starting' not in shown
  assert '200/1.00k [01:20<?' in shown
  now += 10.0
  bar.update(400, 'reward 3')
  # 200 steps in 10 s, 600 left.
  assert '400/1.00k [01:30<00:30' in stream.getvalue().split('\r')[-1]
  bar.close()


def test_the_clock_goes_between_two_pieces(monkeypatch):
  bar = progress._Bar(1000, _Terminal(), 0)
  assert bar._clock.is_alive()
  bar.close()
  assert not bar._clock.is_alive()

  seconds, drawn = [], []
  closed = types.SimpleNamespace(
    wait=lambda tick: seconds.append(tick) or len(seconds) > 2
  )
  monkeypatch.setattr(bar, '_closed', closed)
  monkeypatch.setattr(bar._bar, 'refresh', lambda: drawn.append('bar'))
  bar._tick()
  assert seconds == [progress._TICK] * 3
  assert drawn == ['bar'] * 2


def test_bar_is_drawn_on_a_terminal_of_unknown_size():
  """A fresh pseudo terminal says that it has 0 rows and 0 columns."""
  code = """
import sys
from launchers import progress
shown = progress.make(1000, sys.stderr, 0)
shown.update(500, 'reward 3')
shown.say('apart')
shown.close()
"""
  ours, theirs = pty.openpty()
  root = pathlib.Path(progress.__file__).parents[1]
  done = subprocess.run(
    [sys.executable, '-c', code],
    env=os.environ | {'PYTHONPATH': str(root), 'COLUMNS': '', 'LINES': ''},
    stdin=subprocess.DEVNULL,
    stdout=theirs,
    stderr=theirs,
    check=False,
  )
  os.close(theirs)
  shown = os.read(ours, 1 << 16)
  os.close(ours)
  assert done.returncode == 0, shown
  assert b'50%' in shown
  assert b'reward 3' in shown
  assert b'apart' in shown
