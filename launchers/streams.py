"""What a program prints to, which may go away before the program ends.

A run is worth more than what it prints. `brax-nnx-train | tee log` loses its
reader to the Ctrl-C that asks the run for a checkpoint, a terminal may be
closed, and a disk with a log on it may be full.
"""

import contextlib
import errno
import os
import sys
from typing import Any
from typing import TextIO

# The file may take more later.
_PASSING = (errno.ENOSPC, errno.EDQUOT)


class Lasting:
  """A text stream that drops what it cannot write, and never raises."""

  def __init__(self, stream: TextIO):
    self._stream = stream

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    """Writes text, if that is possible; returns its length."""
    self._try(self._stream.write, text)
    return len(text)

  def flush(self) -> None:
    """Flushes, if that is possible."""
    self._try(self._stream.flush)

  def _try(self, function: Any, *arguments: Any) -> None:
    try:
      function(*arguments)
    except OSError as e:
      if e.errno not in _PASSING:
        self._silence()
    except (ValueError, RuntimeError):
      # It is closed, or a signal came in the middle of another `write`.
      pass

  def _silence(self) -> None:
    """Leads to nowhere what is in the buffer, and what will be.

    Python flushes at its end, and takes it for an error if that fails.
    """
    with contextlib.suppress(OSError, ValueError):
      nowhere = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nowhere, self._stream.fileno())
      os.close(nowhere)


def _lasting(stream: Any) -> Any:
  if stream is None:
    # Its descriptor is free, and the next file would get what is printed.
    return open(os.devnull, 'w', encoding='utf-8')
  if isinstance(stream, Lasting):
    return stream
  if hasattr(stream, 'reconfigure'):
    # Not every terminal has letters for all that is said.
    stream.reconfigure(errors='backslashreplace')
  return Lasting(stream)


def make_lasting() -> None:
  """Lets nothing that happens to stdout and stderr end this program."""
  sys.stdout = _lasting(sys.stdout)
  sys.stderr = _lasting(sys.stderr)
