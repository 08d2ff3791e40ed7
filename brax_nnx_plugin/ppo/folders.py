"""Folders of checkpoints: appearing whole, being found, being thrown away.

A checkpoint is a folder named by the env step, `%012d`. It is filled under
another name and renamed when it is complete, so that a reader, or a run that
was killed, never sees half of one.
"""

from collections.abc import Iterator
import contextlib
import os
import shutil
import socket
import time
from typing import Any
import uuid

from etils import epath

CONFIG_NAME = 'network.json'
RUN_NAME = 'run.json'
PARAMS_NAME = 'params'
STATE_NAME = 'state'
_PARTIAL = '.partial-'

# Seconds after which a folder that nobody writes to is given up: shorter if the
# process that began it is known to be gone.
_IDLE_WITHOUT_OWNER = 60
_IDLE = 3600

# Names that this process is filling just now.
_being_written: set[str] = set()


def _partial(final: epath.Path) -> epath.Path:
  """Returns a name beside `final` that nobody else uses."""
  owner = f'{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}'
  return final.with_name(f'{final.name}{_PARTIAL}{owner}')


def _flush(folder: epath.Path) -> None:
  """Sends all below a local folder to the disk; power may go at any time."""
  for path, _, names in os.walk(folder, topdown=False):
    for name in (*names, '.'):
      descriptor = os.open(os.path.join(path, name), os.O_RDONLY)
      try:
        os.fsync(descriptor)
      finally:
        os.close(descriptor)


def _publish(partial: epath.Path, final: epath.Path) -> None:
  """Gives a folder its name; of two savers of one step the later one wins."""
  for attempt in range(10):
    try:
      os.rename(partial, final)
      return
    except OSError:  # the name is taken
      if attempt == 9 or not final.exists():
        raise
      with contextlib.suppress(FileNotFoundError):
        discard(final)


def discard(folder: epath.Path) -> None:
  """Throws a checkpoint away, which no longer is one from the first moment."""
  doomed = _partial(folder)
  os.rename(folder, doomed)
  shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def writing(parent: Any, step: int) -> Iterator[epath.Path]:
  """Gives a folder to fill; it becomes the checkpoint if nothing fails.

  Args:
    parent: the folder of checkpoints; made if need be.
    step: env steps taken.

  Yields:
    The folder under its preliminary name.
  """
  final = epath.Path(parent) / f'{step:012d}'
  partial = _partial(final)
  _being_written.add(partial.name)
  try:
    partial.mkdir(parents=True)
    yield partial
    _flush(partial)
    _publish(partial, final)
  except BaseException:
    # A disk that is full should not stay so.
    shutil.rmtree(partial, ignore_errors=True)
    raise
  finally:
    _being_written.discard(partial.name)


def _owner_is_gone(name: str) -> bool:
  """Whether the process that began a partial folder is known to have ended."""
  host, _, rest = name.split(_PARTIAL, 1)[1].rpartition('-')[0].rpartition('-')
  if host != socket.gethostname() or not rest.isdigit():
    return False
  if int(rest) == os.getpid():
    return True
  try:
    os.kill(int(rest), 0)
  except ProcessLookupError:
    return True
  except OSError:
    return False
  return False


def _last_change(folder: epath.Path) -> float:
  """Returns when anything in a folder changed last; it may be vanishing."""
  latest = 0.0
  for path, _, names in os.walk(folder):
    for name in (*names, '.'):
      with contextlib.suppress(FileNotFoundError):
        latest = max(latest, os.stat(os.path.join(path, name)).st_mtime)
  return latest


def clean(parent: Any) -> None:
  """Removes what savers left that were killed; not what others are writing."""
  for folder in epath.Path(parent).glob(f'*{_PARTIAL}*'):
    if folder.name in _being_written:
      continue
    patience = _IDLE_WITHOUT_OWNER if _owner_is_gone(folder.name) else _IDLE
    if time.time() - _last_change(folder) > patience:
      shutil.rmtree(folder, ignore_errors=True)


def is_complete(folder: epath.Path) -> bool:
  """Whether a folder is a checkpoint."""
  return (folder / CONFIG_NAME).exists() and _PARTIAL not in folder.name


def complete(parent: epath.Path) -> list[epath.Path]:
  """Returns the checkpoints in a folder, the newest first."""
  if not parent.is_dir():
    return []
  steps = [p for p in parent.iterdir() if p.name.isdigit() and is_complete(p)]
  return sorted(steps, key=lambda p: int(p.name), reverse=True)


def latest(path: Any) -> epath.Path | None:
  """Returns the newest checkpoint of a run, or `None`; `path` as for `find`.

  What a job that may be killed starts from, so that its first start is none:

    train(..., save_checkpoint_path=path,
          restore_checkpoint_path=checkpoint.latest(path))
  """
  path = epath.Path(path).resolve()
  if is_complete(path):
    return path
  found = complete(path) or complete(path / 'checkpoints')
  return found[0] if found else None


def find(path: Any) -> epath.Path:
  """Returns the newest checkpoint of a run.

  Args:
    path: the folder of a run, of its checkpoints, or of one checkpoint.

  Raises:
    ValueError: if there is none.
  """
  found = latest(path)
  if found is None:
    raise ValueError(
      f'There is no checkpoint in {epath.Path(path).resolve()}. Name the folder'
      ' of a run, of its checkpoints, or of one checkpoint.'
    )
  return found


def prune(
  parent: Any, step: int, max_to_keep: int | None, keep_states: int
) -> None:
  """Throws away what is too much, going back from one checkpoint.

  Args:
    parent: the folder of checkpoints.
    step: env steps of the checkpoint just saved; later ones are another run's,
      and stay.
    max_to_keep: checkpoints that are kept, this one included; `None` for all.
    keep_states: of these, how many keep what a run needs to go on; the others
      keep the policy.
  """
  folders = [p for p in complete(epath.Path(parent)) if int(p.name) <= step]
  if max_to_keep is not None:
    for folder in folders[max_to_keep:]:
      discard(folder)
    folders = folders[:max_to_keep]
  for folder in folders[keep_states:]:
    # First what says that it is there.
    (folder / RUN_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder / STATE_NAME, ignore_errors=True)
