"""Making environments, and what goes wrong there."""

import subprocess

from mujoco_playground import registry
import pytest

from launchers import environments
from launchers.errors import UserError
from launchers.errors import nearest


def _config(**changes):
  config = registry.get_default_config('CartpoleBalance')
  config.update({'impl': 'jax', **changes})
  return config


def test_every_registered_environment_is_known():
  assert {*environments.registered_names()} == {*registry.ALL_ENVS}


def test_environments_do_not_share_their_configuration():
  config = _config()
  one = environments.load('CartpoleBalance', config)
  two = environments.load('CartpoleBalance', config)
  assert one._config is not two._config
  assert not config.is_locked


def test_hidden_observations_are_left_out():
  env = environments.load('CartpoleBalance', _config(), (0, 1))
  assert env.observation_size == 3


@pytest.mark.parametrize(
  'changes', [{'ctrl_dt': 0.004}, {'sim_dt': 0.0}, {'sim_dt': -0.01}]
)
def test_time_steps_must_let_something_move(changes):
  with pytest.raises(UserError, match='Nothing would move'):
    environments.load('CartpoleBalance', _config(**changes))


@pytest.mark.parametrize(
  'error',
  [
    subprocess.CalledProcessError(128, ['git', 'clone']),
    FileNotFoundError('git'),
  ],
)
def test_models_that_cannot_be_downloaded_are_told(monkeypatch, error):
  def fail(*args, **kwargs):
    raise error

  monkeypatch.setattr(registry, 'load', fail)
  with pytest.raises(UserError, match='The models that Go1Getup needs'):
    environments.load('Go1Getup', _config())


def test_an_unknown_implementation_is_told():
  with pytest.raises(UserError, match='CartpoleBalance cannot be made'):
    environments.load('CartpoleBalance', _config(impl='wrap'))


def test_a_missing_domain_randomizer_is_told():
  with pytest.raises(UserError, match='WalkerWalk has no domain randomizer'):
    environments.domain_randomizer('WalkerWalk')


@pytest.mark.parametrize('name', ['walkerwalk', 'WalkerWlak', 'WALKER_WALK'])
def test_nearest_name_comes_first(name):
  text = nearest(name, ['HopperHop', 'WalkerWalk', 'FishSwim', 'WalkerRun'])
  assert text.startswith('The nearest are WalkerWalk, ')
