"""Putting a learner together: network, environment, optimizer, first state."""

from typing import Any

from brax.training import types as brax_types
from brax.training.acme import running_statistics
import jax

from brax_nnx_plugin.ppo import checks
from brax_nnx_plugin.ppo import episode_metrics
from brax_nnx_plugin.ppo import guards
from brax_nnx_plugin.ppo import inference
from brax_nnx_plugin.ppo import restoring
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.learner import Learner
from brax_nnx_plugin.ppo.linen import as_functions
from brax_nnx_plugin.ppo.schedule import Schedule
from brax_nnx_plugin.ppo.types import TrainingState


def make_learner(
  env: Any,
  observation_size: Any,
  config: TrainConfig,
  schedule: Schedule,
  axis_name: str | None,
  steps_before: int,
) -> tuple[Any, Learner]:
  """Makes the network of a run and what trains it.

  Args:
    env: batched, with auto-reset.
    observation_size: of the environment.
    config: of the run.
    schedule: of the run.
    axis_name: the device axis if there is more than one device.
    steps_before: network steps taken when the run goes on.

  Returns:
    A function from parameters to a policy, and the learner.
  """
  preprocess = brax_types.identity_observation_preprocessor
  if config.network.normalize_observations:
    preprocess = running_statistics.normalize
  ppo_networks = config.network.network_factory(
    observation_size, env.action_size, preprocess_observations_fn=preprocess
  )
  make_policy = inference.make_inference_fn(
    ppo_networks,
    compute_value=config.loss.needs_old_value,
    use_distributional_critic=config.loss.use_distributional_critic,
  )
  logger = episode_metrics.make_logger(
    config.reporting, schedule.env_steps_per_training_step, steps_before
  )
  return make_policy, Learner(
    env=env,
    networks=as_functions(ppo_networks, observation_size),
    config=config,
    schedule=schedule,
    axis_name=axis_name,
    episode_logger=logger,
    guarded=guards.active(),
  )


def initial_state(
  learner: Learner,
  keys: tuple[jax.Array, jax.Array],
  observation_spec: Any,
  restored: bool,
) -> TrainingState:
  """Returns the state before the first step.

  Args:
    learner: of the run.
    keys: for the weights of the policy and of the value function.
    observation_spec: of Brax's running statistics.
    restored: start from the parameters that the run was given, if any.

  Raises:
    ValueError: if they do not fit, or an option does not.
  """
  config = learner.config
  state = learner.init(*keys, observation_spec)
  if restored:
    state = restoring.restore(
      state,
      config.checkpoint,
      learner.networks,
      config.network.network_factory,
    )
  if config.network.normalize_observations:
    checks.warn_of_two_normalizers(state.variables.statistics)
  return state
