"""The file of metrics: a line of JSON for each report."""

from collections.abc import Iterable
from collections.abc import Mapping
import io
import json
import math
import pathlib
from typing import Any

import numpy as np

from .replacing import replacing

# A report as a line has it: 'env_steps', 'seconds', and the metrics.
Line = Mapping[str, Any]
# Entries of a line that are no metrics.
KEYS = ('env_steps', 'seconds')
_NUMBER = int | float | None


def scalars(metrics: Mapping[str, Any]) -> dict[str, float | None]:
  """Returns the metrics that are one number; `None` where it is not finite."""
  arrays = {name: np.asarray(value) for name, value in metrics.items()}
  numbers = {
    name: float(array)
    for name, array in arrays.items()
    if array.ndim == 0 and array.dtype.kind in 'biuf'
  }
  return {
    name: value if math.isfinite(value) else None
    for name, value in numbers.items()
  }


def _is_line(found: Any) -> bool:
  """Whether it is a report, and not what somebody else wrote there."""
  if not isinstance(found, dict):
    return False
  known = isinstance(found.get('env_steps'), int | float)
  return known and all(isinstance(v, _NUMBER) for v in found.values())


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the lines of a file, up to the first one that is not whole."""
  found = []
  text = path.read_text(errors='replace') if path.exists() else ''
  for line in text.splitlines():
    try:
      report = json.loads(line)
    except ValueError:
      break  # the run was killed while it wrote
    if not _is_line(report):
      break
    found.append(report)
  return found


def _encoded(line: Line) -> bytes:
  return (json.dumps(line) + '\n').encode()


class MetricsFile:
  """Writes lines at once, and those it could not write with the next ones."""

  def __init__(self, path: pathlib.Path, lines: Iterable[Line]):
    """Writes nothing yet.

    Args:
      path: of the file, which is begun anew with the first line.
      lines: that it begins with.
    """
    self._path = path
    self._file: io.RawIOBase | None = None
    self._unwritten = b''.join(map(_encoded, lines))

  def write(self, line: Line) -> None:
    """Adds a line.

    Raises:
      OSError: if it could not be written; it will be tried again.
    """
    self._unwritten += _encoded(line)
    self.flush()

  def flush(self) -> None:
    """Writes what is unwritten.

    Raises:
      OSError: if that is not possible; it will be tried again.
    """
    if self._file is None:
      # A crash now must not lose what was there.
      with replacing(self._path) as partial:
        partial.write_bytes(self._unwritten)
      # Without a buffer it is known what has been written to a full disk.
      self._file = self._path.open('ab', buffering=0)
      self._unwritten = b''
    while self._unwritten:
      count = self._file.write(self._unwritten)
      self._unwritten = self._unwritten[count:]

  def close(self) -> None:
    """Closes the file."""
    if self._file is not None:
      self._file.close()
