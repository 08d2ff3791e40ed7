"""Pictures of episodes: videos, and the HTML viewer of Brax.

MuJoCo draws by OpenGL, and takes the way to it from the variable MUJOCO_GL at
the moment it is imported. Nothing here sets it.
"""

from collections.abc import Sequence
import contextlib
import io
import math
import os
import pathlib
from typing import Any

import numpy as np

from .errors import UserError
from .errors import nearest

SUFFIXES = ('.mp4', '.gif', '.html')
_WIDTH, _HEIGHT = 640, 480
# A GIF, which hardly compresses, is half as wide and high.
_SCALES = {'.mp4': 1, '.gif': 2}
# Frames per second; a GIF counts hundredths of a second, and viewers take no
# less than two.
_MOST_FRAMES = {'.mp4': 60, '.gif': 50, '.html': math.inf}
# Why MuJoCo could not draw in this process. Asked a second time, it may end the
# process, and what is being trained in it.
_refusals: list[str] = []


class CannotRender(Exception):
  """There is no picture, and why; its text is shown as it is."""


def check_path(flag: str, path: str, suffixes: Sequence[str]) -> pathlib.Path:
  """Checks where a file is to be written, before the work that fills it.

  Args:
    flag: that named it, for the error.
    path: of the file.
    suffixes: that it may have.

  Raises:
    UserError: if it has another one, or cannot be written there.
  """
  file = pathlib.Path(path)
  if file.suffix not in suffixes:
    raise UserError(f'{flag}={path} must end in {" or ".join(suffixes)}.')
  if file.is_dir():
    raise UserError(f'{flag}={path} is a folder; name a file.')
  if not file.parent.is_dir():
    raise UserError(f'{flag}={path}: there is no folder {file.parent}.')
  if not os.access(file.parent, os.W_OK):
    raise UserError(f'{flag}={path}: the folder {file.parent} is read-only.')
  return file


def playable(path: pathlib.Path) -> tuple[pathlib.Path, str | None]:
  """Returns the path in a format that can be written, and why it is another."""
  if path.suffix != '.mp4':
    return path, None
  try:
    import mediapy

    if mediapy.video_is_available():
      return path, None
    lacking = 'the program ffmpeg'
  except ImportError:
    lacking = 'the package mediapy'
  other = path.with_suffix('.gif')
  return other, f'{lacking} is not installed, so {other} is written instead.'


def check_camera(env: Any, camera: str | None) -> None:
  """Checks that an environment has a camera of this name.

  Raises:
    UserError: if it has not.
  """
  if camera is None:
    return
  model = getattr(env.unwrapped, 'mj_model', None)
  model = model or getattr(getattr(env, 'sys', None), 'mj_model', None)
  names = [model.camera(i).name for i in range(model.ncam)] if model else []
  if camera not in names:
    hint = nearest(camera, names) if names else 'There are no cameras.'
    raise UserError(f'--camera={camera}: there is no such camera. {hint}')


def thin_out(dt: float, suffix: str = '.mp4') -> tuple[int, float]:
  """Works out how a video keeps the pace of the world.

  Args:
    dt: seconds from one state to the next.
    suffix: of the video.

  Returns:
    How many states from one frame to the next, and frames per second.
  """
  every = max(1, math.ceil(1 / (dt * _MOST_FRAMES[suffix]) - 1e-6))
  return every, 1 / (dt * every)


def _bodies(states: Sequence[Any]) -> list[Any]:
  """Returns what an environment draws: states, in Brax those of its physics."""
  is_brax = not hasattr(states[0], 'data')
  return [state.pipeline_state if is_brax else state for state in states]


