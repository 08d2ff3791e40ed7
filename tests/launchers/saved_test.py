"""--config: going on from the configuration of a former run."""

import json
import pathlib
from typing import Any

from mujoco_playground import registry
import pytest

from launchers import configs
from launchers import description
from launchers import train_ppo
from launchers.errors import UserError


def _save(folder: pathlib.Path, **options: Any) -> configs.RunConfig:
  """Writes the configuration of a run as a run does; returns it."""
  config = configs.resolve(options, has_gpu=False)
  text = json.dumps(description.describe(config))
  (folder / 'config.json').write_text(text)
  return config


def _read(path: pathlib.Path, **options: Any) -> configs.RunConfig:
  return configs.resolve({'config': str(path), **options}, has_gpu=True)


def _effective(config: configs.RunConfig) -> dict[str, Any]:
  return description.describe(config) | {'versions': None}


@pytest.mark.parametrize('env_name', [None, *registry.ALL_ENVS])
def test_a_run_is_the_same_again(env_name, tmp_path):
  named: dict[str, Any] = {} if env_name is None else {'env_name': env_name}
  before = _save(tmp_path, **named)

  after = _read(tmp_path)

  assert _effective(after) == _effective(before)
  assert after.env_config == before.env_config
  assert after.network_arguments == before.network_arguments


def test_flags_change_what_they_name(tmp_path):
  before = _save(
    tmp_path,
    seed=3,
    stop_on_nan=False,
    set=['network.value_memory_size=5', 'ppo.learning_rate=1e-5'],
  )

  after = _read(tmp_path / 'config.json', num_envs=64)

  assert after.ppo['seed'] == 3
  assert not after.stop_on_nan
  assert after.ppo['learning_rate'] == 1e-5
  assert after.network_arguments['value_memory_size'] == 5
  expected = _effective(before)
  expected['ppo']['num_envs'] = 64
  assert _effective(after) == expected


def test_another_network_takes_over_what_it_knows(tmp_path):
  before = _save(tmp_path, set=['network.hidden=[8,9]'])

  mlp = _read(tmp_path, network='mlp')
  gru = _read(tmp_path, network='gru', memory_size=7)

  assert mlp.network_arguments == {
    'policy_hidden_layer_sizes': (8, 9),
    'value_hidden_layer_sizes': (8, 9),
    'normalize_inputs': True,
  }
  assert gru.network_arguments == before.network_arguments | {
    'cell': 'gru',
    'policy_memory_size': 7,
    'value_memory_size': 7,
  }


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (None, 'cannot be read'),
    ('{', 'is not JSON'),
    (b'\xff\x00', 'is not JSON'),
    ('', 'is not JSON'),
    ('[]', 'is not the config.json of a run'),
    ('{"environment": {}}', 'environment.hidden_observations is missing'),
    ('{"environment": 1, "network": 2}', 'is not the config.json of a run'),
  ],
)
def test_a_file_that_is_none_is_told(text, message, tmp_path):
  if text is not None:
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / 'config.json').write_bytes(content)

  with pytest.raises(UserError, match=message):
    _read(tmp_path)


def test_a_file_that_cannot_be_read_is_told(tmp_path):
  (tmp_path / 'config.json').mkdir()

  with pytest.raises(UserError, match='cannot be read .Is a directory'):
    _read(tmp_path)


def test_a_file_of_another_version_names_what_is_not_known(tmp_path):
  _save(tmp_path)
  file = tmp_path / 'config.json'
  saved = json.loads(file.read_text())
  file.write_text(json.dumps(saved | {'ppo': {'num_workers': 3}}))

  with pytest.raises(UserError, match='no parameter num_workers'):
    _read(tmp_path)


def test_another_environment_contradicts(tmp_path):
  _save(tmp_path)

  with pytest.raises(UserError, match='--env_name=CheetahRun contradicts'):
    _read(tmp_path, env_name='CheetahRun')


@pytest.mark.parametrize(
  ('part', 'name', 'value'),
  [
    ('environment', 'name', 5),
    ('environment', 'name', None),
    ('environment', 'suite', 'gym'),
    ('environment', 'hidden_observations', 'ab'),
    ('environment', 'hidden_observations', [1.5]),
    ('environment', 'delay_observations', '3'),
    ('environment', 'delay_observations', -1),
    ('environment', 'domain_randomization', 'no'),
    ('environment', 'config', []),
    ('network', 'kind', 5),
    ('network', 'arguments', []),
    ('ppo', 'episode_length', 'long'),
    ('ppo', 'normalize_observations', 'no'),
    ('ppo', 'log_training_metrics', 'no'),
  ],
)
def test_an_entry_that_was_edited_wrongly_is_told(part, name, value, tmp_path):
  text = description.describe(configs.resolve({}, has_gpu=False))
  text[part][name] = value
  (tmp_path / 'config.json').write_text(json.dumps(text))

  with pytest.raises(UserError):
    config = configs.resolve({'config': str(tmp_path)}, has_gpu=False)
    train_ppo.planning.plan(train_ppo.train_arguments(config))


def test_the_mark_that_some_editors_write_is_no_fault(tmp_path):
  text = json.dumps(description.describe(configs.resolve({}, has_gpu=False)))
  (tmp_path / 'config.json').write_text(text, encoding='utf-8-sig')

  assert _read(tmp_path).env_name == 'CartpoleBalance'
