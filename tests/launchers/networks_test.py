"""Networks of a user's own in a run."""

import functools
import json
import types
from typing import Any

import pytest

from brax_nnx_plugin.ppo import checkpoint
from launchers import configs
from launchers import description
from launchers import telling
from launchers.errors import UserError
from tests import saved_policies

_OWN = """
from brax_nnx_plugin.networks import Dense, NormalTanhSampler, PPOAdapter
from brax_nnx_plugin.networks import Sequential

def build(observation_size, action_size, rngs, units=4, activation='relu'):
  n = observation_size[0]
  action = [Dense(n, 2 * action_size, rngs), NormalTanhSampler(rngs)]
  return PPOAdapter(action=Sequential(action), value=Dense(n, 1, rngs))
"""


def _resolve(network: str, **options: Any) -> configs.RunConfig:
  return configs.resolve({'network': network, **options}, has_gpu=False)


def test_a_network_of_ones_own_is_named(tmp_path, monkeypatch):
  (tmp_path / 'own_network_of_a_run.py').write_text(_OWN)
  monkeypatch.syspath_prepend(tmp_path)
  own = functools.partial(_resolve, 'own_network_of_a_run:build')

  config = own(set=['network.units=8'])
  assert config.network_arguments == {'units': 8}
  networks: Any = configs.network_factory(config)((3,), 1)
  assert not networks.functions.stateful
  found = description.describe(config)['network']
  assert found == {
    'kind': 'own_network_of_a_run:build',
    'arguments': {'units': 8},
  }
  wrong: tuple[tuple[dict[str, Any], str], ...] = (
    ({'set': ['network.unit=8']}, 'no such entry.*units'),
    ({'set': ['network.rngs=8']}, 'no such entry'),
    ({'memory_size': 3}, '--memory_size has no meaning'),
    ({'normalize_inputs': True}, '--normalize_inputs has no meaning'),
  )
  for options, message in wrong:
    with pytest.raises(UserError, match=message):
      own(**options)


def test_nothing_that_only_a_file_names_is_imported(tmp_path, monkeypatch):
  imported = tmp_path / 'imported'
  module = tmp_path / 'own_network_of_a_file.py'
  module.write_text(f'open({str(imported)!r}, "w").close()\n{_OWN}')
  monkeypatch.syspath_prepend(tmp_path)
  text = description.describe(_resolve('mlp'))
  text['network'] = {'kind': 'own_network_of_a_file:build', 'arguments': {}}
  (tmp_path / 'config.json').write_text(json.dumps(text))
  for flag in ('config', 'resume'):
    with pytest.raises(UserError, match='--network=own_network_of_a_file:bui'):
      configs.resolve({flag: str(tmp_path)}, has_gpu=False)
  assert not imported.exists()
  _resolve('own_network_of_a_file:build', config=str(tmp_path))
  assert imported.exists()


def test_a_run_with_it_is_exported_and_says_how_to_load_it(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / 'own_network_to_export.py').write_text(_OWN)
  monkeypatch.syspath_prepend(tmp_path)
  config = _resolve('own_network_to_export:build', set=['network.units=8'])
  factory = configs.network_factory(config)
  networks: Any = factory((3,), 1)
  params = saved_policies.measured_params(networks, (3,))
  described = checkpoint.network_config(
    factory, (3,), 1, False, std_eps=0.0, mode='welford'
  )
  checkpoint.save(tmp_path / 'checkpoints', 7, params, described)
  env = types.SimpleNamespace(dt=0.02)

  for _ in range(2):  # also when a run that was exported goes on
    telling.export_policy(config, tmp_path, env)
  telling.conclude(config, tmp_path, '')

  sidecar = json.loads((tmp_path / 'exported' / 'policy.json').read_text())
  assert sidecar['control_period_s'] == 0.02
  told = f"load_policy({str(tmp_path)!r}, 'own_network_to_export:build')"
  assert told in capsys.readouterr().out
