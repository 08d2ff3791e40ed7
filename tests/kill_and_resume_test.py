"""Runs that are killed at random moments end where others do."""

import pytest

from tests import kill_and_resume


@pytest.mark.slow
def test_a_killed_run_ends_as_if_nothing_had_happened(tmp_path):
  outcome = kill_and_resume.run_case(
    tmp_path, 'variational', devices=1, kills=1, seed=5
  )
  assert outcome.differing == []
  assert outcome.compared > 100
  assert len(outcome.killed_at) == 1


def test_a_difference_is_named():
  import numpy as np

  a = {'x': np.zeros(2), 'y': np.zeros(1), 'z': np.zeros(1)}
  b = {'x': -np.zeros(2), 'y': np.zeros(1, np.int32), 'w': np.zeros(1)}
  assert kill_and_resume.differing(a, b) == ['w', 'x', 'y', 'z']
  assert kill_and_resume.differing(a, dict(a)) == []
