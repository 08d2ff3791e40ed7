"""Files that are replaced as a whole."""

import pytest

from launchers.replacing import replacing


def test_the_file_changes_at_the_end(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('old')
  with replacing(path) as partial:
    partial.write_text('new')
    assert path.read_text() == 'old'
  assert path.read_text() == 'new'
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
def test_what_is_interrupted_leaves_nothing(tmp_path, error):
  path = tmp_path / 'a.txt'
  path.write_text('old')
  with pytest.raises(error), replacing(path) as partial:
    partial.write_text('ne')
    raise error
  assert path.read_text() == 'old'
  assert list(tmp_path.iterdir()) == [path]
