"""Arrays in folders: they come back, or what is damaged is said."""

import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import arrays

_ARRAYS = {
  'float': np.linspace(-1, 1, 2000, dtype=np.float32).reshape(40, 50),
  'half': np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
  'flag': np.array(True),
  'key': np.array([[1, 2**32 - 1]], np.uint32),
  'pixels/view_0.x': np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
  'empty': np.zeros((3, 0), np.int32),
  'nan': np.array([np.nan, -0.0], np.float32),
}


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  folder = tmp_path_factory.mktemp('arrays')
  none = {'a': np.zeros((0, 2), np.float32)}
  arrays.write(folder, {'some': _ARRAYS, 'none': none})
  return folder


@pytest.fixture
def damaged(written, tmp_path):
  return pathlib.Path(shutil.copytree(written, tmp_path / 'damaged'))


def test_arrays_come_back_bit_for_bit(written):
  read = arrays.read(written, 'some')
  assert read.keys() == _ARRAYS.keys()
  for name, array in _ARRAYS.items():
    assert isinstance(read[name], np.ndarray)
    assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
    assert read[name].tobytes() == array.tobytes()


def test_arrays_without_numbers_come_back(written):
  assert arrays.read(written, 'none')['a'].shape == (0, 2)


def _flip(data):
  middle = len(data) // 2
  return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]


def _data_file(folder):
  """The file with the numbers."""
  files = [p for p in (folder / 'some').rglob('*') if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


@pytest.mark.parametrize(
  'damage', [_flip, lambda data: data[: len(data) // 2], lambda data: b'']
)
@pytest.mark.parametrize(
  'file', ['numbers', '_METADATA', 'manifest.ocdbt', arrays.LEAVES_NAME]
)
def test_damage_is_one_clear_error(damaged, file, damage):
  path = damaged / 'some' / file
  if file == 'numbers':
    path = _data_file(damaged)
  elif file == arrays.LEAVES_NAME:
    path = damaged / file
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(ValueError, match='damaged') as error:
    arrays.read(damaged, 'some')
  assert str(damaged) in str(error.value)
  assert len(str(error.value)) < 600


def test_numbers_are_not_believed_without_their_checksum(damaged):
  file = damaged / arrays.LEAVES_NAME
  content = json.loads(file.read_text())
  content['some']['half']['crc32'] ^= 1
  file.write_text(json.dumps(content))
  with pytest.raises(ValueError, match='damaged: half are not the numbers'):
    arrays.read(damaged, 'some')


def test_a_folder_without_checksums_is_read(damaged):
  (damaged / arrays.LEAVES_NAME).unlink()
  assert arrays.described(damaged, 'some') is None
  assert arrays.read(damaged, 'some').keys() == _ARRAYS.keys() - {'empty'}


def test_a_missing_folder_is_damage(tmp_path):
  with pytest.raises(ValueError, match=r'some is damaged'):
    arrays.read(tmp_path, 'some')
