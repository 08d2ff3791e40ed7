"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever it is, and JAX has Python run within
garbage collection, where an exception is printed and forgotten. While modules
are imported and environments made, every second Ctrl-C goes that way.
"""

import _thread
import signal
import sys
import threading
from typing import Any

# Seconds until what was lost comes again: somewhere else, most likely.
_AGAIN = 0.05


def _interrupt() -> None:
  """Interrupts the main thread, also where it waits."""
  main = threading.main_thread().ident
  if hasattr(signal, 'pthread_kill') and main is not None:
    signal.pthread_kill(main, signal.SIGINT)
  else:  # on Windows
    _thread.interrupt_main()


def insist() -> None:
  """Lets a Ctrl-C that was lost come again, in this program."""
  others = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
      others(unraisable)
      return
    timer = threading.Timer(_AGAIN, _interrupt)
    timer.daemon = True
    timer.start()

  sys.unraisablehook = hook
