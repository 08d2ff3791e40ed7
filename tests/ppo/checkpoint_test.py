"""Checkpoints of policies: what is saved acts again, and faults are named."""

import functools
import subprocess
import sys
from typing import Any
import warnings

from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import fakes
from tests import saved_policies
from tests import small_runs

# Other processes, which are compared with, compile as in real use.
pytestmark = pytest.mark.optimized


@pytest.mark.parametrize('case', saved_policies.CASES)
def test_what_is_saved_acts_again(tmp_path, case):
  factory, size, normalize = saved_policies.CASES[case]
  folder, params, action = saved_policies.save(
    tmp_path, factory, size, normalize
  )

  _, loaded = checkpoint.load(folder)
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  for a, b in zip(
    jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True
  ):
    assert a.dtype == jnp.asarray(b).dtype
    np.testing.assert_array_equal(a, b)
  policy = checkpoint.load_policy(tmp_path)
  np.testing.assert_array_equal(saved_policies.act(policy, size), action)
  assert folder.name == '000000000007'
  # Not to be had from parameters that were not loaded.
  fresh = saved_policies.measured_params(factory(size, 2), size)
  assert small_runs.largest_difference(fresh[1], params[1]) == 0
  noisy = checkpoint.load_policy(tmp_path, deterministic=False)
  assert not np.allclose(saved_policies.act(noisy, size), action, atol=1e-3)


_SCRIPT = """
import sys
import jax
import numpy as np
from brax_nnx_plugin.ppo import checkpoint
policy = checkpoint.load_policy(sys.argv[1])
x = 3 + jax.random.normal(jax.random.PRNGKey(0), (4, 3))
key = jax.random.PRNGKey(9)
_, extras = policy(x, key, policy.initial_state(4))
np.save(sys.argv[2], policy(x, key, extras['state'])[0])
assert 'tests' not in sys.modules
"""


@pytest.mark.slow
def test_another_process_needs_the_folder_only(tmp_path):
  _, _, action = saved_policies.save(tmp_path, *saved_policies.CASES['LSTM'])

  subprocess.run(
    [sys.executable, '-c', _SCRIPT, tmp_path, tmp_path / 'action.npy'],
    check=True,
  )

  np.testing.assert_array_equal(np.load(tmp_path / 'action.npy'), action)


@pytest.mark.slow
def test_training_saves_what_it_returns(tmp_path):
  saved = []
  make_policy, params, _ = small_runs.small_train(
    num_timesteps=2 * small_runs.STEP,
    num_evals=3,
    network_factory=small_runs.small_lstm,
    normalize_observations=True,
    normalize_observations_std_eps=1e-3,
    save_checkpoint_path=tmp_path / 'checkpoints',
    policy_params_fn=lambda step, make, p: saved.append((step, p)),
  )

  folders = sorted(p.name for p in (tmp_path / 'checkpoints').iterdir())
  assert folders == ['000000000032', '000000000064']
  for step, expected in saved[1:]:
    folder = tmp_path / 'checkpoints' / f'{step:012d}'
    _, loaded = checkpoint.load(folder)
    assert small_runs.largest_difference(loaded, expected) == 0
    assert loaded[0].std_eps == params[0].std_eps
  np.testing.assert_array_equal(
    saved_policies.act(checkpoint.load_policy(tmp_path), (2,)),
    saved_policies.act(make_policy(params, deterministic=True), (2,)),
  )


@pytest.mark.slow
def test_an_activation_that_cannot_be_saved_stops_training_at_once(
  tmp_path,
):
  factory = functools.partial(small_runs.small_mlp, activation=lambda x: x)
  epochs = []
  overrides: dict[str, Any] = {
    'network_factory': factory,
    'num_timesteps': small_runs.STEP,
    'policy_params_fn': lambda *args: epochs.append(args[0]),
  }

  small_runs.small_train(**overrides)
  assert epochs == [0, small_runs.STEP]
  with pytest.raises(ValueError, match='activation'):
    small_runs.small_train(
      **overrides, save_checkpoint_path=tmp_path / 'checkpoints'
    )
  assert len(epochs) == 2
  assert not (tmp_path / 'checkpoints').exists()


@pytest.mark.slow
def test_a_stock_network_is_saved_and_loaded(tmp_path):
  factory = functools.partial(
    brax_networks.make_ppo_networks,
    policy_hidden_layer_sizes=(5,),
    value_hidden_layer_sizes=(6,),
  )
  make_policy, params, _ = small_runs.small_train(
    num_timesteps=small_runs.STEP,
    network_factory=factory,
    save_checkpoint_path=tmp_path,
  )

  policy = checkpoint.load_policy(tmp_path, factory)

  np.testing.assert_array_equal(
    saved_policies.act(policy, (2,)),
    saved_policies.act(make_policy(params, True), (2,)),
  )


def test_saving_twice_at_a_step_keeps_the_second(tmp_path):
  folder, params, _ = saved_policies.save(
    tmp_path, *saved_policies.CASES['MLP']
  )
  doubled = jax.tree.map(lambda x: 2 * x, params[1])
  config = checkpoint.load_config(folder)

  again = checkpoint.save(tmp_path, 7, (params[0], doubled, params[2]), config)

  assert again == folder
  assert [p.name for p in tmp_path.iterdir()] == ['000000000007']
  _, loaded = checkpoint.load(tmp_path)
  assert small_runs.largest_difference(loaded[1], doubled) == 0


def test_a_network_of_the_user_is_loaded_with_its_factory(tmp_path):
  factory = ppo_networks.make_network_factory(fakes.count_network)
  networks: Any = factory((3,), 1)
  variables = networks.functions.init(jax.random.key(0), jax.random.key(0))
  params = (
    running_statistics.init_state(jax.ShapeDtypeStruct((3,), jnp.float32)),
    *jax.tree.map(lambda x: 5 * x, variables.inference_params()),
  )
  config = checkpoint.network_config(
    factory, (3,), 1, False, std_eps=0.0, mode='welford'
  )
  checkpoint.save(tmp_path, 1, params, config)

  with pytest.raises(ValueError, match='fakes:count_network.*network_factory='):
    checkpoint.load_policy(tmp_path)
  # The second step says 1, times a gain of 5.
  policy = checkpoint.load_policy(tmp_path, factory)
  np.testing.assert_array_equal(
    saved_policies.act(policy, (3,)), np.full((4, 1), 5.0)
  )


def test_a_factory_that_contradicts_the_checkpoint_is_noticed(tmp_path):
  saved_policies.save(tmp_path, *saved_policies.CASES['MLP'])
  factory = functools.partial(small_runs.small_mlp, activation='relu')
  with pytest.warns(UserWarning, match="activation = 'relu', saved with None"):
    checkpoint.load(tmp_path, factory)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    checkpoint.load(tmp_path, small_runs.small_mlp)
