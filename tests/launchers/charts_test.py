"""Charts, read back as XML."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from launchers import charts
from launchers.charts import Curve
from launchers.history import Series


def _curve(steps, values, spread=None, label='a'):
  series = Series(np.array(steps, float), np.array(values, float))
  return Curve(label, series, None if spread is None else np.array(spread))


def _chart(*curves, size=(400, 230)):
  return ElementTree.fromstring(charts.chart(curves, 'Title', *size))


def _points(element):
  pairs = [pair.split(',') for pair in element.get('points').split()]
  return np.array(pairs, float)


def _texts(svg):
  return [text.text for text in svg.iter('text')]


def test_a_line_is_in_proportion():
  (line,) = _chart(_curve([0, 100, 400], [5, 15, 10])).iter('polyline')
  (x0, y0), (x1, y1), (x2, y2) = _points(line)
  assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25, abs=0.01)
  assert (y0 - y2) / (y0 - y1) == pytest.approx(0.5, abs=0.01)
  assert y1 < y2 < y0, 'up is more'
  assert 0 < x0 < x2 < 400
  assert 0 < y1 < y0 < 230


def test_axes_are_labelled():
  texts = _texts(_chart(_curve([0, 2_000_000], [0, 1])))
  assert 'env steps' in texts
  assert '1M' in texts
  assert '0.5' in texts or '0.4' in texts


def test_what_is_not_finite_is_a_gap():
  values = [1, 2, np.nan, 4, np.nan, 6, 7]
  svg = _chart(_curve(range(7), values))
  assert [len(_points(line)) for line in svg.iter('polyline')] == [2, 2]
  # The one between two gaps is a dot, and all of so few are.
  assert len(list(svg.iter('circle'))) == 5
  many = np.tile(values, 60)
  dots = list(_chart(_curve(range(420), many)).iter('circle'))
  assert len(dots) == 60


def test_a_band_is_one_deviation_high():
  svg = _chart(_curve([0, 1], [10, 20], spread=[0, 5]))
  (line,), (band,) = svg.iter('polyline'), svg.iter('polygon')
  (_, low), (_, high) = _points(line)
  (_, upper0), (_, upper1), (_, lower1), (_, lower0) = _points(band)
  assert upper0 == lower0 == low
  scale = (low - high) / 10
  assert high - upper1 == pytest.approx(5 * scale, abs=0.2)
  assert lower1 - high == pytest.approx(5 * scale, abs=0.2)


@pytest.mark.parametrize(
  'values',
  [
    [3.0],
    [3.0, 3.0],
    [0.0, 0.0],
    [1e308, -1e308],
    [1e-320, 1e308],
    [np.inf, 1.0, -np.inf],
    [np.nan, 1.0],
    list(range(100_000)),
  ],
)
@pytest.mark.parametrize('has_spread', [False, True])
def test_any_values_stay_on_the_paper(values, has_spread):
  spread = [np.nan, *[1e308] * (len(values) - 1)] if has_spread else None
  text = charts.chart(
    [_curve(range(len(values)), values, spread)], 'Title', 400, 230
  )
  assert len(text) < 100_000
  assert not re.search(r'[^a-z](nan|inf)[^a-z]', text)
  svg = ElementTree.fromstring(text)
  places = [_points(e) for e in (*svg.iter('polyline'), *svg.iter('polygon'))]
  dots = [
    [float(e.attrib[c]) for c in ('cx', 'cy')] for e in svg.iter('circle')
  ]
  for x, y in np.concatenate([*places, np.reshape(dots, (-1, 2))]):
    assert 0 <= x <= 400
    assert 0 <= y <= 230


def test_nothing_finite_is_a_sentence():
  text = charts.chart([_curve([0, 1], [np.nan] * 2)], 't', 400, 230)
  assert 'No finite value' in text
  assert charts.sparkline(Series(np.zeros(1), np.array([np.nan]))) == ''


def test_several_curves_share_the_axes():
  svg = _chart(_curve([0, 1], [0, 1]), _curve([0, 2], [0, 2]))
  first, second = map(_points, svg.iter('polyline'))
  assert first[0].tolist() == second[0].tolist()
  assert first[1, 0] < second[1, 0]
  colours = {line.get('stroke') for line in svg.iter('polyline')}
  assert len(colours) == 2


def test_names_are_escaped():
  text = charts.chart([_curve([0, 1], [0, 1])] * 2, '"<b>&', 400, 230)
  assert '<b>' not in text
  assert (
    ElementTree.fromstring(text).get('aria-label') == '"<b>& over env steps'
  )


def test_a_sparkline_is_a_line():
  svg = charts.sparkline(Series(np.arange(3.0), np.array([1.0, 3.0, 2.0])))
  (line,) = ElementTree.fromstring(svg).iter('polyline')
  heights = _points(line)[:, 1]
  assert heights.argsort().tolist() == [1, 2, 0]
