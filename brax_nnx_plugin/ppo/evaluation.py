"""Evaluation: fresh episodes with a fresh carry.

The twin of `brax.training.acting.Evaluator`, with its metric names and keys.
"""

from collections.abc import Mapping
import functools
import time
from typing import Any
from typing import cast

from brax import envs
import jax
import numpy as np

from brax_nnx_plugin.ppo import environments
from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.types import NetworkFunctions
from brax_nnx_plugin.ppo.types import TrainingState


class Evaluator:
  """Runs one episode in each of many environments.

  Attributes:
    key: of the next evaluation.
    walltime: seconds so far.
  """

  def __init__(
    self,
    env: Any,
    networks: NetworkFunctions,
    *,
    num_eval_envs: int,
    episode_length: int,
    action_repeat: int,
    key: jax.Array,
    deterministic: bool,
    walltime: float = 0.0,
  ):
    """Prepares an evaluation; nothing is compiled yet.

    Args:
      env: batched, with episodes and auto-reset.
      networks: the network.
      num_eval_envs: one episode each.
      episode_length: env steps.
      action_repeat: env steps per network step.
      key: a new one is split off for each evaluation.
      deterministic: act by the mode.
      walltime: seconds of the evaluations so far.
    """
    self.key = key
    self.walltime = walltime
    self._env_steps = episode_length * num_eval_envs
    self._run = jax.jit(
      functools.partial(
        rollout.eval_rollout,
        envs.training.EvalWrapper(env),
        networks,
        num_envs=num_eval_envs,
        num_steps=episode_length // action_repeat,
        deterministic=deterministic,
      )
    )

  def run(
    self, state: TrainingState, training_metrics: Mapping[str, Any]
  ) -> dict[str, Any]:
    """Evaluates once.

    Args:
      state: of training, one copy.
      training_metrics: returned along with the new ones.

    Returns:
      Brax's evaluation metrics: mean and standard deviation over episodes of
      return and length (env steps), and the time it took (seconds).
    """
    self.key, key = jax.random.split(self.key)
    begin = time.time()
    env_state = self._run(state.variables, state.normalizer_params, key)
    sums = jax.tree.map(np.asarray, env_state.info['eval_metrics'])
    seconds = time.time() - begin
    self.walltime += seconds

    lengths = np.maximum(sums.episode_steps, 1.0).astype(float)
    metrics: dict[str, Any] = {}
    for fn, suffix in ((np.mean, ''), (np.std, '_std')):
      for name, value in sums.episode_metrics.items():
        if name.endswith('per_step'):
          value = value / lengths
        metrics[f'eval/episode_{name}{suffix}'] = fn(value)
    metrics['eval/avg_episode_length'] = np.mean(sums.episode_steps)
    metrics['eval/std_episode_length'] = np.std(sums.episode_steps)
    metrics['eval/epoch_eval_time'] = seconds
    metrics['eval/sps'] = self._env_steps / seconds
    return {'eval/walltime': self.walltime, **training_metrics, **metrics}


def make_evaluator(
  config: TrainConfig,
  networks: NetworkFunctions,
  env_key: jax.Array,
  key: jax.Array,
  walltime: float = 0.0,
) -> Evaluator:
  """Makes the evaluator of a run.

  Args:
    config: of the run.
    networks: the network.
    env_key: for domain randomization.
    key: of the next evaluation.
    walltime: seconds of the evaluations so far.
  """
  evaluation, environment = config.evaluation, config.environment
  env = environments.wrap(
    evaluation.eval_env or environment.environment,
    environment,
    evaluation.num_eval_envs,
    env_key,
  )
  return Evaluator(
    env,
    networks,
    num_eval_envs=evaluation.num_eval_envs,
    episode_length=cast(int, environment.episode_length),
    action_repeat=environment.action_repeat,
    key=key,
    deterministic=evaluation.deterministic_eval,
    walltime=walltime,
  )
