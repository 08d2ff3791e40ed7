"""Working out a configuration, against Playground's registry."""

import inspect
import json
from typing import Any

import jax
import mujoco_playground
from mujoco_playground import registry
from mujoco_playground.config import dm_control_suite_params
from mujoco_playground.config import locomotion_params
from mujoco_playground.config import manipulation_params
import pytest

from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_extra
from brax_nnx_plugin.ppo.environments import Unrandomized
from brax_nnx_plugin.ppo.schedule import Schedule
from brax_nnx_plugin.ppo.train import train
from launchers import configs
from launchers import description
from launchers import planning
from launchers import telling
from launchers import train_ppo
from launchers.errors import UserError


def _registry_ppo(env_name: str) -> dict[str, Any]:
  for suite, params in (
    (mujoco_playground.manipulation, manipulation_params),
    (mujoco_playground.locomotion, locomotion_params),
    (mujoco_playground.dm_control_suite, dm_control_suite_params),
  ):
    if env_name in suite._envs:
      return params.brax_ppo_config(env_name).to_dict()
  raise AssertionError(env_name)


def _resolve(has_gpu: bool = False, **options: Any) -> configs.RunConfig:
  return configs.resolve(options, has_gpu)


def test_preset_is_a_task_with_hidden_velocities_for_an_lstm():
  config = _resolve()
  assert config.env_name == 'CartpoleBalance'
  assert config.hidden == (3, 4)
  env = config.env_config
  assert (env.impl, env.ctrl_dt, env.sim_dt) == ('jax', 0.04, 0.01)
  assert config.network == 'lstm'
  assert config.network_arguments == {
    'cell': 'lstm',
    'policy_hidden_layer_sizes': (64, 64),
    'value_hidden_layer_sizes': (64, 64),
    'policy_memory_size': 64,
    'value_memory_size': 64,
    'normalize_inputs': True,
  }
  # A training step is 64 * 8 = 512 segments, 4 of each of 128 environments; an
  # epoch is 2.6e6 / (8 * 10 * 512 * 32) = 1.98 -> 2 training steps.
  schedule = planning.plan(train_ppo.train_arguments(config))
  assert schedule.unrolls_per_step == 4
  assert schedule.total_env_steps == 8 * 10 * 2 * 64 * 8 * 32


def test_preset_holds_on_a_gpu_too():
  assert _resolve(has_gpu=True).env_config.impl == 'jax'


@pytest.mark.parametrize('env_name', registry.ALL_ENVS)
def test_without_flags_the_registrys_configuration_holds(env_name):
  config = _resolve(has_gpu=True, env_name=env_name)
  expected = _registry_ppo(env_name)
  assert config.network_arguments == expected.pop('network_factory', {})
  assert config.ppo == expected
  assert config.network == 'mlp'
  assert config.hidden == ()
  assert not config.domain_randomization
  assert config.env_config == registry.get_default_config(env_name)


@pytest.mark.parametrize('env_name', registry.ALL_ENVS)
def test_the_registrys_configuration_is_printed_and_saved(
  env_name, tmp_path, capsys
):
  config = _resolve(has_gpu=True, env_name=env_name)
  telling.announce(config, tmp_path, Schedule(1, 1, 1, 8, 2, 1))
  printed = ''.join(capsys.readouterr().out.split())
  saved = description.describe(config)
  expected = _registry_ppo(env_name)
  for name, value in expected.pop('network_factory', {}).items():
    assert f'{name}={value}'.replace(' ', '') in printed
    assert saved['network']['arguments'][name] == value
  for name, value in expected.items():
    assert f'{name}={value}'.replace(' ', '') in printed
    assert saved['ppo'][name] == value


@pytest.mark.parametrize('env_name', registry.ALL_ENVS)
def test_without_a_gpu_only_the_implementation_differs(env_name):
  config = _resolve(has_gpu=False, env_name=env_name)
  expected = registry.get_default_config(env_name)
  if 'impl' in expected:
    expected.impl = 'jax'
  assert config.env_config == expected


_VALUES = {
  bool: lambda old: not old,
  int: lambda old: old + 1,
  float: lambda old: old / 2 + 0.1,
}


@pytest.mark.parametrize('name', configs.PPO_OPTIONS)
@pytest.mark.parametrize('env_name', [None, 'WalkerWalk', 'PandaPickCube'])
def test_a_ppo_flag_overrides_only_what_it_names(env_name, name):
  base: dict[str, Any] = {} if env_name is None else {'env_name': env_name}
  before = _resolve(**base)
  default = inspect.signature(train).parameters[name].default
  old = before.ppo.get(name, default)
  value: Any = 3 if old is None else _VALUES[type(old)](old)
  after = configs.resolve(base | {name: value}, has_gpu=False)
  assert after.ppo == before.ppo | {name: value}
  assert after.ppo != before.ppo
  assert after.network_arguments == before.network_arguments
  assert after.env_config == before.env_config


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('policy_hidden_layer_sizes', (5,)),
    ('value_hidden_layer_sizes', (6, 7)),
    ('policy_obs_key', 'other'),
    ('value_obs_key', 'other'),
    ('normalize_inputs', False),
  ],
)
@pytest.mark.parametrize('env_name', [None, 'Go1JoystickFlatTerrain'])
def test_a_network_flag_overrides_only_what_it_names(env_name, name, value):
  base: dict[str, Any] = {} if env_name is None else {'env_name': env_name}
  before = _resolve(**base)
  after = configs.resolve(base | {name: value}, has_gpu=False)
  assert after.network_arguments == before.network_arguments | {name: value}
  assert after.network_arguments != before.network_arguments
  assert after.ppo == before.ppo


