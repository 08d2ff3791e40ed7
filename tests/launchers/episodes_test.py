"""Episodes of a policy, against numbers worked out by hand."""

import types
from typing import Any

import jax
import numpy as np

from brax_nnx_plugin.ppo import networks as ppo_networks
from launchers import episodes
from tests import fakes


def _counting_scene(action_repeat: int = 1) -> Any:
  """Episodes of 4 and 2 steps; the action is how many steps are remembered."""
  factory = ppo_networks.make_network_factory(fakes.count_network)
  networks = factory((2,), 1)
  keys = jax.random.split(jax.random.PRNGKey(1))
  return types.SimpleNamespace(
    batched=fakes.ScriptEnv(ends=((3,), (1, 4))),
    make_policy=ppo_networks.make_inference_fn(networks),
    params=(None, *networks.functions.init(*keys).inference_params()),
    num_steps=6,
    action_repeat=action_repeat,
  )


def test_an_episode_counts_up_to_its_own_end():
  played = episodes.play(_counting_scene(), 2, keep_states=True)

  assert played.returns.tolist() == [4, 2]
  assert played.lengths.tolist() == [4, 2]
  assert played.actions[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1]
  assert played.actions[:, 1, 0].tolist() == [0, 1, 0, 1, 2, 0]
  assert [state.obs[0].item() for state in played.states] == [0, 1, 2, 3]


def test_lengths_are_env_steps():
  played = episodes.play(_counting_scene(action_repeat=3), 2)

  assert played.lengths.tolist() == [12, 6]
  assert played.states == []


def test_the_first_end_is_found_along_time():
  dones = np.array([[0, 0, 1], [1, 0, 0], [1, 0, 1]])
  assert episodes.first_end(dones).tolist() == [2, 3, 1]
  assert episodes.first_end(np.zeros(5)) == 5


def test_the_table_has_every_episode_and_their_mean_and_spread():
  played = episodes.Episodes(
    np.array([1.0, 3.0]), np.array([10, 20]), np.zeros((1, 2, 1)), []
  )

  lines = [line.split() for line in episodes.table(played).splitlines()]

  assert lines[1:5] == [
    ['1', '1', '10'],
    ['2', '3', '20'],
    ['mean', '2', '15.0'],
    ['std', '1', '5.0'],
  ]
