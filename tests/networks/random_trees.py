"""Random networks: descriptions that hypothesis draws, and how to build them.

A description is a name (a layer) or `(container, children)`. Every one is built
so that it takes `[B, size]` and returns `[B, size]`.
"""

from collections.abc import Callable
from typing import Any

from flax import nnx
from hypothesis import strategies as st

from brax_nnx_plugin import networks
from tests.networks import cases

SIZE = 2


def _latent(kind: Any, rngs: nnx.Rngs) -> Any:
  head = networks.Dense(SIZE, 2 * SIZE, rngs)
  return networks.Sequential([head, kind(SIZE, rngs, kl_weight=0.1)])


LAYERS: dict[str, Callable[[nnx.Rngs], Any]] = {
  'dense': lambda r: networks.Dense(SIZE, SIZE, r, nnx.tanh),
  'scale': lambda r: networks.Scale(0.5),
  'penalty': lambda r: cases.Penalty(0.1),
  'normalizer': lambda r: networks.Normalizer(SIZE),
  'delay': lambda r: networks.Delay(SIZE, 2, initial_value=0.5),
  'lstm': lambda r: networks.LSTM(SIZE, SIZE, r),
  'gru': lambda r: networks.GRU(SIZE, SIZE, r, trainable_initial_state=True),
  'simple_rnn': lambda r: networks.SimpleRNN(SIZE, SIZE, r),
  'min_gru': lambda r: networks.MinGRU(SIZE, SIZE, r),
  'variational': lambda r: _latent(networks.VariationalBottleneck, r),
  'ar1': lambda r: _latent(networks.AR1VariationalBottleneck, r),
}
CONTAINERS = ('sequential', 'parallel', 'concat', 'map', 'merge', 'graph')
TOPS = ('plain', 'policy', 'policies')


def descriptions(depth: int) -> st.SearchStrategy[Any]:
  """Draws descriptions with `depth` containers in one another.

  Beside the container inside there is at most one layer, so that a tree is no
  larger than it is deep.
  """
  layer = st.sampled_from(sorted(LAYERS))
  if not depth:
    return layer
  inner = descriptions(depth - 1)
  children = st.one_of(
    st.tuples(inner), st.tuples(layer, inner), st.tuples(inner, layer)
  )
  return st.tuples(st.sampled_from(CONTAINERS), children)


def _same(x: Any) -> Any:
  return x


def _graph(children: list[Any], rngs: nnx.Rngs) -> Any:
  """A loop through a delay; the children are transforms."""
  graph = networks.PopulationGraph(rngs)
  graph.add_input('sense', SIZE, input_from='x')
  graph.add_population('inner', SIZE, nnx.tanh)
  graph.add_output('motor', SIZE)
  graph.connect('sense', 'inner', children[0])
  graph.connect('inner', 'motor', *children[1:], delay=1)
  graph.connect('motor', 'inner', delay=2)
  graph.finalize()
  return graph


def _joined(kind: str, named: dict[str, Any]) -> list[Any]:
  """Layers that run all children on their input and join what they return."""
  everyone = networks.Filter(dict.fromkeys(named, _same))
  if kind == 'parallel':
    return [networks.Parallel(named), networks.Flattener()]
  if kind == 'concat':
    return [everyone, networks.Concat(named)]
  if kind == 'map':
    return [everyone, networks.Map(named), networks.Flattener()]
  heads = {
    name: networks.Sequential(
      [child, networks.Splitter({f'{name}b': 1, f'{name}a': SIZE - 1})]
    )
    for name, child in named.items()
  }
  return [networks.Merge(heads), networks.Flattener()]


def build(description: Any, rngs: nnx.Rngs) -> Any:
  """Builds the network of a description."""
  if isinstance(description, str):
    return LAYERS[description](rngs)
  kind, children = description
  modules = [build(child, rngs) for child in children]
  if kind == 'sequential':
    return networks.Sequential(modules)
  if kind == 'graph':
    return networks.Sequential(
      [
        networks.Filter({'x': _same}),
        _graph(modules, rngs),
        networks.Filter('motor'),
      ]
    )
  # Names in falling order, which is not the order in which JAX keeps a dict.
  named = {f'n{9 - i}': child for i, child in enumerate(modules)}
  join = networks.Dense(SIZE * len(modules), SIZE, rngs)
  return networks.Sequential([*_joined(kind, named), join])


def network(description: Any, top: str, rngs: nnx.Rngs) -> Any:
  """Builds a network with a description inside.

  Args:
    description: of the tree.
    top: 'plain' for the tree alone, 'policy' for a policy and a value function
      behind it, 'policies' for a policy whose action has two parts.
    rngs: source of the weights.
  """
  tree = build(description, rngs)
  if top == 'plain':
    return tree
  action = lambda: networks.Sequential(
    [networks.Dense(SIZE, 2, rngs), networks.NormalTanhSampler(rngs)]
  )
  if top == 'policies':
    heads = networks.Parallel({'legs': action(), 'arms': action()})
  else:
    heads = action()
  adapter = networks.PPOAdapter(
    action=heads, value=networks.Dense(SIZE, 1, rngs)
  )
  return networks.Sequential([tree, adapter])
