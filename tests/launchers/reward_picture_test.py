"""The picture of rewards."""

import math

import numpy as np
import pytest

from launchers import reward_picture


@pytest.fixture
def axes(tmp_path, monkeypatch):
  """Returns a function that draws, and gives back what it drew on."""
  figures = []
  real = reward_picture.Figure

  def figure(*args, **kwargs):
    figures.append(real(*args, **kwargs))
    return figures[-1]

  def draw(curves):
    reward_picture.draw(tmp_path / 'x.png', curves, 'Title')
    return figures[-1].axes[0]

  monkeypatch.setattr(reward_picture, 'Figure', figure)
  return draw


def test_picture_is_a_line_in_a_band_of_one_deviation(axes):
  drawn = axes({'evaluation': [(0, 10.0, 0.0), (100, 20.0, 5.0)]})
  (line,) = drawn.lines
  np.testing.assert_array_equal(line.get_xydata(), [[0, 10], [100, 20]])
  (band,) = drawn.collections
  corners = {tuple(xy) for xy in band.get_paths()[0].vertices.tolist()}
  # (100, 20 - 5) and (100, 20 + 5); at step 0 both edges meet in the mean.
  assert corners == {(0, 10), (100, 15), (100, 25)}


def test_picture_has_no_band_without_deviations(axes):
  drawn = axes({'training': [(0, 10.0, 0.0), (100, 20.0, 0.0)]})
  assert len(drawn.lines) == 1
  assert not drawn.collections


def test_axes_are_labelled_with_units(axes):
  drawn = axes({'evaluation': [(0, 1.0, 0.0)]})
  assert '[env steps]' in drawn.get_xlabel()
  assert '[sum over its steps]' in drawn.get_ylabel()
  assert drawn.get_title() == 'Title'


def test_a_reward_that_is_not_finite_is_a_gap(axes):
  lost = reward_picture.reward_points(
    50, {'eval/episode_reward': None, 'eval/episode_reward_std': None}
  )
  (point,) = lost.values()
  assert point[0] == 50
  assert math.isnan(point[1])
  assert point[2] == 0.0
  drawn = axes({'evaluation': [(0, 10.0, 1.0), point, (100, 20.0, 5.0)]})
  (line,) = drawn.lines
  assert np.isnan(line.get_ydata()).tolist() == [False, True, False]
