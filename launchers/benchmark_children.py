"""Contenders in processes of their own, of which one runs at a time.

So each has its own memory to be measured and its own programs to compile, and
still all are measured in turn, on a machine in the same state.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import multiprocessing
import resource
import traceback
from typing import Any

import jax

from .benchmark_contender import Contender
from .benchmark_contenders import ByHand
from .benchmark_contenders import Stock
from .benchmark_contenders import mlp
from .benchmark_contenders import recurrent
from .benchmark_gate import Gate
from .benchmark_gate import Lap
from .benchmark_gate import Stop
from .benchmark_gate import XlaClock
from .benchmark_scanned import scanned_lstm
from .benchmark_tasks import Task

# What a contender does, in this order.
STAGES = ('train', 'act', 'evaluate')

_WIDE_CRITIC = (256,) * 4


def _nnx_ppo(task: Task, **kwargs: Any) -> Contender:
  from .benchmark_nnx_ppo import NnxPpo  # needed here alone

  return NnxPpo(task, **kwargs)


_memoryless_critic = {
  'value_memory_size': None,
  'value_hidden_layer_sizes': _WIDE_CRITIC,
}
CONTENDERS: dict[str, Callable[[Task], Contender]] = {
  'brax-mlp': Stock,
  'mlp': mlp,
  'nnx-ppo-mlp': functools.partial(_nnx_ppo, memory=False),
  'nnx-ppo-lstm': functools.partial(_nnx_ppo, memory=True),
  'lstm': functools.partial(recurrent, cell='lstm'),
  'by-hand-lstm': ByHand,
  'gru': functools.partial(recurrent, cell='gru'),
  'mingru': functools.partial(recurrent, cell='mingru'),
  'nnx-ppo-lstm-wide-critic': functools.partial(
    _nnx_ppo, memory=True, value_hidden=_WIDE_CRITIC
  ),
  'lstm-wide-critic': functools.partial(
    recurrent, cell='lstm', **_memoryless_critic
  ),
  'scanned-lstm': scanned_lstm,
}


@dataclasses.dataclass(frozen=True)
class Facts:
  """What a contender knows when it has run.

  Attributes:
    buffer_bytes: of the rollout that one training step learns from.
    peak_bytes: of the device, or of the process where the device is the host.
    device: what it runs on.
  """

  buffer_bytes: int
  peak_bytes: int
  device: str


def peak_bytes() -> int:
  """Returns the most memory that was in use so far, of the device if known."""
  stats = jax.local_devices()[0].memory_stats() or {}
  on_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return stats.get('peak_bytes_in_use', on_host)


def serve(name: str, task: Task, send: Any, receive: Any) -> None:
  """Runs a contender, stage by stage, as the other side of a pipe says.

  Args:
    name: of the contender.
    task: sizes.
    send: is given a `Lap` for every pass of a gate, and `Facts` after a stage.
    receive: returns whether to go on with the stage.
  """
  clock = XlaClock()
  contender = CONTENDERS[name](task)
  for stage in STAGES:
    with contextlib.suppress(Stop):
      getattr(contender, stage)(Gate(send, receive, clock))
    device = jax.local_devices()[0].device_kind
    send(Facts(contender.buffer_bytes, peak_bytes(), device))


def _child(name: str, task: Task, pipe: Any) -> None:
  try:
    serve(name, task, pipe.send, pipe.recv)
  except ImportError as e:
    pipe.send(e)
  except Exception:
    traceback.print_exc()
    pipe.send(RuntimeError(f'{name} failed; its error is above.'))


class Process:
  """A contender in another process."""

  def __init__(self, name: str, task: Task):
    """Starts the process.

    Args:
      name: of the contender.
      task: sizes.
    """
    context = multiprocessing.get_context('spawn')
    self._pipe, other = context.Pipe()
    self._process = context.Process(
      target=_child, args=(name, task, other), daemon=True
    )
    self._process.start()
    other.close()

  def _receive(self) -> Any:
    message = self._pipe.recv()
    if isinstance(message, Exception):
      raise message
    return message

  def ready(self) -> Lap | Facts:
    """Waits until a stage is set up; returns how long it took.

    Returns:
      `Facts` at once, if the contender has no such stage.

    Raises:
      ImportError: if its library is not installed.
    """
    return self._receive()

  def run(self) -> Lap:
    """Takes one step of the stage."""
    self._pipe.send(True)
    return self._receive()

  def end_stage(self) -> Facts:
    """Goes on to the next stage, or ends after the last."""
    self._pipe.send(False)
    return self._receive()

  def close(self) -> None:
    """Ends the process."""
    self._process.kill()
    self._process.join()
