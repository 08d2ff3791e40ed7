"""Mistakes of the user, which are told in a sentence and not by a traceback."""

from collections.abc import Iterable
import difflib


class UserError(Exception):
  """Something the user can put right; its text is shown, on one line."""

  def __str__(self) -> str:
    # It may quote another error; MuJoCo's have several lines.
    return ' '.join(super().__str__().split())


def nearest(name: str, names: Iterable[str]) -> str:
  """Returns a sentence with the names most like `name`, letter case aside."""
  by_folded = {candidate.casefold(): candidate for candidate in names}
  matches = difflib.get_close_matches(
    name.casefold(), by_folded, n=3, cutoff=0.0
  )
  return f'The nearest are {", ".join(by_folded[m] for m in matches)}.'
