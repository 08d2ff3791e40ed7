"""What the tests of `train` share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import small_runs


@pytest.fixture(scope='session')
def compilation_count():
  """The number of programs that XLA was asked for so far, in a list of one."""
  count = [0]

  def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    del duration_secs, kwargs
    count[0] += event == '/jax/core/compile/backend_compile_duration'

  jax.monitoring.register_event_duration_secs_listener(listen)
  return count


def _device_put_replicated(tree, devices):
  mesh = jax.sharding.Mesh(np.array(devices), ('i',))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('i'))
  return jax.tree.map(
    lambda x: jax.device_put(jnp.stack([x] * len(devices)), sharding), tree
  )


@pytest.fixture(scope='module')
def stock_jax():
  """Gives stock Brax the function that newer versions of JAX have dropped."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    if not hasattr(jax, 'device_put_replicated'):
      monkeypatch.setattr(
        jax, 'device_put_replicated', _device_put_replicated, raising=False
      )
    yield


@pytest.fixture(scope='session')
def lstm_result():
  """What `train` returns after one training step of an LSTM."""
  return small_runs.small_train(
    num_timesteps=small_runs.STEP,
    network_factory=small_runs.small_lstm,
  )
