"""Networks of a user's own, by name."""

from collections.abc import Iterator
import sys

import jax
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import import_path
from brax_nnx_plugin.ppo import network_config
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import saved_policies

_SOURCE = """
from brax_nnx_plugin.networks import (
  Dense, LSTM, NormalTanhSampler, PPOAdapter, Sequential
)
from brax_nnx_plugin.ppo import networks as ppo_networks

def build(observation_size, action_size, rngs, units=3):
  n = observation_size[0]
  layers = [
    LSTM(n, units, rngs),
    Dense(units, 2 * action_size, rngs),
    NormalTanhSampler(rngs),
  ]
  return PPOAdapter(action=Sequential(layers), value=Dense(n, 1, rngs))

made = ppo_networks.make_network_factory(build)

def factory(observation_size, action_size, preprocess_observations_fn, units=3):
  build_it = lambda *args: build(*args, units=units)
  return ppo_networks.make_network_factory(build_it)(
    observation_size, action_size, preprocess_observations_fn
  )

class Holder:
  build = staticmethod(build)

number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> Iterator[str]:
  """A module that only the test can import."""
  name = f'own_networks_{tmp_path.name}'.replace('-', '_')
  (tmp_path / f'{name}.py').write_text(_SOURCE)
  monkeypatch.syspath_prepend(tmp_path)
  yield name
  sys.modules.pop(name, None)


def _units(networks) -> set[int]:
  keys = jax.random.split(jax.random.PRNGKey(0))
  params = networks.functions.init(*keys).params.policy
  return {leaf.shape[0] for leaf in jax.tree.leaves(params)}


@pytest.mark.parametrize('name', ['build', 'made', 'factory', 'Holder.build'])
@pytest.mark.parametrize('units', [3, 5])
def test_what_a_path_names_makes_networks(name, units, module):
  kwargs = {} if units == 3 else {'units': units}

  factory = import_path.factory(f'{module}:{name}', **kwargs)
  networks = factory((4,), 1, preprocess_observations_fn=lambda x, _: x)

  assert units in _units(networks)


@pytest.mark.parametrize(
  ('path', 'message'),
  [
    ('', 'package.module:function'),
    ('build', 'package.module:function'),
    ('{module}:', 'package.module:function'),
    ('nowhere.at_all:build', 'cannot be imported .ModuleNotFoundError'),
    ('{module}:biuld', 'has no biuld'),
    ('{module}:number', 'is a int'),
  ],
)
def test_a_path_to_nothing_is_told(path, message, module):
  with pytest.raises(ValueError, match=message):
    import_path.factory(path.format(module=module))


def test_a_module_that_fails_is_told(tmp_path, monkeypatch):
  (tmp_path / 'own_networks_that_fail.py').write_text('1 / 0')
  monkeypatch.syspath_prepend(tmp_path)

  with pytest.raises(ValueError, match='ZeroDivisionError'):
    import_path.factory('own_networks_that_fail:build')


@pytest.mark.parametrize('name', ['build', 'made'])
def test_a_checkpoint_is_loaded_by_the_name_of_its_network(
  name, module, tmp_path
):
  factory = import_path.factory(f'{module}:{name}', units=5)
  networks = factory((4,), 1)
  params = saved_policies.measured_params(networks, (4,))
  config = network_config.network_config(
    factory, (4,), 1, False, std_eps=0.0, mode='welford'
  )
  checkpoint.save(tmp_path / 'run', 3, params, config)
  sys.modules.pop(module)

  # What the file names is not imported.
  with pytest.raises(ValueError, match=f"network_factory='{module}:build'"):
    checkpoint.load(tmp_path / 'run')
  assert module not in sys.modules

  policy = checkpoint.load_policy(tmp_path / 'run', f'{module}:{name}')
  trained = ppo_networks.make_inference_fn(networks)(params, True)
  actions = [saved_policies.act(p, (4,)) for p in (policy, trained)]
  np.testing.assert_array_equal(*actions)
