"""Population graphs as text for Graphviz."""

from collections.abc import Mapping
from typing import Any

from brax_nnx_plugin.networks.graph_plan import Connection
from brax_nnx_plugin.networks.graph_plan import Plan
from brax_nnx_plugin.networks.graph_plan import Population

# Shape and colour by what a population does.
_STYLES = {
  'input': {'shape': 'house', 'fillcolor': 'lightblue'},
  'internal': {'shape': 'ellipse', 'fillcolor': 'white'},
  'output': {'shape': 'invhouse', 'fillcolor': 'lightsalmon'},
}


def _quote(text: Any) -> str:
  """Writes a string of the DOT language."""
  text = str(text).replace('\\', '\\\\').replace('"', '\\"')
  return '"' + text.replace('\n', '\\n') + '"'


def _attributes(**attributes: Any) -> str:
  pairs = ', '.join(f'{k}={_quote(v)}' for k, v in attributes.items())
  return f' [{pairs}]' if pairs else ''


def _function_name(function: Any) -> str:
  if function is None:
    return 'linear'
  function = getattr(function, 'func', function)  # of a functools.partial
  return getattr(function, '__name__', type(function).__name__)


def _node(population: Population) -> list[str]:
  """Writes a population, and where it reads from or writes to."""
  node = _quote(f'population {population.name}')
  kind, ways = 'internal', []
  if population.input_from is not None:
    kind = 'input'
    entry = _quote(f'observation {population.input_from}')
    label = _attributes(label=population.input_from, shape='plaintext')
    ways += [f'{entry}{label};', f'{entry} -> {node};']
  if population.output_to is not None:
    kind = 'output'
    entry = _quote(f'output {population.output_to}')
    label = _attributes(label=population.output_to, shape='plaintext')
    ways += [f'{entry}{label};', f'{node} -> {entry};']
  activation = _function_name(population.activation)
  label = f'{population.name}\n{population.size} {activation}'
  style = _attributes(label=label, style='filled', **_STYLES[kind])
  return [f'{node}{style};', *ways]


def _edge(connection: Connection, transform: str) -> str:
  ends = [
    _quote(f'population {n}') for n in (connection.source, connection.target)
  ]
  if connection.delay:
    label = f'{transform}\ndelay {connection.delay}'
    style = _attributes(label=label, style='dashed')
  else:
    style = _attributes(label=transform)
  return f'{ends[0]} -> {ends[1]}{style};'


def render(plan: Plan, transforms: Mapping[str, Any]) -> str:
  """Draws a graph.

  Args:
    plan: populations are nodes, and so are the entries of observation and
      output; connections are edges, dashed if there is a delay.
    transforms: the modules of the connections by their keys.

  Returns:
    Text in the DOT language.
  """
  nodes = [line for p in plan.populations for line in _node(p)]
  edges = [_edge(c, type(transforms[c.key]).__name__) for c in plan.connections]
  # Two populations may read the same entry, which is one node.
  lines = ['rankdir="LR";', *dict.fromkeys(nodes), *edges]
  body = ''.join(f'  {line}\n' for line in lines)
  return f'digraph PopulationGraph {{\n{body}}}\n'
