"""Holding a program between its steps, and timing them.

A contender calls its gate before every step that is to be measured. The other
side of a pipe lets it through, hears how long the step took, and so decides in
what order the steps of several processes run.
"""

from collections.abc import Callable
import dataclasses
import time
from typing import Any

import jax


class Stop(Exception):  # noqa: N818
  """Ends a stage; raised out of the gate, through whatever called it."""


@dataclasses.dataclass(frozen=True)
class Lap:
  """The time from one pass of a gate to the next, or to the first.

  Attributes:
    seconds: in all.
    cpu_seconds: of all threads; steadier than the former on a busy machine.
    xla_seconds: of the former, those that XLA compiled in.
  """

  seconds: float
  cpu_seconds: float
  xla_seconds: float


class XlaClock:
  """Adds up the seconds in which XLA compiled in this process."""

  def __init__(self):
    self.seconds = 0.0
    jax.monitoring.register_event_duration_secs_listener(self._listen)

  def _listen(
    self, event: str, duration_secs: float, **kwargs: str | int
  ) -> None:
    del kwargs
    if event == '/jax/core/compile/backend_compile_duration':
      self.seconds += duration_secs


class Gate:
  """Called before each step: reports the last lap and waits for the next."""

  def __init__(
    self,
    report: Callable[[Lap], Any],
    wait: Callable[[], bool],
    clock: XlaClock,
  ):
    """Starts the first lap, which ends at the first call.

    Args:
      report: is told of each lap.
      wait: blocks; returns whether to go on.
      clock: of this process.
    """
    self._report, self._wait, self._clock = report, wait, clock
    self._begin()

  def _begin(self) -> None:
    self._xla_before = self._clock.seconds
    self._cpu_before = time.process_time()
    self._start = time.perf_counter()

  def __call__(self, *_: Any) -> None:
    """Ends a lap and begins another.

    Args:
      *_: ignored, so that a gate can be a callback of `train`.

    Raises:
      Stop: when there is to be no other.
    """
    self._report(
      Lap(
        time.perf_counter() - self._start,
        time.process_time() - self._cpu_before,
        self._clock.seconds - self._xla_before,
      )
    )
    if not self._wait():
      raise Stop
    self._begin()
