"""Population graphs as Graphviz text, read back by a small parser."""

import functools
import re
from typing import Any

from flax import nnx
import jax.numpy as jnp

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.graph import PopulationGraph
from tests import fakes

_STRING = r'"((?:[^"\\]|\\.)*)"'
_STATEMENT = re.compile(rf'  {_STRING}(?: -> {_STRING})?(?: \[(.*)\])?;')


def _read(text: str) -> tuple[dict[str, Any], list[Any]]:
  """Reads DOT text; returns nodes by name, and edges as (from, to, attributes).

  Raises if a line is none of the language.
  """
  lines = text.splitlines()
  assert (lines[0], lines[1]) == (
    'digraph PopulationGraph {',
    '  rankdir="LR";',
  )
  assert lines[-1] == '}' and text.endswith('}\n')
  nodes, edges = {}, []
  for line in lines[2:-1]:
    match = _STATEMENT.fullmatch(line)
    assert match, line
    source, target, attributes = match.groups()
    pairs = dict(re.findall(rf'(\w+)={_STRING}', attributes or ''))
    rest = re.sub(rf'\w+={_STRING}(, )?', '', attributes or '')
    assert not rest, line
    if target is None:
      assert source not in nodes, 'a node is written once'
      nodes[source] = pairs
    else:
      edges.append((source, target, pairs))
  assert all(end in nodes for edge in edges for end in edge[:2])
  return nodes, edges


def _graph() -> PopulationGraph:
  rngs = nnx.Rngs(0)
  graph = PopulationGraph(rngs)
  graph.add_input('eye', 4, input_from='image')
  graph.add_input('ear', 2, input_from='image', activation=jnp.tanh)
  leaky = functools.partial(nnx.leaky_relu, negative_slope=0.1)
  graph.add_population('V1', 3, activation=leaky)
  graph.add_output('arm', 2, output_to='action', activation=lambda a: a)
  graph.connect('eye', 'V1')
  graph.connect('V1', 'V1', delay=2)
  graph.connect('V1', 'arm', transform=networks.LSTM(3, 2, rngs))
  graph.connect('ear', 'arm', transform=fakes.Gain())
  graph.connect('ear', 'arm', transform=fakes.Gain())
  return graph


def test_nodes_are_populations_and_entries():
  nodes, _ = _read(_graph().to_dot())
  labels = {name: node['label'] for name, node in nodes.items()}
  assert labels == {
    'population eye': r'eye\n4 linear',
    'population ear': r'ear\n2 tanh',
    'population V1': r'V1\n3 leaky_relu',
    'population arm': r'arm\n2 <lambda>',
    'observation image': 'image',
    'output action': 'action',
  }
  looks = {
    name: (node['shape'], node.get('fillcolor')) for name, node in nodes.items()
  }
  assert looks['population eye'] == looks['population ear']
  kinds = [looks[f'population {name}'] for name in ('eye', 'V1', 'arm')]
  assert len(set(kinds)) == 3
  assert looks['observation image'] == looks['output action']


def test_edges_are_connections_dashed_where_they_are_delayed():
  _, edges = _read(_graph().to_dot())
  plain = [edge[:2] for edge in edges if not edge[2]]
  assert plain == [
    ('observation image', 'population eye'),
    ('observation image', 'population ear'),
    ('population arm', 'output action'),
  ]
  assert [edge for edge in edges if edge[2]] == [
    ('population eye', 'population V1', {'label': 'Dense'}),
    (
      'population V1',
      'population V1',
      {'label': r'Dense\ndelay 2', 'style': 'dashed'},
    ),
    ('population V1', 'population arm', {'label': 'LSTM'}),
    ('population ear', 'population arm', {'label': 'Gain'}),
    ('population ear', 'population arm', {'label': 'Gain'}),
  ]


def test_the_text_does_not_change_when_the_graph_is_finalized_or_merged():
  graph = _graph()
  before = graph.to_dot()
  graph.finalize()
  assert graph.to_dot() == before
  assert nnx.merge(*nnx.split(graph)).to_dot() == before


def test_an_empty_graph_is_drawn():
  assert _read(PopulationGraph(nnx.Rngs(0)).to_dot()) == ({}, [])


def test_names_are_escaped():
  graph = PopulationGraph(nnx.Rngs(0))
  names = ['say "hi"', 'back\\slash', 'end\\', 'two\nlines', '[x]; {y}']
  for name in names:
    graph.add_input(name, 1, input_from=name)
    graph.add_output(f'{name} out', 1)
    graph.connect(name, f'{name} out', delay=1)
  nodes, edges = _read(graph.to_dot())
  assert len(nodes) == 4 * len(names) and len(edges) == 3 * len(names)
  assert nodes[r'population say \"hi\"']['label'] == r'say \"hi\"\n1 linear'
  assert nodes[r'population back\\slash']['label'] == r'back\\slash\n1 linear'
  assert nodes[r'population two\nlines']['label'] == r'two\nlines\n1 linear'
