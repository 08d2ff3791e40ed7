"""Population graphs for tests, and what one of them computes, in NumPy."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.networks.graph import PopulationGraph
from tests import fakes


def noisy(module: Any) -> Any:
  """Makes biases differ from zero, so that tests see whether they are used."""
  rng = np.random.default_rng(3)

  def shift(leaf):
    return leaf + jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype)

  nnx.update(module, jax.tree.map(shift, nnx.state(module, nnx.Param)))
  return module


def loop() -> PopulationGraph:
  """Three populations with a loop, a self-loop and delays up to 3."""
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('in', 2, input_from='x')
  graph.add_population('h', 3, activation=jnp.tanh)
  graph.add_output('out', 2)
  graph.connect('in', 'h')
  graph.connect('in', 'out', delay=2)
  graph.connect('h', 'h', delay=1)
  graph.connect('h', 'out')
  graph.connect('out', 'h', delay=3)
  graph.finalize()
  return noisy(graph)


def loop_by_hand(graph: Any, x: np.ndarray, is_first: np.ndarray) -> Any:
  """Computes `out` and `h` of `loop` from a fresh start, row by row.

  h[t] = tanh(W_ih x[t] + W_hh h[t - 1] + W_oh out[t - 3])
  out[t] = W_ho h[t] + W_io x[t - 2]

  Each W has a bias, which counts also where the past is zero.
  """

  def linear(key, value):
    layer = graph[key].linear
    return value @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])

  def past(a, t, row, start):
    return a[t, row] if t >= start else np.zeros(a.shape[-1])

  steps, rows = is_first.shape
  h, out = np.zeros((steps, rows, 3)), np.zeros((steps, rows, 2))
  for row in range(rows):
    start = 0
    for t in range(steps):
      start = t if is_first[t, row] else start
      h[t, row] = np.tanh(
        linear('in->h', x[t, row])
        + linear('h->h', past(h, t - 1, row, start))
        + linear('out->h', past(out, t - 3, row, start))
      )
      out[t, row] = linear('h->out', h[t, row])
      out[t, row] += linear('in->out', past(x, t - 2, row, start))
  return out, h


def chain(*delays: int, size: int = 1) -> PopulationGraph:
  """An input and an output, with a connection of weight 1 for each delay."""
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('a', size, input_from='x')
  graph.add_output('b', size)
  for delay in delays:
    graph.connect('a', 'b', transform=fakes.Gain(), delay=delay)
  graph.finalize()
  return graph
