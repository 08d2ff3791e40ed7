"""Which rows of a policy's memory are reset, and which fit together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import saved_policies
from tests import small_runs


@pytest.fixture(scope='module')
def make_policy():
  """A function that makes policies of one LSTM network."""
  networks: Any = small_runs.small_lstm((3,), 2)
  params = saved_policies.measured_params(networks, (3,))
  make = ppo_networks.make_inference_fn(networks)
  return lambda: make(params)


@pytest.fixture(scope='module')
def observations():
  return jax.random.normal(jax.random.PRNGKey(1), (6, 4, 3))


@pytest.mark.parametrize('dtype', [bool, np.float32, np.int32, np.uint8])
def test_rows_that_are_done_start_afresh(make_policy, observations, dtype):
  policy = make_policy()
  fresh = policy.initial_state(4)
  _, extras = policy(observations[0], jax.random.PRNGKey(0), fresh)
  done = np.array([0, 1, 0, 1], dtype)

  state = policy.reset(extras['state'], done)

  for leaf, old, new in zip(
    *map(jax.tree.leaves, (state, extras['state'], fresh)), strict=True
  ):
    np.testing.assert_array_equal(leaf[::2], old[::2])
    np.testing.assert_array_equal(leaf[1::2], new[1::2])
    assert not np.array_equal(old[1::2], new[1::2])


def test_done_may_be_a_column_or_one_number_for_all_rows(
  make_policy, observations
):
  policy = make_policy()
  fresh = policy.initial_state(4)
  _, extras = policy(observations[0], jax.random.PRNGKey(0), fresh)
  used = extras['state']
  rows = policy.reset(used, jnp.array([0, 1, 0, 1]))

  column = policy.reset(used, np.array([[0.0], [1.0], [0.0], [1.0]]))
  assert small_runs.largest_difference(column, rows) == 0
  for done in (True, np.ones(())):
    assert small_runs.largest_difference(policy.reset(used, done), fresh) == 0
  assert small_runs.largest_difference(policy.reset(used, 0), used) == 0
  # One row is a batch too.
  one = policy.initial_state(1)
  _, extras = policy(observations[0, :1], jax.random.PRNGKey(0), one)
  again = policy.reset(extras['state'], [1])
  assert small_runs.largest_difference(again, one) == 0


def test_rows_that_do_not_agree_are_refused(make_policy, observations):
  policy, key = make_policy(), jax.random.PRNGKey(0)
  state = policy.initial_state(4)
  single = policy.initial_state()

  for observation, carry in (
    (observations[0, :3], state),
    (observations[0, 0], state),
    (observations[0], single),
    (observations, state),
  ):
    with pytest.raises(ValueError, match='initial_state'):
      policy(observation, key, carry)
  with pytest.raises(ValueError, match=r'done has shape \(3,\).*4 rows'):
    policy.reset(state, jnp.zeros(3))
  with pytest.raises(ValueError, match=r'done has shape \(3,\).*no batch axis'):
    policy.reset(single, jnp.zeros(3))
  with pytest.raises(ValueError, match='no state of this policy'):
    policy(observations[0], key, jax.tree.leaves(state)[0])


@pytest.mark.parametrize('done', [1, True, np.float32(1), jnp.array(1.0)])
def test_a_single_row_starts_afresh(make_policy, observations, done):
  policy = make_policy()
  fresh = policy.initial_state()
  _, extras = policy(observations[0, 0], jax.random.PRNGKey(0), fresh)

  assert small_runs.largest_difference(extras['state'], fresh) > 0
  again = policy.reset(extras['state'], done)
  assert small_runs.largest_difference(again, fresh) == 0
  kept = policy.reset(extras['state'], 0 * done)
  assert small_runs.largest_difference(kept, extras['state']) == 0
