"""Memory and the resets that the host makes between epochs, unannounced."""

import jax

from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import fakes
from tests import small_runs


class _Witness(fakes.ScriptEnv):
  """Reports every action along with the steps since the host's last reset."""

  def __init__(self, rows):
    super().__init__([[]] * rows)
    self.seen = []

  def step(self, state, action):
    jax.debug.callback(
      lambda clock, a: self.seen.extend(zip(clock, a[:, 0], strict=True)),
      state.info['clock'],
      action,
    )
    return super().step(state, action)


def test_a_reset_by_the_host_clears_the_memory():
  env = _Witness(4)
  # No episode ends, and at learning rate 0 the network says its count as it is.
  small_runs.small_train(
    environment=env,
    wrap_env=False,
    network_factory=ppo_networks.make_network_factory(fakes.count_network),
    num_timesteps=3 * small_runs.STEP,
    num_evals=4,
    num_resets_per_eval=1,
    learning_rate=0.0,
  )
  jax.effects_barrier()

  # Three epochs of two segments of 4 steps in 4 rows, each counted from 0.
  assert sorted(env.seen) == sorted(
    (count, count) for count in range(8) for _ in range(3 * 4)
  )


def test_without_a_reset_by_the_host_the_memory_lasts():
  env = _Witness(4)
  small_runs.small_train(
    environment=env,
    wrap_env=False,
    network_factory=ppo_networks.make_network_factory(fakes.count_network),
    num_timesteps=3 * small_runs.STEP,
    num_evals=4,
    learning_rate=0.0,
  )
  jax.effects_barrier()

  assert sorted(env.seen) == sorted(
    (count, count) for count in range(24) for _ in range(4)
  )
