"""An NNX module as plain trees: take it apart, put it together, seed it.

Variables become nested dicts of arrays with string keys only, which survive
every checkpoint format and every tree map. Three kinds are told apart: what is
trained (`nnx.Param`), RNG streams, which are never stored but seeded anew at
each use, and the rest, which is measured.

The variables of a network go into two trees, as Brax has them: the value port
of a `PPOAdapter` is the value function's, everything else, a shared trunk
included, is the policy's.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

from flax import nnx
import jax
from jax.core import Tracer
import jax.numpy as jnp

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.samplers import ActionSampler
from brax_nnx_plugin.networks.samplers import SampleKey

Tree = dict[str, Any]
PARTS = ('params', 'statistics')


class ModuleParts(NamedTuple):
  """The variables of a module by kind."""

  params: nnx.State
  statistics: nnx.State
  rngs: nnx.State


def split(module: nnx.Module) -> ModuleParts:
  """Returns the variables of `module`."""
  _, params, rngs, statistics = nnx.split(module, nnx.Param, nnx.RngState, ...)
  return ModuleParts(params, statistics, rngs)


def merge(graphdef: Any, parts: ModuleParts) -> Any:
  """Builds a module from its structure and its variables."""
  return nnx.merge(graphdef, parts.params, parts.statistics, parts.rngs)


def _names(path: Any) -> tuple[str, ...]:
  """Names the nodes on the way to a leaf; a variable's `.value` is no node."""
  return tuple(
    str(getattr(entry, 'key', getattr(entry, 'idx', None)))
    for entry in path
    if not isinstance(entry, jax.tree_util.GetAttrKey)
  )


def flatten(state: Any) -> list[tuple[tuple[str, ...], Any]]:
  """Lists the leaves of `state` with the names that lead to them."""
  return [
    (_names(path), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state)
  ]


def nest(pairs: Sequence[tuple[tuple[str, ...], Any]]) -> Tree:
  """Builds a nested dict from names and leaves."""
  tree: Tree = {}
  for names, leaf in pairs:
    node = functools.reduce(lambda d, k: d.setdefault(k, {}), names[:-1], tree)
    node[names[-1]] = leaf
  return tree


def restore(template: nnx.State, lookup: Any) -> nnx.State:
  """Fills `template` from nested dicts.

  Args:
    template: the state to imitate; its leaves have shapes.
    lookup: maps the names of a leaf to the nested dict it is in.

  Raises:
    ValueError: if a leaf is missing or has another shape.
  """

  def fill(path, expected):
    names = _names(path)
    node = lookup(names)
    for name in names:
      if not isinstance(node, Mapping) or name not in node:
        raise ValueError(
          f'The parameters have no {"/".join(names)}, which this network'
          ' needs; they belong to another network.'
        )
      node = node[name]
    if jnp.shape(node) != expected.shape:
      raise ValueError(
        f'The parameter {"/".join(names)} has shape {jnp.shape(node)}, but'
        f' this network needs {expected.shape}.'
      )
    return node

  return jax.tree_util.tree_map_with_path(fill, template)


def seed(template: nnx.State, key: jax.Array) -> nnx.State:
  """Seeds the RNG streams of a module from one key.

  A single action sampler gets the key itself, and so draws what Brax would;
  every other stream gets a key of its own.

  Args:
    template: the `rngs` of the module.
    key: a PRNG key, typed or raw.
  """
  if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
    key = jax.random.wrap_key_data(key)
  is_variable = lambda x: isinstance(x, nnx.Variable)
  variables = jax.tree.leaves(template, is_leaf=is_variable)
  samplers = sum(isinstance(v, SampleKey) for v in variables)
  seeded = []
  for i, variable in enumerate(variables):
    if isinstance(variable, nnx.RngCount):
      value = jnp.zeros(variable.shape, jnp.uint32)
    elif isinstance(variable, SampleKey) and samplers == 1:
      value = key
    else:
      value = jax.random.fold_in(key, i)
    seeded.append(variable.replace(value))
  treedef = jax.tree.structure(template, is_leaf=is_variable)
  return jax.tree.unflatten(treedef, seeded)


def _refuse_array_attributes(module: Any) -> None:
  """Raises where a module under construction holds a traced array as such."""
  for path, node in nnx.iter_modules(module):
    for name, value in vars(node).items():
      if isinstance(value, Tracer):
        raise ValueError(
          f'{type(node).__name__}.{name} (at {"/".join(map(str, path))!r}) is a'
          ' bare JAX array. Make it an nnx.Param if it is to be trained, an'
          ' nnx.Variable if not, or a NumPy array if it never changes.'
        )


