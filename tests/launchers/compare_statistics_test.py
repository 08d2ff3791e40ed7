"""Numbers of several runs, against ones worked out by hand."""

import numpy as np
import pytest

from launchers.compare_statistics import Curve
from launchers.compare_statistics import Spread
from launchers.compare_statistics import band


def _line(env_steps, reward, seconds=1.0):
  return {
    'env_steps': env_steps,
    'seconds': seconds,
    'eval/episode_reward': reward,
  }


def test_a_curve_is_read_in_order_and_says_what_is_missing():
  lines = [
    _line(0, 1.0, 2.0),
    {'env_steps': 15, 'seconds': 2.5, 'episode/sum_reward': 99.0},
    _line(20, None, 4.0),
    _line(10, 3.0, 3.0),
    {'env_steps': 35, 'seconds': 6.0},
    _line(30, 7.0, 5.0),
  ]
  assert Curve.of(lines) == Curve(
    env_steps=(0, 10, 30),
    rewards=(1.0, 3.0, 7.0),
    missing=(20,),
    seconds=6.0,
    last=35,
  )
  assert Curve.of([]) == Curve()


@pytest.mark.parametrize(('total', 'expected'), [(30, 7.0), (31, None)])
def test_the_final_reward_is_that_after_all_env_steps(total, expected):
  assert Curve((0, 30), (1.0, 7.0)).final(total) == expected
  assert Curve().final(total) is None


@pytest.mark.parametrize(
  ('threshold', 'expected'), [(2.0, 10), (3.0, 10), (3.5, 30), (8.0, None)]
)
def test_a_threshold_is_reached_by_an_evaluation(threshold, expected):
  curve = Curve((0, 10, 20, 30), (1.0, 3.0, 0.0, 7.0))
  assert curve.reached(threshold) == expected


def test_curves_with_the_same_evaluations_are_combined_point_by_point():
  rng = np.random.default_rng(0)
  rewards = rng.normal(size=(3, 5))
  steps = tuple(range(0, 50, 10))
  found = band([Curve(steps, tuple(row)) for row in rewards])
  np.testing.assert_array_equal(found.env_steps, steps)
  np.testing.assert_allclose(found.mean, np.sum(rewards, axis=0) / 3)
  np.testing.assert_array_equal(found.low, np.sort(rewards, axis=0)[0])
  np.testing.assert_array_equal(found.high, np.sort(rewards, axis=0)[-1])
  assert found.count == 3


def test_other_evaluations_are_met_on_straight_lines_and_nowhere_else():
  one = Curve((0, 10, 20, 30), (0.0, 10.0, 10.0, 40.0))
  two = Curve((5, 20, 25), (100.0, 130.0, 130.0))
  found = band([one, two, Curve()])
  # Both are there from 5 to 25; one is at 5, 10, 10, 25 and two at 100, 110,
  # 130, 130.
  np.testing.assert_array_equal(found.env_steps, [5, 10, 20, 25])
  np.testing.assert_array_equal(found.low, [5, 10, 10, 25])
  np.testing.assert_array_equal(found.high, [100, 110, 130, 130])
  np.testing.assert_array_equal(found.mean, [52.5, 60, 70, 77.5])
  assert found.count == 2


@pytest.mark.parametrize(
  'curves',
  [[], [Curve()], [Curve((0, 1), (0.0, 0.0)), Curve((5,), (0.0,))]],
)
def test_without_a_common_range_there_is_no_point(curves):
  assert band(curves).env_steps.size == 0


def test_the_spread_is_that_of_a_sample():
  # Mean 4; squared distances 4 + 1 + 9 = 14 over n - 1 = 2.
  assert Spread.of([2.0, None, 3.0, 7.0]) == Spread(
    4.0, np.sqrt(7.0), 2.0, 7.0, 3
  )
  assert Spread.of([5.0]) == Spread(5.0, None, 5.0, 5.0, 1)
  assert Spread.of([None]) == Spread(None, None, None, None, 0)
