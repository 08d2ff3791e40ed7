"""What is written and shown during a run."""

import io
import json
import signal

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo.types import TrainingDiverged
from launchers import reporting
from launchers.errors import UserError
from tests.launchers.pages import Page

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
    'report.html',
    'reward.png',
  }


def test_lines_count_env_steps_where_there_is_no_terminal(reporter, stream):
  reporter(0, _EVAL)
  reporter(250, _EVAL)
  first, second = stream.getvalue().splitlines()
  assert first == '0 of 1,000 env steps, evaluation reward 250 ± 40'
  assert second.startswith('250 of 1,000 env steps, ')
  assert ' env steps/s, 0:00:0' in second
  assert '\r' not in stream.getvalue()


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


def _page(folder):
  return Page((folder / 'report.html').read_text())


def test_the_report_is_there_from_the_start_and_kept_current(
  tmp_path, reporter
):
  assert 'running' in _page(tmp_path).texts
  assert 'Nothing has been reported yet.' in _page(tmp_path).texts
  reporter(500, _EVAL)
  page = _page(tmp_path)
  assert '250' in page.texts
  assert 'Title' in page.texts
  reporter.close()
  assert 'finished' in _page(tmp_path).texts


@pytest.mark.parametrize(
  ('error', 'status', 'note'),
  [
    (TrainingDiverged('reward', 160, ()), 'diverged', 'reward is not finite'),
    (checkpoint.Preempted(signal.SIGINT, 40, 'x'), 'stopped, can go on', '40'),
    (KeyboardInterrupt(), 'stopped, can go on', 'newest checkpoint'),
    (ValueError('shapes'), 'failed', 'shapes'),
  ],
)
def test_how_a_run_ends_is_in_its_report(tmp_path, stream, error, status, note):
  with (
    pytest.raises(type(error)),
    reporting.Reporter(tmp_path, 1000, 'Title', stream) as reporter,
  ):
    reporter(0, _EVAL)
    raise error
  page = _page(tmp_path)
  assert status in page.texts
  assert note in page.text()
  reporter(20, _EVAL)  # a callback that comes late
  assert len(_lines(tmp_path)) == 1
  assert 'WARNING' not in stream.getvalue()


def test_frequent_reports_are_not_all_drawn(tmp_path, reporter, monkeypatch):
  drawn = []
  monkeypatch.setattr(reporting, 'draw', lambda *args: drawn.append(args))
  now = [0.0]
  monkeypatch.setattr(reporting.time, 'monotonic', lambda: now[0])

  def slow(history, run):
    now[0] += 1.0
    return ''

  monkeypatch.setattr(reporting.report_html, 'render', slow)
  for step in range(100):
    now[0] += 1.0
    reporter(step, _TRAINING)
  assert 4 <= len(drawn) <= 6
  before = len(drawn)
  reporter(100, _EVAL)
  reporter(101, _EVAL)
  assert len(drawn) == before + 2
  assert len(_lines(tmp_path)) == 102


def test_a_run_that_does_not_go_on_keeps_its_files(tmp_path, stream):
  with reporting.Reporter(tmp_path, 1000, 'Title', stream) as reporter:
    reporter(0, _EVAL)
    reporter(500, _EVAL)
  before = {path: path.read_bytes() for path in tmp_path.iterdir()}
  resumed = reporting.Reporter(tmp_path, 1000, 'Other', stream, begin=500)
  with pytest.raises(ValueError), resumed:  # noqa: PT011
    raise ValueError('It cannot go on with num_envs = 3.')
  after = {path: path.read_bytes() for path in tmp_path.iterdir()}
  assert after == before


def test_metrics_that_were_not_finite_are_read_again(tmp_path, stream):
  with reporting.Reporter(tmp_path, 1000, '', stream) as reporter:
    reporter(0, dict.fromkeys(_EVAL, np.nan))
  with reporting.Reporter(tmp_path, 1000, '', stream, begin=500) as resumed:
    resumed(500, _EVAL)
  (first, second) = resumed.curves['evaluation']
  assert np.isnan(first[1])
  assert second == (500, 250.0, 40.0)
