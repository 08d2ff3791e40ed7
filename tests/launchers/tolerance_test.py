"""What fails is told and does not stop anything."""

import pytest

from launchers.tolerance import Tolerance


@pytest.fixture
def said():
  return []


def _fail(tolerate, *sentence, error=None):
  with tolerate(*sentence):
    raise error or OSError('disk\nfull')


def test_a_failure_is_told_once(said):
  tolerate = Tolerance(said.append).of
  for _ in range(3):
    _fail(tolerate, 'x failed', 'it goes on')
    with tolerate('x failed', 'it goes on'):
      pass
  _fail(tolerate, 'y failed', 'too', error=ValueError())
  assert said == [
    'WARNING: x failed (disk full); it goes on.',
    'WARNING: y failed (ValueError); too.',
  ]


def test_that_it_works_again_is_told_where_asked_for(said):
  tolerate = Tolerance(said.append).of
  sentence = 'x failed', 'wait', 'x works.'
  for _ in range(2):
    _fail(tolerate, *sentence)
    _fail(tolerate, *sentence)
    with tolerate(*sentence):
      pass
    with tolerate(*sentence):
      pass
  failed = 'WARNING: x failed (disk full); wait.'
  assert said == [failed, 'WARNING: x works.'] * 2


def test_an_interrupt_is_no_failure(said):
  with pytest.raises(KeyboardInterrupt):
    _fail(Tolerance(said.append).of, 'a', 'b', error=KeyboardInterrupt())
  assert not said


def test_there_may_be_nobody_to_tell():
  def say(text):
    raise OSError('the terminal is gone')

  _fail(Tolerance(say).of, 'x failed', 'it goes on')
