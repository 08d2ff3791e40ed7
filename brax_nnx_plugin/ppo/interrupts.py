"""Ctrl-C that is not lost. Imports the standard library alone."""

from collections.abc import Iterator
import contextlib
import os
import signal
import sys
import threading
from typing import Any

# From an exception that was ignored to the same signal once more.
_AGAIN_SECONDS = 0.1


@contextlib.contextmanager
def insisting(signum: int = signal.SIGINT) -> Iterator[None]:
  """Sends a signal once more if Python ignores the `KeyboardInterrupt` of it.

  It does so where nobody could catch one, such as in the callback that JAX has
  in the garbage collector, which runs often while JAX traces.

  Args:
    signum: whose handler raises it.
  """
  report = sys.unraisablehook

  def again() -> None:
    if sys.unraisablehook is hook:
      os.kill(os.getpid(), signum)

  def hook(ignored: Any) -> None:
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
      report(ignored)
      return
    timer = threading.Timer(_AGAIN_SECONDS, again)
    timer.daemon = True
    timer.start()

  sys.unraisablehook = hook
  try:
    yield
  finally:
    sys.unraisablehook = report
