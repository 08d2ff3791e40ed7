"""BUILD names every module, launcher and test, with complete dependencies."""

import ast
import sys

import pytest

from tests import source_tree

RULES = ('py_library', 'py_binary', 'py_test')
# Distributions whose import name is another.
DISTRIBUTIONS = {
  'absl': 'absl_py',
  'mujoco_playground': 'playground',
  'orbax': 'orbax_checkpoint',
  'PIL': 'pillow',
}


def read_targets(text):
  """Returns the targets of a BUILD file by name."""
  targets = {}
  for node in ast.walk(ast.parse(text)):
    if (
      isinstance(node, ast.Call)
      and isinstance(node.func, ast.Name)
      and node.func.id in RULES
    ):
      target = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
      assert target['name'] not in targets, f'{target["name"]} is there twice'
      targets[target['name']] = {'rule': node.func.id, **target}
  return targets


TARGETS = read_targets((source_tree.ROOT / 'BUILD').read_text())
FILES = source_tree.python_files()


def _label(path):
  return ':' + path.removesuffix('.py')


def expected_deps(path, modules):
  """Returns the labels a file needs for the modules it imports."""
  deps = set()
  for module in modules:
    file = source_tree.module_file(module)
    top = module.split('.')[0]
    if file is not None:
      deps.add(_label(file))
    elif top not in sys.stdlib_module_names:
      deps.add(f'@pypi//{DISTRIBUTIONS.get(top, top)}')
  return deps - {_label(path)}


def _rule_of(path):
  if path.endswith('_test.py'):
    return 'py_test'
  is_program = (
    path.startswith('launchers/')
    and "'__main__'" in (source_tree.ROOT / path).read_text()
  )
  return 'py_binary' if is_program else 'py_library'


@pytest.mark.parametrize('path', FILES)
def test_file_has_one_target_of_the_right_kind(path):
  owners = [t for t in TARGETS.values() if path in t['srcs']]
  assert [t['rule'] for t in owners] == [_rule_of(path)]
  assert owners[0]['name'] == path.removesuffix('.py')


@pytest.mark.parametrize('path', FILES)
def test_target_depends_on_what_the_file_imports(path):
  modules = source_tree.imported_modules(path)
  deps = TARGETS[path.removesuffix('.py')].get('deps', [])
  assert set(deps) == expected_deps(path, modules)
  assert deps == sorted(deps), 'deps are in order'


def test_every_label_and_every_source_exists():
  labels = {f':{name}' for name in TARGETS}
  for target in TARGETS.values():
    missing = {d for d in target.get('deps', []) if d[0] == ':'} - labels
    assert not missing, f'{target["name"]} depends on {missing}'
    for source in target['srcs']:
      assert (source_tree.ROOT / source).exists()


def test_a_missing_dependency_is_found():
  modules = {'jax.numpy', 'brax_nnx_plugin.networks.types', 'absl.flags', 'os'}
  assert expected_deps('launchers/x.py', modules) == {
    '@pypi//jax',
    ':brax_nnx_plugin/networks/types',
    '@pypi//absl_py',
  }
