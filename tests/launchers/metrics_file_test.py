"""The file of metrics, on a disk that is full at times."""

import errno
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from launchers import metrics_file


class _SmallDisk:
  """A file that takes so many bytes, and then none until there is room."""

  def __init__(self, file):
    self.file = file
    self.room = 0

  def write(self, data):
    if not self.room:
      raise OSError(errno.ENOSPC, 'No space left on device')
    count = self.file.write(data[: self.room])
    self.room -= count
    return count

  def close(self):
    self.file.close()


def _lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_numbers_are_metrics():
  metrics = {
    'float': jnp.float32(0.5),
    'int': 3,
    'bool': np.True_,
    'nan': np.nan,
    'vector': np.ones(2),
    'text': 'x',
    'none': None,
  }
  assert metrics_file.scalars(metrics) == {
    'float': 0.5,
    'int': 3.0,
    'bool': 1.0,
    'nan': None,
  }


@pytest.mark.parametrize('room', [1, 7, 24, 60])
def test_what_a_full_disk_refused_is_written_later(tmp_path, room):
  path = tmp_path / 'metrics.jsonl'
  file = metrics_file.MetricsFile(path, [{'env_steps': 0}])
  file.flush()
  disk: Any = _SmallDisk(file._file)
  file._file = disk
  disk.room = room
  with pytest.raises(OSError, match='No space left'):
    for step in range(1, 9):
      file.write({'env_steps': step})
  with pytest.raises(OSError, match='No space left'):
    file.write({'env_steps': step + 1})
  disk.room = 1000
  file.write({'env_steps': step + 2})
  file.close()
  expected = [{'env_steps': i} for i in range(step + 3)]
  assert _lines(path) == expected


def test_a_former_file_is_there_until_the_first_line(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_text('{"env_steps": 0}\n{"env_steps": 5}\n')
  file = metrics_file.MetricsFile(path, [{'env_steps': 0}])
  assert _lines(path) == [{'env_steps': 0}, {'env_steps': 5}]
  file.write({'env_steps': 3})
  assert _lines(path) == [{'env_steps': 0}, {'env_steps': 3}]
  file.close()


@pytest.mark.parametrize(
  'end',
  [
    b'{"env_st',
    b'\xc3',
    b'{"a": "\xc3',
    b'5',
    b'{}',
    b'[0]',
    b'{"env_steps": 5, "a": "b"}',
    b'{"env_steps": null}',
  ],
)
def test_a_line_that_was_cut_off_is_left_out(tmp_path, end):
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(b'{"env_steps": 0}\n' + end)
  assert metrics_file.read(path) == [{'env_steps': 0}]
