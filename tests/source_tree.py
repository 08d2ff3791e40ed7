"""The Python files of the repository and what they import."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ('brax_nnx_plugin', 'launchers', 'tests')


def python_files() -> list[str]:
  """Lists every Python file, relative to the root, in order."""
  files = [p for folder in FOLDERS for p in (ROOT / folder).rglob('*.py')]
  return sorted(p.relative_to(ROOT).as_posix() for p in files)


def parse(path: str) -> ast.Module:
  """Parses one file."""
  return ast.parse((ROOT / path).read_text())


def _absolute(path: str, node: ast.ImportFrom) -> str:
  """Returns the module a `from` import names, relative ones resolved."""
  if not node.level:
    return node.module or ''
  package = path.removesuffix('.py').split('/')[: -node.level]
  return '.'.join([*package, *filter(None, [node.module])])


def imported_modules(path: str) -> set[str]:
  """Returns every module that a file imports, at any depth of nesting.

  `from a import b` counts as `a.b` where that may be a module: always outside
  the repository, and where there is such a file inside it.
  """
  modules = set()
  for node in ast.walk(parse(path)):
    if isinstance(node, ast.Import):
      modules |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      base = _absolute(path, node)
      for alias in node.names:
        full = f'{base}.{alias.name}'
        inside = base.split('.')[0] in FOLDERS
        modules.add(base if inside and not module_file(full) else full)
  return modules


def module_file(module: str) -> str | None:
  """Returns the file of a first-party module, if it is one."""
  stem = module.replace('.', '/')
  for path in (f'{stem}.py', f'{stem}/__init__.py'):
    if module.split('.')[0] in FOLDERS and (ROOT / path).exists():
      return path
  return None
