"""Puts a `Learner` on devices, as a training run does, for tests to step."""

from collections.abc import Callable
import dataclasses
import functools
import inspect
from typing import Any

from brax.training import types as brax_types
from brax.training.acme import running_statistics
from brax.training.agents.ppo import train as brax_train
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo import environments
from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo.config import LossConfig
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.learner import Learner
from brax_nnx_plugin.ppo.networks import make_ppo_networks
from brax_nnx_plugin.ppo.networks import make_recurrent_ppo_networks
from brax_nnx_plugin.ppo.schedule import Schedule
from tests import segments
from tests import toy_envs

_SMALL = {
  'num_timesteps': 1,
  'wrap_env': False,
  'run_evals': False,
  'num_envs': 2,
  'batch_size': 1,
  'num_minibatches': 2,
  'unroll_length': 4,
  'num_updates_per_batch': 2,
  'learning_rate': 1e-2,
  'entropy_cost': 1e-2,
}


def train_config(
  env: Any = None, network_factory: Any = None, **overrides: Any
) -> TrainConfig:
  """Brax's default parameters, with few small numbers for the sizes."""
  parameters = inspect.signature(brax_train.train).parameters
  arguments = {name: p.default for name, p in parameters.items()}
  arguments |= {'environment': env, 'network_factory': network_factory}
  unknown = overrides.keys() - arguments.keys()
  assert not unknown, unknown
  return TrainConfig.from_arguments(arguments | _SMALL | overrides)


def loss_config(**overrides: Any) -> LossConfig:
  """The coefficients of the loss, Brax's defaults where not given."""
  return train_config(**overrides).loss


class ProbeLearner(Learner):
  """Also reports what each minibatch was, and how far its replay is off."""

  def minibatch_step(self, carry, rows, *, state, data, last_carry):
    result, metrics = super().minibatch_step(
      carry, rows, state=state, data=data, last_carry=last_carry
    )
    minibatch = jax.tree.map(lambda x: x[rows], data)
    variables = dataclasses.replace(state.variables, params=carry[1])
    out, _ = segments.replay(
      self.networks, variables, minibatch, state.normalizer_params
    )
    error = out.log_likelihood.T - minibatch.log_likelihood
    probe = {
      'ratio_error': jnp.max(jnp.abs(error)),
      'rows': rows,
      'start_carry': minibatch.start_carry,
    }
    return result, {**metrics, **probe}


@dataclasses.dataclass
class Rig:
  """A learner with its states on devices; every leaf has a device axis."""

  learner: Learner
  devices: device_lib.Devices
  state: Any
  actors: Any
  keys: jax.Array

  def __post_init__(self):
    self.pmap_step = self.devices.pmap(self.learner.ppo_step)

  def step(self) -> dict[str, Any]:
    """Takes one training step; metrics are `[D, epochs, minibatches, ...]`."""
    # As a training run does, or the second step would compile anew.
    state, actors = device_lib.strip_weak_type((self.state, self.actors))
    self.state, self.actors, self.keys, metrics = self.pmap_step(
      state, actors, self.keys
    )
    return metrics

  @property
  def variables(self) -> Any:
    """One copy of the network's variables."""
    return device_lib.first(self.state).variables


def make_rig(
  env: Any,
  network_factory: Callable[..., Any],
  *,
  device_count: int = 1,
  learner_class: Any = Learner,
  **overrides: Any,
) -> Rig:
  """Makes a learner for the batched environment `env` and starts it."""
  config = train_config(env, network_factory, **overrides)
  devices = device_lib.Devices.of(device_count)
  schedule = Schedule.of(config, devices.count)
  preprocess: Any = brax_types.identity_observation_preprocessor
  if config.network.normalize_observations:
    preprocess = running_statistics.normalize
  learner = learner_class(
    env=env,
    networks=segments.network_functions(env, network_factory, preprocess),
    config=config,
    schedule=schedule,
    axis_name=devices.axis_name,
  )
  keys = jax.random.split(jax.random.PRNGKey(config.budget.seed), 3)
  reset_keys = jax.random.split(keys[0], config.environment.num_envs)
  reset_keys = reset_keys.reshape((device_count, -1, 2))
  env_state = jax.vmap(env.reset)(reset_keys)
  state = learner.init(
    keys[1], keys[2], environments.statistics_spec(env_state)
  )
  rows = schedule.envs_per_device
  carry = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (device_count, *x.shape)),
    learner.networks.initial_state(state.variables, rows),
  )
  state, actors = device_lib.strip_weak_type(
    (devices.replicate(state), rollout.start(env_state, carry))
  )
  keys = jax.random.split(jax.random.PRNGKey(7), device_count)
  # Placed as a step leaves them, for the same reason.
  placed = devices.pmap(lambda *args: args)(state, actors, keys)
  return Rig(learner, devices, *placed)


def small_factory(kind: str, **kwargs: Any) -> Callable[..., Any]:
  """A network factory with few units: 'mlp', 'lstm' or 'gru'."""
  if kind == 'mlp':
    return functools.partial(
      make_ppo_networks,
      policy_hidden_layer_sizes=(8,),
      value_hidden_layer_sizes=(8,),
      **kwargs,
    )
  sizes: dict[str, Any] = {
    'policy_hidden_layer_sizes': (4,),
    'value_hidden_layer_sizes': (4,),
    'policy_memory_size': 4,
    'value_memory_size': 4,
  }
  return functools.partial(
    make_recurrent_ppo_networks, cell=kind, **(sizes | kwargs)
  )


def drift_rig(factory: Callable[..., Any], **overrides: Any) -> Rig:
  """Steps `DriftEnv` in segments of 5 with time limits of 6 and early ends."""
  settings: dict[str, Any] = {
    'learner_class': ProbeLearner,
    'num_envs': 4,
    'batch_size': 2,
    'num_minibatches': 4,
    'unroll_length': 5,
  }
  env = segments.wrapped(toy_envs.DriftEnv(), episode_length=6)
  return make_rig(env, factory, **(settings | overrides))
