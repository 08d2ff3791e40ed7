"""Wrapping and resetting environments as Brax's `train` does."""

from typing import Any

from brax import envs
from brax.training.agents.ppo import train as brax_train
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import devices
from brax_nnx_plugin.ppo import environments
from tests import fakes
from tests import small_runs


def test_an_environment_may_be_left_as_it_is():
  env = fakes.ScriptEnv([[1]])
  config = small_runs.config(environment=env, wrap_env=False).environment

  assert environments.wrap(env, config, 1, jax.random.PRNGKey(0)) is env


def test_the_wrapper_gets_what_the_run_was_given():
  seen = {}

  def wrap(env, **kwargs):
    seen.update(kwargs, env=env)
    return 'wrapped'

  env = small_runs.PointEnv()
  config = small_runs.config(
    wrap_env_fn=wrap, episode_length=12, action_repeat=3
  )

  wrapped = environments.wrap(env, config.environment, 4, jax.random.PRNGKey(0))

  assert wrapped == 'wrapped'
  assert seen == {
    'env': env,
    'episode_length': 12,
    'action_repeat': 3,
    'randomization_fn': None,
  }


def test_randomization_draws_what_brax_draws():
  key = jax.random.PRNGKey(5)
  config = small_runs.config(randomization_fn=small_runs.random_gains)

  ours = environments.wrap(
    small_runs.PointEnv(), config.environment, num_envs=3, key=key
  )
  stock = brax_train._maybe_wrap_env(
    small_runs.PointEnv(),
    wrap_env=True,
    num_envs=3,
    episode_length=8,
    action_repeat=1,
    device_count=1,
    key_env=key,
    randomization_fn=small_runs.random_gains,
  )

  def positions(env):
    state = env.reset(jax.random.split(jax.random.PRNGKey(1), 3))
    return env.step(state, jnp.ones((3, 1))).obs

  np.testing.assert_array_equal(positions(ours), positions(stock))
  # One push moves the rows by gains of their own.
  assert len(np.unique(positions(ours)[:, 1])) == 3


def test_an_environment_can_be_kept_from_randomization():
  config = small_runs.config(randomization_fn=small_runs.random_gains)
  env = environments.Unrandomized(small_runs.PointEnv())

  wrapped = environments.wrap(
    env, config.environment, num_envs=3, key=jax.random.PRNGKey(5)
  )
  state = wrapped.reset(jax.random.split(jax.random.PRNGKey(1), 3))

  pushed = wrapped.step(state, jnp.ones((3, 1))).obs[:, 1]
  np.testing.assert_allclose(pushed, 3 * [0.3])


@pytest.mark.slow
def test_an_evaluation_without_randomization_is_that_of_the_given_model():
  def reward(eval_env, randomization_fn):
    _, _, metrics = small_runs.small_train(
      num_timesteps=small_runs.STEP,
      run_evals=True,
      deterministic_eval=True,
      randomization_fn=randomization_fn,
      eval_env=eval_env,
      learning_rate=0.0,
    )
    return metrics['eval/episode_reward']

  env = small_runs.PointEnv()
  plain = reward(env, None)
  assert reward(env, small_runs.random_gains) != plain
  kept = environments.Unrandomized(small_runs.PointEnv())
  assert reward(kept, small_runs.random_gains) == plain


@pytest.mark.slow
def test_a_randomized_environment_can_be_stepped_while_training():
  env = small_runs.PointEnv()
  key = jax.random.PRNGKey(0)
  pushed = []

  def step_it(*unused_args):
    state: Any = env.step(env.reset(key), jnp.ones(1))
    pushed.append(float(state.obs[1]))  # fails for what a trace left behind

  small_runs.small_train(
    environment=env,
    num_timesteps=2 * small_runs.STEP,
    num_evals=3,
    run_evals=True,
    randomization_fn=small_runs.random_gains,
    policy_params_fn=step_it,
  )

  np.testing.assert_allclose(pushed, 3 * [0.3])
  assert env.sys.gain == 0.3


@pytest.mark.parametrize('use_pmap', [True, False])
@pytest.mark.parametrize('count', [1, 2])
def test_every_device_resets_its_own_keys(count, use_pmap):
  env = envs.training.wrap(small_runs.PointEnv(), episode_length=8)
  keys = jax.random.split(jax.random.PRNGKey(0), 2 * count)
  keys = keys.reshape((count, 2, -1))

  reset = environments.make_reset_fn(env, devices.Devices.of(count), use_pmap)
  state = reset(keys)

  assert state.obs.shape == (count, 2, 2)
  for row in range(count):
    expected: Any = env.reset(keys[row]).obs
    np.testing.assert_allclose(state.obs[row], expected)


def test_reset_keys_are_new_and_differ_from_row_to_row():
  keys = jax.random.split(jax.random.PRNGKey(0), 6).reshape((2, 3, 2))

  following = environments.next_keys(keys)

  # Brax splits the first key of a device into its next ones.
  for device in range(2):
    np.testing.assert_array_equal(
      following[device], jax.random.split(keys[device, 0], 3)
    )
  rows = np.concatenate([keys, following]).reshape((-1, 2))
  assert len(np.unique(rows, axis=0)) == 12


def test_statistics_leave_pixels_out():
  state = envs.State(
    None,
    {
      'state': jnp.zeros((2, 3), jnp.int32),
      'pixels/front': jnp.zeros((2, 4, 4, 3), jnp.uint8),
    },
    jnp.zeros(2),
    jnp.zeros(2),
  )

  spec = environments.statistics_spec(state)

  assert spec == {'state': jax.ShapeDtypeStruct((3,), jnp.float32)}
  assert environments.without_pixels(jnp.ones(2)).shape == (2,)
