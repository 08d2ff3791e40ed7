"""Policies that play outside training."""

import functools
from typing import Any

from brax import envs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import playing
from tests import fakes
from tests import small_runs
from tests import toy_envs

KEY = jax.random.PRNGKey(0)


def _policy(factory: Any, size: Any, actions: int = 1, **kwargs: Any) -> Any:
  """A policy with initial parameters."""
  networks = factory(size, actions)
  keys = jax.random.split(jax.random.PRNGKey(1))
  params = (None, *networks.functions.init(*keys).inference_params())
  return ppo_networks.make_inference_fn(networks)(params, **kwargs)


@pytest.fixture(scope='module')
def count():
  """A policy whose action is the number of steps since the reset."""
  return functools.partial(
    _policy, ppo_networks.make_network_factory(fakes.count_network)
  )


def test_memory_is_cleared_in_the_rows_whose_episode_ends(count):
  env = fakes.ScriptEnv(ends=((3,), ()))

  played = playing.rollout(env, count((2,)), KEY, 6, batch_size=2)

  assert played.actions[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1]
  assert played.actions[:, 1, 0].tolist() == [0, 1, 2, 3, 4, 5]
  assert played.dones.T.tolist() == [[0, 0, 0, 1, 0, 0], [0] * 6]
  assert played.rewards.shape == (6, 2)
  # The states are those of row 0, in which the actions were taken.
  clock = [state.obs[0].item() for state in played.states]
  assert clock == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
  ('end', 'limits', 'counts', 'reward'),
  [
    (4, {}, [0, 1, 2, 3, 0, 1, 2, 3], 1),
    (1000, {'episode_length': 3}, [0, 1, 2, 0, 1, 2, 0, 1], 1),
    (1000, {'episode_length': None}, [*range(8)], 1),
    (
      1000,
      {'episode_length': 6, 'action_repeat': 2},
      [0, 1, 2, 0, 1, 2, 0, 1],
      2,
    ),
  ],
  ids=['done', 'time limit', 'no limit', 'action repeat'],
)
def test_each_episode_of_one_environment_starts_afresh(
  count, end, limits, counts, reward
):
  played = playing.rollout(toy_envs.TickEnv(end), count((1,)), KEY, 8, **limits)

  assert played.actions[:, 0].tolist() == counts
  over = [float(after == 0) for after in (*counts[1:], 1)]
  over[-1] = float(counts[-1] == 3)
  assert played.dones.tolist() == over
  assert played.rewards.tolist() == [reward] * 8
  repeat = limits.get('action_repeat', 1)
  ticks = [state.obs.item() for state in played.states]
  assert ticks == [repeat * n for n in counts]


@pytest.mark.parametrize(
  'factory', [small_runs.small_mlp, small_runs.small_lstm], ids=['MLP', 'LSTM']
)
def test_states_and_actions_belong_together(factory):
  env, policy = toy_envs.DriftEnv(), _policy(factory, (3,))

  played = playing.rollout(env, policy, KEY, 12, episode_length=5)

  assert 2 < np.sum(played.dones) < 12
  assert len(played.states) == 12
  step = jax.jit(env.step)
  for t, state in enumerate(played.states):
    after = step(state, played.actions[t])
    np.testing.assert_allclose(after.reward, played.rewards[t], rtol=1e-5)
    if t < 11 and not played.dones[t]:
      np.testing.assert_allclose(after.obs, played.states[t + 1].obs, rtol=1e-5)
  starts = [0, *(np.flatnonzero(played.dones[:-1]) + 1)]
  first = np.array([played.states[t].obs for t in starts])
  assert len(np.unique(first, axis=0)) == len(starts)
  again = playing.rollout(env, policy, KEY, 12, episode_length=5)
  np.testing.assert_array_equal(again.actions, played.actions)


def test_states_are_kept_as_often_as_asked(count):
  play = functools.partial(
    playing.rollout, toy_envs.TickEnv(), count((1,)), KEY, 6
  )

  some = play(render_every=3)
  assert [state.obs.item() for state in some.states] == [0, 3]
  none = play(render_every=None)
  assert none.states == []
  for played in (some, none):
    assert played.actions[:, 0].tolist() == [*range(6)]


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_steps': 0}, 'at least 1; got 0'),
    ({'num_steps': 4, 'action_repeat': 0}, 'at least 1'),
    ({'num_steps': 10, 'render_every': 4}, 'Take 8 or 12 steps'),
  ],
)
def test_impossible_numbers_are_refused(count, arguments, message):
  with pytest.raises(ValueError, match=message):
    playing.rollout(toy_envs.TickEnv(), count((1,)), KEY, **arguments)


def test_dict_observations_and_wrapped_environments():
  env: Any = small_runs.PointEnv(dict_observations=True)
  size = {'state': (2,), 'privileged_state': (3,)}
  policy = _policy(
    functools.partial(small_runs.small_lstm, value_obs_key='privileged_state'),
    size,
  )
  wrapped = envs.training.wrap(env, episode_length=4)

  played = playing.rollout(wrapped, policy, KEY, 8, batch_size=3)

  assert played.actions.shape == (8, 3, 1)
  assert np.all(played.dones[3] == 1) and np.sum(played.dones) >= 6
  assert played.states[0].obs['state'].shape == (2,)
  assert jnp.all(jnp.isfinite(played.rewards))
