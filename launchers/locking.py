"""One process at a time for the folder of a run.

Two that train one run would overwrite each other's checkpoints and metrics.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib

from .errors import UserError


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
  """Keeps other processes from training in a folder.

  The system lets go of it when the process ends, however it ends, and nothing
  is left in the folder. Where it cannot tell, on some network disks and on
  Windows, nothing is kept from anyone.

  Args:
    folder: of a run.

  Raises:
    UserError: if another one is at it.
  """
  try:
    import fcntl
  except ImportError:  # not on Windows
    yield
    return
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(
        f'{folder} is being trained by another process; wait for it to end, or'
        ' stop it, before --resume goes on.'
      ) from None
    except OSError:
      pass
    yield
  finally:
    os.close(descriptor)
