"""Videos of training: when, of what, and at no cost to the run."""

from typing import Any

import jax
import numpy as np
import pytest

from brax_nnx_plugin.ppo import networks as ppo_networks
from launchers import rendering
from launchers import videos
from tests import fakes
from tests import small_runs
from tests import toy_envs

pytestmark = pytest.mark.usefixtures('drawn_anew')

_Counting = tuple[Any, Any]


class _Clock(toy_envs.TickEnv):
  """An environment whose step takes a tenth of a second."""

  dt = 0.1


@pytest.fixture
def saved(monkeypatch):
  """What would have been written: name, clock of each state, dt."""
  calls: list[Any] = []

  def save(path, env, states, dt):
    del env
    ticks = [float(np.asarray(state.pipeline_state)) for state in states]
    calls.append((f'{path.parent.name}/{path.stem}', ticks, dt))

  monkeypatch.setattr(rendering, 'save', save)
  return calls


@pytest.fixture(scope='module')
def counting() -> _Counting:
  """`make_policy` and parameters of a policy that counts its steps."""
  networks = ppo_networks.make_network_factory(fakes.count_network)((1,), 1)
  keys = jax.random.split(jax.random.PRNGKey(1))
  params = (None, *networks.functions.init(*keys).inference_params())
  return ppo_networks.make_inference_fn(networks), params


def test_films_are_made_at_every_so_many_evaluations(
  tmp_path, saved, counting: _Counting
):
  films = videos.Videos(_Clock(end=3), tmp_path, episode_length=7)
  hook = films.during(2, 100)

  for env_steps in (0, 100, 200, 300, 400):
    hook(env_steps, *counting)

  # Up to the end of the episode, and the same at each: the memory is fresh.
  assert saved == [
    (f'videos/{n:012d}', [0.0, 1.0, 2.0], 0.1) for n in (0, 200, 400)
  ]


def test_every_film_begins_with_a_fresh_carry(
  tmp_path, counting: _Counting, monkeypatch
):
  films = videos.Videos(_Clock(), tmp_path, episode_length=4, action_repeat=2)
  played = []
  monkeypatch.setattr(rendering, 'save', lambda *a: None)
  make = videos.playing.make_rollout

  def spied(*args, **kwargs):
    run = make(*args, **kwargs)
    return lambda *a: played.append(run(*a)) or played[-1]

  monkeypatch.setattr(videos.playing, 'make_rollout', spied)
  films.film(*counting, 'a')
  films.film(*counting, 'b')

  assert [p.actions[:, 0].tolist() for p in played] == [[0, 1], [0, 1]]


def test_a_renderer_that_fails_is_one_warning(
  tmp_path, counting: _Counting, monkeypatch
):
  told, tries = [], []

  def save(*args):
    tries.append(args)
    raise rendering.CannotRender('no OpenGL; set MUJOCO_GL=egl.')

  monkeypatch.setattr(rendering, 'save', save)
  monkeypatch.setattr(
    videos.logging, 'warning', lambda *a: told.append(a[0] % a[1:])
  )
  hook = videos.Videos(_Clock(3), tmp_path, episode_length=5).during(1, 10)

  for env_steps in (0, 10, 20):
    hook(env_steps, *counting)

  assert told == [
    'Training goes on without videos: no OpenGL; set MUJOCO_GL=egl.'
  ]
  assert len(tries) == 1


def test_after_training_what_fails_is_told(
  tmp_path, counting: _Counting, capsys
):
  films = videos.Videos(small_runs.PointEnv(), tmp_path, episode_length=3)

  films.after(*counting, 0)
  assert capsys.readouterr() == ('', '')
  films.after(*counting, 2)

  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('There is no video: ')


def test_after_training_some_episodes_are_filmed(
  tmp_path, saved, counting: _Counting, capsys
):
  films = videos.Videos(_Clock(2), tmp_path, episode_length=5)

  films.after(*counting, 2)

  assert [name.split('/')[1] for name, _, _ in saved] == [
    'rollout0',
    'rollout1',
  ]
  assert str(tmp_path / 'rollout1') in capsys.readouterr().out
