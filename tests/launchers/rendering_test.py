"""Videos: their pace, their formats, and what is said if there are none."""

import pathlib
import types
from typing import Any

import numpy as np
from PIL import Image
from PIL import ImageSequence
import pytest

from launchers import rendering
from launchers.errors import UserError
from tests import played_runs

pytestmark = pytest.mark.usefixtures('drawn_anew')


def _states(count: int) -> list[Any]:
  """States of an episode in which the point moves to the right."""
  positions = np.linspace(-1, 1, count)
  return [
    types.SimpleNamespace(pipeline_state={'position': x}) for x in positions
  ]


class _Blind(played_runs.FilmedPoint):
  def render(self, *args: Any, **kwargs: Any) -> Any:
    raise ImportError('libGL.so\nis missing')


@pytest.mark.parametrize(
  ('dt', 'suffix', 'every', 'fps'),
  [
    (0.04, '.mp4', 1, 25),
    (0.01, '.mp4', 2, 50),
    (1 / 60, '.mp4', 1, 60),
    (1 / 60, '.gif', 2, 30),
    (0.005, '.gif', 4, 50),
  ],
)
def test_a_video_keeps_the_pace_of_the_world(dt, suffix, every, fps):
  assert rendering.thin_out(dt, suffix) == (every, pytest.approx(fps))


@pytest.mark.parametrize('dt', [0.025, 0.04, 0.006])
def test_a_gif_lasts_as_long_as_the_episode(tmp_path, dt):
  path = tmp_path / 'out.gif'

  rendering.save(path, played_runs.FilmedPoint(), _states(60), dt)

  with Image.open(path) as gif:
    shown = [
      (frame.info['duration'] / 1000, np.asarray(frame.convert('L'))[0, 0])
      for frame in ImageSequence.Iterator(gif)
    ]
  seconds = sum(duration for duration, _ in shown)
  assert seconds == pytest.approx(60 * dt, abs=0.02)
  assert (shown[0][1], shown[-1][1]) == pytest.approx((50, 150), abs=8)
  assert [file.name for file in tmp_path.iterdir()] == ['out.gif']


def test_without_ffmpeg_a_gif_is_written_and_that_is_said(monkeypatch):
  import mediapy

  path = pathlib.Path('a/out.mp4')
  monkeypatch.setattr(mediapy, 'video_is_available', lambda: False)
  other, note = rendering.playable(path)
  assert other == pathlib.Path('a/out.gif')
  assert note is not None and 'ffmpeg is not installed' in note
  monkeypatch.setattr(mediapy, 'video_is_available', lambda: True)
  assert rendering.playable(path) == (path, None)


@pytest.mark.parametrize('set_to', [None, 'glfw'])
def test_what_cannot_be_drawn_is_told_and_leaves_nothing(
  tmp_path, monkeypatch, set_to
):
  monkeypatch.delenv('MUJOCO_GL', raising=False)
  if set_to:
    monkeypatch.setenv('MUJOCO_GL', set_to)
  with pytest.raises(rendering.CannotRender) as told:
    rendering.save(tmp_path / 'out.gif', _Blind(), _states(3), 0.05)

  text = str(told.value)
  assert 'ImportError: libGL.so is missing' in text
  assert 'with MUJOCO_GL=egl' in text and 'osmesa' in text
  assert (f'MUJOCO_GL={set_to}' if set_to else 'MUJOCO_GL is not set') in text
  assert not list(tmp_path.iterdir())


def test_what_mujoco_cannot_draw_is_not_asked_for_again():
  """A second failure of OpenGL would end the process."""

  class FatalError(RuntimeError):
    pass

  asked = []

  def render(*args, **kwargs):
    asked.append(args)
    raise FatalError('an OpenGL platform library has not been loaded')

  env = types.SimpleNamespace(render=render)
  env.unwrapped = env
  for _ in range(2):
    with pytest.raises(rendering.CannotRender, match='OpenGL platform library'):
      rendering.frames(env, _states(1))
  assert len(asked) == 1


def test_the_viewer_is_for_environments_of_brax(tmp_path):
  with pytest.raises(rendering.CannotRender, match='HTML viewer'):
    rendering.save(
      tmp_path / 'out.html',
      types.SimpleNamespace(unwrapped=None),
      _states(3),
      0.05,
    )


@pytest.mark.slow
def test_the_viewer_moves_a_body_of_brax_at_its_pace(tmp_path):
  import base64
  import json
  import re
  import zlib

  from brax import envs
  import jax

  env = envs.get_environment('inverted_pendulum', backend='spring')
  state = jax.jit(env.reset)(jax.random.PRNGKey(0))

  rendering.save(tmp_path / 'out.html', env, [state, state], 0.03)

  text = (tmp_path / 'out.html').read_text()
  packed = max(re.findall(r'[A-Za-z0-9+/=]{100,}', text), key=len)
  system = json.loads(zlib.decompress(base64.b64decode(packed)))
  assert system['opt']['timestep'] == pytest.approx(0.03)
  assert len(system['states']['x']) == 2


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('out.avi', 'must end in .mp4 or .gif'),
    ('folder.gif', 'is a folder'),
    ('nowhere/out.gif', 'there is no folder'),
  ],
)
def test_a_path_that_will_not_do_is_told(tmp_path, name, words):
  (tmp_path / 'folder.gif').mkdir()
  with pytest.raises(UserError, match=words):
    rendering.check_path('--video', str(tmp_path / name), ('.mp4', '.gif'))


def test_a_camera_that_is_missing_is_told():
  model = types.SimpleNamespace(
    ncam=1, camera=lambda i: types.SimpleNamespace(name='lookatcart')
  )
  env: Any = types.SimpleNamespace(mj_model=model)
  env.unwrapped = env

  rendering.check_camera(env, 'lookatcart')
  rendering.check_camera(env, None)
  with pytest.raises(UserError, match='nearest are lookatcart'):
    rendering.check_camera(env, 'lookatcar')
  with pytest.raises(UserError, match='no cameras'):
    rendering.check_camera(played_runs.FilmedPoint(), 'front')
