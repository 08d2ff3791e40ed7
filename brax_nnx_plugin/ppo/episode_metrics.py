"""Metrics of training episodes, gathered while training goes on."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from brax.training import logger as metric_logger
import jax

from brax_nnx_plugin.ppo import processes
from brax_nnx_plugin.ppo.config import ReportingConfig


def make_logger(
  config: ReportingConfig,
  env_steps_per_training_step: int,
  steps_before: int = 0,
) -> Callable[..., None] | None:
  """Makes what is called with episode metrics and losses.

  Every process logs the episodes of its own devices; only the first reports
  them, in env steps of all.

  Args:
    config: of the run.
    env_steps_per_training_step: of all processes.
    steps_before: taken when the run goes on, of all processes.

  Returns:
    The function, or `None` if nothing is to be logged.
  """
  if not config.log_training_metrics:
    return None
  count = jax.process_count()
  steps = config.training_metrics_steps or env_steps_per_training_step

  def report(env_steps: int, metrics: Mapping[str, Any]) -> None:
    if processes.is_main():
      sps = {'episode/sps': metrics['episode/sps'] * count}
      config.progress_fn(steps_before + env_steps * count, {**metrics, **sps})

  return metric_logger.EpisodeMetricsLogger(
    steps_between_logging=max(1, steps // count), progress_fn=report
  ).update_episode_metrics
