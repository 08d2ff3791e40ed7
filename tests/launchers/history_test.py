"""Metrics by name, and which of many points are drawn."""

import numpy as np
import pytest

from launchers.history import History
from launchers.history import thinned


def test_a_metric_has_the_reports_that_name_it():
  history = History(
    [
      {'env_steps': 0, 'seconds': 1.0, 'a': 1.0},
      {'env_steps': 20, 'seconds': 3.0, 'b': None},
      {'env_steps': 10, 'seconds': 2.0, 'a': 2.0, 'b': 5.0},
    ]
  )
  assert history.names() == ['a', 'b']
  assert (history.env_steps, history.seconds, history.reports) == (20, 3.0, 3)
  a, b = history.series('a'), history.series('b')
  assert a is not None
  assert b is not None
  np.testing.assert_array_equal([a.steps, a.values], [[0, 10], [1, 2]])
  # A report that came late is where it belongs.
  np.testing.assert_array_equal([b.steps, b.values], [[10, 20], [5, np.nan]])
  np.testing.assert_array_equal(b.finite, [5])
  assert history.series('c') is None


@pytest.mark.parametrize('count', [0, 1, 600, 601, 10_000])
def test_no_peak_and_no_gap_is_lost(count):
  values = np.sin(np.arange(count) / 50.0)
  if count > 600:
    values[count // 3] = 9.0
    values[count // 2] = -9.0
    values[count // 5] = np.nan
  chosen = thinned(values, 600)
  assert len(chosen) <= 600
  assert np.all(np.diff(chosen) > 0)
  assert set(chosen) <= set(range(count))
  if count > 600:
    assert {0, count - 1, count // 3, count // 2, count // 5} <= set(chosen)
    # Between two points there is nothing that one would see.
    assert np.max(np.diff(chosen)) <= 2 * np.ceil(count / 199)


def test_stretches_without_a_number_are_one_gap():
  assert thinned(np.full(1000, np.nan), 30).size <= 30
