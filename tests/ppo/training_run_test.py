"""The states of a run: what is on the devices between epochs."""

import dataclasses
from typing import Any

from brax.training import types as brax_types
import jax
import numpy as np
import pytest

from brax_nnx_plugin.ppo import evaluation
from brax_nnx_plugin.ppo.training_run import TrainingRun
from tests import fakes
from tests import small_runs


def _run(**overrides: Any) -> TrainingRun:
  return TrainingRun(small_runs.config(**overrides))


def _normalized_mlp(*args: Any, **kwargs: Any) -> Any:
  return small_runs.small_mlp(*args, normalize_inputs=True, **kwargs)


def _types(tree: Any) -> Any:
  """Paths, shapes, dtypes and weakness of all leaves."""
  return [
    (jax.tree_util.keystr(path), leaf.shape, leaf.dtype, leaf.weak_type)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


@pytest.mark.parametrize('device_count', [1, 2])
def test_an_epoch_keeps_every_type_and_leads_with_the_device_axis(device_count):
  run = _run(
    num_timesteps=small_runs.STEP,
    max_devices_per_host=device_count,
    network_factory=small_runs.small_lstm,
  )
  before = _types((run.state, run.actors))

  run.train_round()

  after = _types((run.state, run.actors))
  assert [leaf[:3] for leaf in after] == [leaf[:3] for leaf in before]
  assert all(shape[0] == device_count for _, shape, _, _ in after)
  carry = _types(run.actors.carry)
  assert [shape for _, shape, _, _ in carry] == 4 * [
    (device_count, 4 // device_count, 3)
  ]
  assert not any(weak for _, _, _, weak in carry)


@pytest.mark.parametrize('device_count', [1, 2])
def test_embedded_statistics_are_those_of_all_devices(device_count):
  # Without a push the observation of a row stays: the data is known.
  run = _run(
    environment=small_runs.PointEnv(gain=0.0),
    num_timesteps=small_runs.STEP,
    max_devices_per_host=device_count,
    network_factory=_normalized_mlp,
  )
  positions = np.asarray(run.actors.env_state.obs).reshape((4, 2))
  run.train_round()

  statistics = run.state.variables.statistics.policy['statistics']
  leaves = jax.tree.leaves(statistics)  # M2, counter, mean
  # 8 segments of 4 steps, each row as often as any other.
  expected = (32 * positions.var(axis=0), 32.0, positions.mean(axis=0))
  for leaf, number in zip(leaves, expected, strict=True):
    assert len(leaf) == device_count
    for copy in np.asarray(leaf):
      np.testing.assert_allclose(copy, number, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope='module')
def trained_lstm():
  run = _run(
    num_timesteps=small_runs.STEP, network_factory=small_runs.small_lstm
  )
  run.train_round()
  return run


@pytest.mark.parametrize('num_eval_envs', [1, 3, 128])
def test_a_network_is_evaluated_in_any_number_of_environments(
  trained_lstm, num_eval_envs
):
  # Trained in 4 environments. The script ends every episode at step 3 of 5.
  env = fakes.ScriptEnv([[2]] * num_eval_envs)
  functions = small_runs.small_lstm((2,), 1).functions
  evaluator = evaluation.Evaluator(
    env,
    functions,
    num_eval_envs=num_eval_envs,
    episode_length=5,
    action_repeat=1,
    key=jax.random.PRNGKey(0),
    deterministic=False,
  )
  state = jax.tree.map(lambda x: x[0], trained_lstm.state)

  metrics = evaluator.run(state, {'training/sps': 1.0})

  assert metrics['eval/episode_reward'] == 3
  assert metrics['eval/avg_episode_length'] == 3
  assert metrics['eval/episode_reward_std'] == 0
  assert metrics['training/sps'] == 1.0


def test_rounds_count_env_steps_and_time():
  run = _run(num_timesteps=4 * small_runs.STEP, num_evals=3, action_repeat=2)

  first = run.train_round()
  assert run.env_steps == 2 * small_runs.STEP
  second = run.train_round()

  assert run.env_steps == 4 * small_runs.STEP
  # The second round does not compile; its walltime is on top.
  added = second['training/walltime'] - first['training/walltime']
  np.testing.assert_allclose(
    second['training/sps'], 2 * small_runs.STEP / added, rtol=1e-3
  )


def test_params_are_the_first_copy(trained_lstm):
  normalizer, policy, value = trained_lstm.params()

  variables = trained_lstm.state.variables
  for side, tree in (('policy', policy), ('value', value)):
    expected = jax.tree.map(
      lambda x: np.asarray(x)[0], getattr(variables.params, side)
    )
    jax.tree.map(np.testing.assert_array_equal, tree, expected)
  assert normalizer.mean.shape == (2,)


def test_env_steps_are_exact_beyond_32_bits(trained_lstm):
  before = brax_types.UInt64(hi=0, lo=2**32 - small_runs.STEP - 1)  # pyright: ignore[reportCallIssue]
  replicated = jax.tree.map(lambda x: x[None], before)
  trained_lstm.state = dataclasses.replace(
    trained_lstm.state, env_steps=replicated
  )

  counts = []
  for _ in range(3):
    trained_lstm.train_round()
    counts.append(trained_lstm.env_steps)

  # One below, one beyond; a float of 32 bits knows neither.
  assert counts == [2**32 - 1 + n * small_runs.STEP for n in range(3)]
  assert all(isinstance(n, int) for n in counts)
