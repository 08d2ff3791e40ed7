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
import os
import pathlib
import sys
from typing import Any

from absl import flags
from absl import logging
import jax

from . import activation_plot
from . import episodes
from . import overrides
from . import rendering
from . import scenes
from . import videos
from .errors import UserError

PROGRAM = 'brax-nnx-play'

_USAGE = f"""{PROGRAM}: play a checkpoint.

  {PROGRAM} runs/NAME --video=out.mp4

The folder is that of a run, of its checkpoints, or of one of them. The
environment is that of the run, as its config.json says, without domain
randomization; the network is rebuilt with the sizes and the statistics it was
saved with.
"""

_STRINGS = {
  'load_checkpoint_path': 'The folder, if it is not the first argument.',
  'network': 'A network of your own, package.module:function, if the run has'
  ' one: nothing that only a file names is imported.',
  'env_name': "Environment of MuJoCo Playground, for a checkpoint without a"
  " run's config.json.",
  'video': 'File for a video of the first episode: .mp4, or .gif, which needs'
  ' no ffmpeg, or .html, a page with a viewer, for environments of Brax.',
  'camera': "Of the video, by name; MuJoCo's free camera by default.",
  'activations': 'PNG file for the outputs of layers over time.',
}
_INTEGERS = {
  'episodes': (1, 'Episodes to play; by default 16.'),
  'seed': (0, 'Of the first states, and of the actions if they are drawn; by'
  ' default 0.'),
  'episode_length': (1, 'Env steps after which an episode is cut off; by'
  ' default as in training.'),
  'activation_steps': (1, 'Actions that --activations shows; by default 500.'),
}
_REPEATED = {
  'set': 'Change of one entry of the environment configuration, as in'
  ' env.ctrl_dt=0.02. May be given many times.',
  'layer': 'Layer that --activations shows, by its path, as in action/1; by'
  ' default those with a memory. May be given many times.',
}


# Flags of training that would be misunderstood.
_INSTEAD = {
  'config': 'the configuration is that of the checkpoint',
  'resume': 'the folder is named by --load_checkpoint_path',
  'playground_config_overrides': 'say --set env.<entry>=...',
}


def _define() -> flags.FlagValues:
  """Returns the flags, all without a value."""
  values = flags.FlagValues()
  kwargs: dict[str, Any] = {'flag_values': values, 'module_name': 'Flags'}
  flags.DEFINE_boolean('help', None, 'Show this text.', **kwargs)
  for name, text in _STRINGS.items():
    flags.DEFINE_string(name, None, text, **kwargs)
  for name, (low, text) in _INTEGERS.items():
    flags.DEFINE_integer(name, None, text, lower_bound=low, **kwargs)
  for name, text in _REPEATED.items():
    flags.DEFINE_multi_string(name, None, text, **kwargs)
  flags.DEFINE_boolean(
    'deterministic', None, 'Act by the mode of the policy; on by default.',
    **kwargs
  )
  flags.DEFINE_enum(
    'impl', None, ('jax', 'warp'), 'Physics implementation; by default jax'
    ' where jax has no GPU, and that of the run elsewhere.', **kwargs
  )
  return values


def parse(arguments: Sequence[str]) -> dict[str, Any]:
  """Reads a command line.

  Args:
    arguments: of the program, its name left out.

  Returns:
    The flags that were given, by name; the folder as `load_checkpoint_path`.

  Raises:
    UserError: for a flag or a value that does not exist.
  """
  values = _define()
  try:
    rest = values([PROGRAM, *arguments])[1:]
  except flags.Error as e:
    text = ' '.join(str(e).split()).removesuffix(' ?').rstrip('.?')
    raise UserError(f'{text}. See {PROGRAM} --help.') from None
  given = {
    name: value
    for name, value in values.flag_values_dict().items()
    if value is not None
  }
  if given.get('help'):
    return given
  folders = [*rest, *filter(None, [given.pop('load_checkpoint_path', None)])]
  if len(folders) != 1:
    what = f'got {", ".join(folders)}' if folders else 'none was named'
    raise UserError(
      f'{PROGRAM} plays one checkpoint, as in {PROGRAM} runs/NAME; {what}.'
    )
  return given | {'load_checkpoint_path': folders[0]}


