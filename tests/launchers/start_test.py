"""Starting with packages that are missing or too old."""

import ast
import importlib.metadata
import pathlib
import sys
import tomllib

import pytest

from launchers import start
from tests import source_tree

_REQUIRES = ['jax>=0.10', 'flax>=0.12.7', 'brax >= 0.14.2', 'x; extra == "dev"']
_INSTALLED = {'jax': '0.12.0.1', 'flax': '0.13.0rc1', 'brax': '0.14.2'}


def _missing(**installed):
  """What is missing if these versions are installed, `None` for none."""

  def version(name):
    found = (_INSTALLED | installed)[name]
    if found is None:
      raise importlib.metadata.PackageNotFoundError(name)
    return found

  return start.what_is_missing(lambda name: _REQUIRES, version)


@pytest.mark.parametrize(
  'installed',
  [{}, {'jax': '0.10'}, {'jax': '0.10.0'}, {'jax': '1'}, {'flax': '0.12.10'}],
)
def test_versions_from_the_lowest_up_are_taken(installed):
  assert _missing(**installed) is None


@pytest.mark.parametrize(
  ('name', 'version'),
  [
    ('jax', '0.9.2'),
    ('jax', '0.4.38.dev20250101'),
    ('flax', '0.12.6'),
    ('flax', '0.12'),
    ('brax', '0.2'),
  ],
)
def test_an_old_version_is_named_with_the_lowest(name, version):
  text = _missing(**{name: version})
  assert text is not None
  assert f'{name} {version} is too old' in text
  (needed,) = (r for r in _REQUIRES if r.startswith(name))
  assert f"pip install '{needed}'" in text


def test_all_that_is_wrong_is_one_line():
  text = _missing(jax='0.9', flax=None)
  assert text == (
    'jax 0.9 is too old, flax is not installed; pip install'
    " 'jax>=0.10' 'flax>=0.12.7' puts it right."
  )


def test_a_package_that_is_not_installed_says_nothing():
  def requires(name):
    raise importlib.metadata.PackageNotFoundError(name)

  assert start.what_is_missing(requires) is None


def test_what_is_installed_here_is_new_enough():
  assert start.what_is_missing() is None


@pytest.mark.parametrize('program', ['train', 'play', 'compare', 'benchmark'])
def test_a_program_ends_with_the_sentence(monkeypatch, program):
  monkeypatch.setattr(start, 'what_is_missing', lambda: 'jax 0.9 is too old.')
  with pytest.raises(SystemExit) as ended:
    getattr(start, program)()
  assert ended.value.code == f'brax-nnx-{program}: jax 0.9 is too old.'


_VIDEO = ['runs/NAME', '--video=out.mp4']


@pytest.mark.parametrize(
  ('arguments', 'environ', 'libraries', 'way'),
  [
    (_VIDEO, {}, ['libEGL.so.1', 'libOSMesa.so.8'], 'egl'),
    (['--num_videos=2'], {}, ['libOSMesa.so.8'], 'osmesa'),
    (['--video_every', '2'], {'MUJOCO_GL': ''}, ['libEGL.so.1'], 'egl'),
    (_VIDEO, {}, [], None),
    (['runs/NAME'], {}, ['libEGL.so.1'], None),
    (_VIDEO, {'MUJOCO_GL': 'glfw'}, ['libEGL.so.1'], None),
    (_VIDEO, {'DISPLAY': ':0'}, ['libEGL.so.1'], None),
  ],
)
def test_without_a_screen_what_is_installed_draws(
  arguments, environ, libraries, way
):
  found = start.way_to_draw(arguments, environ, lambda name: name in libraries)
  assert found == way


def test_a_way_to_draw_that_is_missing_is_one_sentence(monkeypatch):
  def load(name):
    raise AttributeError("'NoneType' object has no attribute 'glGetError'")

  monkeypatch.setattr(start.importlib, 'import_module', load)
  monkeypatch.setenv('MUJOCO_GL', 'osmesa')
  with pytest.raises(SystemExit) as ended:
    start.play()
  text = str(ended.value.code)
  assert text.startswith('brax-nnx-play: ') and '\n' not in text
  assert 'MUJOCO_GL=osmesa' in text and 'egl' in text
  monkeypatch.delenv('MUJOCO_GL')
  with pytest.raises(AttributeError):
    start.play()


def test_nothing_else_is_imported_first():
  interrupts = 'brax_nnx_plugin/ppo/interrupts.py'
  names = {
    name
    for file in ('launchers/start.py', interrupts)
    for name in source_tree.imported_modules(file)
  } - {'brax_nnx_plugin.ppo', 'brax_nnx_plugin.ppo.interrupts'}
  assert {name.split('.')[0] for name in names} <= sys.stdlib_module_names
  for package in ('launchers', 'brax_nnx_plugin', 'brax_nnx_plugin/ppo'):
    text = (source_tree.ROOT / package / '__init__.py').read_text()
    (*docstring,) = ast.parse(text).body
    assert all(isinstance(node, ast.Expr) for node in docstring)


def test_the_console_scripts_start_here():
  text = pathlib.Path(source_tree.ROOT, 'pyproject.toml').read_text()
  for name, target in tomllib.loads(text)['project']['scripts'].items():
    module, _, function = target.partition(':')
    assert module == 'brax_nnx_launchers.start'
    assert name == f'brax-nnx-{function}'
    assert callable(getattr(start, function))
