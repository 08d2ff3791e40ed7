"""Networks of nnx-ppo train as they are, by duck typing."""

from brax import envs
import jax
from nnx_ppo.networks import containers
from nnx_ppo.networks import factories
from nnx_ppo.networks import feedforward
from nnx_ppo.networks import recurrent
from nnx_ppo.networks import sampling_layers
from nnx_ppo.networks.adapter import PPOAdapter
from nnx_ppo.networks.normalizer import Normalizer
import numpy as np
import pytest

from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import train as ppo


def build_mlp(observation_size, action_size, rngs):
  return factories.make_mlp_actor_critic(
    observation_size[0], action_size, [4], [4], rngs, entropy_weight=1e-3
  )


def build_lstm(observation_size, action_size, rngs):
  size = observation_size[0]
  actor = containers.Sequential(
    [
      recurrent.LSTM(size, 4, rngs),
      feedforward.Dense(4, 2 * action_size, rngs),
      sampling_layers.NormalTanhSampler(rngs, entropy_weight=1e-3),
    ]
  )
  adapter = PPOAdapter(action=actor, value=feedforward.Dense(size, 1, rngs))
  return containers.Sequential([Normalizer(size), adapter])


def _counters(params):
  return [
    float(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if 'counter' in jax.tree_util.keystr(path)
  ]


@pytest.mark.parametrize('build', [build_mlp, build_lstm])
def test_network_trains_and_its_statistics_count_every_observation(build):
  env_steps = 2 * 4 * 3 * 2
  _, params, metrics = ppo.train(
    envs.get_environment('fast'),
    num_timesteps=2 * env_steps,
    episode_length=8,
    num_envs=4,
    unroll_length=3,
    batch_size=8,
    num_minibatches=2,
    num_eval_envs=2,
    max_devices_per_host=1,
    network_factory=ppo_networks.make_network_factory(build),
  )
  assert _counters(params[1]) == [2 * env_steps]
  assert np.isfinite(metrics['training/total_loss'])
  # The entropy is in the network's own regularization, not in PPO's bonus.
  assert metrics['training/entropy_loss'] == 0
  assert metrics['training/regularization_loss'] != 0
  initial = ppo_networks.make_network_factory(build)((2,), 1).functions.init(
    *jax.random.split(jax.random.split(jax.random.PRNGKey(0))[0])
  )
  changed = jax.tree.map(
    lambda a, b: bool((a != b).any()),
    initial.params.policy,
    {'params': params[1]['params']},
  )
  assert any(jax.tree.leaves(changed))


def test_statistics_that_cannot_be_combined_over_devices_are_refused():
  with pytest.raises(TypeError, match='update_statistics takes no .axis_name.'):
    ppo.train(
      envs.get_environment('fast'),
      num_timesteps=8,
      episode_length=8,
      num_envs=4,
      unroll_length=1,
      batch_size=4,
      num_minibatches=2,
      run_evals=False,
      network_factory=ppo_networks.make_network_factory(build_lstm),
    )
