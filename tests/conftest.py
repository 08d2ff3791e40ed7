"""Two CPU devices for every test, so that device code is exercised."""

import os

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if 'xla_force_host_platform_device_count' not in os.environ.get(
  'XLA_FLAGS', ''
):
  os.environ['XLA_FLAGS'] = (
    os.environ.get('XLA_FLAGS', '')
    + ' --xla_force_host_platform_device_count=2'
  )


@pytest.fixture(scope='module', autouse=True)
def forget_programs():
  """Drops compiled programs after each file of tests.

  Each one is mapped into memory, and a process may have only so many mappings:
  beyond them the compiler crashes.
  """
  import jax  # after the flags above

  yield
  jax.clear_caches()
