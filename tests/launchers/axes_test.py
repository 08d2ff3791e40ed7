"""Axes, against what a reader expects of them."""

import math

import numpy as np
import pytest

from launchers import axes


@pytest.mark.parametrize(
  ('value', 'text'),
  [
    (0.0, '0'),
    (-0.5, '−0.5'),
    (1234.5, '1,234'),
    (123.456, '123.5'),
    (0.00123456, '0.001235'),
    (1.5e-7, '1.5e−7'),
    (2.5e9, '2.5e9'),
    (1e-320, '0'),
    (math.nan, 'not finite'),
  ],
)
def test_numbers_are_short(value, text):
  assert axes.number(value) == text


@pytest.mark.parametrize(
  ('steps', 'text'),
  [
    (0, '0'),
    (950, '950'),
    (9_500, '9,500'),
    (65_536, '65.54k'),
    (1_500_000, '1.5M'),
    (2e9, '2G'),
    (3e12, '3T'),
  ],
)
def test_env_steps_are_short(steps, text):
  assert axes.steps_in_words(steps) == text


_RANGES = [
  (0, 1),
  (-1, 1),
  (0.3, 0.7),
  (999.5, 1000),
  (1e-9, 3e-9),
  (-1e6, 4e6),
  (0, 1e300),
  (-1e300, 1e300),
  (-1e-290, 1e-290),
  (5, 5),
  (0, 0),
  (-3e-310, 0),
  (1000, 1000 * (1 + 1e-15)),
  (1e-8, 1e8),
  (1e-300, 1e300),
]


@pytest.mark.parametrize(('low', 'high'), _RANGES)
@pytest.mark.parametrize('count', [1, 4, 7])
def test_all_values_are_on_the_axis(low, high, count):
  values = np.array([low, np.nan, high], float)
  axis = axes.value_axis(values, count)
  places = axis.place(values)
  assert np.isnan(places[1])
  assert np.all((places[[0, 2]] >= 0) & (places[[0, 2]] <= 1))
  ticks = np.array([tick for tick, _ in axis.ticks])
  assert np.all((axis.place(ticks) >= 0) & (axis.place(ticks) <= 1))
  assert len(ticks) <= 2 * count + 1
  if count > 1:
    assert len(ticks) >= 2
  names = [name for _, name in axis.ticks]
  assert len({*names}) == len(names)


@pytest.mark.parametrize(('low', 'high'), [(-1, 1), (0.3, 0.7), (-1e6, 4e6)])
def test_names_of_ticks_are_their_values(low, high):
  axis = axes.value_axis(np.array([low, high], float), 5)
  for tick, name in axis.ticks:
    read = float(name.replace('−', '-').replace(',', ''))
    assert read == pytest.approx(tick, abs=1e-9)


def test_many_decades_are_logarithmic():
  axis = axes.value_axis(np.array([1e-6, 1.0]), 4)
  assert axis.logarithmic
  middle = axis.place(np.array([1e-6, 1e-3, 1.0]))
  assert middle[1] == pytest.approx((middle[0] + middle[2]) / 2)
  for values in ([0.0, 1e-6, 1.0], [-1e-6, 1.0], [1e-3, 1.0]):
    assert not axes.value_axis(np.array(values), 4).logarithmic


def test_env_steps_have_whole_ticks():
  for end in (1, 3, 20, 60_000_000):
    axis = axes.step_axis(np.array([0, end]), 5)
    assert all(tick == round(tick) for tick, _ in axis.ticks)
    np.testing.assert_allclose(axis.place(np.array([0, end])), [0, 1])
  assert axes.step_axis(np.array([0]), 5).ticks == [(0, '0')]
  names = [name for _, name in axes.step_axis(np.array([5, 40]), 4).ticks]
  assert names == ['0', '10', '20', '30', '40']