def frames(
  env: Any, states: Sequence[Any], camera: str | None = None, scale: int = 1
) -> list[np.ndarray]:
  """Draws states.

  Args:
    env: of Playground or Brax.
    states: of it.
    camera: by name; MuJoCo's free camera by default.
    scale: by which frames are smaller than 640 by 480 pixels.

  Raises:
    CannotRender: if MuJoCo cannot, for whatever reason.
  """
  if _refusals:
    raise CannotRender(_refusals[0])
  bare = env.unwrapped
  said = io.StringIO()
  try:
    # Progress bars and the complaints of a window system say it again.
    with contextlib.redirect_stderr(said):
      drawn = bare.render(
        _bodies(states),
        height=_HEIGHT // scale,
        width=_WIDTH // scale,
        camera=camera,
      )
  except Exception as e:  # whatever a driver raises
    gl = os.environ.get('MUJOCO_GL')
    now = f'MUJOCO_GL={gl}' if gl else 'MUJOCO_GL is not set'
    text = ' '.join(str(e).split())[:200].rstrip('.')
    message = (
      f'MuJoCo cannot draw here ({type(e).__name__}: {text}; {now}). Without a'
      ' screen, start the program with MUJOCO_GL=egl, which needs libEGL, or'
      ' with MUJOCO_GL=osmesa, which needs libOSMesa.'
    )
    if type(e).__name__ == 'FatalError':  # as MuJoCo calls it
      _refusals.append(message)
    raise CannotRender(message) from e
  return [np.asarray(frame) for frame in drawn]


def _write_gif(file: Any, drawn: Sequence[np.ndarray], fps: float) -> None:
  """Writes a GIF whose frames last whole hundredths, without drifting away."""
  from PIL import Image

  ends = [round(100 * (i + 1) / fps) for i in range(len(drawn))]
  durations = 10 * np.diff([0, *ends])
  first, *rest = [Image.fromarray(frame) for frame in drawn]
  first.save(
    file,
    format='GIF',
    save_all=True,
    append_images=rest,
    duration=durations.tolist(),
    loop=0,
  )


def _html(env: Any, states: Sequence[Any], dt: float) -> str:
  """Returns a page with Brax's viewer.

  Raises:
    CannotRender: if this is no environment of Brax.
  """
  from brax.io import html

  system = getattr(env.unwrapped, 'sys', None)
  if system is None or not hasattr(states[0], 'pipeline_state'):
    raise CannotRender(
      'The HTML viewer shows environments of Brax; take .mp4 or .gif.'
    )
  try:
    return html.render(
      system.tree_replace({'opt.timestep': dt}), _bodies(states)
    )
  except (AttributeError, RuntimeError) as e:
    raise CannotRender(f'Brax cannot show this environment ({e}).') from e


def save(
  path: pathlib.Path,
  env: Any,
  states: Sequence[Any],
  dt: float | None,
  camera: str | None = None,
) -> None:
  """Draws an episode and writes it, at the pace of the world.

  Nobody sees half a file: it is written aside and then renamed.

  Args:
    path: of the file, .mp4 (see `playable`), .gif or .html.
    env: of Playground or Brax.
    states: of one episode, at least one.
    dt: seconds from one state to the next; `None` without physics.
    camera: by name.

  Raises:
    CannotRender: if it cannot be drawn.
    OSError: if it cannot be written.
  """
  if dt is None:
    raise CannotRender('This environment has no physics that could be shown.')
  partial = path.with_name(f'.{path.stem}.partial{path.suffix}')
  try:
    if path.suffix == '.html':
      partial.write_text(_html(env, states, dt))
    else:
      every, fps = thin_out(dt, path.suffix)
      drawn = frames(env, states[::every], camera, _SCALES[path.suffix])
      if path.suffix == '.gif':
        _write_gif(partial, drawn, fps)
      else:
        _write_mp4(partial, drawn, fps)
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def _write_mp4(file: Any, drawn: Sequence[np.ndarray], fps: float) -> None:
  import mediapy

  try:
    mediapy.write_video(file, drawn, fps=fps)
  except RuntimeError as e:  # ffmpeg failed
    text = ' '.join(str(e).split())[-200:]
    raise CannotRender(f'ffmpeg cannot write the video: {text}') from e
