"""Brax's own environments in a run, against Brax itself."""

import inspect
import json

from brax import envs
from brax.envs.wrappers import training
import jax
from mujoco_playground import registry
from mujoco_playground import wrapper
import numpy as np
import pytest

from launchers import brax_suite
from launchers import configs
from launchers import description
from launchers import environments
from launchers import telling
from launchers import train_ppo
from launchers.errors import UserError


def _resolve(env_name='ant', **options):
  named = {'suite': 'brax', 'env_name': env_name}
  return configs.resolve(named | options, has_gpu=False)


@pytest.mark.parametrize('env_name', sorted(envs._envs))
def test_without_flags_an_environment_is_as_brax_makes_it(env_name):
  config = _resolve(env_name)

  parameters = inspect.signature(envs._envs[env_name]).parameters
  defaults = {
    name: getattr(p.default, 'value', p.default)
    for name, p in parameters.items()
    if p.kind is not p.VAR_KEYWORD
  }
  assert config.env_config.to_dict() == defaults
  assert config.network == 'mlp'
  assert config.network_arguments == {}
  assert config.suite == 'brax'


@pytest.mark.parametrize('env_name', sorted(envs._envs))
def test_training_steps_of_the_settings_are_whole(env_name):
  ppo = _resolve(env_name).ppo
  assert ppo['batch_size'] * ppo['num_minibatches'] % ppo['num_envs'] == 0
  assert ppo['episode_length'] % ppo['action_repeat'] == 0
  assert 'seed' not in ppo


def test_settings_are_those_of_the_notebook():
  # notebooks/training.ipynb of Brax, the entry of 'reacher' without its seed.
  assert _resolve('reacher').ppo == {
    'num_timesteps': 50_000_000,
    'num_evals': 20,
    'reward_scaling': 5,
    'episode_length': 1000,
    'normalize_observations': True,
    'action_repeat': 4,
    'unroll_length': 50,
    'num_minibatches': 32,
    'num_updates_per_batch': 8,
    'discounting': 0.95,
    'learning_rate': 3e-4,
    'entropy_cost': 1e-3,
    'num_envs': 2048,
    'batch_size': 256,
  }
  assert _resolve('ant').ppo == {
    'num_timesteps': 50_000_000,
    'num_evals': 10,
    'reward_scaling': 10,
    'episode_length': 1000,
    'normalize_observations': True,
    'action_repeat': 1,
    'unroll_length': 5,
    'num_minibatches': 32,
    'num_updates_per_batch': 4,
    'discounting': 0.97,
    'learning_rate': 3e-4,
    'entropy_cost': 1e-2,
    'num_envs': 4096,
    'batch_size': 2048,
  }


def test_borrowed_settings_are_told():
  assert _resolve('hopper').ppo == _resolve('halfcheetah').ppo
  assert 'no PPO settings for hopper' in brax_suite.note('hopper')
  assert 'notebook' in brax_suite.note('ant')
  assert "Brax's test" in brax_suite.note('fast')


def test_entries_of_an_environment_change_it():
  config = _resolve(
    'ant', set=['env.backend=spring', 'env.healthy_z_range=[0.1, 2]']
  )
  env = environments.load('ant', config.env_config, suite='brax')
  assert env.backend == 'spring'
  assert env._healthy_z_range == (0.1, 2)


@pytest.mark.parametrize(
  ('env_name', 'item', 'message'),
  [
    ('ant', 'backend=bullet', 'no such backend; choose generalized, mjx'),
    ('ant', 'backend=3', "'backend'.*must be a str"),
    ('ant', 'bakcend=mjx', "no entry 'bakcend'.*backend"),
    ('ant', 'healthy_z_range=[1]', "'healthy_z_range'.*must be 2 numbers"),
    ('ant', 'healthy_z_range=[1,"x"]', 'must be 2 numbers'),
    ('ant', 'healthy_z_range=1', 'must be a tuple'),
    ('fast', 'backend=mjx', "of fast has no entry 'backend'"),
  ],
)
def test_an_entry_that_is_wrong_is_told(env_name, item, message):
  with pytest.raises(UserError, match=message):
    _resolve(env_name, set=[f'env.{item}'])


