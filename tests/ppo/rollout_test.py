"""Tests of acting: when memory is cleared, and what a segment records."""

import functools
from typing import Any

from brax import envs
from brax.training import acting
from brax.training.agents.ppo import networks as brax_ppo_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo.networks import make_inference_fn
from brax_nnx_plugin.ppo.networks import make_network_factory
from tests import fakes
from tests import segments
from tests import toy_envs


class _TraceEnv(fakes.ScriptEnv):
  """Keeps all actions in `info['trace']`, `[B, horizon]`."""

  def reset(self, rng):
    state: Any = super().reset(rng)
    trace = jnp.zeros((rng.shape[0], len(self.ends)))
    return state.replace(info={**state.info, 'trace': trace})

  def step(self, state, action):
    clock = state.info['clock'][0]
    trace = state.info['trace'].at[:, clock].set(action[:, 0])
    next_state: Any = super().step(state, action)
    return next_state.replace(info={**next_state.info, 'trace': trace})


# Row 0 ends with its fourth step, row 1 never: only row 0 begins anew.
COUNTS = [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize('deterministic', [False, True])
def test_evaluation_clears_the_memory_of_ended_rows_only(deterministic):
  env: Any = _TraceEnv([[3], []])
  env = envs.training.EvalWrapper(env)
  functions = segments.module_functions(env, fakes.count_network)
  env_state = rollout.eval_rollout(
    env,
    functions,
    segments.init(functions),
    None,
    jax.random.PRNGKey(0),
    num_envs=2,
    num_steps=6,
    deterministic=deterministic,
  )
  np.testing.assert_array_equal(env_state.info['trace'][:, :6], COUNTS)


@pytest.mark.parametrize('deterministic', [False, True])
def test_policy_clears_the_memory_of_ended_rows_only(deterministic):
  env: Any = fakes.ScriptEnv([[3], []])
  networks = make_network_factory(fakes.count_network)((2,), 1)
  variables = segments.init(networks.functions)
  params = (None, *variables.inference_params())
  policy = make_inference_fn(networks)(params, deterministic)
  env_state = env.reset(jax.random.split(jax.random.key(0), 2))
  memory = policy.initial_state(2)
  actions = []
  for _ in range(6):
    action, extras = policy(env_state.obs, jax.random.PRNGKey(0), memory)
    env_state = env.step(env_state, action)
    memory = policy.reset(extras['state'], env_state.done)
    actions.append(action[:, 0])
  np.testing.assert_array_equal(np.stack(actions, axis=1), COUNTS)


@pytest.mark.parametrize('truncated', [False, True])
def test_memory_is_cleared_by_the_step_after_the_one_that_ended(truncated):
  env: Any = fakes.ScriptEnv([[2]], truncated)
  functions, variables, data = segments.recorded(fakes.echo_network, env, 1, 5)
  # The network sees t = 0, 1, 2 and then 0, 1 of the next episode, and says
  # what it saw before: nothing (-1), 0, 1 and nothing, 0.
  np.testing.assert_array_equal(data.observation[0, :, 0], [0, 1, 2, 0, 1])
  np.testing.assert_array_equal(data.loc[0, :, 0], [-1, 0, 1, -1, 0])
  np.testing.assert_array_equal(data.value[0], [-1, 0, 1, -1, 0])
  out, _ = segments.replay(functions, variables, data)
  np.testing.assert_array_equal(out.loc[:, 0], data.loc[0])
  np.testing.assert_array_equal(out.value[:, 0], data.value[0])


def test_each_segment_keeps_the_carry_before_its_first_step():
  env: Any = fakes.ScriptEnv([[], []])
  functions, variables, data = segments.recorded(
    fakes.count_network, env, 2, 3, 4
  )
  # 4 consecutive segments of 3 steps for each of 2 rows, segment by segment.
  for side in ('action', 'value'):
    starts = data.start_carry[side][0].reshape((4, 2))
    np.testing.assert_array_equal(starts.T, [[0, 3, 6, 9]] * 2)
  np.testing.assert_array_equal(
    data.start_is_first.reshape((4, 2)).T, [[1, 0, 0, 0]] * 2
  )
  order = jnp.array([5, 0, 7, 2, 4, 1, 6, 3])
  shuffled = jax.tree.map(lambda x: x[order], data)
  out, _ = segments.replay(functions, variables, shuffled)
  np.testing.assert_array_equal(out.loc[..., 0].T, shuffled.loc[..., 0])
  np.testing.assert_array_equal(
    out.loc[:, :2, 0].T,
    [[6, 7, 8], [0, 1, 2]],  # segments 5 // 2 and 0 // 2
  )


def test_actors_go_on_where_the_last_segment_ended():
  env: Any = fakes.ScriptEnv([[]])
  functions = segments.module_functions(env, fakes.count_network)
  variables = segments.init(functions)
  unroll = functools.partial(
    rollout.unroll_env, env, functions, variables, None
  )
  actors = segments.first_actors(env, functions, variables, 1)
  key = jax.random.PRNGKey(0)
  actors, data = unroll(actors, key, 3)
  np.testing.assert_array_equal(data.loc[:, 0, 0], [0, 1, 2])
  np.testing.assert_array_equal(data.last_observation, [[3, 0]])
  _, data = unroll(actors, key, 2)
  np.testing.assert_array_equal(data.loc[:, 0, 0], [3, 4])
  np.testing.assert_array_equal(data.observation[:, 0, 0], [3, 4])


class _FlagEnv(toy_envs.TickEnv):
  """Keeps notes of its own in `info`."""

  def reset(self, rng):
    state: Any = super().reset(rng)
    notes = {'my_flag': jnp.array(7, jnp.int8), 'deep': {'steps': jnp.zeros(2)}}
    return state.replace(info={**state.info, **notes})

  def step(self, state, action):
    notes = {'deep': {'steps': state.info['deep']['steps'] + 1}}
    following: Any = super().step(state, action)
    return following.replace(info={**following.info, **notes})


def test_notes_of_the_environment_stay_in_its_info():
  env = segments.wrapped(_FlagEnv(), 3)
  functions = segments.module_functions(env, fakes.count_network)
  variables = segments.init(functions)
  first = segments.first_actors(env, functions, variables, 2)

  actors, _ = rollout.unroll_env(
    env, functions, variables, None, first, jax.random.PRNGKey(0), 7
  )

  types = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
  # Nothing added, nothing lost, over two resets.
  assert types(actors.env_state) == types(first.env_state)
  info = actors.env_state.info
  np.testing.assert_array_equal(info['my_flag'], [7, 7])
  np.testing.assert_array_equal(info['deep']['steps'], 7 * np.ones((2, 2)))


def test_environment_reset_without_done_clears_the_memory():
  env: Any = fakes.ScriptEnv([[], []])
  functions = segments.module_functions(env, fakes.count_network)
  variables = segments.init(functions)
  actors = segments.first_actors(env, functions, variables, 2)
  key = jax.random.PRNGKey(0)
  for _ in range(3):
    actors, data = rollout.unroll_env(
      env, functions, variables, None, actors, key, 3
    )
    np.testing.assert_array_equal(data.loc[..., 0].T, [[0, 1, 2]] * 2)
    env_state = env.reset(jax.random.split(key, 2))
    np.testing.assert_array_equal(env_state.done, [0, 0])
    actors = rollout.start(env_state, actors.carry)


@pytest.mark.parametrize(
  ('end', 'counts', 'done'),
  [
    # An end with the last of three repeats is reported: the count begins anew.
    (3, [0, 0, 0, 0], [1, 1, 1, 1]),
    (6, [0, 1, 0, 1], [0, 1, 0, 1]),
    # Brax loses an end in the middle of the repeats; only the time limit of 9
    # env steps, 3 network steps, remains.
    (5, [0, 1, 2, 0], [0, 0, 1, 0]),
  ],
)
def test_action_repeat_steps_memory_once_and_clears_it_by_the_reported_done(
  end, counts, done
):
  env = segments.wrapped(toy_envs.TickEnv(end), 9, action_repeat=3)
  _, _, data = segments.recorded(fakes.count_network, env, 1, 4)
  np.testing.assert_array_equal(data.loc[0, :, 0], counts)
  np.testing.assert_array_equal(data.done[0], done)
  np.testing.assert_array_equal(data.reward[0], [3, 3, 3, 3])


def test_stock_network_acts_as_in_generate_unroll():
  env = segments.wrapped(toy_envs.DriftEnv(), episode_length=5)
  networks = segments.stock_networks()
  functions = segments.network_functions(env, lambda *a, **k: networks)
  variables = segments.init(functions)
  statistics = segments.stock_statistics()
  actors = segments.first_actors(env, functions, variables, 3)
  key = jax.random.PRNGKey(4)

  policy = brax_ppo_networks.make_inference_fn(networks, compute_value=True)(
    (statistics, variables.params.policy, variables.params.value)
  )
  final, expected = acting.generate_unroll(
    env, actors.env_state, policy, key, 12, extra_fields=('truncation',)
  )
  ours, data = rollout.unroll_env(
    env, functions, variables, statistics, actors, key, 12, store_value=True
  )

  extras: Any = expected.extras
  pairs = {
    'observation': (data.observation, expected.observation),
    'last observation': (data.last_observation, expected.next_observation[-1]),
    'final observation': (ours.env_state.obs, final.obs),
    'reward': (data.reward, expected.reward),
    'done': (1 - data.done, expected.discount),
    'truncation': (data.truncation, extras['state_extras']['truncation']),
    'raw action': (data.extras, extras['policy_extras']['raw_action']),
    'log prob': (data.log_likelihood, extras['policy_extras']['log_prob']),
    'value': (data.value, extras['policy_extras']['value']),
  }
  for name, (got, want) in pairs.items():
    np.testing.assert_array_equal(got, want, err_msg=name)
  # Both kinds of end occur, or the flags could be anything.
  assert 0 < np.sum(data.truncation) < np.sum(data.done)


def test_missing_info_is_an_error_that_names_the_wrapper():
  env: Any = toy_envs.DriftEnv()
  env = envs.training.VmapWrapper(env)
  with pytest.raises(ValueError, match=r"info\['truncation'\].*EpisodeWrapper"):
    segments.recorded(fakes.count_network, env, 1, 1)


def test_missing_optional_info_is_an_error_that_names_it():
  env = segments.wrapped(toy_envs.TickEnv())
  with pytest.raises(ValueError, match=r"info\['time_out'\]"):
    segments.recorded(fakes.count_network, env, 1, 1, info_fields=['time_out'])
