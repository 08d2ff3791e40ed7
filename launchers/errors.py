"""Mistakes of the user, which are told in a sentence and not by a traceback."""

from collections.abc import Iterable
import difflib
import os
import pathlib
import traceback


class UserError(Exception):
  """Something the user can put right; its text is shown, on one line."""

  def __str__(self) -> str:
    # It may quote another error; MuJoCo's have several lines.
    return ' '.join(super().__str__().split())


def told(error: BaseException) -> str:
  """Returns what an error says, of which kind it is, and where it was raised.

  The place is the last one in code of the user's own, if there is any.
  """
  kind, text = type(error).__name__, str(error)
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    path = pathlib.Path(frame.filename)
    installed = {'site-packages', 'dist-packages'} & {*path.parts}
    if path.is_file() and not installed and not _is_ours(path):
      return f'{kind}: {text} ({path}, line {frame.lineno})'
  return f'{kind}: {text}'


def _is_ours(path: pathlib.Path) -> bool:
  here, python = pathlib.Path(__file__).parent, pathlib.Path(os.__file__).parent
  ours = here, here.with_name('brax_nnx_plugin'), python
  return any(path.is_relative_to(folder) for folder in ours)


def nearest(name: str, names: Iterable[str]) -> str:
  """Returns a sentence with the names most like `name`, letter case aside."""
  by_folded = {candidate.casefold(): candidate for candidate in names}
  matches = difflib.get_close_matches(
    name.casefold(), by_folded, n=3, cutoff=0.0
  )
  return f'The nearest are {", ".join(by_folded[m] for m in matches)}.'
