"""Delaying observations, against queues in NumPy."""

import collections
import json
from typing import Any

from brax.envs.base import State
from brax.envs.wrappers import training
import jax
import jax.numpy as jnp
from mujoco_playground import wrapper
from mujoco_playground._src import mjx_env
import numpy as np
import pytest

from launchers import configs
from launchers import description
from launchers import saved
from launchers import train_ppo
from launchers.delaying import DelayObservations
from launchers.errors import UserError

_BOUND = 9.0


class _Walk:
  """Adds its action to a position; ends when the first passes a bound."""

  action_size = 2
  observation_size = 2

  def _state(self, position, info):
    done = (position[0] > _BOUND).astype(jnp.float32)
    return mjx_env.State(position, position * 10, position[0], done, {}, info)

  def reset(self, rng):
    start = jax.random.randint(rng, (2,), 0, 4).astype(jnp.float32)
    return self._state(start, {'own': jnp.zeros(())})

  def step(self, state, action):
    return self._state(state.data + action, state.info)

  @property
  def unwrapped(self):
    return self


class _BraxWalk(_Walk):
  """The same with Brax's kind of state."""

  def _state(self, position, info):
    done = (position[0] > _BOUND).astype(jnp.float32)
    return State(position, position * 10, position[0], done, {}, info)

  def step(self, state: Any, action):
    return self._state(state.pipeline_state + action, state.info)


class _Sum(_Walk):
  """Adds all observations of an episode up, in the observation itself."""

  def step(self, state, action):
    new: Any = super().step(state, action)
    return new.replace(obs=new.obs + state.obs)


class _Dict(_Walk):
  def reset(self, rng):
    state: Any = super().reset(rng)
    return state.replace(obs={'state': state.obs, 'privileged': state.obs})


_WRAPPERS = [
  (_Walk, wrapper.wrap_for_brax_training),
  (_BraxWalk, training.wrap),
]


class _Row:
  """One environment with auto-reset and a delay, in NumPy."""

  def __init__(self, start, delay):
    self.start, self.delay = start, delay
    self._begin()

  def _begin(self):
    self.position, self.steps = self.start.copy(), 0
    first = self.start * 10
    self.queue = collections.deque([first] * (self.delay + 1))

  def step(self, action, repeat, length):
    """Returns what is shown after an action, and whether an episode ended."""
    for _ in range(repeat):
      self.position = self.position + action
      self.queue.append(self.position * 10)
      self.queue.popleft()
    self.steps += repeat
    done = self.position[0] > _BOUND or self.steps >= length
    if done:
      self._begin()
    return self.queue[0], done


@pytest.mark.parametrize(('make', 'wrap'), _WRAPPERS)
@pytest.mark.parametrize(
  ('delay', 'repeat', 'length'),
  [(1, 1, 5), (2, 1, 3), (3, 1, 3), (4, 1, 1), (1, 3, 6), (2, 3, 3), (5, 2, 8)],
)
def test_it_is_a_queue_that_is_filled_anew_at_each_reset(
  make, wrap, delay, repeat, length
):
  env: Any = wrap(
    DelayObservations(make(), delay),
    episode_length=length,
    action_repeat=repeat,
  )
  state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), 4))
  first = np.asarray(state.obs)
  rows = [_Row(start, delay) for start in first / 10]
  step = jax.jit(env.step)
  rng = np.random.default_rng(0)
  ends = np.zeros(4)
  for _ in range(24):
    actions = rng.integers(0, 4, (4, 2)).astype(np.float32)
    state = step(state, actions)
    expected = [
      row.step(action, repeat, length)
      for row, action in zip(rows, actions, strict=True)
    ]
    np.testing.assert_array_equal(state.obs, [shown for shown, _ in expected])
    np.testing.assert_array_equal(state.done, [done for _, done in expected])
    ends += state.done
  assert (ends > 1).all()


def test_resets_to_new_states_show_nothing_of_the_episode_before():
  """With full resets, too; against the environment that is not delayed."""
  make = lambda env: wrapper.wrap_for_brax_training(
    env, episode_length=4, full_reset=True
  )
  delayed = make(DelayObservations(_Walk(), 2))
  plain = make(_Walk())
  keys = jax.random.split(jax.random.PRNGKey(1), 3)
  states: list[Any] = [jax.jit(env.reset)(keys) for env in (delayed, plain)]
  steps = [jax.jit(env.step) for env in (delayed, plain)]
  shown = [collections.deque([row] * 3) for row in np.asarray(states[1].obs)]
  for t in range(12):
    action = np.full((3, 2), 1.0 + t % 2, np.float32)
    states = [step(s, action) for step, s in zip(steps, states, strict=True)]
    raw = np.asarray(states[1].obs)
    for row, queue in enumerate(shown):
      queue.append(raw[row])
      queue.popleft()
      if states[1].done[row]:
        shown[row] = collections.deque([raw[row]] * 3)
    np.testing.assert_array_equal(states[0].obs, [q[0] for q in shown])
    np.testing.assert_array_equal(states[0].reward, states[1].reward)


def test_an_environment_reads_its_own_last_observation():
  envs: list[Any] = [_Sum(), DelayObservations(_Sum(), 2)]
  states = [env.reset(jax.random.PRNGKey(0)) for env in envs]
  raw = [states[0].obs] * 2
  for _ in range(5):
    raw.append(states[0].obs)
    states = [
      env.step(state, jnp.ones(2))
      for env, state in zip(envs, states, strict=True)
    ]
    np.testing.assert_array_equal(states[1].obs, raw[-2])
  np.testing.assert_array_equal(states[1].data, states[0].data)


def test_dict_observations_cannot_be_delayed():
  with pytest.raises(UserError, match='dict with privileged, state'):
    DelayObservations(_Dict(), 1)


def _resolve(**given):
  return configs.resolve(given, has_gpu=False)


def test_a_delay_is_read_back_and_reaches_both_environments(
  tmp_path, fake_train
):
  fake_train(lambda **kwargs: None)  # environments are made once
  config = _resolve(delay_observations=3)
  text = description.describe(config)
  assert text['environment']['delay_observations'] == 3
  (tmp_path / 'config.json').write_text(json.dumps(text))
  again = _resolve(config=str(tmp_path))
  assert again.delay == 3
  assert _resolve(config=str(tmp_path), delay_observations=0).delay == 0
  arguments = train_ppo.train_arguments(again)
  for name in ('environment', 'eval_env'):
    state = jax.eval_shape(arguments[name].reset, jax.random.PRNGKey(0))
    # Without the two hidden velocities.
    assert state.info['delayed_observations'].shape == (3, 3)


def test_a_run_from_before_there_were_delays_has_none(tmp_path):
  text = description.describe(_resolve())
  now = json.loads(json.dumps(text))
  del text['environment']['delay_observations']
  (tmp_path / 'config.json').write_text(json.dumps(text))
  assert _resolve(config=str(tmp_path)).delay == 0
  saved.require_same(str(tmp_path), now)


def test_a_delay_excludes_randomization_and_is_shorter_than_an_episode():
  with pytest.raises(UserError, match='--delay_observations and --domain'):
    _resolve(
      hide_observations='', delay_observations=1, domain_randomization=True
    )
  _resolve(delay_observations=9, episode_length=10)
  with pytest.raises(UserError, match='an episode of 10 env steps'):
    _resolve(delay_observations=10, episode_length=10)
