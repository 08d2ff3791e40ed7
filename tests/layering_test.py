"""No layer reaches upward: launchers -> ppo -> networks <- testing."""

import pytest

from tests import source_tree

# What the files under a prefix must not import; the longest prefix counts.
FORBIDDEN = {
  'brax_nnx_plugin/networks': (
    'brax',
    'brax_nnx_plugin.ppo',
    'launchers',
    'tests',
  ),
  'brax_nnx_plugin/networks/samplers.py': (
    'brax.envs',
    'brax.training.agents',
    'brax_nnx_plugin.ppo',
    'launchers',
    'tests',
  ),
  'brax_nnx_plugin/testing': (
    'brax',
    'brax_nnx_plugin.ppo',
    'launchers',
    'tests',
  ),
  # Other files of ppo see pure functions and pytrees.
  'brax_nnx_plugin/ppo': ('flax.nnx', 'launchers', 'tests'),
  'brax_nnx_plugin/ppo/networks.py': ('launchers', 'tests'),
  'launchers': ('tests',),
}


def _rule(path):
  prefixes = [p for p in FORBIDDEN if path == p or path.startswith(f'{p}/')]
  return FORBIDDEN[max(prefixes, key=len)] if prefixes else ()


def _reaches(module, forbidden):
  return module == forbidden or module.startswith(f'{forbidden}.')


def violations(path, modules):
  return sorted(
    module
    for module in modules
    for forbidden in _rule(path)
    if _reaches(module, forbidden)
  )


@pytest.mark.parametrize('path', source_tree.python_files())
def test_file_imports_nothing_above_its_layer(path):
  assert violations(path, source_tree.imported_modules(path)) == []


@pytest.mark.parametrize(
  ('path', 'module'),
  [
    ('brax_nnx_plugin/networks/types.py', 'brax.training.types'),
    ('brax_nnx_plugin/networks/samplers.py', 'brax.training.agents.ppo.train'),
    ('brax_nnx_plugin/networks/graph.py', 'brax_nnx_plugin.ppo.types'),
    ('brax_nnx_plugin/testing/rows.py', 'brax_nnx_plugin.ppo.types'),
    ('brax_nnx_plugin/ppo/losses.py', 'flax.nnx'),
    ('brax_nnx_plugin/ppo/train.py', 'launchers.train_ppo'),
  ],
)
def test_upward_import_is_found(path, module):
  assert violations(path, {module}) == [module]


def test_samplers_may_use_brax_distributions():
  path = 'brax_nnx_plugin/networks/samplers.py'
  assert violations(path, {'brax.training.distribution'}) == []
