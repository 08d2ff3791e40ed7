"""Population graphs: what they refuse, and what they say about it."""

import re
from typing import Any

from flax import nnx
import jax.numpy as jnp
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.graph import PopulationGraph
from tests import fakes
from tests.networks import graphs


def _graph(*names: str) -> PopulationGraph:
  """An unfinished graph with an input `in`, an output `out` and others."""
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('in', 2, input_from='x')
  graph.add_output('out', 3)
  for name in names:
    graph.add_population(name, 2)
  return graph


@pytest.mark.parametrize(
  'name', ['', 'a->b', 'a@b', 'a#2', 'a/b', 3, None, ('a',)], ids=repr
)
@pytest.mark.parametrize('kind', ['population', 'input', 'output'])
def test_a_name_that_is_no_name_is_refused(kind, name):
  graph = _graph()
  more = {'input_from': 'x'} if kind == 'input' else {}
  got = re.escape(f'; got {name!r}.')
  with pytest.raises(ValueError, match=f'a string without .*{got}'):
    getattr(graph, f'add_{kind}')(name, 2, **more)


@pytest.mark.parametrize('name', ['V1', 'left arm', 'a.b', '-', 'keys', 'ä"'])
def test_other_names_are_taken(name):
  graph = _graph(name)
  graph.connect('in', name)
  graph.connect(name, 'out', delay=1)
  graph.finalize()
  merged = nnx.merge(*nnx.split(graph))
  state = merged.initialize_state(1)
  merged(state, {'x': jnp.zeros((1, 2))})
  assert f'{name}@past' in state


@pytest.mark.parametrize('size', [0, -1, 2.0, True, '2', None], ids=repr)
def test_a_size_that_is_no_size_is_refused(size):
  message = f"population 'a' must be an int of at least 1; got {size!r}"
  with pytest.raises(ValueError, match=message):
    _graph().add_population('a', size)


@pytest.mark.parametrize('delay', [-1, 1.0, True, '1', None], ids=repr)
def test_a_delay_that_is_no_delay_is_refused(delay):
  graph = _graph()
  message = f'delay of the connection in->out must be an int.*; got {delay!r}'
  with pytest.raises(ValueError, match=message):
    graph.connect('in', 'out', delay=delay)
  assert not graph.plan.connections and not graph.components


@pytest.mark.parametrize('activation', [3, 'tanh', networks.Normalizer(2)])
def test_an_activation_that_is_no_function_is_refused(activation):
  kind = type(activation).__name__
  with pytest.raises(ValueError, match=f"of population 'a' must be.*a {kind}"):
    _graph().add_population('a', 2, activation=activation)


def test_a_name_that_is_taken_is_refused():
  graph = _graph()
  for add in (graph.add_population, graph.add_output):
    with pytest.raises(ValueError, match="a population 'in' already"):
      add('in', 2)


def test_an_output_that_is_taken_is_refused():
  graph = _graph()
  with pytest.raises(ValueError, match="an output 'out' already.*'other'"):
    graph.add_output('other', 2, output_to='out')
  graph.add_output('other', 2, output_to='free')
  with pytest.raises(ValueError, match="an output 'free' already"):
    graph.add_output('free', 2)


@pytest.mark.parametrize('key', [None, ['x'], 1.5], ids=repr)
def test_an_input_needs_a_key(key):
  with pytest.raises(ValueError, match="input 'a' needs the key.*input_from"):
    _graph().add_input('a', 2, input_from=key)


def test_an_output_key_that_is_no_string_is_refused():
  key: Any = 3
  with pytest.raises(
    ValueError, match="output 'a', output_to, must be a.*got 3"
  ):
    _graph().add_output('a', 2, output_to=key)


@pytest.mark.parametrize('ends', [('in', 'V2'), ('V2', 'in')])
def test_a_connection_of_an_unknown_population_is_refused(ends):
  with pytest.raises(
    ValueError, match=r"no population 'V2'; .*\['in', 'out'\]"
  ):
    _graph().connect(*ends)


def test_a_transform_that_is_no_stateful_module_is_refused():
  graph = _graph()
  linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
  with pytest.raises(TypeError, match='in->out is a Linear.*use Dense'):
    graph.connect('in', 'out', transform=linear)
  assert not graph.plan.connections


def test_a_reciprocal_connection_with_a_transform_is_refused():
  with pytest.raises(ValueError, match="'in' to 'out' cannot serve the way"):
    _graph().connect(
      'in', 'out', transform=fakes.Gain(), delay=1, reciprocal=True
    )


@pytest.mark.parametrize(
  ('ends', 'cycle'),
  [
    (['aa'], 'a -> a'),
    (['ab', 'ba'], 'a -> b -> a'),
    (['ba', 'ab'], 'a -> b -> a'),
    (['ca', 'bc', 'ab'], 'a -> b -> c -> a'),
    (['ac', 'cb', 'ba', 'cd'], 'a -> c -> b -> a'),
    (['ab', 'bc', 'cb', 'cd'], 'b -> c -> b'),
    (['da', 'bc', 'cb', 'ca'], 'b -> c -> b'),
  ],
  ids=str,
)
def test_a_cycle_without_delay_is_refused_and_named(ends, cycle):
  graph = _graph(*'abcd')
  graph.connect('in', 'a')
  for src, dst in ends:
    graph.connect(src, dst)
  message = f'PopulationGraph: {cycle} is a cycle .*one connection delay >= 1'
  with pytest.raises(ValueError, match=message):
    graph.finalize()


