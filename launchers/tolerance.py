"""Letting training go on when what accompanies it fails."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib


class Tolerance:
  """Tells what fails, once, and goes on."""

  def __init__(self, say: Callable[[str], None]):
    """Takes what shows a sentence."""
    self._say = say
    self._failing: set[str] = set()

  @contextlib.contextmanager
  def of(
    self, failure: str, consequence: str, again: str | None = None
  ) -> Iterator[None]:
    """Catches every exception of the body.

    Args:
      failure: what the exception means; told the first time.
      consequence: of that; the two make a sentence.
      again: said when the body no longer fails, after which a failure counts as
        the first one again; `None` to say nothing ever after.
    """
    try:
      yield
    except Exception as e:
      if failure not in self._failing:
        self._failing.add(failure)
        reason = ' '.join(str(e).split()) or type(e).__name__
        self._tell(f'{failure} ({reason}); {consequence}.')
    else:
      if again is not None and failure in self._failing:
        self._failing.remove(failure)
        self._tell(again)

  def _tell(self, text: str) -> None:
    with contextlib.suppress(Exception):  # a terminal that was closed
      self._say(f'WARNING: {text}')
