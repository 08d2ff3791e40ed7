"""Plays a checkpoint: rewards of whole episodes, videos, activations.

    brax-nnx-play runs/NAME
    brax-nnx-play runs/NAME --video=out.mp4 --activations=memory.png

A mistake on the command line is told in a sentence before anything compiles
(exit code 2), as is a file that cannot be written (exit code 1). Where MuJoCo
cannot draw, a sentence says so and how to change it; the episodes have been
played nonetheless, and the exit code is 0.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
import sys
from typing import Any

from . import activation_plot
from . import command_line
from . import environments
from . import episodes
from . import overrides
from . import play_options
from . import rendering
from . import scenes
from . import telling
from . import videos
from .errors import UserError
from .play_options import PROGRAM


def _announce(scene: scenes.Scene, deterministic: bool, count: int) -> None:
  """Says what is played."""
  dt = scene.control_dt
  pace = '' if dt is None else f', {dt:.4g} s a step'
  hidden = telling.view(scene.hidden)
  actions = 'the mode of the policy' if deterministic else 'drawn'
  print(f'Checkpoint: {scene.path}')
  print(f'Environment: {scene.env_name}{hidden}{pace}')
  print(f'Network: {scene.network}; actions: {actions}', flush=True)
  for note in scene.notes:
    print(f'{PROGRAM}: {note}', file=sys.stderr)
  print(
    f'Compiling; then {count} episode(s) of at most {scene.episode_length} env'
    ' steps.',
    file=sys.stderr,
    flush=True,
  )


def _changes(options: Mapping[str, Any]) -> dict[str, Any]:
  """Reads --set.

  Raises:
    UserError: if it changes more than the environment.
  """
  groups = overrides.parse(options.get('set', ()))
  if others := [name for name in ('ppo', 'network') if groups[name]]:
    raise UserError(
      f'--set {others[0]}.{next(iter(groups[others[0]]))}: what was trained'
      ' stays as it is; only entries env.... can be set here.'
    )
  return groups['env']


def _require_purpose(options: Mapping[str, Any]) -> None:
  """Checks that no flag is there for nothing.

  Raises:
    UserError: if one is.
  """
  for name, needs in (
    ('camera', 'video'),
    ('layer', 'activations'),
    ('activation_steps', 'activations'),
  ):
    if name in options and needs not in options:
      raise UserError(f'--{name} has no meaning without --{needs}.')


def play(options: Mapping[str, Any]) -> episodes.Episodes:
  """Plays, and prints and writes what was asked for.

  Args:
    options: flags by name; see `play_options.parse`.

  Returns:
    What came of the episodes.

  Raises:
    UserError: before anything compiles, if something does not fit.
    OSError: if a file cannot be written.
  """

  def wanted(name: str, suffixes: Sequence[str]) -> pathlib.Path | None:
    if name not in options:
      return None
    return rendering.check_path(f'--{name}', options[name], suffixes)

  _require_purpose(options)
  video = wanted('video', rendering.SUFFIXES)
  picture = wanted('activations', ('.png',))
  changes = _changes(options)
  scene = scenes.load(options['load_checkpoint_path'], options, changes)
  if video and video.suffix == '.html' and scene.suite != environments.BRAX:
    raise UserError(
      f'--video={video}: the HTML viewer shows environments of Brax itself;'
      ' take .mp4 or .gif.'
    )
  if video and scene.control_dt is None:
    raise UserError(
      f'--video={video}: {scene.env_name} has no physics that could be shown.'
    )
  rendering.check_camera(scene.env, options.get('camera'))
  layers: list[str] = []
  if picture:
    layers = activation_plot.choose(scene, options.get('layer', ()))
  deterministic = options.get('deterministic', True)
  seed, count = options.get('seed', 0), options.get('episodes', 16)
  _announce(scene, deterministic, count)
  played = episodes.play(scene, count, seed, deterministic, video is not None)
  print(episodes.table(played), flush=True)
  if video:
    _save_video(video, scene, played, options.get('camera'))
  if options.get('num_videos'):
    _save_videos(scene, options, seed)
  if picture:
    steps = options.get('activation_steps', 500)
    recording = activation_plot.record(
      scene, layers, steps, seed, deterministic
    )
    # A checkpoint may have been given a name of its own.
    name = scene.path.name
    when = f'after {int(name):,} env steps' if name.isdecimal() else name
    activation_plot.draw(
      picture,
      recording,
      f'{scene.env_name}, {scene.network}, {when}',
      scene.step_in_words,
    )
    print(f'Activations: {picture}')
  return played


def instead_of_training(options: Mapping[str, Any]) -> None:
  """Does what `--play_only` asks the training program for.

  Args:
    options: see `options.parse`.

  Raises:
    UserError: as `play`, or if there is nothing to play.
    OSError: as `play`.
  """
  play(play_options.from_training(options))


def _save_videos(
  scene: scenes.Scene, options: Mapping[str, Any], seed: int
) -> None:
  """Films as many episodes as the training program does after training."""
  films = videos.Videos(
    scene.env,
    pathlib.Path(options.get('logdir', '.')),
    episode_length=scene.episode_length,
    action_repeat=scene.action_repeat,
    seed=seed,
  )
  films.after(scene.make_policy, scene.params, options['num_videos'])


def _save_video(
  path: Any, scene: scenes.Scene, played: episodes.Episodes, camera: str | None
) -> None:
  """Writes a video, or says why there is none."""
  path, note = rendering.playable(path)
  if note:
    print(f'{PROGRAM}: {note}', file=sys.stderr)
  print(f'Drawing {len(played.states):,} states ...', flush=True)
  try:
    rendering.save(path, scene.env, played.states, scene.control_dt, camera)
  except rendering.CannotRender as e:
    print(f'{PROGRAM}: no video: {e}', file=sys.stderr)
  else:
    print(f'Video: {path}', flush=True)


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns its exit code.

  Args:
    argv: name of the program and its arguments.
  """
  say = lambda text: print(f'{PROGRAM}: {text}', file=sys.stderr)
  try:
    options = play_options.parse(argv[1:])
    if options.get('help'):
      print(play_options.help_text())
      return 0
    play(options)
  except UserError as e:
    say(e)
    return 2
  except OSError as e:
    say(f'{e.filename or "a file"} cannot be written ({e.strerror or e}).')
    return 1
  except KeyboardInterrupt:
    say('interrupted.')
    return 130
  return 0


def run() -> None:
  """The console script."""
  command_line.run(main)


if __name__ == '__main__':
  run()