class ModuleTemplate:
  """The structure of a module, to make copies with any variables.

  Attributes:
    samplers: the action samplers of the module.
    ports: the names that lead to the ports of each `PPOAdapter`.
    rngs: the RNG streams, abstract.
    stream_count: how many RNG streams there are, those of samplers included.
  """

  def __init__(self, build: Callable[[jax.Array], Any]):
    """Traces `build` abstractly.

    Args:
      build: makes the module from a PRNG key.
    """
    self._build = build

    def checked_build():
      module = build(jax.random.key(0))
      if not isinstance(module, nnx.Module):
        raise TypeError(
          f'build must return a module; it returned a {type(module).__name__}.'
        )
      _refuse_array_attributes(module)
      return module

    module = nnx.eval_shape(checked_build)
    modules = list(nnx.iter_modules(module))
    self.samplers = [m for _, m in modules if isinstance(m, ActionSampler)]
    self.ports = [
      (*map(str, path), 'components')
      for path, m in modules
      if isinstance(m, PPOAdapter)
    ]
    self._parts = split(module)
    is_variable = lambda x: isinstance(x, nnx.Variable)
    self.rngs = self._parts.rngs
    streams = jax.tree.leaves(self.rngs, is_leaf=is_variable)
    self.stream_count = sum(isinstance(v, nnx.RngKey) for v in streams)
    self._graphdefs = [nnx.graphdef(module)]
    module.eval()
    self._graphdefs.append(nnx.graphdef(module))

  def abstract(self) -> Any:
    """Returns the module itself, with shapes in place of arrays."""
    return merge(self._graphdefs[False], self._parts)

  def mapped(self, change: Callable[[Any], Any]) -> 'ModuleTemplate':
    """Returns the template of `change(module)`, for each module built."""
    return ModuleTemplate(lambda key: change(self._build(key)))

  def is_value(self, names: tuple[str, ...]) -> bool:
    """Returns whether a variable belongs to the value function."""
    return any(names[: len(p) + 1] == (*p, 'value') for p in self.ports)

  def parameter_names(self) -> list[tuple[str, ...]]:
    """Lists the names of all trained variables."""
    return [names for names, _ in flatten(self._parts.params)]

  def trees(self, module: Any) -> dict[str, tuple[Tree, Tree]]:
    """Returns (policy, value) trees of `module`, by part."""
    parts = split(module)
    result = {}
    for part in PARTS:
      sides: tuple[list[Any], list[Any]] = ([], [])
      for names, leaf in flatten(getattr(parts, part)):
        sides[self.is_value(names)].append(((part, *names), leaf))
      result[part] = (nest(sides[0]), nest(sides[1]))
    return result

  def init(self, key: jax.Array) -> dict[str, tuple[Tree, Tree]]:
    """Returns the trees of a module freshly built from `key`."""
    return self.trees(self._build(key))

  def _check_no_more(self, part: str, template: Any, trees: Any) -> None:
    """Raises if the trees have leaves that the module has not."""
    known = {names for names, _ in flatten(template)}
    for tree in trees:
      extra = {names for names, _ in flatten(tree.get(part, {}))} - known
      if extra:
        listed = ', '.join(sorted('/'.join(names) for names in extra))
        raise ValueError(
          f'The parameters have {listed}, which this network does not know;'
          ' they belong to another network.'
        )

  def module(
    self,
    params: tuple[Tree, Tree],
    statistics: tuple[Tree, Tree],
    key: jax.Array | None = None,
    *,
    rngs: nnx.State | None = None,
    evaluate: bool = False,
  ) -> Any:
    """Returns a module with these variables.

    Args:
      params: the trees of policy and value.
      statistics: likewise.
      key: seeds the RNG streams.
      rngs: the RNG streams themselves, instead of a key.
      evaluate: make the module as after `module.eval()`.

    Raises:
      ValueError: if the trees are not those of this module.
    """

    def state(part, trees):
      template = getattr(self._parts, part)
      self._check_no_more(part, template, trees)

      def lookup(names):
        return trees[self.is_value(names)].get(part, {})

      return restore(template, lookup)

    if rngs is None:
      rngs = seed(self.rngs, jax.random.key(0) if key is None else key)
    parts = ModuleParts(
      state('params', params), state('statistics', statistics), rngs
    )
    return merge(self._graphdefs[evaluate], parts)
