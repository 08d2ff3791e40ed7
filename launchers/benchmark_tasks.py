"""What a benchmark trains in, and how much of it."""

import dataclasses
from typing import Any

from brax import envs
import jax
from mujoco_playground import wrapper

from . import environments

# Beside these, every environment of MuJoCo Playground.
BRAX_ENVIRONMENTS = ('fast',)


@dataclasses.dataclass(frozen=True)
class Task:
  """Sizes that all contenders share, named as in `ppo.train`.

  Attributes:
    env_name: 'fast', Brax's trivial environment, or one of Playground's.
    size: units of every layer.
    unroll_length: network steps of a segment.
    training_steps: of one measurement.
    num_envs: stepped in parallel.
    batch_size: segments of a minibatch.
    num_minibatches: of a training step.
    num_updates_per_batch: passes over the data of a training step.
    episode_length: env steps.
    num_eval_envs: episodes of an evaluation.
  """

  env_name: str = 'fast'
  size: int = 64
  unroll_length: int = 20
  training_steps: int = 10
  num_envs: int = 256
  batch_size: int = 64
  num_minibatches: int = 4
  num_updates_per_batch: int = 4
  episode_length: int = 1000
  num_eval_envs: int = 64

  @property
  def env_steps_per_training_step(self) -> int:
    """Env steps of all environments in one training step."""
    return self.batch_size * self.num_minibatches * self.unroll_length

  @property
  def env_steps(self) -> int:
    """Env steps of one measurement."""
    return self.training_steps * self.env_steps_per_training_step

  @property
  def unrolls(self) -> int:
    """Segments of one environment in a training step."""
    return self.batch_size * self.num_minibatches // self.num_envs

  def environment(self) -> Any:
    """Makes the environment.

    Raises:
      UserError: if there is none of that name.
    """
    if self.env_name in BRAX_ENVIRONMENTS:
      return envs.get_environment(self.env_name)
    # Playground's own default is for GPUs alone.
    config = environments.config_of(self.env_name, {'impl': 'jax'})
    return environments.load(self.env_name, config)

  def wrap(self, env: Any) -> Any:
    """Wraps the environment as `train` does, with its arguments below."""
    fn: Any = self.ppo_arguments()['wrap_env_fn'] or envs.training.wrap
    return fn(env, episode_length=self.episode_length, action_repeat=1)

  def reset_keys(self) -> jax.Array:
    """Returns one key for each environment."""
    return jax.random.split(jax.random.PRNGKey(0), self.num_envs)

  def ppo_arguments(self) -> dict[str, Any]:
    """Returns arguments that `train` of Brax and `ppo.train` both take."""
    is_brax = self.env_name in BRAX_ENVIRONMENTS
    return {
      'wrap_env_fn': None if is_brax else wrapper.wrap_for_brax_training,
      'num_envs': self.num_envs,
      'batch_size': self.batch_size,
      'num_minibatches': self.num_minibatches,
      'num_updates_per_batch': self.num_updates_per_batch,
      'unroll_length': self.unroll_length,
      'episode_length': self.episode_length,
      'max_devices_per_host': 1,
      'learning_rate': 3e-4,
      'entropy_cost': 1e-2,
      'discounting': 0.97,
      'max_grad_norm': 1.0,
    }
