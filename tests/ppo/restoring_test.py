"""Runs that start from given parameters."""

import functools
from typing import Any

from brax.training.agents.ppo import checkpoint as brax_checkpoint
from brax.training.agents.ppo import train as brax_train
import jax
import numpy as np
import pytest

from brax_nnx_plugin.ppo import convert
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import parity_envs
from tests import small_runs

_WITH_STATISTICS = functools.partial(
  small_runs.small_lstm, normalize_inputs=True
)


def _start(**overrides: Any) -> Any:
  """Returns the parameters that a run begins with."""
  return small_runs.small_train(num_timesteps=0, **overrides)[1]


@pytest.fixture(scope='module')
def trained():
  """Parameters of a stock network, with statistics."""
  return small_runs.small_train(
    num_timesteps=small_runs.STEP,
    network_factory=parity_envs.stock_mlp,
    normalize_observations=True,
  )[1]


@pytest.mark.slow
@pytest.mark.parametrize('value', [True, False])
def test_a_restored_run_is_that_of_stock_brax(stock_jax, trained, value):
  arguments: Any = {
    'network_factory': parity_envs.stock_mlp,
    'normalize_observations': True,
    'restore_params': trained,
    'restore_value_fn': value,
    'seed': 3,
    'num_timesteps': 2 * small_runs.STEP,
  }
  ours = small_runs.small_train(**arguments)[1]
  stock = brax_train.train(**small_runs.arguments(**arguments))[1]
  assert small_runs.largest_difference(ours, stock) == 0


def test_parameters_come_back_and_the_value_function_if_asked_for(trained):
  common: Any = {
    'network_factory': parity_envs.stock_mlp,
    'normalize_observations': True,
  }
  fresh = _start(seed=3, **common)
  both = _start(seed=3, restore_params=trained, **common)
  policy = _start(
    seed=3, restore_params=trained, restore_value_fn=False, **common
  )
  difference = small_runs.largest_difference
  assert difference(both, trained) == 0
  assert difference(policy[:2], trained[:2]) == 0
  assert difference(policy[2], fresh[2]) == 0
  assert difference(fresh[2], trained[2]) > 1e-3


def test_a_checkpoint_of_a_network_with_memory_and_statistics(tmp_path):
  arguments: Any = {'network_factory': _WITH_STATISTICS}
  saved = small_runs.small_train(
    num_timesteps=small_runs.STEP,
    save_checkpoint_path=tmp_path,
    **arguments,
  )[1]
  restored = _start(seed=5, restore_checkpoint_path=tmp_path, **arguments)
  assert small_runs.largest_difference(restored, saved) == 0
  counter = [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(restored[1])
    if 'counter' in jax.tree_util.keystr(path)
  ]
  assert np.max(counter) == small_runs.STEP


@pytest.mark.parametrize(
  'network_factory', [parity_envs.stock_mlp, small_runs.small_mlp]
)
def test_a_checkpoint_of_stock_brax(network_factory, trained, tmp_path):
  config = brax_checkpoint.network_config(2, 1, True, parity_envs.stock_mlp)
  brax_checkpoint.save(tmp_path, 7, trained, config)
  restored = small_runs.small_train(
    num_timesteps=0,
    network_factory=network_factory,
    normalize_observations=True,
    restore_checkpoint_path=tmp_path / '000000000007',
  )

  observation = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
  actions = [
    make_policy(params, deterministic=True)(observation, jax.random.key(0))[0]
    for make_policy, params, _ in (
      restored,
      small_runs.small_train(
        num_timesteps=0,
        network_factory=parity_envs.stock_mlp,
        normalize_observations=True,
        restore_params=trained,
      ),
    )
  ]
  assert np.ptp(actions[1]) > 1e-3
  np.testing.assert_allclose(*actions, atol=1e-6)


def test_a_warm_start_can_be_trained_on():
  mlp = functools.partial(
    ppo_networks.make_ppo_networks,
    policy_hidden_layer_sizes=(4, 4),
    value_hidden_layer_sizes=(4, 4),
  )
  lstm = functools.partial(small_runs.small_lstm, policy_memory_size=4)
  params = _start(network_factory=mlp)
  params, taken = convert.warm_start(params, lstm(2, 1), jax.random.PRNGKey(0))
  restored = _start(network_factory=lstm, restore_params=params)
  assert taken
  assert small_runs.largest_difference(restored[1:], params[1:]) == 0


@pytest.mark.parametrize(
  ('params', 'message'),
  [
    ((), 'restore_params must be what train returned'),
    ((None, {}), 'policy parameters .*: not given'),
  ],
)
def test_what_is_no_set_of_parameters_is_refused(params, message):
  with pytest.raises(ValueError, match=message):
    _start(restore_params=params)


def test_parameters_of_another_network_are_refused_by_name():
  larger = functools.partial(
    small_runs.small_mlp, policy_hidden_layer_sizes=(7,)
  )
  params = _start(network_factory=larger)
  with pytest.raises(ValueError, match=r'kernel.*given \(2, 7\), needed'):
    _start(restore_params=params)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
  with pytest.raises(ValueError, match=str(tmp_path)):
    _start(restore_checkpoint_path=tmp_path / 'nothing')