def test_networks_of_the_preset_share_their_layers():
  layers = {
    'policy_hidden_layer_sizes': (64, 64),
    'value_hidden_layer_sizes': (64, 64),
    'normalize_inputs': True,
  }
  memory = {'policy_memory_size': 64, 'value_memory_size': 64}
  assert _resolve(network='mlp').network_arguments == layers
  gru = _resolve(network='gru').network_arguments
  assert gru == layers | memory | {'cell': 'gru'}


def test_memory_size_is_that_of_policy_and_value_function():
  arguments = _resolve(
    env_name='WalkerWalk', network='lstm', memory_size=9
  ).network_arguments
  assert arguments['policy_memory_size'] == 9
  assert arguments['value_memory_size'] == 9


@pytest.mark.parametrize(
  ('network', 'factory'),
  [
    ('mlp', ppo_networks.make_ppo_networks),
    ('lstm', ppo_networks.make_recurrent_ppo_networks),
    ('gru', ppo_networks.make_recurrent_ppo_networks),
    ('rnn', ppo_networks.make_recurrent_ppo_networks),
    ('mingru', ppo_networks.make_recurrent_ppo_networks),
    ('delay_mlp', networks_extra.make_delayed_ppo_networks),
    ('vae_mlp', networks_extra.make_variational_ppo_networks),
  ],
)
def test_network_flag_selects_the_factory(network, factory):
  config = _resolve(network=network)
  made = configs.network_factory(config)
  assert made.func is factory
  assert made.keywords == config.network_arguments


@pytest.mark.parametrize('env_name', [None, 'CartpoleBalance'])
@pytest.mark.parametrize('impl', ['jax', 'warp'])
def test_impl_flag_reaches_training_and_evaluation(env_name, impl):
  base: dict[str, Any] = {} if env_name is None else {'env_name': env_name}
  arguments = train_ppo.train_arguments(_resolve(**base, impl=impl))
  env, eval_env = arguments['environment'], arguments['eval_env']
  assert env.unwrapped is not eval_env.unwrapped
  for each in (env, eval_env):
    assert each.unwrapped._config.impl == impl
    assert each.mjx_model.impl.value == impl


@pytest.mark.parametrize(
  'overrides',
  [
    '{"ctrl_dt": 0.02, "vision_config.nworld": 3}',
    '{"ctrl_dt": 0.02, "vision_config": {"nworld": 3}}',
  ],
)
def test_overrides_change_only_what_they_name(overrides):
  config = _resolve(
    has_gpu=True,
    env_name='CartpoleBalance',
    playground_config_overrides=overrides,
  )
  expected: Any = registry.get_default_config('CartpoleBalance')
  expected.ctrl_dt = 0.02
  expected.vision_config.nworld = 3
  assert config.env_config == expected


def test_overrides_go_on_top_of_the_preset():
  config = _resolve(playground_config_overrides='{"ctrl_dt": 0.02}')
  env = config.env_config
  assert (env.ctrl_dt, env.sim_dt, env.impl) == (0.02, 0.01, 'jax')


def test_nothing_is_hidden_if_the_flag_is_empty():
  assert _resolve(hide_observations='').hidden == ()


def test_the_same_implementation_twice_is_no_contradiction():
  config = _resolve(impl='warp', playground_config_overrides='{"impl":"warp"}')
  assert config.env_config.impl == 'warp'


def test_description_is_json_with_the_defaults_of_train():
  config = _resolve(num_envs=256)
  text = json.dumps(description.describe(config))
  found = json.loads(text)
  assert found['environment']['name'] == 'CartpoleBalance'
  assert found['environment']['config']['ctrl_dt'] == 0.04
  assert found['environment']['hidden_observations'] == [3, 4]
  assert found['network']['arguments']['policy_memory_size'] == 64
  assert found['ppo']['num_envs'] == 256
  assert found['seed'] == 0
  parameters = inspect.signature(train).parameters
  for name in ('clipping_epsilon', 'vf_loss_coefficient', 'max_grad_norm'):
    expected = config.ppo.get(name, parameters[name].default)
    assert found['ppo'][name] == expected


def test_description_names_the_seed_and_the_versions():
  found = description.describe(_resolve(seed=5))
  assert found['seed'] == found['ppo']['seed'] == 5
  assert found['versions']['jax'] == jax.__version__
  assert found['versions']['python'].startswith('3.')


def test_domain_randomizer_is_that_of_the_environment(monkeypatch):
  randomizer = lambda model, rng: (model, rng)
  monkeypatch.setattr(
    registry,
    'get_domain_randomizer',
    {'CartpoleBalance': randomizer}.get,
  )
  on = _resolve(domain_randomization=True, hide_observations='')
  off = _resolve(hide_observations='')
  assert train_ppo.train_arguments(on)['randomization_fn'] is randomizer
  assert 'randomization_fn' not in train_ppo.train_arguments(off)


def test_evaluations_may_go_without_the_randomizer(monkeypatch):
  monkeypatch.setattr(
    registry, 'get_domain_randomizer', lambda _: lambda model, rng: None
  )

  def eval_env(**options):
    config = _resolve(
      domain_randomization=True, hide_observations='', **options
    )
    return train_ppo.train_arguments(config)['eval_env']

  assert isinstance(eval_env(randomize_eval=False), Unrandomized)
  assert not isinstance(eval_env(), Unrandomized)
  with pytest.raises(UserError, match='without --domain_randomization'):
    _resolve(randomize_eval=False)


def test_hidden_observations_exclude_randomization():
  with pytest.raises(UserError, match='exclude each other'):
    _resolve(domain_randomization=True)
