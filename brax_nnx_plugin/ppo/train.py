"""Proximal policy optimization of networks with memory.

The twin of `brax.training.agents.ppo.train`, with its signature. What is done
when is here; how is in `learner` (the training step), `rollout` (acting),
`losses`, `evaluation`, `environments` and `devices`.
"""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
from typing import Any

from absl import logging
from brax import envs

from brax_nnx_plugin.ppo import devices
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import processes
from brax_nnx_plugin.ppo import saving
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.training_run import TrainingRun

Metrics = dict[str, Any]


def train(
  environment: envs.Env,
  num_timesteps: int,
  max_devices_per_host: int | None = None,
  # high-level control flow
  wrap_env: bool = True,
  vision: bool = False,
  augment_pixels: bool = False,
  # environment wrapper
  num_envs: int = 1,
  episode_length: int | None = None,
  action_repeat: int = 1,
  wrap_env_fn: Callable[[Any], Any] | None = None,
  randomization_fn: Callable[..., Any] | None = None,
  # ppo params
  learning_rate: float = 1e-4,
  entropy_cost: float = 1e-4,
  discounting: float = 0.9,
  unroll_length: int = 10,
  batch_size: int = 32,
  num_minibatches: int = 16,
  num_updates_per_batch: int = 2,
  num_resets_per_eval: int = 0,
  normalize_observations: bool = False,
  normalize_observations_std_eps: float = 0.0,
  normalize_observations_mode: str = 'welford',
  normalize_until_count: int | None = None,
  reward_scaling: float = 1.0,
  clipping_epsilon: float = 0.3,
  clipping_epsilon_value: float | None = None,
  gae_lambda: float = 0.95,
  max_grad_norm: float | None = None,
  normalize_advantage: bool = True,
  vf_loss_coefficient: float = 0.5,
  bootstrap_on_timeout: bool = False,
  use_distributional_critic: bool = False,
  desired_kl: float = 0.01,
  learning_rate_schedule: Any = None,
  learning_rate_schedule_min_lr: float = 1e-5,
  learning_rate_schedule_max_lr: float = 1e-2,
  network_factory: Callable[..., Any] = ppo_networks.make_ppo_networks,
  seed: int = 0,
  use_pmap_on_reset: bool = True,
  # eval
  num_evals: int = 1,
  eval_env: envs.Env | None = None,
  num_eval_envs: int = 128,
  deterministic_eval: bool = False,
  # training metrics
  log_training_metrics: bool = False,
  training_metrics_steps: int | None = None,
  # callbacks
  progress_fn: Callable[[int, Metrics], None] = lambda *args: None,
  policy_params_fn: Callable[..., None] = lambda *args: None,
  # checkpointing
  save_checkpoint_path: str | None = None,
  restore_checkpoint_path: str | None = None,
  restore_params: Any | None = None,
  restore_value_fn: bool = True,
  run_evals: bool = True,
) -> tuple[Callable[..., Any], Any, Metrics]:
  """Trains a policy, with or without memory, by PPO.

  Parameters, defaults, callbacks, metric names and the order of random keys are
  those of `brax.training.agents.ppo.train.train`; a memoryless network ends
  with the parameters it would end with there. An *env step* is one step of the
  unwrapped environment; a *training step* is one rollout of `batch_size *
  num_minibatches` segments with all its gradient updates.

  Args:
    environment: what is trained in.
    num_timesteps: env steps to take at least; whole epochs are run. 0 returns
      the initial policy.
    max_devices_per_host: devices to use; `None` for all.
    wrap_env: wrap the environment for training; `False` takes it as it is,
      batched.
    vision: observations have images; `action_repeat` must be 1. The images
      are the entries `pixels/...` of a dict, with or without it.
    augment_pixels: move the images of a segment by up to 4 pixels, anew in
      each pass over the data. Likelihoods are then replayed with other images
      than the policy acted on.
    num_envs: environments stepped in parallel, over all devices. `batch_size *
      num_minibatches` must be a multiple of it.
    episode_length: env steps after which an episode is truncated.
    action_repeat: env steps per network step. The carry advances once; it is
      reset when the wrapper reports `done`, which is that of the last repeat.
    wrap_env_fn: wraps the environment, instead of Brax's wrapper
      (`mujoco_playground.wrapper.wrap_for_brax_training`).
    randomization_fn: makes randomized models of the environment; evaluation
      environments are randomized too, unless `environments.Unrandomized`.
    learning_rate: of Adam; a number, or a function of the number of gradient
      steps so far, such as the schedules of optax.
    entropy_cost: weight of the entropy bonus; the `entropy_weight` of a sampler
      comes on top. Like `learning_rate`, a number or a function of the number
      of gradient steps so far, reported as `training/entropy_cost`.
    discounting: of rewards, per network step.
    unroll_length: network steps of a segment. Gradients flow through all of it
      and stop at its start and at resets.
    batch_size: segments of a minibatch.
    num_minibatches: minibatches of a training step.
    num_updates_per_batch: times each minibatch is learned from.
    num_resets_per_eval: resets of all environments between evaluations; the
      carry is reset with them.
    normalize_observations: standardise observations with Brax's running
      statistics. They are updated before the gradient phase, so replayed
      likelihoods differ from the acting ones; the embedded `Normalizer`
      (`normalize_inputs=True` in our factories) is exact instead.
    normalize_observations_std_eps: added to the variance.
    normalize_observations_mode: 'welford' or 'ema'.
    normalize_until_count: observations after which the statistics stand still.
    reward_scaling: factor on rewards in the loss.
    clipping_epsilon: of the likelihood ratio.
    clipping_epsilon_value: of the value estimate; `None` for no clipping.
    gae_lambda: of the advantage estimate.
    max_grad_norm: gradients are scaled down to this norm; `None` for no limit.
    normalize_advantage: standardise advantages within a minibatch.
    vf_loss_coefficient: weight of the value loss.
    bootstrap_on_timeout: add the discounted value estimate to the reward where
      the environment reports `info['time_out']`.
    use_distributional_critic: the value network estimates quantiles of the
      return, and `clipping_epsilon_value` is the threshold of its Huber loss.
    desired_kl: what the adaptive learning rate aims at.
    learning_rate_schedule: 'NONE' or 'ADAPTIVE_KL'.
    learning_rate_schedule_min_lr: lower bound of the adaptive learning rate.
    learning_rate_schedule_max_lr: upper bound.
    network_factory: one of `ppo.networks`, one from `make_network_factory`, or
      a stock Brax factory.
    seed: of all randomness.
    use_pmap_on_reset: as in Brax.
    num_evals: evaluations, one before training included.
    eval_env: environment to evaluate in; `environment` by default.
    num_eval_envs: episodes of an evaluation.
    deterministic_eval: evaluate the mode of the policy.
    log_training_metrics: report metrics of training episodes too.
    training_metrics_steps: env steps between such reports.
    progress_fn: called with the env steps so far and the metrics.
    policy_params_fn: called with the env steps so far, `make_policy` and the
      parameters.
    save_checkpoint_path: folder for a checkpoint at each evaluation, or a
      `checkpoint.Folder`, which says how many are kept and how.
    restore_checkpoint_path: checkpoint of a run to go on with, exactly as if it
      had never stopped; `num_timesteps` is the total. More of them may be asked
      for if epochs keep their size. The report that was due is made first.
      `checkpoint.params_only(path)`, a checkpoint without a state, and one of
      stock Brax start a new run from parameters and statistics.
    restore_params: parameters to start from, as `train` returns them.
    restore_value_fn: `False` starts with a new value function.
    run_evals: `False` reports training metrics only.

  Returns:
    `make_policy(params, deterministic=False)`, see `ppo.inference`; the
    parameters (normalizer, policy, value); and the last metrics.

  Raises:
    ValueError: before anything compiles, if parameters do not fit together or
      the network breaks the module contract.
    TypeError: likewise, if `network_factory` makes no networks.
    TrainingDiverged: after an epoch in which an observation, a reward, a loss
      or the training state is no longer finite, with the last finite
      parameters; checkpoints and callbacks have seen only finite ones. To go
      on regardless, call `train` within `guards.allow_non_finite()`.
    SaveError: if a checkpoint cannot be saved; those before it are intact.
    Preempted: after a checkpoint, if a signal came; only within
      `checkpoint.save_on`.
  """
  arguments = dict(locals())
  device_count = devices.Devices.of(max_devices_per_host).count
  run = TrainingRun(TrainConfig.from_arguments(arguments, device_count))
  if num_timesteps == 0:
    return run.make_policy, run.params(), {}

  try:
    metrics = _train(run)
  except BaseException:
    with contextlib.suppress(saving.SaveError):  # what stopped it says more
      run.close()
    raise
  run.close()
  drifted = devices.drifted_leaves(run.state)
  if drifted:
    logging.error('The devices disagree about %s.', ', '.join(drifted))
  devices.synchronize_hosts()
  return run.make_policy, run.params(), metrics


def _train(run: TrainingRun) -> Metrics:
  """Trains to the end of the run; returns the last metrics."""
  reporting = run.config.reporting
  is_main = processes.is_main()

  def report(training_metrics: Mapping[str, Any]) -> Metrics:
    if not is_main or run.config.budget.num_evals == 0:
      return {}
    metrics = dict(training_metrics)
    if run.config.evaluation.run_evals:
      metrics = run.evaluate(metrics)
    reporting.progress_fn(run.env_steps, metrics)
    return metrics

  def pass_params() -> None:
    if is_main:
      policy = run.make_policy
      reporting.policy_params_fn(run.env_steps, policy, run.params())

  metrics: Metrics = {}
  if run.resumed and run.round_is_complete:
    # Saved before it was reported.
    metrics = report(run.progress.metrics)
  elif not run.resumed:
    if run.config.budget.num_evals > 1 and run.config.evaluation.run_evals:
      metrics = report({})
    pass_params()
  while not run.finished:
    training_metrics = run.train_round()
    pass_params()
    run.save(training_metrics)
    run.stop_if_preempted(training_metrics)
    metrics = report(training_metrics)
  return metrics
