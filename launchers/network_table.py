"""The layers of a network as a table: parameters and memory of each.

Nothing is computed: all sizes are those of abstract values.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from flax import nnx
import jax

_HEADINGS = ('layer', 'class', 'parameters', 'statistics', 'carry')


@dataclasses.dataclass(frozen=True)
class Row:
  """One layer, or what a container has beside its layers.

  Attributes:
    path: names of the children that lead to it; empty for a network of one.
    kind: its class.
    parameters: numbers that are trained.
    statistics: numbers that are measured.
    carry: bytes of its memory, per environment.
  """

  path: str
  kind: str
  parameters: int
  statistics: int
  carry: int


def num_bytes(tree: Any) -> int:
  """Adds up the bytes of arrays or of their shapes."""
  return sum(
    math.prod(leaf.shape) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def _carry_bytes(module: Any) -> int:
  """Returns the bytes of one row of a module's carry."""
  graphdef, variables = nnx.split(module)
  carry = lambda v: nnx.merge(graphdef, v).initialize_state(1)
  return num_bytes(jax.eval_shape(carry, variables))


def _children(module: Any) -> dict[tuple[Any, ...], Any]:
  """Returns the stateful modules just below a module, by path, in order."""
  stateful = {
    path: node
    for path, node in nnx.iter_modules(module)
    if path and hasattr(node, 'initialize_state')
  }
  top = {
    path: node
    for path, node in stateful.items()
    if not any(path[:n] in stateful for n in range(1, len(path)))
  }
  names = list(getattr(module, 'names', ()))  # nnx.Dict sorts them
  rank = lambda path: names.index(path[-1]) if path[-1] in names else 0
  return dict(sorted(top.items(), key=lambda item: rank(item[0])))


def _rows(module: Any, path: tuple[Any, ...], seen: set[int]) -> Iterator[Row]:
  """Yields the layers of a module; what they share counts for the first."""
  carry = _carry_bytes(module)
  below: list[Row] = []
  before = set(seen)
  for names, child in _children(module).items():
    shown = [name for name in names if name != 'components']
    below += _rows(child, (*path, *shown), seen)
  rest = carry - sum(row.carry for row in below)
  if rest < 0:  # it does not use the memory of all its children
    below, rest = [], carry
    seen.clear()
    seen |= before
  sizes = {'parameters': 0, 'statistics': 0}
  for _, node in nnx.iter_graph(module):
    if not isinstance(node, nnx.Variable) or isinstance(node, nnx.RngState):
      continue
    if id(node) not in seen:
      seen.add(id(node))
      part = 'parameters' if isinstance(node, nnx.Param) else 'statistics'
      sizes[part] += math.prod(node.shape)
  if not below or rest or any(sizes.values()):
    name = '/'.join(map(str, path))
    yield Row(name, type(module).__name__, carry=rest, **sizes)
  yield from below


def _linen_rows(functions: Any) -> Iterator[Row]:
  """Yields the layers of a stock Brax network, which has no memory."""
  key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
  params = jax.eval_shape(functions.init, key, key).params
  sizes: dict[str, int] = {}
  for side in ('policy', 'value'):
    tree = getattr(params, side)
    for names, leaf in jax.tree_util.tree_leaves_with_path(tree):
      keys = [str(getattr(name, 'key', name)) for name in names[:-1]]
      path = '/'.join([side, *(key for key in keys if key != 'params')])
      sizes[path] = sizes.get(path, 0) + math.prod(leaf.shape)
  for path, size in sizes.items():
    yield Row(path, 'linen', size, 0, 0)


def rows(functions: Any) -> list[Row]:
  """Returns the layers of a network in the order of the dataflow.

  Args:
    functions: of the network, as `ppo.linen.as_functions` returns them.
  """
  template = getattr(functions, 'template', None)
  if template is None:
    return list(_linen_rows(functions))
  return list(_rows(template.abstract(), (), set()))


def table(layers: Sequence[Row]) -> str:
  """Returns the layers as aligned text, with totals."""
  total = Row(
    'total',
    '',
    sum(row.parameters for row in layers),
    sum(row.statistics for row in layers),
    sum(row.carry for row in layers),
  )
  number = lambda n: f'{n:,}' if isinstance(n, int) else n
  cells = [_HEADINGS] + [
    tuple(map(number, dataclasses.astuple(row))) for row in [*layers, total]
  ]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  aligned = lambda i, text: (
    f'{text:<{widths[i]}}' if i < 2 else (f'{text:>{widths[i]}}')
  )
  return '\n'.join(
    '  '.join(aligned(i, text) for i, text in enumerate(line)).rstrip()
    for line in cells
  )
