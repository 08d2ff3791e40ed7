"""Random population graphs compute what their definition says."""

import functools
from typing import Any

from flax import nnx
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.networks.graph import PopulationGraph
from brax_nnx_plugin.networks.types import ACTIVATION_KEY
from tests import fakes
from tests.networks import cases
from tests.networks import graphs

STEPS, ROWS, MAX = 7, 2, 4
# Source, target and delay of a connection.
Ends = tuple[int, int, int]


def _build(kinds: list[str], connections: list[Ends]) -> PopulationGraph:
  """Builds a graph of populations p0, p1, ... of one unit."""
  graph = PopulationGraph(nnx.Rngs(0))
  for i, kind in enumerate(kinds):
    if kind == 'input':
      graph.add_input(f'p{i}', 1, input_from='x', activation=jnp.tanh)
    else:
      graph.add_output(f'p{i}', 1, activation=jnp.sin)
  for source, target, delay in connections:
    gain, ends = fakes.Gain(), (f'p{source}', f'p{target}')
    graph.connect(*ends, transform=gain, delay=delay)
  graph.finalize()
  return graphs.noisy(graph)


def _expected(graph: Any, kinds: Any, connections: Any, x: Any, first: Any):
  """Computes one row by recursion over the definition, `[T]` a population."""
  keys = graph.names[: len(connections)]
  gains = [float(graph[key].gain[...]) for key in keys]
  start = np.maximum.accumulate(np.where(first, np.arange(STEPS), 0))

  @functools.cache
  def activation(i, t):
    total = x[t] if kinds[i] == 'input' else 0.0
    for gain, (source, target, delay) in zip(gains, connections, strict=True):
      if target == i and t - delay >= start[t]:
        total += gain * activation(source, t - delay)
    return np.tanh(total) if kinds[i] == 'input' else np.sin(total)

  return [[activation(i, t) for t in range(STEPS)] for i in range(len(kinds))]


def _ends(size: int) -> st.SearchStrategy[Ends]:
  """Draws a connection; those that go back, or nowhere, have a delay."""
  number = st.integers(0, size - 1)
  ends = st.tuples(number, number, st.integers(0, 3))
  return ends.map(lambda e: (e[0], e[1], max(e[2], int(e[0] >= e[1]))))


@st.composite
def _plans(draw: Any) -> tuple[list[str], list[Ends]]:
  size = draw(st.integers(2, MAX))
  kind = st.sampled_from(['input', 'output'])
  kinds = draw(st.lists(kind, min_size=size - 1, max_size=size - 1))
  ends = st.lists(_ends(size), min_size=1, max_size=6)
  return [*kinds, 'output'], draw(ends)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(plan=_plans(), bits=st.lists(st.booleans(), min_size=14, max_size=14))
def test_a_random_graph_is_what_its_definition_says(plan, bits):
  kinds, connections = plan
  graph = _build(kinds, connections)
  graph.record_activations = True
  x = cases.draw(1, STEPS, ROWS)
  is_first = jnp.array(bits, jnp.float32).reshape(STEPS, ROWS)
  out = cases.loop(graph, graph.initialize_state(ROWS), {'x': x}, is_first)
  recorded = out.metrics[ACTIVATION_KEY]
  for row in range(ROWS):
    args = np.asarray(x[:, row, 0], np.float64), np.asarray(is_first[:, row])
    expected = _expected(graph, kinds, connections, *args)
    for i, values in enumerate(expected):
      np.testing.assert_allclose(
        recorded[f'p{i}'][:, row, 0], values, atol=1e-5
      )
  jax.tree.map(np.testing.assert_array_equal, *_outputs(graph, out))


def _outputs(graph: Any, out: Any) -> tuple[Any, Any]:
  """Returns the output, and the activations that belong there."""
  names = {p.name for p in graph.plan.outputs()}
  recorded = out.metrics[ACTIVATION_KEY]
  return out.output, {k: v for k, v in recorded.items() if k in names}
