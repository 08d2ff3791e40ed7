"""Two CPU devices for every test, and programs compiled quickly and once."""

import os
import signal
import tempfile
import threading

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if 'xla_force_host_platform_device_count' not in os.environ.get(
  'XLA_FLAGS', ''
):
  os.environ['XLA_FLAGS'] = (
    os.environ.get('XLA_FLAGS', '')
    + ' --xla_force_host_platform_device_count=2'
  )

# Workers of one run find the same folder here.
_CACHE = 'BRAX_NNX_PLUGIN_TEST_CACHE'


def _heed_signals():
  """Heeds signals that a shell has had ignored, as it does in the background.

  Tests send them to this process, and to others that would inherit it.
  """
  for signum, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
  ):
    if signal.getsignal(signum) == signal.SIG_IGN:
      signal.signal(signum, handler)


def pytest_configure(config):
  """Lets all processes of a run share what they compile."""
  if threading.current_thread() is threading.main_thread():
    _heed_signals()
  if _CACHE not in os.environ:
    folder = tempfile.TemporaryDirectory(prefix='compiled-')
    config.add_cleanup(folder.cleanup)
    os.environ[_CACHE] = folder.name
  import jax  # after the flags above

  if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    jax.config.update('jax_compilation_cache_dir', os.environ[_CACHE])
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)


@pytest.fixture(scope='module', autouse=True)
def forget_programs(request):
  """Drops compiled programs after each file of tests.

  Each one is mapped into memory, and a process may have only so many mappings:
  beyond them the compiler crashes. Most programs of tests run for less time
  than optimizing them takes.
  """
  import jax  # after the flags above

  optimized = request.node.get_closest_marker('optimized') is not None
  jax.config.update('jax_disable_most_optimizations', not optimized)
  yield
  jax.clear_caches()
