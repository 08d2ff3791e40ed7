"""Starts the programs, once what they need is there and new enough.

Imports nothing beyond the standard library before it has looked: a package that
is too old fails on import, with a traceback that does not say so.
"""

from collections.abc import Callable
from collections.abc import Mapping
import ctypes
import importlib
import importlib.metadata
import os
import re
import sys

from . import interrupts

_PACKAGE = 'brax-nnx-plugin'
# What MuJoCo can draw by on Linux, best first, and what has to be installed.
_WITHOUT_A_SCREEN = {'egl': 'libEGL.so.1', 'osmesa': 'libOSMesa.so.8'}
# What a shell says of a program that Ctrl-C has ended.
_INTERRUPTED = 130


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


def _is_there(library: str) -> bool:
  try:
    ctypes.CDLL(library)
  except OSError:
    return False
  return True


def way_to_draw(
  arguments: list[str],
  environ: Mapping[str, str],
  is_there: Callable[[str], bool] = _is_there,
) -> str | None:
  """Says by what MuJoCo is to draw videos where there is no screen.

  MuJoCo reads MUJOCO_GL when it is imported, so this has to be known before.

  Args:
    arguments: of the program.
    environ: variables of the environment.
    is_there: whether a library can be loaded.

  Returns:
    A value for MUJOCO_GL; `None` to leave it: it is set, or there is a screen,
    or no video is asked for, or nothing that draws without a screen.
  """
  asked = any(re.match('--?(num_)?video', text) for text in arguments)
  set_or_screen = ('MUJOCO_GL', 'DISPLAY', 'WAYLAND_DISPLAY')
  if not asked or any(environ.get(name) for name in set_or_screen):
    return None
  for name, library in _WITHOUT_A_SCREEN.items():
    if is_there(library):
      return name
  return None


def _require_mujoco(program: str) -> None:
  """Ends the program if MuJoCo cannot be imported because of MUJOCO_GL."""
  try:
    importlib.import_module('mujoco')
  except Exception as e:  # whatever OpenGL raises
    if not (way := os.environ.get('MUJOCO_GL')):
      raise
    sys.exit(
      f'{program}: MuJoCo cannot be loaded with MUJOCO_GL={way} ({e}). Set it'
      ' to egl or to osmesa, whichever is installed, or leave it unset to do'
      ' without videos.'
    )


def _start(program: str, module: str) -> None:
  interrupts.insist()
  try:
    _run(program, module)
  except KeyboardInterrupt:  # what is needed takes seconds to be imported
    print(f'{program}: interrupted.', file=sys.stderr)
    sys.exit(_INTERRUPTED)


def _run(program: str, module: str) -> None:
  if missing := what_is_missing():
    sys.exit(f'{program}: {missing}')
  if way := way_to_draw(sys.argv[1:], os.environ):
    os.environ['MUJOCO_GL'] = way
  _require_mujoco(program)
  importlib.import_module(f'.{module}', __package__).run()


def train() -> None:
  """The console script of `train_ppo`."""
  _start('brax-nnx-train', 'train_ppo')


def play() -> None:
  """The console script of `play`."""
  _start('brax-nnx-play', 'play')


def compare() -> None:
  """The console script of `compare`."""
  _start('brax-nnx-compare', 'compare')


def benchmark() -> None:
  """The console script of `benchmark`."""
  _start('brax-nnx-benchmark', 'benchmark')
