"""Stopping a run on a signal, with a checkpoint.

Batch systems send a signal some time before they kill. Nothing listens to it
unless asked for:

    with checkpoint.save_on(signal.SIGTERM):
      ppo.train(...)
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import signal
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from brax_nnx_plugin.ppo import interrupts

# Wrappers around a program pass a signal on that it has got already.
_ECHO_SECONDS = 1.0


class Preempted(Exception):
  """A signal has stopped `train`, after an epoch and a checkpoint.

  Attributes:
    signal: that came; of several processes, perhaps to another one.
    env_steps: taken.
    checkpoint: the folder to go on from; `None` if none was asked for.
  """

  def __init__(self, signum: int, env_steps: int, checkpoint: Any):
    super().__init__(signum, env_steps, checkpoint)
    self.signal = signal.Signals(signum)
    self.env_steps = env_steps
    self.checkpoint = checkpoint

  def __str__(self) -> str:
    kept = 'nothing is saved; pass save_checkpoint_path'
    if self.checkpoint is not None:
      kept = f'to go on, restore_checkpoint_path = {str(self.checkpoint)!r}'
    return (
      f'{self.signal.name} stopped training after {self.env_steps} env steps;'
      f' {kept}.'
    )


class _Listener:
  """Notes the first signal; a second one does what it would have done."""

  def __init__(self, notify: Callable[[int], None] | None):
    self._notify = notify
    self.received = 0
    self._when = 0.0
    self.previous: dict[int, Any] = {}
    self.stack = contextlib.ExitStack()

  def __call__(self, signum: int, frame: Any) -> None:
    del frame
    now = time.monotonic()
    if not self.received:
      self.received, self._when = signum, now
      if self._notify is not None:
        self._notify(signum)
    elif now - self._when > _ECHO_SECONDS:
      signal.signal(signum, self.previous[signum])
      self.stack.enter_context(interrupts.insisting(signum))
      signal.raise_signal(signum)


_listeners: list[_Listener] = []


@contextlib.contextmanager
def save_on(
  *signals: int, notify: Callable[[int], None] | None = None
) -> Iterator[None]:
  """Lets signals stop `train` after the current epoch, with a checkpoint.

  `train` then raises `Preempted`. A second signal, more than a second later,
  does what the first one would have done. Of several processes all must train
  within it; the signal may come to any of them.

  Args:
    *signals: such as `signal.SIGTERM` and `signal.SIGINT`.
    notify: called with the first signal when it comes.

  Raises:
    ValueError: outside the main thread, where signals cannot be received.
  """
  if not signals:
    raise ValueError('save_on needs a signal, such as signal.SIGTERM.')
  listener = _Listener(notify)
  try:
    for signum in signals:
      listener.previous[signum] = signal.signal(signum, listener)
    _listeners.append(listener)
    yield
  finally:
    if listener in _listeners:
      _listeners.remove(listener)
    listener.stack.close()
    for signum, handler in listener.previous.items():
      signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def received() -> int:
  """Returns the signal that any process was sent, or 0."""
  if not _listeners:
    return 0
  signum = max(listener.received for listener in _listeners)
  if jax.process_count() == 1:
    return signum
  return int(np.max(multihost_utils.process_allgather(np.int32(signum))))
