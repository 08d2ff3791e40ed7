"""The parameters of `train`, grouped by the question they answer, and checked.

`TrainConfig.from_arguments` sorts the arguments of `train` into these groups by
name; a test asserts that every parameter is in exactly one. Nothing after that
line takes a loose hyperparameter.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from typing import Any

from brax.training.agents.ppo import optimizer as brax_optimizer

from brax_nnx_plugin.ppo import checks

_require = checks.require


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
  """Which environments are stepped, and how they are wrapped."""

  environment: Any
  wrap_env: bool
  num_envs: int
  episode_length: int | None
  action_repeat: int
  wrap_env_fn: Callable[..., Any] | None
  randomization_fn: Callable[..., Any] | None
  use_pmap_on_reset: bool

  def __post_init__(self):
    checks.require_whole(self, 1, 'num_envs', 'action_repeat')
    _require(
      self.episode_length is not None or not self.wrap_env,
      'episode_length must be given when wrap_env is True; for a Playground'
      " environment it is in the environment's config.",
    )
    repeat = self.action_repeat
    if self.episode_length is not None:
      checks.require_whole(self, 1, 'episode_length')
      length = int(self.episode_length)
      _require(
        length % repeat == 0,
        f'episode_length = {length} must be a multiple of action_repeat ='
        f' {repeat}, or evaluation would stop within an episode: choose'
        f' episode_length = {max(1, round(length / repeat)) * repeat}.',
      )


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
  """How much is computed: steps, segments, minibatches, evaluations."""

  num_timesteps: int
  batch_size: int
  unroll_length: int
  num_minibatches: int
  num_updates_per_batch: int
  num_resets_per_eval: int
  num_evals: int
  seed: int
  max_devices_per_host: int | None

  def __post_init__(self):
    checks.require_whole(
      self,
      1,
      'batch_size',
      'unroll_length',
      'num_minibatches',
      'num_updates_per_batch',
    )
    checks.require_whole(self, -(2**31), 'seed')
    _require(
      self.seed < 2**32,
      f'seed must fit in 32 bits, or JAX drops some of it; got {self.seed}.',
    )
    checks.require_finite(self, 'num_timesteps', low=0)
    checks.require_whole(self, 0, 'num_resets_per_eval', 'num_evals')


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """The coefficients of the loss; see `losses.ppo_loss`."""

  entropy_cost: float | Callable[[Any], Any]
  discounting: float
  reward_scaling: float
  clipping_epsilon: float
  clipping_epsilon_value: float | None
  gae_lambda: float
  normalize_advantage: bool
  vf_loss_coefficient: float
  bootstrap_on_timeout: bool
  use_distributional_critic: bool

  def __post_init__(self):
    _require(
      not self.use_distributional_critic
      or self.clipping_epsilon_value is not None,
      'use_distributional_critic=True needs clipping_epsilon_value, the'
      ' threshold of its Huber loss; set it, to 1.0 for instance.',
    )
    checks.require_schedule(self, 'entropy_cost')
    checks.require_finite(self, 'reward_scaling')
    checks.require_finite(
      self, 'vf_loss_coefficient', 'clipping_epsilon', low=0
    )
    checks.require_finite(self, 'clipping_epsilon_value', low=0, optional=True)
    for name in ('discounting', 'gae_lambda'):
      value = getattr(self, name)
      _require(0 <= value <= 1, f'{name} must be between 0 and 1; got {value}.')

  @property
  def needs_old_value(self) -> bool:
    """Whether the loss reads the value estimated when acting."""
    return self.bootstrap_on_timeout or self.clipping_epsilon_value is not None


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Adam, gradient clipping, and Brax's adaptive-KL learning rate."""

  learning_rate: float | Callable[[Any], Any]
  max_grad_norm: float | None
  desired_kl: float
  learning_rate_schedule: Any
  learning_rate_schedule_min_lr: float
  learning_rate_schedule_max_lr: float

  def __post_init__(self):
    checks.require_schedule(self, 'learning_rate', low=0)
    checks.require_finite(self, 'max_grad_norm', low=0, optional=True)
    _require(
      self.max_grad_norm != 0,
      'max_grad_norm = 0 would leave no gradient; None means no limit.',
    )
    try:
      brax_optimizer.LRSchedule(self.learning_rate_schedule or 'NONE')
    except ValueError:
      names = [schedule.value for schedule in brax_optimizer.LRSchedule]
      raise ValueError(
        f'learning_rate_schedule = {self.learning_rate_schedule!r} is not one'
        f' of {", ".join(names)}.'
      ) from None
    if self.adaptive_kl:
      checks.require_finite(self, 'learning_rate', low=0)
      checks.require_finite(self, 'desired_kl', low=0)
      low = self.learning_rate_schedule_min_lr
      high = self.learning_rate_schedule_max_lr
      _require(
        0 <= low <= high,
        f'learning_rate_schedule_min_lr = {low} must be between 0 and'
        f' learning_rate_schedule_max_lr = {high}.',
      )

  @property
  def adaptive_kl(self) -> bool:
    """Whether the learning rate follows the KL divergence."""
    schedule = brax_optimizer.LRSchedule(self.learning_rate_schedule or 'NONE')
    return schedule == brax_optimizer.LRSchedule.ADAPTIVE_KL


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
  """Which network is trained, and Brax's own observation normalizer."""

  network_factory: Callable[..., Any]
  normalize_observations: bool
  normalize_observations_std_eps: float
  normalize_observations_mode: str
  normalize_until_count: int | None
  vision: bool
  augment_pixels: bool

  def __post_init__(self):
    checks.require_finite(self, 'normalize_observations_std_eps', low=0)
    checks.require_finite(self, 'normalize_until_count', low=0, optional=True)
    mode = self.normalize_observations_mode
    _require(
      mode in ('welford', 'ema'),
      f"normalize_observations_mode must be 'welford' or 'ema'; got {mode!r}.",
    )


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
  """How the policy is evaluated."""

  eval_env: Any
  num_eval_envs: int
  deterministic_eval: bool
  run_evals: bool

  def __post_init__(self):
    if self.run_evals:
      checks.require_whole(self, 1, 'num_eval_envs')