def test_a_cycle_with_one_delay_is_taken():
  graph = _graph(*'abc')
  for src, dst, delay in [('a', 'b', 0), ('b', 'c', 0), ('c', 'a', 1)]:
    graph.connect(src, dst, delay=delay)
  graph.finalize()
  assert graph.order.index('a') < graph.order.index('b')
  assert graph.order.index('b') < graph.order.index('c')


def test_a_graph_without_connection_or_output_is_refused():
  graph = _graph()
  with pytest.raises(ValueError, match='no connection; call connect'):
    graph.finalize()
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('in', 2, input_from='x')
  graph.connect('in', 'in', delay=1)
  with pytest.raises(ValueError, match='no output; call add_output'):
    graph.finalize()
  # Nothing is lost: the graph can still be mended.
  graph.add_output('out', 3)
  graph.finalize()


def test_an_unfinished_graph_cannot_be_used():
  graph = _graph()
  graph.connect('in', 'out')
  x = {'x': jnp.zeros((1, 2))}
  for use in (
    lambda: graph.initialize_state(1),
    lambda: graph.reset_state({}),
    lambda: graph.reset_rows(jnp.zeros(1), {}),
    lambda: graph({}, x),
    lambda: graph.unroll({}, {'x': jnp.zeros((1, 1, 2))}, jnp.zeros((1, 1))),
  ):
    with pytest.raises(ValueError, match=r'Call finalize\(\) before it is'):
      use()


def test_a_finalized_graph_cannot_be_changed():
  graph = graphs.chain(1)
  for change in (
    lambda: graph.add_population('c', 2),
    lambda: graph.add_input('c', 2, input_from='x'),
    lambda: graph.add_output('c', 2),
    lambda: graph.connect('a', 'b'),
    graph.finalize,
  ):
    with pytest.raises(ValueError, match='finalized, so it cannot be changed'):
      change()
  assert graph.population_names == ('a', 'b')


@pytest.mark.parametrize(
  ('x', 'message'),
  [
    ({'y': 1, 'z': 2}, "input 'a': there is no 'x' in the input.*['y', 'z']"),
    (jnp.zeros((2, 3)), "a mapping with an entry 'x'; it is an array of shape"),
    ({'x': jnp.zeros((2, 4))}, "3 units, so the entry 'x' must be [B, 3]; it"),
    ({'x': jnp.zeros(3)}, 'must be [B, 3]; it is an array of shape (3,)'),
    ({'x': {'y': 1}}, 'must be [B, 3]; it is a dict'),
  ],
  ids=['missing', 'array', 'size', 'no batch', 'structure'],
)
def test_an_observation_without_the_entry_or_of_another_size_is_refused(
  x, message
):
  graph = graphs.chain(0, 1, size=3)
  pattern = '.*'.join(map(re.escape, message.split('.*')))
  with pytest.raises(ValueError, match=f'^PopulationGraph, .*{pattern}'):
    graph(graph.initialize_state(2), x)


def test_inputs_with_different_rows_are_refused():
  graph = PopulationGraph(nnx.Rngs(0))
  for name in 'ab':
    graph.add_input(name, 1, input_from=name)
  graph.add_output('c', 1)
  graph.connect('a', 'c')
  graph.connect('b', 'c')
  graph.finalize()
  x = {'a': jnp.zeros((2, 1)), 'b': jnp.zeros((1, 1))}
  with pytest.raises(ValueError, match=r"same rows.*'b': \(1, 1\)"):
    graph(graph.initialize_state(2), x)


def test_a_graph_without_inputs_needs_some_array_to_count_rows():
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_output('a', 1)
  graph.connect('a', 'a', delay=1)
  graph.finalize()
  with pytest.raises(ValueError, match='no telling how many rows'):
    graph(graph.initialize_state(2), {})


@pytest.mark.parametrize('size', [1, 2, 4])
def test_a_transform_with_another_output_is_refused(size):
  graph = _graph()
  dense = networks.Dense(2, size, nnx.Rngs(0))
  graph.connect('in', 'out', transform=dense, delay=1)
  graph.finalize()
  message = (
    'transform of in->out, a Dense, must turn 2 units into 3, shape (5, 2)'
    f' into (5, 3); it returned an array of shape (5, {size})'
  )
  with pytest.raises(ValueError, match=re.escape(message)):
    graph(graph.initialize_state(5), {'x': jnp.zeros((5, 2))})


def test_a_transform_that_returns_no_array_is_refused():
  graph = _graph()
  graph.connect('in', 'out', transform=networks.Parallel(a=fakes.Gain()))
  graph.finalize()
  with pytest.raises(ValueError, match='a Parallel, .*it returned a dict'):
    graph(graph.initialize_state(1), {'x': jnp.zeros((1, 2))})


def test_an_activation_that_changes_the_shape_is_refused():
  graph = _graph()
  graph.add_population('half', 4, activation=nnx.glu)
  graph.connect('in', 'half')
  graph.connect('half', 'out')
  graph.finalize()
  message = r"of population 'half' must keep the shape \(1, 4\).*\(1, 2\)"
  with pytest.raises(ValueError, match=message):
    graph(graph.initialize_state(1), {'x': jnp.zeros((1, 2))})


def test_a_carry_of_another_graph_is_refused():
  graph = graphs.chain(1)
  with pytest.raises(
    ValueError, match='PopulationGraph: the entries of the ca'
  ):
    graph(graphs.chain(0).initialize_state(1), {'x': jnp.zeros((1, 1))})
