"""A small environment and small arguments for whole runs of `train`."""

import functools
import inspect
from typing import Any

from brax import envs
from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import train as ppo_train
from brax_nnx_plugin.ppo.config import TrainConfig

# One training step is 8 segments of 4 network steps, 32 in all.
STEP = 32
SMALL: dict[str, Any] = {
  'num_timesteps': 10 * STEP,
  'max_devices_per_host': 1,
  'num_envs': 4,
  'episode_length': 8,
  'unroll_length': 4,
  'batch_size': 4,
  'num_minibatches': 2,
  'num_updates_per_batch': 2,
  'learning_rate': 1e-2,
  'entropy_cost': 1e-2,
  'reward_scaling': 2.0,
  'num_evals': 1,
  'num_eval_envs': 2,
  'run_evals': False,
}

small_mlp = functools.partial(
  ppo_networks.make_ppo_networks,
  policy_hidden_layer_sizes=(5,),
  value_hidden_layer_sizes=(6,),
)
small_lstm = functools.partial(
  ppo_networks.make_recurrent_ppo_networks,
  policy_hidden_layer_sizes=(4,),
  value_hidden_layer_sizes=(4,),
  policy_memory_size=3,
  value_memory_size=3,
)


def arguments(**overrides: Any) -> dict[str, Any]:
  """All arguments of `train`: its defaults, `SMALL`, and what is given."""
  named = {'environment': PointEnv(), 'network_factory': small_mlp}
  parameters = inspect.signature(ppo_train.train).parameters.values()
  defaults = {p.name: p.default for p in parameters}
  return defaults | SMALL | named | overrides


def config(**overrides: Any) -> TrainConfig:
  """The configuration of a small run."""
  return TrainConfig.from_arguments(arguments(**overrides))


def small_train(**overrides: Any) -> Any:
  """Runs `train` of the package, small."""
  return ppo_train.train(**arguments(**overrides))


def largest_difference(a: Any, b: Any) -> float:
  """The largest absolute difference of two trees of the same structure."""
  leaves = jax.tree.leaves(
    jax.tree.map(lambda x, y: np.max(np.abs(np.subtract(x, y))), a, b)
  )
  return float(max(leaves))


@struct.dataclass
class PointSystem:
  """What domain randomization changes: how far an action pushes."""

  gain: Any = 0.3


class PointEnv(envs.Env):
  """A point on a line that actions push; it wants to stay near 0.

  It starts anywhere in [-1, 1]; an episode ends beyond 1.5 and, as a time-out
  that `info['time_out']` reports, after five steps. The observation is
  [position, last push], plus a third number for the critic of a dict.
  """

  action_size: Any = 1
  backend: Any = 'none'

  def __init__(self, dict_observations: bool = False, gain: float = 0.3):
    self.sys = PointSystem(gain)
    self._dict_observations = dict_observations

  @property
  def observation_size(self) -> Any:
    sizes = {'state': 2, 'privileged_state': 3}
    return sizes if self._dict_observations else 2

  def _observe(self, body: Any) -> Any:
    state = jnp.stack([body['position'], body['push']])
    if not self._dict_observations:
      return state
    clock = body['clock'][None]
    return {'state': state, 'privileged_state': jnp.append(2 * state, clock)}

  def reset(self, rng: jax.Array) -> envs.State:
    zero = jnp.array(0.0)
    position = jax.random.uniform(rng, minval=-1.0)
    body: Any = {'position': position, 'push': zero, 'clock': zero}
    metrics = {'drift_per_step': zero}
    obs = self._observe(body)
    return envs.State(body, obs, zero, zero, metrics, {'time_out': zero})  # pyright: ignore[reportCallIssue]

  def step(self, state: envs.State, action: jax.Array) -> envs.State:
    before: Any = state.pipeline_state
    push = self.sys.gain * action[0]
    position = before['position'] + push
    clock = before['clock'] + 1
    body: Any = {'position': position, 'push': push, 'clock': clock}
    outside = jnp.abs(position) > 1.5
    late = (clock >= 5) & ~outside
    return state.replace(  # pyright: ignore[reportAttributeAccessIssue]
      pipeline_state=body,
      obs=self._observe(body),
      reward=1.0 - jnp.square(position),
      done=(outside | late).astype(jnp.float32),
      metrics=state.metrics | {'drift_per_step': jnp.abs(push)},
      info=state.info | {'time_out': late.astype(jnp.float32)},
    )


def random_gains(sys: Any, rng: jax.Array) -> tuple[Any, Any]:
  """Domain randomization of `PointEnv`: one gain a row of `rng`."""
  gains = jax.vmap(lambda key: jax.random.uniform(key, minval=0.1))(rng)
  return sys.replace(gain=gains), PointSystem(0)
