"""What is said of an error in code of the user's own."""

import importlib.util
import json

import pytest

from launchers import errors


def test_the_place_is_the_last_one_of_the_users_own(tmp_path):
  file = tmp_path / 'own.py'
  file.write_text('import json\n\ndef f():\n  json.loads("{")\n')
  spec = importlib.util.spec_from_file_location('own', file)
  assert spec is not None and spec.loader is not None
  own = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(own)
  with pytest.raises(ValueError) as caught:
    own.f()
  text = errors.told(caught.value)
  assert text.startswith('JSONDecodeError: ')
  assert text.endswith(f'({file}, line 4)')


def test_without_such_code_there_is_no_place():
  try:
    json.loads('{')
  except ValueError as e:
    error = e.with_traceback(
      e.__traceback__.tb_next if e.__traceback__ else None
    )
  assert errors.told(error).endswith('(char 1)')