@pytest.mark.parametrize(
  ('env_name', 'item', 'message'),
  [
    ('swimmer', 'backend=spring', 'swimmer cannot be made.*spring'),
    ('ant', 'use_contact_forces=true', 'not implemented'),
    ('fast', 'obs_mode=pixels', "'pixels' is not a valid"),
  ],
)
def test_what_brax_refuses_is_told(env_name, item, message):
  config = _resolve(env_name, set=[f'env.{item}'])
  with pytest.raises(UserError, match=message):
    environments.load(env_name, config.env_config, suite='brax')


def test_each_suite_has_its_own_wrapper():
  assert environments.wrap_fn('brax') is training.wrap
  assert environments.wrap_fn('playground') is wrapper.wrap_for_brax_training


def test_training_gets_environments_of_brax():
  config = _resolve('fast')
  arguments = train_ppo.train_arguments(config)
  env, eval_env = arguments['environment'], arguments['eval_env']
  assert type(env) is type(eval_env) is envs._envs['fast']
  assert env is not eval_env
  assert arguments['wrap_env_fn'] is training.wrap


def test_observations_of_brax_are_hidden():
  config = _resolve('fast', hide_observations='0')
  env = environments.load('fast', config.env_config, config.hidden, 'brax')
  assert env.observation_size == 1
  wrapped = training.wrap(env, episode_length=3)
  bare = training.wrap(envs.get_environment('fast'), episode_length=3)
  keys = jax.random.split(jax.random.PRNGKey(0), 2)
  state, full = wrapped.reset(keys), bare.reset(keys)
  for _ in range(4):
    np.testing.assert_array_equal(state.obs, np.asarray(full.obs)[:, 1:])
    state = wrapped.step(state, jax.numpy.ones((2, 1)))
    full = bare.step(full, jax.numpy.ones((2, 1)))
  assert np.asarray(full.obs).any()


def test_a_saved_run_is_the_same_again(tmp_path):
  before = _resolve('ant', set=['env.backend=mjx'])
  text = json.dumps(description.describe(before))
  (tmp_path / 'config.json').write_text(text)

  after = configs.resolve({'config': str(tmp_path)}, has_gpu=True)

  assert description.describe(after) == description.describe(before)
  with pytest.raises(UserError, match='--suite=playground contradicts'):
    configs.resolve({'config': str(tmp_path), 'suite': 'playground'}, True)


def test_a_run_from_before_there_were_suites_is_of_playground(tmp_path):
  before = configs.resolve({}, has_gpu=False)
  described = description.describe(before)
  assert described['environment'].pop('suite') == 'playground'
  (tmp_path / 'config.json').write_text(json.dumps(described))

  after = configs.resolve({'resume': str(tmp_path)}, has_gpu=False)

  assert after.suite == 'playground'
  assert description.describe(after) == description.describe(before)
  train_ppo.saved.require_same(str(tmp_path), description.describe(after))


def test_names_are_not_those_of_playground():
  assert not {*envs._envs} & {*registry.ALL_ENVS}


@pytest.mark.parametrize(
  ('env_name', 'expected'), [('inverted_pendulum', 0.08), ('fast', None)]
)
def test_the_control_period_is_known_where_there_is_physics(env_name, expected):
  config = _resolve(env_name, action_repeat=2, hide_observations='0')
  env = environments.load(env_name, config.env_config, config.hidden, 'brax')
  # A control step of the pendulum is two physics steps of 0.02 s.
  assert environments.control_dt(
    env, config.ppo.get('action_repeat', 1)
  ) == pytest.approx(expected)


def test_the_folder_is_announced_with_the_source_of_the_settings(
  tmp_path, capsys
):
  telling.announce(_resolve('hopper'), tmp_path, 100)
  out = capsys.readouterr().out
  assert 'Environment: hopper, physics: generalized' in out
  assert 'no PPO settings for hopper' in out
