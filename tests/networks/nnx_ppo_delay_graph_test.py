"""Equal weights, equal inputs: delays and graphs of nnx-ppo 0.3."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from nnx_ppo.networks import delay as their_delay
from nnx_ppo.networks import feedforward as their_feedforward
from nnx_ppo.networks import graph as their_graph
from nnx_ppo.networks import normalizer as their_normalizer
from nnx_ppo.networks import recurrent as their_recurrent
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.delay import Delay
from brax_nnx_plugin.networks.graph import PopulationGraph
from tests.networks import cases
from tests.networks import graphs

STEPS, ROWS = 20, 3
ATOL = 1e-6


def _theirs_by_steps(module: Any, x: Any, is_first: Any) -> Any:
  """Runs their module step by step; rows are reset in plain JAX."""
  graphdef, variables = nnx.split(module)

  @jax.jit
  def step(state, x, is_first):
    module = nnx.merge(graphdef, variables)

    def reset(fresh, used):
      mask = is_first.reshape((-1,) + (1,) * (used.ndim - 1)) > 0
      return jnp.where(mask, fresh, used)

    state = jax.tree.map(reset, module.reset_state(state), state)
    return module(state, x)

  state, outs = module.initialize_state(is_first.shape[1]), []
  for t in range(len(is_first)):
    outs.append(step(state, jax.tree.map(lambda a, t=t: a[t], x), is_first[t]))
    state = outs[-1].next_state
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)


@pytest.mark.parametrize('k', [1, 4])
@pytest.mark.parametrize('dtype', ['float32', 'int32'])
def test_twenty_steps_of_a_delay_give_the_same_output(k, dtype):
  sample = {'a': jnp.zeros(2), 'b': jnp.zeros((), dtype)}
  x = {
    'a': cases.draw(2, STEPS, ROWS),
    'b': (9 * cases.draw((), STEPS, ROWS)).astype(dtype),
  }
  is_first = cases.masks(STEPS, ROWS, p=0.15)
  args = (k, 7)
  ours, theirs = Delay(sample, *args), their_delay.Delay(sample, *args)
  expected = _theirs_by_steps(theirs, x, is_first)
  out = ours.unroll(ours.initialize_state(ROWS), x, is_first)
  cases.assert_same(out.output, expected.output)
  fresh = theirs.initialize_state(ROWS)['buffer']
  cases.assert_same(ours.initialize_state(ROWS)['buffer'], fresh)


class _Ours:
  graph = PopulationGraph
  lstm = networks.LSTM
  normalizer = networks.Normalizer
  dense = networks.Dense


class _Theirs:
  graph = their_graph.PopulationGraph
  lstm = their_recurrent.LSTM
  normalizer = their_normalizer.Normalizer
  dense = their_feedforward.Dense


def _plain(lib: Any, rngs: nnx.Rngs) -> Any:
  """Default transforms: a loop, delays, both ways, two at once."""
  graph = lib.graph(rngs)
  graph.add_input('a', 2, input_from='x', activation=jnp.tanh)
  graph.add_input('b', 3, input_from='y')
  graph.add_population('c', 4, activation=nnx.swish)
  graph.add_output('d', 2, output_to='action')
  graph.add_output('e', 3, activation=jnp.tanh)
  graph.connect('a', 'c')
  graph.connect('b', 'c', delay=2)
  graph.connect('c', 'c', delay=1)
  graph.connect('c', 'd')
  graph.connect('c', 'd', delay=5)
  graph.connect('d', 'e', delay=3, reciprocal=True)
  graph.connect('a', 'e')
  graph.connect('e', 'b', delay=1)
  graph.finalize()
  return graph


def _modules(lib: Any, rngs: nnx.Rngs) -> Any:
  """Transforms with a carry and with statistics."""
  graph = lib.graph(rngs)
  graph.add_input('a', 2, input_from='x')
  graph.add_input('b', 3, input_from='y')
  graph.add_population('c', 4)
  graph.add_output('d', 2)
  graph.connect('a', 'c', transform=lib.lstm(2, 4, rngs))
  graph.connect('b', 'b', transform=lib.normalizer(3), delay=2)
  graph.connect('b', 'c')
  graph.connect('c', 'd', transform=lib.dense(4, 2, rngs, jnp.tanh), delay=1)
  graph.finalize()
  return graph


def _pair(build: Any) -> tuple[PopulationGraph, Any]:
  """Builds a graph with both libraries, with equal weights."""
  ours = graphs.noisy(build(_Ours, nnx.Rngs(0)))
  theirs = build(_Theirs, nnx.Rngs(0))
  for ours_key, connection in zip(
    ours.names[: len(theirs.connections)], theirs.connections, strict=True
  ):
    nnx.update(connection.transform, nnx.state(ours[ours_key]))
  return ours, theirs


def _inputs() -> tuple[Any, jax.Array]:
  x = cases.draw({'x': 2, 'y': 3}, STEPS, ROWS)
  return x, cases.masks(STEPS, ROWS, p=0.15)


@pytest.mark.parametrize('build', [_plain, _modules])
def test_twenty_steps_of_a_graph_give_the_same_output(build):
  ours, theirs = _pair(build)
  x, is_first = _inputs()
  expected = _theirs_by_steps(theirs, x, is_first)
  state = ours.initialize_state(ROWS)
  out = cases.jitted(ours, PopulationGraph.unroll, state, x, is_first)
  cases.assert_same(out.output, expected.output, ATOL)
  # Their extras are a list, in the order of the connections.
  extras = [out.rollout_extras[key] for key in ours.names]
  given = expected.rollout_extras['connections']
  cases.assert_same(extras[: len(given)], given, ATOL)


def test_the_same_seed_gives_the_same_weights():
  ours, theirs = _plain(_Ours, nnx.Rngs(5)), _plain(_Theirs, nnx.Rngs(5))
  for key, connection in zip(ours.names, theirs.connections, strict=False):
    weights = [nnx.state(m) for m in (ours[key], connection.transform)]
    jax.tree.map(np.testing.assert_array_equal, *weights)


def test_statistics_of_a_transform_are_the_same():
  ours, theirs = _pair(_modules)
  x, is_first = _inputs()
  extras = _theirs_by_steps(theirs, x, is_first).rollout_extras
  theirs.update_statistics(extras)
  (theirs_layer,) = [
    c.transform for c in theirs.connections if c.src == c.dst == 'b'
  ]
  state = ours.initialize_state(ROWS)
  ours.update_statistics(ours.unroll(state, x, is_first).rollout_extras)
  for name in ('mean', 'M2', 'counter'):
    pair = [getattr(m, name).get_value() for m in (ours['b->b'], theirs_layer)]
    np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-6)


def test_where_nnx_ppo_is_at_fault():
  def build(graph):
    graph.add_input('a', 2, input_from='x')
    graph.add_output('b', 2)
    graph.connect('a', 'b', transform=cases.Penalty(), delay=1)
    graph.finalize()
    return graph

  theirs = build(their_graph.PopulationGraph(nnx.Rngs(0)))
  ours = build(PopulationGraph(nnx.Rngs(0)))
  x = cases.draw(2, 2, ROWS)
  outs = []
  for graph in (ours, theirs):
    state = graph.initialize_state(ROWS)
    state = graph(state, {'x': x[0]}).next_state
    outs.append(graph(state, {'x': x[1]}))
  penalty = np.sum(np.square(x[0]), axis=-1)
  # A fault: they add the regularization up over the rows, so it grows with the
  # batch. Right is one number a row.
  np.testing.assert_allclose(
    outs[1].regularization_loss, penalty.sum(), rtol=1e-6
  )
  np.testing.assert_allclose(outs[0].regularization_loss, penalty, rtol=1e-6)
  # A fault: the metrics of the transforms are lost.
  assert outs[1].metrics == {}
  np.testing.assert_allclose(
    outs[0].metrics['a->b']['penalty'], penalty, rtol=1e-6
  )
