"""The flags of a comparison: some of its own, and those of training."""

from collections.abc import Sequence
from typing import Any

from absl import flags

from . import command_line
from . import networks
from . import options
from .errors import UserError

PROGRAM = 'brax-nnx-compare'

_USAGE = f"""{PROGRAM}: train several networks with several seeds.

    {PROGRAM} --networks=mlp,lstm --seeds=0:3 --threshold=900
    {PROGRAM} --networks=mlp,lstm --variant='seen: --hide_observations='
      --variant='hidden: --hide_observations=3:5'

Every other flag is one of {options.PROGRAM} and holds for all runs; see below.
The runs are made one after the other, each in a process and a folder of its
own. comparison.md, comparison.png and comparison.json in <logdir>/<name>/ are
written anew after each. Ctrl-C once ends the current run with a checkpoint;
--resume=<folder> goes on, and leaves out what is finished.
"""

# What a single run is told otherwise here, or cannot be told.
_REFUSED = {
  'network': 'Name networks by --networks.',
  'seed': 'Name seeds by --seeds.',
  'load_checkpoint_path': 'Every run starts from parameters of its own.',
  'dry_run': f'It is a flag of {options.PROGRAM}.',
  'play_only': f'It is a flag of {options.PROGRAM}.',
  **dict.fromkeys(
    ('coordinator_address', 'num_processes', 'process_id', 'distributed'),
    'The runs of a comparison have one process each.',
  ),
}


def _define() -> flags.FlagValues:
  values = flags.FlagValues()
  values.set_gnu_getopt()  # flags of training come in between
  kwargs: dict[str, Any] = {'flag_values': values, 'module_name': 'Flags'}
  flags.DEFINE_boolean('help', None, 'Show this text.', **kwargs)
  flags.DEFINE_list(
    'networks',
    None,
    'Networks to compare, as --network names them; by default mlp,lstm.',
    **kwargs,
  )
  flags.DEFINE_string(
    'seeds',
    None,
    'Seeds of each: numbers and half-open ranges, as in 0,1,2 or 0:3, which is'
    ' the same and the default.',
    **kwargs,
  )
  flags.DEFINE_multi_string(
    'variant',
    None,
    "Variant of the task, 'label: flags', with flags of training that hold for"
    ' it alone. May be given many times; each gets a panel of the picture.',
    **kwargs,
  )
  flags.DEFINE_float(
    'threshold', None, 'Reward whose first reaching is looked for.', **kwargs
  )
  flags.DEFINE_string(
    'resume', None, 'Folder of a comparison to go on with.', **kwargs
  )
  flags.DEFINE_string('logdir', None, "By default 'runs'.", **kwargs)
  flags.DEFINE_string('suffix', None, 'End of the name.', **kwargs)
  flags.DEFINE_string('config', None, 'As for training.', **kwargs)
  return values


def help_text() -> str:
  """Returns what --help shows."""
  own = _define().get_help()
  return f'{_USAGE}{own}\n\nFlags of training:\n\n{options.help_text()}'


def split(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
  """Takes the flags of a comparison out of a command line.

  Args:
    arguments: of the program, its name left out.

  Returns:
    Their values, of those that were given, and all other arguments as they are.

  Raises:
    UserError: for a value that does not exist.
  """
  return command_line.read(_define(), PROGRAM, arguments, known_only=True)


def training_flags(arguments: Sequence[str], where: str) -> dict[str, Any]:
  """Reads flags of training, as `options.parse`.

  Args:
    arguments: flags.
    where: begins what is said of a mistake.

  Returns:
    Those that were given, by name.

  Raises:
    UserError: for one that does not exist, or is none of a comparison.
  """
  try:
    given = options.parse(arguments)
  except UserError as e:
    text = str(e).replace(f'{options.PROGRAM} --help', f'{PROGRAM} --help')
    raise UserError(f'{where}{text}') from None
  for name in given:
    if name in _REFUSED:
      raise UserError(f'{where}--{name} cannot be given here. {_REFUSED[name]}')
  if given.get('run_evals') is False:
    raise UserError(f'{where}--norun_evals leaves nothing to compare.')
  return given


def for_network(arguments: Sequence[str], network: str) -> list[str]:
  """Leaves out flags that say something of networks with memory alone.

  Args:
    arguments: flags of training, of several networks.
    network: one of them.
  """
  if networks.has_memory_size(network):
    return list(arguments)
  values = flags.FlagValues()
  values.set_gnu_getopt()
  flags.DEFINE_string('memory_size', None, '', flag_values=values)
  return command_line.read(values, PROGRAM, arguments, known_only=True)[1]
