"""Hiding observations, against slices by NumPy."""

from typing import Any

from brax.envs.base import State
import jax
import jax.numpy as jnp
from mujoco_playground import registry
from mujoco_playground import wrapper
import numpy as np
import pytest

from launchers.errors import UserError
from launchers.hiding import HideObservations
from launchers.hiding import parse_indices


class _Walk:
  """A random walk in five dimensions that ends when the first passes 2."""

  action_size = 5

  def _state(self, position, info):
    done = (position[0] > 2).astype(jnp.float32)
    return State(position, position * 10, jnp.sum(position), done, {}, info)

  def reset(self, rng):
    return self._state(jax.random.uniform(rng, (5,)), {'rng': rng})

  def step(self, state, action):
    return self._state(state.pipeline_state + action, state.info)

  @property
  def unwrapped(self):
    return self


class _Dict(_Walk):
  def reset(self, rng):
    obs = {'state': jnp.zeros(5), 'privileged_state': jnp.zeros(7)}
    state: Any = super().reset(rng)
    return state.replace(obs=obs)


class _Echo(_Walk):
  """Keeps a history in its observation, as a sliding window."""

  def step(self, state, action):
    new: Any = super().step(state, action)
    return new.replace(obs=jnp.roll(state.obs, 1).at[0].set(new.obs[0]))


class _First(_Walk):
  """Adds one entry of its last observation to all of the new one."""

  def step(self, state, action):
    new: Any = super().step(state, action)
    return new.replace(obs=new.obs + state.obs[0])


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('', ()),
    ('3', (3,)),
    ('3,4', (3, 4)),
    ('3:5', (3, 4)),
    ('0, 3:5,4', (0, 3, 4)),
    ('10:11', (10,)),
  ],
)
def test_indices_and_ranges_are_read(text, expected):
  assert parse_indices(text) == expected


@pytest.mark.parametrize('text', ['x', '-1', '3:', ':3', '5:3', '3:3', '1.5'])
def test_what_is_no_index_is_named(text):
  with pytest.raises(UserError, match=f'{text!r} is neither a number'):
    parse_indices(f'0,{text}')


@pytest.mark.parametrize('hidden', [(0,), (4,), (1, 3), (0, 1, 2, 3)])
def test_what_is_left_is_a_slice_of_the_observation(hidden):
  bare, env = _Walk(), HideObservations(_Walk(), hidden)
  kept = [i for i in range(5) if i not in hidden]
  keys = jax.random.split(jax.random.PRNGKey(0), 3)
  action = jnp.arange(15.0).reshape(3, 5)

  full = jax.jit(jax.vmap(bare.reset))(keys)
  part = jax.jit(jax.vmap(env.reset))(keys)
  np.testing.assert_array_equal(part.obs, np.asarray(full.obs)[:, kept])
  full = jax.jit(jax.vmap(bare.step))(full, action)
  part = jax.jit(jax.vmap(env.step))(part, action)
  np.testing.assert_array_equal(part.obs, np.asarray(full.obs)[:, kept])
  np.testing.assert_array_equal(part.reward, full.reward)
  assert env.observation_size == len(kept)
  assert env.action_size == 5


def _raises(env, hidden, text):
  with pytest.raises(UserError, match=text):
    HideObservations(env, hidden)


def test_dict_observations_cannot_be_hidden():
  _raises(_Dict(), (1,), 'dict with privileged_state, state')


def test_an_index_out_of_range_cannot_be_hidden():
  _raises(_Walk(), (1, 5), 'Observation 5 .* from 0 to 4')


def test_not_everything_can_be_hidden():
  _raises(_Walk(), range(5), 'All 5 observations')


@pytest.mark.parametrize('env', [_Echo(), _First()])
def test_an_environment_that_reads_its_observation_is_refused(env):
  _raises(env, (1,), 'out of the one before')


@pytest.fixture(scope='module')
def cartpole():
  config = registry.get_default_config('CartpoleBalance')
  config.impl = 'jax'
  return registry.load('CartpoleBalance', config)


@pytest.mark.slow
def test_velocities_of_cartpole_stay_hidden_through_resets(cartpole):
  env = HideObservations(cartpole, (3, 4))
  assert env.observation_size == cartpole.observation_size - 2
  wrapped = wrapper.wrap_for_brax_training(env, episode_length=3)
  state = jax.jit(wrapped.reset)(jax.random.split(jax.random.PRNGKey(0), 2))
  first = np.asarray(state.obs)
  step = jax.jit(wrapped.step)
  for t in range(1, 5):
    state = step(state, jnp.ones((2, 1)))
    # [x, cos, sin] of the two bodies; auto-reset goes back to the first state.
    expected = np.stack(
      [
        state.data.qpos[:, 0],
        state.data.xmat[:, 2, 2, 2],
        state.data.xmat[:, 2, 0, 2],
      ],
      axis=-1,
    )
    np.testing.assert_array_equal(state.obs, expected)
    assert np.abs(np.asarray(state.data.qvel)).min() > 0
    if t == 3:
      assert state.done.all()
      np.testing.assert_array_equal(state.obs, first)
