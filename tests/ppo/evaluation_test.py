"""Tests of evaluation: what is added up, over which steps."""

import types
from typing import Any

from brax import envs
from brax.training import acting
from brax.training.agents.ppo import networks as brax_ppo_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo.evaluation import Evaluator
from tests import fakes
from tests import learners
from tests import segments
from tests import toy_envs


def _state(functions, normalizer_params=None) -> Any:
  """What an evaluator reads of the training state."""

  return types.SimpleNamespace(
    variables=segments.init(functions), normalizer_params=normalizer_params
  )


def _evaluator(
  env, functions, *, num_eval_envs=2, deterministic=False, **kwargs
):
  return Evaluator(
    env,
    functions,
    num_eval_envs=num_eval_envs,
    key=jax.random.PRNGKey(0),
    deterministic=deterministic,
    **({'action_repeat': 1} | kwargs),
  )


@pytest.mark.parametrize('deterministic', [False, True])
def test_return_and_length_are_those_of_the_first_episode(deterministic):
  # Reward 1; row 0 ends after 10 steps, row 1 after 4 and then again.
  env = fakes.ScriptEnv([[9], [3, 7]])
  functions = segments.module_functions(env, fakes.count_network)
  evaluator = _evaluator(
    env, functions, episode_length=10, deterministic=deterministic
  )
  metrics = evaluator.run(_state(functions), {'training/sps': 5.0})
  assert metrics['eval/episode_reward'] == (10 + 4) / 2
  assert metrics['eval/episode_reward_std'] == 3
  assert metrics['eval/avg_episode_length'] == 7
  assert metrics['eval/std_episode_length'] == 3
  assert metrics['training/sps'] == 5.0


def test_rows_are_counted_on_their_own():
  env: Any = fakes.ScriptEnv([[9], [3, 7]])
  env = envs.training.EvalWrapper(env)
  functions = segments.module_functions(env, fakes.count_network)
  sums = rollout.eval_rollout(
    env,
    functions,
    segments.init(functions),
    None,
    jax.random.PRNGKey(0),
    num_envs=2,
    num_steps=10,
  ).info['eval_metrics']
  np.testing.assert_array_equal(sums.episode_steps, [10, 4])
  np.testing.assert_array_equal(sums.episode_metrics['reward'], [10, 4])


def test_action_repeat_counts_env_steps():
  # 2 network steps of 3 repeats, each worth a reward of 1.
  env = segments.wrapped(toy_envs.TickEnv(), 6, action_repeat=3)
  functions = segments.module_functions(env, fakes.count_network)
  evaluator = _evaluator(env, functions, episode_length=6, action_repeat=3)
  metrics = evaluator.run(_state(functions), {})
  assert metrics['eval/avg_episode_length'] == 6
  assert metrics['eval/episode_reward'] == 6


def test_action_repeat_divides_the_network_steps():
  # Episodes without an end would count every step that is taken: 6 / 3.
  env = fakes.ScriptEnv([[], []])
  functions = segments.module_functions(env, fakes.count_network)
  evaluator = _evaluator(env, functions, episode_length=6, action_repeat=3)
  metrics = evaluator.run(_state(functions), {})
  assert metrics['eval/avg_episode_length'] == 2
  assert metrics['eval/episode_reward'] == 2


def test_every_evaluation_has_a_key_and_fresh_episodes_of_its_own():
  env = segments.wrapped(toy_envs.DriftEnv(), episode_length=4)
  functions = segments.network_functions(env, learners.small_factory('lstm'))
  evaluator = _evaluator(env, functions, episode_length=4, num_eval_envs=3)
  state = _state(functions)
  a, b = (evaluator.run(state, {}) for _ in range(2))
  assert a['eval/episode_reward'] != b['eval/episode_reward']
  assert b['eval/walltime'] > a['eval/walltime']
  same = _evaluator(env, functions, episode_length=4, num_eval_envs=3)
  assert same.run(state, {})['eval/episode_reward'] == a['eval/episode_reward']


class _PerStepEnv(toy_envs.DriftEnv):
  """Has metrics, one of which is to be divided by the episode's length."""

  def reset(self, rng):
    zero = jnp.array(0.0)
    state: Any = super().reset(rng)
    return state.replace(metrics={'size': zero, 'x_per_step': zero})

  def step(self, state, action):
    next_state: Any = super().step(state, action)
    size = jnp.abs(jnp.asarray(next_state.obs)).sum()
    metrics = {**state.metrics, 'size': size, 'x_per_step': size}
    return next_state.replace(metrics=metrics)


@pytest.mark.parametrize('deterministic', [False, True])
def test_metrics_of_a_stock_network_are_those_of_brax(deterministic):
  env = segments.wrapped(_PerStepEnv(limit=0.2), episode_length=6)
  networks = segments.stock_networks()
  functions = segments.network_functions(env, lambda *a, **k: networks)
  statistics = segments.stock_statistics()
  state = _state(functions, statistics)
  make_policy = brax_ppo_networks.make_inference_fn(networks)
  stock = acting.Evaluator(
    env,
    lambda params: make_policy(params, deterministic=deterministic),
    num_eval_envs=8,
    episode_length=6,
    action_repeat=1,
    key=jax.random.PRNGKey(0),
  )
  ours = _evaluator(
    env,
    functions,
    episode_length=6,
    num_eval_envs=8,
    deterministic=deterministic,
  )
  params = state.variables.params
  training_metrics: Any = {'training/a': 1.0}
  for _ in range(2):
    expected = stock.run_evaluation(
      (statistics, params.policy, params.value), training_metrics
    )
    metrics = ours.run(state, training_metrics)
    assert list(metrics) == list(expected)
    assert 2 < metrics['eval/avg_episode_length'] < 6
    for name, value in expected.items():
      if name not in ('eval/sps', 'eval/walltime', 'eval/epoch_eval_time'):
        np.testing.assert_array_equal(metrics[name], value, err_msg=name)
