"""Signals that end a run, and those that it was told to ignore."""

import signal

import pytest

from launchers import session


@pytest.fixture
def ignored():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  yield signal.SIGHUP
  signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_closed_is_heeded():
  assert signal.SIGHUP in session.heeded_signals()
  with session.Session().saving():
    assert callable(signal.getsignal(signal.SIGHUP))
    assert callable(signal.getsignal(signal.SIGTERM))


def test_what_is_ignored_stays_ignored(ignored):
  assert ignored not in session.heeded_signals()
  with session.Session().saving():
    assert signal.getsignal(ignored) == signal.SIG_IGN
    assert callable(signal.getsignal(signal.SIGINT))
