"""Exported policies, and the same policies as they are in training."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from brax.training.acme import running_statistics
from flax import nnx
import jax
import numpy as np

from brax_nnx_plugin import networks
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import library
from tests import saved_policies
from tests import small_runs

STEPS = 100
RESETS = (20, 57)
OFFSET = 1e3


def observations(features: int = 3) -> np.ndarray:
  """What a robot sees, `[STEPS, features]`: far from zero."""
  noise = np.random.default_rng(5).normal(size=(STEPS, features))
  return (OFFSET + noise).astype(np.float32)


def gru(observation_size: Any, action_size: int, rngs: nnx.Rngs) -> Any:
  """A policy with a GRU whose initial state is not zero."""
  n = observation_size[0]
  memory = networks.GRU(n, 4, rngs, trainable_initial_state=True)
  start: Any = memory.initial_h
  start.set_value(0.1 + start.get_value())
  layers = [networks.Normalizer(n), memory]
  return library._policy(observation_size, action_size, rngs, layers)


def _normalized(build: Callable[..., Any]) -> Callable[..., Any]:
  """The same network behind a normalizer."""

  def behind(observation_size, action_size, rngs):
    network = build(observation_size, action_size, rngs)
    front = networks.Normalizer(observation_size)
    return networks.Sequential([front, network])

  return behind


def _lstm(*args: Any) -> Any:
  """An LSTM behind Brax's normalizer."""
  return small_runs.small_lstm(
    *args, preprocess_observations_fn=running_statistics.normalize
  )


FACTORIES: dict[str, Callable[..., Any]] = {
  'lstm': _lstm,
  **{
    name: ppo_networks.make_network_factory(build)
    for name, build in {
      'gru': gru,
      'delay': _normalized(library.delay_lstm),
      'graph': _normalized(library.graph),
    }.items()
  },
}


def make(name: str) -> tuple[Any, Any]:
  """Returns a network, and parameters that know of the offset."""
  networks = FACTORIES[name]((3,), 2)
  plain = small_runs.small_lstm((3,), 2) if name == 'lstm' else networks
  measure = lambda: saved_policies.measured_params(plain, (3,), OFFSET)
  return networks, jax.jit(measure)()


def saved(name: str) -> tuple[Any, Any]:
  """Returns one of `saved_policies.CASES`, with its parameters."""
  factory, size, _ = saved_policies.CASES[name]
  networks = factory(size, 2)
  measure = lambda: saved_policies.measured_params(networks, size)
  return networks, jax.jit(measure)()


def play(policy: Any, forget: bool = False) -> np.ndarray:
  """The actions of a policy of `make_policy`; `forget` drops its memory."""
  step, key = jax.jit(policy), jax.random.PRNGKey(0)
  state, actions = policy.initial_state(), []
  for t, x in enumerate(observations()):
    state = policy.reset(state, forget or t in RESETS)
    action, extras = step(x, key, state)
    state = extras['state']
    actions.append(action)
  return np.stack(actions)


def play_exported(policy: Any, forget: bool = False) -> np.ndarray:
  """The actions of an exported policy."""
  state, actions = policy.initial_state(), []
  for t, x in enumerate(observations()):
    if forget or t in RESETS:
      state = policy.reset(state)
    action, state = policy.step(x, state)
    assert isinstance(state, Mapping)
    actions.append(action)
  return np.stack(actions)
