"""What stands in the README: its commands, and its code."""

import re

from tests import source_tree

TEXT = (source_tree.ROOT / 'README.md').read_text()


def blocks(language: str) -> list[str]:
  """Returns all code of a language, block by block."""
  return re.findall(rf'```{language}\n(.*?)```', TEXT, re.DOTALL)


def commands(program: str) -> list[str]:
  """Returns the commands of a program, comments left out."""
  lines = [
    line.split(' # ')[0].strip()
    for block in blocks('sh')
    for line in block.splitlines()
  ]
  found = [part for line in lines for part in line.split(' && ')]
  return [c for c in found if c and program in c.split()[0]]