@dataclasses.dataclass(frozen=True)
class ReportingConfig:
  """Who is told what, and how often."""

  log_training_metrics: bool
  training_metrics_steps: int | None
  progress_fn: Callable[..., None]
  policy_params_fn: Callable[..., None]

  def __post_init__(self):
    checks.require_finite(self, 'training_metrics_steps', low=0, optional=True)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """What is saved, and where training starts from."""

  save_checkpoint_path: Any
  restore_checkpoint_path: Any
  restore_params: Any
  restore_value_fn: bool


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """All parameters of `train`."""

  environment: EnvironmentConfig
  budget: BudgetConfig
  loss: LossConfig
  optimizer: OptimizerConfig
  network: NetworkConfig
  evaluation: EvaluationConfig
  reporting: ReportingConfig
  checkpoint: CheckpointConfig

  @classmethod
  def from_arguments(
    cls, arguments: Mapping[str, Any], device_count: int = 1
  ) -> 'TrainConfig':
    """Sorts the arguments of `train` into groups and checks them.

    Args:
      arguments: by name, all of them.
      device_count: of the run; numbers that are suggested divide over them.

    Raises:
      ValueError: saying what was given, what is needed and what to do.
    """

    def pick(group):
      names = [f.name for f in dataclasses.fields(group)]
      return group(**{name: arguments[name] for name in names})

    config = cls(**{f.name: pick(f.type) for f in dataclasses.fields(cls)})
    config._check_segments(device_count)
    config._check_episodes()
    return config

  def _check_episodes(self) -> None:
    """Evaluations last an episode; of repeated steps only one is seen."""
    repeat = self.environment.action_repeat
    _require(
      not self.network.vision or repeat == 1,
      'vision=True needs action_repeat = 1, or images are rendered that nobody'
      f' sees; got {repeat}. Repeat the action inside the environment instead.',
    )
    _require(
      self.environment.episode_length is not None
      or not self.evaluation.run_evals
      or self.budget.num_evals == 0,
      'episode_length must be given to evaluate, also when wrap_env is False;'
      ' or set run_evals=False.',
    )

  def _check_segments(self, device_count: int) -> None:
    """Each training step must use whole segments of every environment."""
    checks.require_segments(
      self.environment.num_envs,
      self.budget.batch_size,
      self.budget.num_minibatches,
      device_count,
    )
