"""All step arithmetic of a run, in integers."""

import dataclasses
import math

from brax_nnx_plugin.ppo.config import TrainConfig

# An epoch is one compiled loop, whose counter has 32 bits.
_MOST_STEPS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Schedule:
  """How many of what.

  A run is `num_rounds` rounds, each ending in a report; a round is
  `epochs_per_round` epochs, with environment resets between them if asked for;
  an epoch is `steps_per_epoch` training steps in one compiled call.

  Attributes:
    num_rounds: evaluations after the first.
    epochs_per_round: `max(num_resets_per_eval, 1)`.
    steps_per_epoch: training steps; rounded up, so that a run takes at least
      `num_timesteps` env steps.
    env_steps_per_training_step: env steps, action repeats counted, all devices.
    envs_per_device: environments on each device.
    unrolls_per_step: consecutive segments of each environment.
  """

  num_rounds: int
  epochs_per_round: int
  steps_per_epoch: int
  env_steps_per_training_step: int
  envs_per_device: int
  unrolls_per_step: int

  @property
  def env_steps_per_epoch(self) -> int:
    return self.steps_per_epoch * self.env_steps_per_training_step

  @property
  def total_env_steps(self) -> int:
    """Env steps that will really be taken."""
    return self.num_rounds * self.epochs_per_round * self.env_steps_per_epoch

  @classmethod
  def of(cls, config: TrainConfig, device_count: int) -> 'Schedule':
    """Plans a run.

    Args:
      config: of the run.
      device_count: devices of all processes together.

    Raises:
      ValueError: if the environments or the segments do not divide over them.
    """
    budget, num_envs = config.budget, config.environment.num_envs
    given = {'num_envs': num_envs, 'batch_size': budget.batch_size}
    nearest = {
      name: max(1, round(n / device_count)) * device_count
      for name, n in given.items()
      if n % device_count
    }
    if nearest:
      choice = ' and '.join(f'{name} = {n}' for name, n in nearest.items())
      raise ValueError(
        f'num_envs = {num_envs} and batch_size = {budget.batch_size} must be'
        f' multiples of the {device_count} devices in use. Choose {choice}, or'
        ' use fewer devices with max_devices_per_host.'
      )
    env_steps = (
      budget.batch_size
      * budget.unroll_length
      * budget.num_minibatches
      * config.environment.action_repeat
    )
    num_rounds = max(budget.num_evals - 1, 1)
    epochs = max(budget.num_resets_per_eval, 1)
    steps = -(
      -math.ceil(budget.num_timesteps) // (num_rounds * epochs * env_steps)
    )
    if steps > _MOST_STEPS:
      raise ValueError(
        f'num_timesteps = {budget.num_timesteps:,} makes epochs of {steps:,}'
        f' training steps, and JAX counts to {_MOST_STEPS:,}. Choose fewer env'
        ' steps or more num_evals.'
      )
    return cls(
      num_rounds=num_rounds,
      epochs_per_round=epochs,
      steps_per_epoch=steps,
      env_steps_per_training_step=env_steps,
      envs_per_device=num_envs // device_count,
      unrolls_per_step=budget.batch_size * budget.num_minibatches // num_envs,
    )
