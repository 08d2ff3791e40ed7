"""Runs that must end with the numbers of stock Brax."""

import functools
from typing import Any

from brax import envs
from brax.training.agents.ppo import train as brax_train
import jax
import numpy as np
import pytest

from brax_nnx_plugin.ppo import train as ppo_train
from tests import parity_envs
from tests import small_runs

pytestmark = pytest.mark.optimized

_ASYMMETRIC = functools.partial(
  small_runs.small_mlp, value_obs_key='privileged_state'
)
# Each changes something that the others leave at its default.
_CASES: dict[str, dict[str, Any]] = {
  **parity_envs.OPTIONS,
  'normalized': {'normalize_observations': True},
  'dict observations': {
    'environment': small_runs.PointEnv(dict_observations=True),
    'network_factory': _ASYMMETRIC,
    'normalize_observations': True,
  },
  'two devices': {'max_devices_per_host': 2, 'normalize_observations': True},
}


def _both(**overrides: Any) -> tuple[Any, Any]:
  """Runs this package and stock Brax with the same arguments."""
  ours = small_runs.small_train(**overrides)
  return ours, brax_train.train(**small_runs.arguments(**overrides))


@pytest.mark.slow
@pytest.mark.parametrize('case', _CASES)
def test_a_memoryless_network_ends_with_stock_parameters(stock_jax, case):
  ours, stock = _both(**_CASES[case])

  assert small_runs.largest_difference(ours[1][1:], stock[1][1:]) <= 1e-5
  # The normalizer too, whatever its tree looks like.
  assert small_runs.largest_difference(ours[1][0], stock[1][0]) <= 1e-4


@pytest.mark.slow
def test_brax_own_environment_ends_with_stock_parameters(stock_jax):
  env = envs.get_environment('fast', obs_mode='dict_state', asymmetric_obs=True)

  ours, stock = _both(environment=env, network_factory=_ASYMMETRIC)

  assert small_runs.largest_difference(ours[1][1:], stock[1][1:]) <= 1e-5


def test_parity_would_not_survive_another_seed(stock_jax):
  """The tolerance is far below what a wrong key would do."""
  first = small_runs.small_train(num_timesteps=0)
  second = small_runs.small_train(num_timesteps=0, seed=1)

  assert small_runs.largest_difference(first[1][1:], second[1][1:]) > 1e-2


def _reported_run(train: Any) -> Any:
  """Runs `train` with all reports; returns its result and what it reported."""
  reported: list[tuple[int, dict[str, Any]]] = []
  params: list[tuple[int, Any]] = []
  arguments = small_runs.arguments(
    num_evals=3,
    run_evals=True,
    num_eval_envs=3,
    log_training_metrics=True,
    progress_fn=lambda step, metrics: reported.append((step, dict(metrics))),
    policy_params_fn=lambda step, make, p: params.append((step, p)),
  )
  result = train(**arguments)
  jax.effects_barrier()
  return result, reported, params


@pytest.fixture(scope='module')
def reported_runs(stock_jax):
  return _reported_run(ppo_train.train), _reported_run(brax_train.train)


def _select(run: Any, prefix: str) -> list[tuple[int, dict[str, Any]]]:
  """Returns those reports of a run that have metrics of one kind, and these.

  What depends on the clock is left out.
  """
  clock = ('sps', 'walltime', 'eval_time')
  selected = []
  for step, metrics in run[1]:
    kept = {
      k: v
      for k, v in metrics.items()
      if k.startswith(prefix) and not k.endswith(clock)
    }
    if kept:
      selected.append((step, kept))
  return selected


@pytest.mark.slow
@pytest.mark.parametrize('prefix', ['eval/', 'training/', 'episode/'])
def test_reports_have_the_steps_and_numbers_of_stock(reported_runs, prefix):
  ours, stock = (_select(run, prefix) for run in reported_runs)

  assert [step for step, _ in ours] == [step for step, _ in stock]
  assert len(stock) >= 2
  for (_, mine), (_, theirs) in zip(ours, stock, strict=True):
    for name, value in theirs.items():
      np.testing.assert_allclose(
        np.asarray(mine[name]), value, rtol=1e-3, atol=1e-5, err_msg=name
      )


@pytest.mark.slow
def test_whatever_stock_reports_is_reported(reported_runs):
  ours, stock = (
    [(step, set(metrics)) for step, metrics in run[1]] for run in reported_runs
  )
  returned = [set(run[0][2]) for run in reported_runs]

  for (_, mine), (_, theirs) in zip(ours, stock, strict=True):
    assert mine >= theirs
  assert returned[0] >= returned[1]
  # What comes on top is what only our networks have.
  assert all(
    name.startswith(('training/network/', 'training/regularization_loss'))
    for name in returned[0] - returned[1]
  )


@pytest.mark.slow
def test_the_parameters_callback_sees_those_of_stock(reported_runs):
  ours, stock = (run[2] for run in reported_runs)

  assert [step for step, _ in ours] == [step for step, _ in stock]
  assert [step for step, _ in ours] == [0, 160, 320]
  for (_, mine), (_, theirs) in zip(ours, stock, strict=True):
    assert small_runs.largest_difference(mine[1:], theirs[1:]) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
  'network_factory', [small_runs.small_mlp, parity_envs.stock_mlp]
)
def test_no_time_steps_return_the_initial_policy_of_stock(network_factory):
  ours, stock = _both(num_timesteps=0, network_factory=network_factory)

  assert ours[2] == stock[2] == {}
  assert small_runs.largest_difference(ours[1], stock[1]) == 0