def from_training(options: Mapping[str, Any]) -> dict[str, Any]:
  """Turns flags of the training program into those of this one.

  Flags of training itself have no effect; those of the network are compared
  with what was saved.

  Args:
    options: see `options.parse`.

  Raises:
    UserError: if there is nothing to play.
  """
  if not options.get('load_checkpoint_path'):
    raise UserError(
      '--play_only needs --load_checkpoint_path, the folder of a run or of a'
      ' checkpoint.'
    )
  for name, instead in _INSTEAD.items():
    if name in options:
      raise UserError(f'--play_only goes with no --{name}; {instead}.')
  names = {'num_eval_envs': 'episodes', 'deterministic_eval': 'deterministic'}
  return {names.get(name, name): value for name, value in options.items()}


def _announce(scene: scenes.Scene, deterministic: bool, count: int) -> None:
  """Says what is played."""
  hidden = f' without observations {scene.hidden}' if scene.hidden else ''
  actions = 'the mode of the policy' if deterministic else 'drawn'
  print(f'Checkpoint: {scene.path}')
  print(f'Environment: {scene.env_name}{hidden}, {scene.control_dt:.4g} s a step')
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


def play(options: Mapping[str, Any]) -> episodes.Episodes:
  """Plays, and prints and writes what was asked for.

  Args:
    options: flags by name; see `parse`.

  Returns:
    What came of the episodes.

  Raises:
    UserError: before anything compiles, if something does not fit.
    OSError: if a file cannot be written.
  """
  wanted = lambda name, suffixes: (
    rendering.check_path(f'--{name}', options[name], suffixes)
    if name in options
    else None
  )
  video = wanted('video', rendering.SUFFIXES)
  picture = wanted('activations', ('.png',))
  for name, needs in (
    ('camera', 'video'),
    ('layer', 'activations'),
    ('activation_steps', 'activations'),
  ):
    if name in options and needs not in options:
      raise UserError(f'--{name} has no meaning without --{needs}.')
  changes = _changes(options)
  scene = scenes.load(options['load_checkpoint_path'], options, changes)
  if video and video.suffix == '.html' and scene.suite != scenes.BRAX:
    raise UserError(
      f'--video={video}: the HTML viewer shows environments of Brax itself;'
      ' take .mp4 or .gif.'
    )
  rendering.check_camera(scene.env, options.get('camera'))
  layers = activation_plot.choose(scene, options.get('layer', ())) if picture else []
  deterministic = options.get('deterministic', True)
  seed, count = options.get('seed', 0), options.get('episodes', 16)
  _announce(scene, deterministic, count)
  played = episodes.play(scene, count, seed, deterministic, video is not None)
  print(episodes.table(played), flush=True)
  if video:
    _save_video(video, scene, played, options.get('camera'))
  if number := options.get('num_videos', 0):
    folder = pathlib.Path(options.get('logdir', '.'))
    films = videos.Videos(
      scene.env,
      folder,
      episode_length=scene.episode_length,
      action_repeat=scene.action_repeat,
      seed=seed,
    )
    films.after(scene.make_policy, scene.params, number)
  if picture:
    steps = options.get('activation_steps', 500)
    recording = activation_plot.record(scene, layers, steps, seed, deterministic)
    activation_plot.draw(
      picture,
      recording,
      f'{scene.env_name}, {scene.network}, after {int(scene.path.name):,} env'
      ' steps',
      f'steps of {scene.control_dt:.4g} s',
    )
    print(f'Activations: {picture}')
  return played


def _save_video(
  path: Any, scene: scenes.Scene, played: episodes.Episodes, camera: str | None
) -> None:
  """Writes a video, or says why there is none."""
  path, note = rendering.playable(path)
  if note:
    print(f'{PROGRAM}: {note}', file=sys.stderr)
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
    options = parse(argv[1:])
    if options.get('help'):
      print(_USAGE + _define().get_help())
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
  logging.set_verbosity(logging.WARNING)
  # A script in bin/ does not look here for --network=my_module:build.
  sys.path.append(os.getcwd())
  sys.exit(main(sys.argv))


if __name__ == '__main__':
  run()
