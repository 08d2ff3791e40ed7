"""The picture of a comparison."""

from typing import Any

from matplotlib.figure import Figure
import numpy as np
import pytest

from launchers import compare_picture
from launchers.compare_plan import Run
from launchers.compare_report import Result
from launchers.compare_statistics import Curve


def _result(variant, network, seed, curve):
  run = Run(variant, network, seed, 'x', (), 'CartpoleBalance', 20)
  return Result(run, curve, 'finished')


@pytest.fixture
def drawn(monkeypatch):
  """The figures that were saved."""
  figures: list[Any] = []
  save = Figure.savefig

  def keep(self, *args, **kwargs):
    figures.append(self)
    save(self, *args, **kwargs)

  monkeypatch.setattr(Figure, 'savefig', keep)
  return figures


def test_curves_are_those_of_the_runs(tmp_path, drawn):
  results = [
    _result('a', 'mlp', 0, Curve((0, 10, 20), (0.0, 1.0, 2.0))),
    _result('a', 'mlp', 1, Curve((0, 10), (2.0, 5.0))),
    _result('a', 'lstm', 0, Curve((0, 10), (7.0, 8.0))),
    _result('b', 'mlp', 0, Curve()),
  ]
  compare_picture.draw(tmp_path / 'x.png', results, threshold=6.0)

  assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')
  assert [path.name for path in tmp_path.iterdir()] == ['x.png']
  (figure,) = drawn
  first, second = figure.axes
  assert [axes.get_title() for axes in figure.axes] == ['a', 'b']
  labels = [text.get_text() for text in first.get_legend().get_texts()]
  assert labels == ['mlp, 2 seeds', 'lstm, 1 seed']
  (nothing,) = second.get_legend().get_texts()
  assert nothing.get_text() == 'mlp, 0 of 1 seeds'
  mean, beyond, _, line = first.get_lines()
  np.testing.assert_array_equal(mean.get_xydata(), [[0, 1], [10, 3]])
  np.testing.assert_array_equal(beyond.get_xydata(), [[10, 1], [20, 2]])
  assert set(line.get_ydata()) == {6.0}
  edges = first.collections[0].get_paths()[0].vertices
  assert {tuple(point) for point in edges} >= {(0, 0), (0, 2), (10, 1), (10, 5)}
  assert 'env steps' in figure.get_supxlabel()
  assert 'lowest to highest seed; thin' in figure.get_supxlabel()


def test_without_variants_the_panel_has_the_name_of_the_task(tmp_path, drawn):
  networks = [f'network{i}' for i in range(9)]
  results = [_result('', name, 0, Curve((0,), (1.0,))) for name in networks]
  compare_picture.draw(tmp_path / 'x.png', results, None)
  (axes,) = drawn[0].axes
  assert axes.get_title() == 'CartpoleBalance'
  assert 'thin' not in drawn[0].get_supxlabel()
  styles = [
    (line.get_color(), line.get_linestyle(), line.get_marker())
    for line in axes.get_lines()
  ]
  assert len(set(styles)) == len(networks)


def test_what_all_panels_have_is_explained_once(tmp_path, drawn):
  results = [
    _result(variant, network, 0, Curve((0, 10), (1.0, 2.0)))
    for variant in 'ab'
    for network in ('mlp', 'lstm')
  ]
  compare_picture.draw(tmp_path / 'x.png', results, None)
  (legend,) = drawn[0].legends
  labels = [text.get_text() for text in legend.get_texts()]
  assert labels == ['mlp, 1 seed', 'lstm, 1 seed']
  assert all(axes.get_legend() is None for axes in drawn[0].axes)
