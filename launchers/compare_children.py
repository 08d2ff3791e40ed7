"""The parts of a comparison, each in a process of its own, one at a time.

So a run that crashes, or is killed for its memory, takes no other with it, and
what it had compiled and held on the device is free for the next. The process
that waits does not touch the device.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from typing import Any

from absl import logging

from . import streams
from .errors import UserError
from .session import heeded_signals

# What a shell says of a program that Ctrl-C has ended.
_INTERRUPTED = 128 + signal.SIGINT


def _end_with_parent() -> None:
  """Asks this process to end, with a checkpoint, once nobody waits for it."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _child(
  function: Callable[..., Any], arguments: tuple[Any, ...], pipe: Any
) -> None:
  """Calls a function; its answer goes into a pipe, and an error is told."""
  # A terminal's Ctrl-C comes to the process that waits, which passes it on.
  os.setsid()
  streams.make_lasting()
  code = _INTERRUPTED
  try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded_signals())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.set_verbosity(logging.WARNING)
    pipe.send(function(*arguments))
    code = 0
  except UserError as e:
    pipe.send(e)
    code = 2
  except KeyboardInterrupt:
    pass
  except Exception:
    traceback.print_exc()
    code = 1
  sys.exit(code)


class Children:
  """Calls functions in processes of their own, one at a time.

  Attributes:
    stopped_by: the first signal that came; 0 if none did.
    signals: how many came.
  """

  def __init__(self) -> None:
    self.stopped_by = 0
    self.signals = 0
    self._process: Any = None

  def _pass_on(self, signum: int, frame: Any) -> None:
    del frame
    self.stopped_by = self.stopped_by or signum
    self.signals += 1
    if self._process is not None and self._process.is_alive():
      os.kill(self._process.pid, signum)

  @contextlib.contextmanager
  def listening(self) -> Iterator[None]:
    """Passes signals on to the process that is at work, instead of ending."""
    signals = heeded_signals()
    previous = {s: signal.signal(s, self._pass_on) for s in signals}
    try:
      yield
    finally:
      for signum, handler in previous.items():
        signal.signal(signum, handler)

  def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of a module.

    Args:
      function: that other processes can import.
      *arguments: plain values.

    Returns:
      What it returned, `None` if it did not, and the exit code of the process:
      0 if it returned, minus the number of a signal that killed it.

    Raises:
      UserError: if it raised one.
    """
    context = multiprocessing.get_context('spawn')
    receive, send = context.Pipe(duplex=False)
    self._process = context.Process(
      target=_child, args=(function, arguments, send)
    )
    # A signal that comes while it starts waits until it can be answered.
    signals = heeded_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
      self._process.start()
    finally:
      signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    send.close()
    try:
      answer = receive.recv()
    except EOFError:
      answer = None
    self._process.join()
    code = self._process.exitcode
    self._process = None
    if isinstance(answer, UserError):
      raise answer
    return answer, code
