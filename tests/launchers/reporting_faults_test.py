"""What fails beside a run does not end it."""

import io
import json

import pytest

from launchers import back_ends
from launchers import reporting
from launchers.errors import UserError

_EVAL = {'eval/episode_reward': 250.0, 'eval/episode_reward_std': 40.0}


@pytest.fixture
def stream():
  return io.StringIO()


def _lines(folder):
  text = (folder / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


class _Faulty:
  """A back end that the network has left."""

  name = 'Faulty'

  def __init__(self):
    self.calls = 0

  def write(self, line):
    self.calls += 1
    raise ConnectionError('unreachable')

  def close(self, succeeded):
    raise ConnectionError('unreachable')


def test_a_back_end_that_fails_is_told_once(tmp_path, stream, monkeypatch):
  faulty = _Faulty()
  monkeypatch.setattr(back_ends, 'start', lambda *args: [faulty])
  with reporting.Reporter(tmp_path, 1000, '', stream) as reporter:
    for step in range(5):
      reporter(step, _EVAL)
  assert faulty.calls == 5
  warnings = [x for x in stream.getvalue().splitlines() if 'WARNING' in x]
  assert warnings == [
    'WARNING: Faulty failed (unreachable); training goes on without.',
    'WARNING: Faulty did not end (unreachable); its end is lost.',
  ]
  assert len(_lines(tmp_path)) == 5


@pytest.mark.parametrize(
  ('name', 'told'),
  [
    ('metrics.jsonl', 'METRICS ARE NOT SAVED'),
    ('reward.png', 'reward.png could not be drawn'),
    ('report.html', 'report.html could not be written'),
    ('config.json', 'config.json could not be written'),
  ],
)
def test_a_file_that_cannot_be_written_stops_nothing(
  tmp_path, stream, name, told
):
  # As root one may write to folders that are read-only, but not over a folder.
  (tmp_path / 'metrics.jsonl').write_text('{"env_steps": 0}\n')
  reporter = reporting.Reporter(
    tmp_path, 1000, '', stream, begin=10, config={'a': 1}
  )
  blocked = tmp_path / (name + '.partial')
  blocked.mkdir()
  for step in (10, 20, 30):
    reporter(step, _EVAL)
  assert stream.getvalue().count(told) == 1
  blocked.rmdir()
  reporter(40, _EVAL)
  reporter.close()
  assert [x['env_steps'] for x in _lines(tmp_path)] == [0, 10, 20, 30, 40]
  assert json.loads((tmp_path / 'config.json').read_text()) == {'a': 1}
  assert 'finished' in (tmp_path / 'report.html').read_text()
  again = 'metrics.jsonl is complete again' in stream.getvalue()
  assert again == (name == 'metrics.jsonl')


def test_a_terminal_that_was_closed_stops_nothing(tmp_path):
  stream = io.StringIO()
  reporter = reporting.Reporter(tmp_path, 1000, '', stream)
  stream.close()
  reporter(0, _EVAL)
  reporter(20, _EVAL)
  reporter.close()
  assert len(_lines(tmp_path)) == 2


def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path, stream):
  (tmp_path / 'metrics.jsonl.partial').mkdir()
  with pytest.raises(UserError, match='cannot be written to'):
    reporting.Reporter(tmp_path, 1000, '', stream)
