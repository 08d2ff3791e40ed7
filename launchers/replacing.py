"""Files that nobody ever reads half of."""

from collections.abc import Iterator
import contextlib
import os
import pathlib


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields where to write; what is written there then replaces the file.

  Args:
    path: of the file; stays as it is if the body raises.
  """
  partial = path.with_name(path.name + '.partial')
  try:
    yield partial
    os.replace(partial, path)
  except BaseException:
    # Of a full disk it would keep the rest.
    with contextlib.suppress(OSError):
      partial.unlink()
    raise
