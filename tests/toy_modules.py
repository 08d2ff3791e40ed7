"""Small modules to build networks whose numbers are plain."""

from collections.abc import Callable
from typing import Any

from brax.training import distribution
import jax.numpy as jnp

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


class Feature(StatefulModule):
  """Takes one feature of the observation, `[..., 1]`."""

  def __init__(self, index: int):
    self.index = index

  def __call__(self, state, x, rollout_extras=None):
    output = x[..., self.index : self.index + 1]
    return StatefulModuleOutput(state, output, jnp.array(0.0), {})


class Wide(StatefulModule):
  """Repeats its first feature to two, `[..., 2]`."""

  def __call__(self, state, x, rollout_extras=None):
    output = jnp.repeat(x[..., :1], 2, axis=-1)
    return StatefulModuleOutput(state, output, jnp.array(0.0), {})


class _Normal(distribution.NormalTanhDistribution):
  def __init__(self, event_size: int):
    super().__init__(event_size)
    self._postprocessor = distribution.IdentityPostprocessor()


class NormalSampler(NormalTanhSampler):
  """Not squashed, so its entropy is a formula and needs no noise."""

  def distribution(self, action_size):
    return _Normal(action_size)


def cell_network(cell: Any, **kwargs: Any) -> Callable[..., PPOAdapter]:
  """A build function: action and value are read from two cells of 3 units."""

  def build(observation_size, action_size, rngs):
    def port(outputs):
      memory = cell(observation_size[0], 3, rngs, **kwargs)
      return [memory, Dense(3, outputs, rngs)]

    return PPOAdapter(
      action=Sequential([*port(2 * action_size), NormalTanhSampler(rngs)]),
      value=Sequential(port(1)),
    )

  return build
