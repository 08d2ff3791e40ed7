"""What the command lines of all programs have in common."""

from collections.abc import Callable
from collections.abc import Sequence
import logging as logging_lib
import os
import re
import sys
from typing import Any
import warnings

from absl import flags
from absl import logging

from brax_nnx_plugin.ppo import interrupts

from . import streams
from .errors import UserError

# More numbers than anything has; a longer range is a slip of the finger.
_MOST_NUMBERS = 100_000


def parse_ranges(flag: str, text: str) -> list[int]:
  """Reads numbers and half-open ranges, `'0,3:5'` -> `[0, 3, 4]`.

  Args:
    flag: that has them, for the error.
    text: its value.

  Raises:
    UserError: if it is neither.
  """
  numbers: list[int] = []
  for part in filter(None, (part.strip() for part in text.split(','))):
    match = re.fullmatch(r'(\d+)(?::(\d+))?', part)
    first, end = match.groups() if match else (None, None)
    chosen = range(int(first or 0), int(end) if end else int(first or 0) + 1)
    if match is None or chosen.stop <= chosen.start:
      raise UserError(
        f'{flag}={text}: {part!r} is neither a number, as 3, nor a range, as'
        ' 3:5 (which is 3 and 4).'
      )
    if chosen.stop - chosen.start > _MOST_NUMBERS - len(numbers):
      raise UserError(
        f'{flag}={text}: {part!r} is too long; all together may be'
        f' {_MOST_NUMBERS:,} numbers.'
      )
    numbers += chosen
  return numbers


def read(
  values: flags.FlagValues,
  program: str,
  arguments: Sequence[str],
  known_only: bool = False,
) -> tuple[dict[str, Any], list[str]]:
  """Reads a command line.

  Args:
    values: the flags there are, all without a value.
    program: its name.
    arguments: of the program.
    known_only: leave other flags alone.

  Returns:
    The flags that were given, by name, and the other arguments.

  Raises:
    UserError: for a flag or a value that does not exist.
  """
  try:
    rest = values([program, *arguments], known_only=known_only)[1:]
  except (flags.Error, ValueError) as e:
    text = str(e).rstrip().removesuffix(' ?').rstrip('.?')
    raise UserError(f'{text}. See {program} --help.') from None
  given = values.flag_values_dict()
  return {k: v for k, v in given.items() if v is not None}, rest


def run(main: Callable[[Sequence[str]], int]) -> None:
  """Runs a program, and ends with its exit code."""
  streams.make_lasting()
  # What becomes of a failure is told once, and not by a loop of Orbax as well.
  logging_lib.getLogger('asyncio').setLevel(logging_lib.CRITICAL)
  logging.set_verbosity(logging.WARNING)
  # Of Brax, at every start; who installs this library has heard.
  warnings.filterwarnings('ignore', 'Brax System, piplines', UserWarning)
  # A script in bin/ does not look here for --network=my_module:build.
  sys.path.append(os.getcwd())
  with interrupts.insisting():
    sys.exit(main(sys.argv))
