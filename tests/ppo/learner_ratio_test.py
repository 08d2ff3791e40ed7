"""Tests that the likelihood ratio is 1 before the first update."""

import itertools

import numpy as np
import pytest

from tests import learners

# The others take as long again and differ in one letter.
_FAST = {('lstm', True, 2), ('mlp', True, 1)}
_CASES = itertools.product(('mlp', 'lstm', 'gru'), (False, True), (1, 2))


@pytest.mark.parametrize(
  ('kind', 'normalize', 'device_count'),
  [
    pytest.param(*case, marks=[] if case in _FAST else pytest.mark.slow)
    for case in _CASES
  ],
)
def test_replayed_likelihoods_are_those_of_the_rollout(
  kind, normalize, device_count
):
  rig = learners.drift_rig(
    learners.small_factory(kind, normalize_inputs=normalize),
    device_count=device_count,
  )
  for step in range(5):
    metrics = rig.step()
    if step in (0, 4):
      error = metrics['ratio_error']  # [devices, epochs, minibatches]
      assert np.max(error[:, 0, 0]) < 1e-5
      # Brax adds 1e-5 to the ratio of scales, so that is its zero.
      assert np.max(np.abs(metrics['kl_mean'][:, 0, 0])) < 2e-5
      # The probe sees a difference where there is one: after some updates.
      assert np.min(error[:, -1, -1]) > 1e-4


@pytest.mark.parametrize(
  ('schedule', 'exact'), [('NONE', False), ('ADAPTIVE_KL', True)]
)
def test_observation_statistics_of_brax_move_before_the_gradient_phase(
  schedule, exact
):
  # Brax updates them after acting and before the loss, unless the learning
  # rate is adaptive; the embedded normalizer has no such gap.
  rig = learners.drift_rig(
    learners.small_factory('mlp'),
    normalize_observations=True,
    learning_rate_schedule=schedule,
  )
  for _ in range(2):
    error = np.asarray(rig.step()['ratio_error'])
    assert (error[0, 0, 0] < 1e-5) == exact
    assert exact or error[0, 0, 0] > 1e-3
