"""Activations over time are those of the policy that plays."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import networks_extra
from brax_nnx_plugin.ppo import playing
from launchers import activation_plot
from launchers import scenes
from launchers.errors import UserError
from tests import played_runs
from tests import small_runs

_MEMORIES = ['action/1', 'value/1']


def test_the_memory_is_the_one_that_the_policy_carries(tmp_path):
  played_runs.save_run(tmp_path)
  scene = scenes.load(tmp_path)

  seen = activation_plot.record(scene, ['action/1', 'action/0'], 10, seed=3)

  policy: Any = checkpoint.load_policy(tmp_path)
  key = jax.random.PRNGKey(3)
  played = playing.rollout(scene.env, policy, key, 10, episode_length=4)
  np.testing.assert_array_equal(seen.dones, played.dones)
  assert seen.dones.sum() >= 2
  memory, hidden = policy.initial_state(), []
  act = jax.jit(lambda *arguments: policy(*arguments))
  reset = jax.jit(lambda *arguments: policy.reset(*arguments))
  for state, done in zip(played.states, played.dones, strict=True):
    _, extras = act(state.obs, key, memory)
    (carry,) = [
      c
      for c in jax.tree.leaves(
        extras['state']['action'], is_leaf=lambda x: isinstance(x, tuple)
      )
      if c
    ]
    hidden.append(carry[1])  # of an LSTM, (c, h)
    memory = reset(extras['state'], done)
  np.testing.assert_allclose(seen.layers['action/1'], hidden, atol=1e-6)
  assert seen.layers['action/0'].shape == (10, 4)


@pytest.mark.parametrize(
  ('factory', 'expected'),
  [
    (small_runs.small_lstm, _MEMORIES),
    (
      functools.partial(small_runs.small_lstm, value_memory_size=None),
      _MEMORIES[:1],
    ),
    (
      functools.partial(small_runs.small_lstm, normalize_inputs=True),
      [f'1/{name}' for name in _MEMORIES],
    ),
  ],
  ids=['LSTM', 'LSTM policy alone', 'normalized LSTM'],
)
def test_the_layers_with_memory_are_shown(tmp_path, factory, expected):
  played_runs.save_run(tmp_path, factory)
  assert activation_plot.choose(scenes.load(tmp_path)) == expected


def test_the_latent_of_a_bottleneck_is_shown(tmp_path):
  factory = functools.partial(
    networks_extra.make_variational_ppo_networks, latent_size=2
  )
  played_runs.save_run(tmp_path, factory)

  (name,) = activation_plot.choose(scenes.load(tmp_path))

  assert name.startswith('action/')


def test_without_memory_a_layer_has_to_be_named(tmp_path):
  played_runs.save_run(tmp_path, small_runs.small_mlp, kind='mlp')
  scene = scenes.load(tmp_path)

  with pytest.raises(UserError, match='no memory.*action/0'):
    activation_plot.choose(scene)
  with pytest.raises(UserError, match='--layer=action/9.*action/'):
    activation_plot.choose(scene, ['action/9'])
  assert activation_plot.choose(scene, ['action/0']) == ['action/0']
  seen = activation_plot.record(scene, ['action/0'], 6)
  assert seen.layers['action/0'].shape == (6, 5)
  assert np.ptp(seen.layers['action/0']) > 0


def test_a_network_of_stock_brax_cannot_be_looked_into():
  from brax.training.agents.ppo import networks as brax_networks

  scene: Any = type('Scene', (), {})()
  scene.networks = brax_networks.make_ppo_networks(2, 1)
  scene.params = None
  with pytest.raises(UserError, match='stock Brax cannot be looked into'):
    activation_plot.choose(scene)


def test_a_picture_is_drawn_whole(tmp_path):
  recording = activation_plot.Recording(
    {'a': np.random.default_rng(0).normal(size=(9, 3)), '': np.zeros((9, 70))},
    np.array([0, 0, 1, 0, 0, 0, 0, 0, 1]),
  )
  path = tmp_path / 'out.png'

  activation_plot.draw(path, recording, 'title', 'steps of 0.04 s')

  assert path.read_bytes().startswith(b'\x89PNG')
  assert list(tmp_path.iterdir()) == [path]
