"""What is written and shown during a run."""

import io
import json
import os
import pathlib
import pty
import subprocess
import sys

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from launchers import reporting
from launchers.errors import UserError

_EVAL = {'eval/episode_reward': 250.0, 'eval/episode_reward_std': 40.0}
_TRAINING = {'episode/sum_reward': 120.0, 'episode/length': 9.0}
_NEITHER = {'training/total_loss': 1.0}


class _Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def stream():
  return io.StringIO()


@pytest.fixture
def reporter(tmp_path, stream):
  reporter = reporting.Reporter(tmp_path, 1000, 'Title', stream)
  yield reporter
  reporter.close()


def _lines(folder):
  text = (folder / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def _picture(folder):
  return matplotlib.image.imread(folder / 'reward.png')


def test_each_report_is_a_line_at_once(tmp_path, reporter):
  reporter(0, {'a': jnp.float32(0.5), 'b': np.float64(2)})
  assert [line['env_steps'] for line in _lines(tmp_path)] == [0]
  reporter(40, {'a': 3, 'b': jnp.array(4)})
  lines = _lines(tmp_path)
  assert [(x['env_steps'], x['a'], x['b']) for x in lines] == [
    (0, 0.5, 2),
    (40, 3, 4),
  ]
  assert 0 <= lines[0]['seconds'] <= lines[1]['seconds']


def test_numbers_that_json_has_not_are_null(tmp_path, reporter):
  reporter(0, {'a': jnp.nan, 'b': np.inf, 'c': 1.0, 'vector': np.ones(3)})
  text = (tmp_path / 'metrics.jsonl').read_text()
  assert 'NaN' not in text
  assert 'Infinity' not in text
  (line,) = _lines(tmp_path)
  assert line['a'] is None
  assert line['b'] is None
  assert line['c'] == 1.0
  assert 'vector' not in line


@pytest.mark.parametrize(
  ('metrics', 'shown'),
  [
    (_EVAL, 'evaluation reward 250 ± 40'),
    (_TRAINING, 'training reward 120'),
    (_EVAL | _TRAINING, 'evaluation reward 250 ± 40'),
    ({'eval/episode_reward': 250.0}, 'evaluation reward 250'),
    (_NEITHER, ''),
    ({}, ''),
  ],
)
def test_any_subset_of_metrics_is_taken(
  tmp_path, reporter, stream, metrics, shown
):
  reporter(0, metrics)
  reporter(500, metrics)
  assert len(_lines(tmp_path)) == 2
  assert reporter.last_reward() == shown
  assert (tmp_path / 'reward.png').exists() == bool(shown)
  assert stream.getvalue().rstrip().endswith(shown or 'left')


def test_kinds_of_metrics_may_alternate(tmp_path, reporter):
  for step, metrics in enumerate([_TRAINING, _NEITHER, _EVAL, _TRAINING]):
    reporter(step, metrics)
  assert reporter.curves == {
    'training': [(0, 120.0, 0.0), (3, 120.0, 0.0)],
    'evaluation': [(2, 250.0, 40.0)],
  }


def test_picture_is_redrawn_at_each_evaluation(tmp_path, reporter):
  reporter(0, _EVAL)
  first = _picture(tmp_path)
  reporter(500, _EVAL | {'eval/episode_reward': 700.0})
  second = _picture(tmp_path)
  assert first.shape == second.shape == (540, 840, 4)
  assert np.any(first != second)
  assert {path.name for path in tmp_path.iterdir()} == {
    'metrics.jsonl',
    'reward.png',
  }


@pytest.fixture
def axes(tmp_path, monkeypatch):
  """Returns a function that draws, and gives back what it drew on."""
  figures = []
  real = reporting.Figure

  def figure(*args, **kwargs):
    figures.append(real(*args, **kwargs))
    return figures[-1]

  def draw(curves):
    reporting.draw(tmp_path / 'x.png', curves, 'Title')
    return figures[-1].axes[0]

  monkeypatch.setattr(reporting, 'Figure', figure)
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


def test_lines_count_env_steps_where_there_is_no_terminal(reporter, stream):
  reporter(0, _EVAL)
  reporter(250, _EVAL)
  first, second = stream.getvalue().splitlines()
  assert first == '0 of 1,000 env steps, evaluation reward 250 ± 40'
  assert second.startswith('250 of 1,000 env steps, ')
  assert ' env steps/s, 0:00:0' in second
  assert '\r' not in stream.getvalue()


def test_time_left_is_that_of_the_steps_left(monkeypatch, stream):
  now = iter([100.0, 110.0, 130.0])
  monkeypatch.setattr(reporting.time, 'monotonic', lambda: next(now))
  lines = reporting._Lines(1000, stream, 0)
  lines.update(100, '')
  lines.update(300, 'reward 1')
  # 100 steps in 10 s, 900 left: 90 s. 200 in 20 s, 700 left: 70 s.
  assert stream.getvalue().splitlines() == [
    '100 of 1,000 env steps, 10 env steps/s, 0:01:30 left',
    '300 of 1,000 env steps, 10 env steps/s, 0:01:10 left, reward 1',
  ]


def test_bar_counts_env_steps_on_a_terminal(tmp_path):
  stream = _Terminal()
  reporter = reporting.Reporter(tmp_path, 4_000_000, 'Title', stream)
  reporter(0, _EVAL)
  reporter(1_000_000, _EVAL)
  reporter.close()
  last = stream.getvalue().split('\r')[-1]
  assert '25%' in last
  assert '1.00M/4.00M' in last
  assert 'env steps' in last
  assert 'evaluation reward 250 ± 40' in last


def test_bar_is_drawn_on_a_terminal_of_unknown_size(tmp_path):
  """A fresh pseudo terminal says that it has 0 rows and 0 columns."""
  code = f"""
import pathlib, sys
from launchers import reporting
folder = pathlib.Path({str(tmp_path)!r})
reporter = reporting.Reporter(folder, 1000, '', sys.stderr)
reporter(500, {{}})
reporter.close()
"""
  ours, theirs = pty.openpty()
  root = pathlib.Path(reporting.__file__).parents[1]
  done = subprocess.run(
    [sys.executable, '-c', code],
    env=os.environ | {'PYTHONPATH': str(root), 'COLUMNS': '', 'LINES': ''},
    stdin=subprocess.DEVNULL,
    stdout=theirs,
    stderr=theirs,
    check=False,
  )
  os.close(theirs)
  shown = os.read(ours, 1 << 16)
  os.close(ours)
  assert done.returncode == 0, shown
  assert b'50%' in shown


def test_progress_never_goes_back(tmp_path, reporter, stream):
  reporter(500, _EVAL)
  reporter(400, _TRAINING)
  assert stream.getvalue().splitlines()[-1].startswith('500 of 1,000')
  assert [line['env_steps'] for line in _lines(tmp_path)] == [500, 400]


def test_runs_of_one_second_have_folders_of_their_own(tmp_path):
  folders = [
    reporting.make_folder(str(tmp_path / 'a' / 'b'), 'Env', 'x')
    for _ in range(3)
  ]
  assert len({*folders}) == 3
  for folder in folders:
    assert folder.is_dir()
    assert folder.parent == tmp_path / 'a' / 'b'
    assert folder.name.startswith('Env-20')
    assert '-x' in folder.name


@pytest.mark.parametrize('below', ['', 'deeper'])
def test_a_file_in_the_way_of_the_folder_is_told(tmp_path, below):
  (tmp_path / 'file').write_text('')
  logdir = str(tmp_path / 'file' / below)
  with pytest.raises(UserError, match='--logdir=.*file.*cannot be made'):
    reporting.make_folder(logdir, 'Env', None)


def test_a_suffix_is_no_path(tmp_path):
  with pytest.raises(UserError, match='--suffix=a/b must be a name'):
    reporting.make_folder(str(tmp_path), 'Env', 'a/b')
