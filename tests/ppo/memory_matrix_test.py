"""Tests of networks in which either side, both or neither has memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import fakes
from tests import learners
from tests import segments


def _factory(policy_size, value_size):
  return learners.small_factory(
    'lstm', policy_memory_size=policy_size, value_memory_size=value_size
  )


@pytest.mark.parametrize(
  ('policy_size', 'value_size'), [(None, None), (None, 3), (4, None), (4, 3)]
)
def test_each_side_may_have_memory_or_not(policy_size, value_size):
  rig = learners.drift_rig(_factory(policy_size, value_size))
  assert rig.learner.networks.stateful == bool(policy_size or value_size)
  before = rig.variables.params
  for _ in range(2):
    metrics = rig.step()
    assert np.max(metrics['ratio_error'][:, 0, 0]) < 1e-5
  for a, b in zip(
    jax.tree.leaves(before), jax.tree.leaves(rig.variables.params), strict=True
  ):
    assert np.all(np.isfinite(b))
    assert not np.array_equal(a, b)

  for side, size in (('action', policy_size), ('value', value_size)):
    leaves = jax.tree.leaves(rig.actors.carry[side])
    # An LSTM carries (c, h) for 4 environments on one device.
    assert [leaf.shape for leaf in leaves] == (
      [] if size is None else [(1, 4, size)] * 2
    )
    assert all(np.any(leaf) for leaf in leaves)


def _two_counters():
  env = fakes.ScriptEnv([[], []])
  functions = segments.module_functions(env, fakes.count_network)
  variables = segments.init(functions)
  fresh: Any = functions.initial_state(variables, 2)

  def act(actor_count, critic_count):
    fill = lambda side, n: jax.tree.map(lambda x: x + n, fresh[side])
    return functions.step(
      variables,
      None,
      {
        'action': fill('action', actor_count),
        'value': fill('value', critic_count),
      },
      jnp.zeros((2, 2)),
      jax.random.PRNGKey(0),
    )

  return act


def test_each_side_reads_and_advances_only_its_own_carry():
  # The two carries have one shape, so only their names tell them apart.
  out = _two_counters()(1, 2)
  np.testing.assert_array_equal(out.action[:, 0], [1, 1])
  np.testing.assert_array_equal(out.value, [2, 2])
  np.testing.assert_array_equal(out.state['action'][0], [2, 2])
  np.testing.assert_array_equal(out.state['value'][0], [3, 3])


def test_another_carry_of_the_critic_leaves_the_action_as_it_is():
  act = _two_counters()
  one, other = act(1, 2), act(1, 5)
  np.testing.assert_array_equal(one.action, other.action)
  np.testing.assert_array_equal(other.value, [5, 5])
  np.testing.assert_array_equal(act(4, 2).value, one.value)
