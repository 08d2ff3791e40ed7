"""What evaluations and later epochs must leave alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import parity_envs
from tests import small_runs

pytestmark = pytest.mark.slow

_NETWORKS: dict[str, Any] = {
  'stock': parity_envs.stock_mlp,
  'lstm': small_runs.small_lstm,
}


def _bits(**overrides: Any) -> list[bytes]:
  """The parameters that `train` returns, normalizer included, as bytes."""
  _, params, _ = small_runs.small_train(
    num_timesteps=4 * small_runs.STEP, normalize_observations=True, **overrides
  )
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]


@pytest.mark.parametrize('network', _NETWORKS)
def test_evaluations_change_no_bit_of_the_parameters(network):
  common = {'network_factory': _NETWORKS[network]}
  never = _bits(num_evals=0, **common)

  # Up to two evaluations all training lies between them.
  assert _bits(num_evals=1, run_evals=True, **common) == never
  assert _bits(num_evals=2, run_evals=True, **common) == never
  other: dict[str, Any] = {
    'num_eval_envs': 3,
    'deterministic_eval': True,
    'eval_env': small_runs.PointEnv(gain=0.7),
  }
  assert _bits(num_evals=2, run_evals=True, **other, **common) == never
  # Brax draws a key for each round between evaluations, so their number does
  # matter (the parity tests see that it does so as in Brax), but not whether
  # anybody looks.
  rounds = _bits(num_evals=3, **common)
  assert _bits(num_evals=3, run_evals=True, **common) == rounds
  assert rounds != never


_STOCK_RUNS: dict[str, dict[str, Any]] = {
  'quantiles, adaptive learning rate': {
    'network_factory': parity_envs.stock_quantiles,
    'use_distributional_critic': True,
    'clipping_epsilon_value': 0.5,
    'learning_rate_schedule': 'ADAPTIVE_KL',
    'normalize_observations': True,
    'log_training_metrics': True,
    'num_resets_per_eval': 1,
  },
  'augmented pixels on two devices': {
    'environment': parity_envs.PixelEnv(jnp.uint8),
    'network_factory': parity_envs.stock_vision_and_state,
    'augment_pixels': True,
    'max_devices_per_host': 2,
  },
}


@pytest.mark.parametrize('name', _STOCK_RUNS)
def test_nothing_of_a_stock_network_compiles_after_the_first_epoch(
  compilation_count, name
):
  counts = {}

  def report(step: int, metrics: Any) -> None:
    if any(key.startswith('eval/') for key in metrics):
      counts[step] = compilation_count[0]

  small_runs.small_train(
    num_timesteps=3 * small_runs.STEP,
    num_evals=4,
    run_evals=True,
    progress_fn=report,
    **_STOCK_RUNS[name],
  )

  before, first, *later = counts.values()
  assert first > before
  assert later == [first] * 2
