"""Starts the programs, once what they need is there and new enough.

Imports nothing but the standard library before it has looked: a package that is
too old fails on import, with a traceback that does not say so.
"""

from collections.abc import Callable
import importlib
import importlib.metadata
import re
import sys

_PACKAGE = 'brax-nnx-plugin'


def _numbers(version: str) -> tuple[int, ...]:
  """Returns the release numbers of a version, without trailing zeros."""
  release = re.match(r'[\d.]*', version)
  text = release[0] if release else ''
  numbers = [int(n) for n in text.split('.') if n]
  while numbers and not numbers[-1]:
    numbers.pop()
  return tuple(numbers)


def what_is_missing(
  requires: Callable[[str], list[str] | None] = importlib.metadata.requires,
  version: Callable[[str], str] = importlib.metadata.version,
) -> str | None:
  """Says in a sentence what is not installed or too old.

  Args:
    requires: returns what a package needs.
    version: returns the version of a package.

  Returns:
    `None` if all is well, or if the package itself is not installed and so does
    not say what it needs.
  """
  try:
    requirements = requires(_PACKAGE) or []
  except importlib.metadata.PackageNotFoundError:
    return None
  found, needed = [], []
  for requirement in requirements:
    bound = re.fullmatch(r'([\w.-]+)\s*>=\s*([\d.]+)', requirement)
    if bound is None:  # of an extra
      continue
    name, lowest = bound.groups()
    try:
      installed = version(name)
    except importlib.metadata.PackageNotFoundError:
      found.append(f'{name} is not installed')
      needed.append(requirement)
      continue
    if _numbers(installed) < _numbers(lowest):
      found.append(f'{name} {installed} is too old')
      needed.append(requirement)
  if not found:
    return None
  arguments = ' '.join(f"'{requirement}'" for requirement in needed)
  return f'{", ".join(found)}; pip install {arguments} puts it right.'


def _start(program: str, module: str) -> None:
  if missing := what_is_missing():
    sys.exit(f'{program}: {missing}')
  importlib.import_module(f'.{module}', __package__).run()


def train() -> None:
  """The console script of `train_ppo`."""
  _start('brax-nnx-train', 'train_ppo')


def compare() -> None:
  """The console script of `compare`."""
  _start('brax-nnx-compare', 'compare')


def benchmark() -> None:
  """The console script of `benchmark`."""
  _start('brax-nnx-benchmark', 'benchmark')
