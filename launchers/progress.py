"""How far a run is: a bar on a terminal, lines in a file or a pipe."""

import contextlib
import datetime
import shutil
import threading
import time
from typing import Protocol
from typing import TextIO

import tqdm

# Seconds from one drawing of the bar to the next.
_TICK = 1.0


class Progress(Protocol):
  """Shows how far a run is."""

  def update(self, env_steps: int, reward: str) -> None:
    """Shows env steps so far and the newest reward, in words."""

  def say(self, text: str) -> None:
    """Shows a line apart."""

  def close(self) -> None:
    """Ends it."""


def make(total: int, stream: TextIO, begin: int) -> Progress:
  """Makes what fits the stream.

  Args:
    total: env steps that will be taken.
    stream: a terminal or not.
    begin: env steps that were taken before.
  """
  kind = _Bar if stream.isatty() else _Lines
  return kind(total, stream, begin)


def duration(seconds: float) -> str:
  """Returns a time in hours, minutes and seconds."""
  return str(datetime.timedelta(seconds=round(seconds)))


class _Bar:
  """Progress on a terminal, with a clock that goes.

  Steps come in large pieces. What the first piece took is no measure for the
  rest, as it had to be compiled.
  """

  def __init__(self, total: int, stream: TextIO, begin: int):
    # A terminal may report a size of 0, for which tqdm draws nothing.
    size = shutil.get_terminal_size()
    self._stream = stream
    self._bar = tqdm.tqdm(
      total=total,
      initial=begin,
      file=stream,
      unit=' env steps',
      unit_scale=True,
      ncols=size.columns,
      nrows=size.lines,
      desc='starting',
    )
    self._first = True
    self._closed = threading.Event()
    self._clock = threading.Thread(target=self._tick, daemon=True)
    self._clock.start()

  def _tick(self) -> None:
    while not self._closed.wait(_TICK):
      with contextlib.suppress(Exception):  # a terminal that was closed
        self._bar.refresh()

  def update(self, env_steps: int, reward: str) -> None:
    if reward:
      self._bar.set_postfix_str(reward, refresh=False)
    if env_steps > self._bar.n and self._first:
      self._first = False
      self._bar.set_description_str(None, refresh=False)
      self._bar.n = self._bar.initial = self._bar.last_print_n = env_steps
      self._bar.last_print_t = time.time()
    self._bar.update(env_steps - self._bar.n)
    self._bar.refresh()

  def say(self, text: str) -> None:
    self._bar.write(text, file=self._stream)

  def close(self) -> None:
    self._closed.set()
    self._clock.join()
    self._bar.close()


class _Lines:
  """Progress in a file or a pipe: the same, a line each time."""

  def __init__(self, total: int, stream: TextIO, begin: int):
    self._total = total
    self._stream = stream
    self._last = begin, time.monotonic()

  def update(self, env_steps: int, reward: str) -> None:
    steps, then = self._last
    self._last = env_steps, time.monotonic()
    parts = [f'{env_steps:,} of {self._total:,} env steps']
    if env_steps > steps:
      speed = (env_steps - steps) / max(self._last[1] - then, 1e-6)
      left = max(self._total - env_steps, 0) / speed
      parts += [f'{speed:,.0f} env steps/s', f'{duration(left)} left']
    self.say(', '.join(filter(None, [*parts, reward])))

  def say(self, text: str) -> None:
    print(text, file=self._stream, flush=True)

  def close(self) -> None:
    pass
