"""Budgets that keep the source readable."""

import ast

import pytest

from tests import source_tree

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 300
# Its signature and its docstring are as long as Brax's signature makes them.
LONGER = {'brax_nnx_plugin/ppo/train.py': 400}


def _body_lines(node):
  """Counts the lines of a function without signature and docstring."""
  body = node.body[1:] if ast.get_docstring(node) else node.body
  return body[-1].end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize('path', source_tree.python_files())
def test_file_and_functions_are_short(path):
  text = (source_tree.ROOT / path).read_text()
  assert len(text.splitlines()) <= LONGER.get(path, MAX_FILE_LINES)
  for node in ast.walk(source_tree.parse(path)):
    if isinstance(node, ast.FunctionDef):
      assert _body_lines(node) <= MAX_FUNCTION_LINES, node.name


@pytest.mark.parametrize('path', source_tree.python_files())
def test_file_says_what_it_holds(path):
  tree = source_tree.parse(path)
  assert ast.get_docstring(tree) or not tree.body


@pytest.mark.parametrize(
  'path',
  [p for p in source_tree.python_files() if not p.startswith('tests/')],
)
def test_nothing_is_pickled(path):
  modules = source_tree.imported_modules(path)
  assert not {m.split('.')[0] for m in modules} & {'pickle', 'cloudpickle'}
