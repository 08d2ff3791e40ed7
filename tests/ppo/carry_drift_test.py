"""How far memory drifts from what current weights would remember."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import losses
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import rollout_data
from tests import learners
from tests import library


def test_a_segment_ends_with_the_carry_that_the_next_one_starts_from():
  # Three segments of each of two environments; the numbers are 10 * the step
  # plus the environment.
  start = np.array([0, 1, 30, 31, 60, 61], np.float32)[:, None]
  last = np.array([90, 91], np.float32)[:, None]

  rows = jnp.array([5, 0, 3, 4, 1, 2])
  end = rollout_data.end_carry({'h': start}, {'h': last}, rows)

  np.testing.assert_array_equal(end['h'][:, 0], [91, 30, 61, 90, 31, 60])


def test_drift_is_a_mean_over_the_numbers_of_the_carry():
  new = {'h': jnp.array([[1.0, 2.0]]), 'count': jnp.array([7])}
  old = {'h': jnp.array([[0.5, jnp.nan]]), 'count': jnp.array([3])}

  drift: Any = losses.carry_drift(new, old)

  np.testing.assert_allclose(drift, 0.5 / 2)


@pytest.mark.parametrize('carry', [(), {'count': jnp.array([3])}])
def test_a_carry_without_numbers_does_not_drift(carry):
  assert losses.carry_drift(carry, carry) is None


_FACTORIES = {
  'lstm': learners.small_factory('lstm'),
  **{
    name: ppo_networks.make_network_factory(library.NETWORKS[name])
    for name in ('delay_lstm', 'graph', 'variational')
  },
}


@pytest.mark.parametrize(
  'name',
  [
    'lstm',
    *(pytest.param(n, marks=pytest.mark.slow) for n in list(_FACTORIES)[1:]),
  ],
)
def test_memory_drifts_with_the_gradient_steps_and_not_before(name):
  rig = learners.drift_rig(_FACTORIES[name])

  for _ in range(2):
    drift = rig.step()['carry_drift']  # [devices, epochs, minibatches]
    assert np.max(drift[:, 0, 0]) < 1e-6
    assert np.min(drift[:, -1, -1]) > 1e-5


def test_networks_without_memory_say_nothing_of_it():
  rig = learners.drift_rig(learners.small_factory('mlp'))

  assert 'carry_drift' not in rig.step()
