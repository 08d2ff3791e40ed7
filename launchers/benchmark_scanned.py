"""The library without layer-by-layer replay: what that is worth."""

from typing import Any

from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.ppo import actor_critic
from brax_nnx_plugin.ppo import networks as ppo_networks

from .benchmark_contenders import Ours
from .benchmark_tasks import Task


class Scanned(StatefulModule):
  """A network that is scanned over time as a whole, memoryless layers too."""

  def __init__(self, network: Any):
    self.network = network

  def __call__(self, state, x, rollout_extras=None):
    return self.network(state, x, rollout_extras)

  def initialize_state(self, batch_size: int) -> Any:
    return self.network.initialize_state(batch_size)

  def reset_state(self, prev_state: Any) -> Any:
    return self.network.reset_state(prev_state)

  def reset_rows(self, is_first: Any, state: Any) -> Any:
    return stepping.reset_rows(self.network, is_first, state)

  def update_statistics(self, rollout_extras: Any, *, axis_name=None) -> None:
    self.network.update_statistics(rollout_extras, axis_name=axis_name)


def scanned_lstm(task: Task) -> Ours:
  """The network of `benchmark_contenders.recurrent(cell='lstm')`, scanned."""
  port = {
    'hidden_sizes': (task.size,) * 2,
    'cell': 'lstm',
    'memory_size': task.size,
  }

  build = actor_critic.make_build(port, {}, port, normalize_inputs=True)
  return Ours(
    task,
    ppo_networks.make_network_factory(lambda *args: Scanned(build(*args))),
  )
