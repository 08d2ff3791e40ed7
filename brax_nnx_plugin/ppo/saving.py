"""Saving checkpoints, beside training if asked to."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import json
import os
import threading
from typing import Any

from etils import epath
import numpy as np

from brax_nnx_plugin.ppo import arrays
from brax_nnx_plugin.ppo import checks
from brax_nnx_plugin.ppo import folders


class SaveError(OSError):
  """A checkpoint could not be saved; those before it are as they were."""


@dataclasses.dataclass(frozen=True)
class Folder(os.PathLike):
  """Where checkpoints go, and how: for `train(save_checkpoint_path=...)`.

  Attributes:
    path: of the folder; alone it means the defaults below.
    max_to_keep: checkpoints that are kept; `None` for all.
    keep_states: of these, how many (the newest) keep what is needed to go on:
      optimizer, environments, carries, keys. It can be gigabytes. The others
      keep the policy.
    asynchronous: training goes on while a checkpoint is written.
    timeout: seconds to wait for that at the next save and at the end.
    save_state: `False` saves policies only.
  """

  path: Any
  max_to_keep: int | None = None
  keep_states: int = 1
  asynchronous: bool = True
  timeout: float = 600.0
  save_state: bool = True

  def __post_init__(self):
    if self.max_to_keep is not None:
      checks.require_whole(self, 1, 'max_to_keep')
    checks.require_whole(self, 1, 'keep_states')
    checks.require_finite(self, 'timeout', low=0)

  def __fspath__(self) -> str:
    return os.fspath(self.path)

  @classmethod
  def of(cls, path: Any) -> 'Folder':
    """Returns a folder, with defaults if only a path is given."""
    return path if isinstance(path, cls) else cls(path)


@dataclasses.dataclass(frozen=True)
class State:
  """What a run needs to go on, beside its policy.

  Attributes:
    arrays: by name.
    description: for JSON.
  """

  arrays: Mapping[str, np.ndarray]
  description: Mapping[str, Any]


def write(
  parent: Any,
  step: int,
  params: Mapping[str, np.ndarray],
  config: Mapping[str, Any],
  state: State | None = None,
) -> epath.Path:
  """Writes one checkpoint.

  Args:
    parent: the folder that checkpoints go into.
    step: env steps taken; names the checkpoint.
    params: arrays by name.
    config: describes the network.
    state: of the run, if it is to be kept.

  Returns:
    The folder of the checkpoint.

  Raises:
    SaveError: if it fails; nothing is left of it.
  """
  parent = epath.Path(parent).resolve()
  groups = {folders.PARAMS_NAME: params}
  if state is not None:
    groups[folders.STATE_NAME] = state.arrays
  try:
    with folders.writing(parent, step) as folder:
      arrays.write(folder, groups)
      if state is not None:
        text = json.dumps(state.description, indent=2)
        (folder / folders.RUN_NAME).write_text(text)
      text = json.dumps(config, indent=2)
      (folder / folders.CONFIG_NAME).write_text(text)
  except Exception as e:  # a full disk has many names
    raise _failure(parent, step, f'{type(e).__name__}: {e}') from e
  return parent / f'{step:012d}'


def _failure(parent: epath.Path, step: int, reason: str) -> SaveError:
  try:
    newest = folders.complete(parent)
  except OSError:
    newest = []
  kept = f'The newest there is {newest[0]}.' if newest else 'There is none yet.'
  reason = ' '.join(reason.split())[:400]
  return SaveError(
    f'The checkpoint of env step {step} could not be saved in {parent}'
    f' ({reason}). {kept} Make room, or choose another save_checkpoint_path.'
  )


class Saver:
  """Saves the checkpoints of one run, one at a time."""

  def __init__(self, folder: Folder):
    self._folder = folder
    self._parent = epath.Path(folder).resolve()
    self._thread: threading.Thread | None = None
    self._error: SaveError | None = None
    self._step = 0

  @property
  def parent(self) -> epath.Path:
    """The folder of checkpoints."""
    return self._parent

  def save(self, step: int, *args: Any) -> None:
    """Saves; arguments as for `write`, which nobody may change afterwards.

    Raises:
      SaveError: if this or the save before it fails; a save that goes on beside
        training says so at the next one, or in `wait`.
    """
    self.wait()
    self._step = step
    work = lambda: self._write(step, *args)
    if not self._folder.asynchronous:
      work()
    else:
      # A daemon: a disk that hangs shall not keep the program from ending.
      self._thread = threading.Thread(
        target=self._catch, args=(work,), name='checkpoint', daemon=True
      )
      self._thread.start()

  def _write(self, step: int, *args: Any) -> None:
    folders.clean(self._parent)
    write(self._parent, step, *args)
    try:
      folders.prune(
        self._parent, step, self._folder.max_to_keep, self._folder.keep_states
      )
    except OSError as e:
      raise SaveError(
        f'Older checkpoints in {self._parent} could not be removed'
        f' ({e.strerror or e}). The newest is complete.'
      ) from e

  def _catch(self, work: Callable[[], None]) -> None:
    try:
      work()
    except SaveError as e:
      self._error = e
    except Exception as e:
      self._error = _failure(self._parent, self._step, repr(e))

  def wait(self) -> None:
    """Waits until nothing is being saved.

    Raises:
      SaveError: if the save failed, or takes too long.
    """
    if self._thread is not None:
      self._thread.join(self._folder.timeout)
      if self._thread.is_alive():
        reason = f'still being written after {self._folder.timeout:g} seconds'
        raise _failure(self._parent, self._step, reason)
      self._thread = None
    if self._error is not None:
      error, self._error = self._error, None
      raise error
