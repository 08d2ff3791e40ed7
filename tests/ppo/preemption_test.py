"""Signals that stop training: asked for, or not heard."""

import gc
import signal
import sys
import threading
import time

import pytest

from brax_nnx_plugin.ppo import preemption


def test_a_signal_is_noted_within_the_context_only():
  before = signal.getsignal(signal.SIGUSR1)
  assert preemption.received() == 0
  with preemption.save_on(signal.SIGUSR1, signal.SIGUSR2):
    assert preemption.received() == 0
    signal.raise_signal(signal.SIGUSR2)
    assert preemption.received() == signal.SIGUSR2
  assert preemption.received() == 0
  assert signal.getsignal(signal.SIGUSR1) is before


def test_handlers_come_back_after_an_error():
  before = signal.getsignal(signal.SIGUSR1)
  with pytest.raises(KeyError), preemption.save_on(signal.SIGUSR1):
    raise KeyError
  assert signal.getsignal(signal.SIGUSR1) is before
  assert preemption.received() == 0


def test_a_second_signal_does_what_it_would_have_done(monkeypatch):
  times = iter([10.0, 10.5, 12.0])
  monkeypatch.setattr(preemption.time, 'monotonic', lambda: next(times))
  with preemption.save_on(signal.SIGINT):
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # an echo of the first one
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    assert preemption.received() == signal.SIGINT


def test_a_second_signal_counts_where_exceptions_are_ignored(monkeypatch):
  monkeypatch.setattr(preemption, '_ECHO_SECONDS', -1.0)
  hook, collected = sys.unraisablehook, []

  def collector_callback(phase, info):
    del info
    collected.append(phase)
    signal.raise_signal(signal.SIGINT)

  with pytest.raises(KeyboardInterrupt), preemption.save_on(signal.SIGINT):
    signal.raise_signal(signal.SIGINT)
    gc.callbacks.append(collector_callback)
    try:
      gc.collect()
    finally:
      gc.callbacks.remove(collector_callback)
    time.sleep(60)
  assert collected, 'the collector ran'
  assert sys.unraisablehook is hook


def test_contexts_may_be_nested():
  with preemption.save_on(signal.SIGUSR1):
    with preemption.save_on(signal.SIGUSR2):
      signal.raise_signal(signal.SIGUSR1)
      assert preemption.received() == signal.SIGUSR1
    assert preemption.received() == signal.SIGUSR1


def test_another_thread_cannot_receive_signals():
  errors = []

  def listen():
    try:
      with preemption.save_on(signal.SIGUSR1):
        pass
    except ValueError as e:
      errors.append(e)

  thread = threading.Thread(target=listen)
  thread.start()
  thread.join()
  assert len(errors) == 1
  assert preemption.received() == 0


def test_no_signal_is_a_mistake():
  with pytest.raises(ValueError, match='SIGTERM'), preemption.save_on():
    pass


@pytest.mark.parametrize(
  ('path', 'words'),
  [('/x/7', "restore_checkpoint_path = '/x/7'"), (None, 'nothing is saved')],
)
def test_the_error_says_how_to_go_on(path, words):
  error = preemption.Preempted(signal.SIGTERM, 7, path)
  assert error.signal is signal.SIGTERM
  assert 'SIGTERM stopped training after 7 env steps' in str(error)
  assert words in str(error)
