"""What tests of the launchers share."""

import functools

import pytest

from launchers import rendering
from launchers import train_ppo


@pytest.fixture(scope='module')
def made():
  """Environments by what they are made of; making one takes seconds."""
  return {}


@pytest.fixture
def fake_train(monkeypatch, made):
  """Replaces training by a function of the test, with the same signature."""
  real = train_ppo.ppo.train
  load = train_ppo.environments.load

  def load_once(env_name, config, *changes):
    key = env_name, config.to_json(), *changes
    if key not in made:
      made[key] = load(env_name, config, *changes)
    return made[key]

  monkeypatch.setattr(train_ppo.environments, 'load', load_once)

  def replace(fn):
    monkeypatch.setattr(train_ppo.ppo, 'train', functools.wraps(real)(fn))

  return replace


@pytest.fixture
def drawn_anew(monkeypatch):
  """Forgets that MuJoCo could not draw; what the test draws is not MuJoCo's."""
  monkeypatch.setattr(rendering, '_refusals', [])
