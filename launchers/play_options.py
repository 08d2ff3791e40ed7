"""The command line of the program that plays; see `options`."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags

from . import command_line
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
  'env_name': 'Environment of MuJoCo Playground, for a checkpoint without a'
  " run's config.json.",
  'video': 'File for a video of the first episode: .mp4, or .gif, which needs'
  ' no ffmpeg, or, for environments of Brax, .html, a page whose viewer comes'
  ' from the network.',
  'camera': "Of the video, by name; MuJoCo's free camera by default.",
  'activations': 'PNG file for the outputs of layers over time.',
}
_INTEGERS = {
  'episodes': (1, 'Episodes to play; by default 16.'),
  'seed': (
    0,
    'Of the first states, and of the actions if they are drawn; by default 0.',
  ),
  'episode_length': (
    1,
    'Env steps after which an episode is cut off; by default as in training.',
  ),
  'activation_steps': (1, 'Actions that --activations shows; by default 500.'),
}
_REPEATED = {
  'set': 'Change of one entry of the environment configuration, as in'
  ' env.ctrl_dt=0.02. May be given many times.',
  'layer': 'Layer that --activations shows, by its path, as in 1/action/1; by'
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
    'deterministic',
    None,
    'Act by the mode of the policy; on by default.',
    **kwargs,
  )
  flags.DEFINE_enum(
    'impl',
    None,
    ('jax', 'warp'),
    'Physics implementation; by default jax'
    ' where jax has no GPU, and that of the run elsewhere.',
    **kwargs,
  )
  return values


def help_text() -> str:
  """Returns what --help shows."""
  return _USAGE + _define().get_help()


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
  given, rest = command_line.read(values, PROGRAM, arguments)
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
