"""Population graphs: what they compute."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.graph import PopulationGraph
from brax_nnx_plugin.networks.types import ACTIVATION_KEY
from tests import fakes
from tests.networks import cases
from tests.networks import graphs
from tests.networks import queues

STEPS, ROWS = 12, 3


@pytest.fixture(scope='module')
def loop() -> PopulationGraph:
  """The graph with a loop; tests must not change it."""
  return graphs.loop()


def _unroll(graph: Any, x: Any, is_first: Any) -> Any:
  """Runs a sequence from a fresh start, compiled."""
  state = graph.initialize_state(is_first.shape[1])
  return cases.jitted(graph, type(graph).unroll, state, x, is_first)


def test_a_graph_with_loops_and_delays_is_what_numpy_says(loop):
  x, is_first = cases.draw(2, STEPS, ROWS), cases.masks(STEPS, ROWS)
  expected, h = graphs.loop_by_hand(loop, np.asarray(x), np.asarray(is_first))
  unrolled = _unroll(loop, {'x': x}, is_first)
  state = loop.initialize_state(ROWS)
  looped = cases.loop(loop, state, {'x': x}, is_first)
  for run in (unrolled, looped):
    assert list(run.output) == ['out']
    np.testing.assert_allclose(run.output['out'], expected, atol=1e-5)
  cases.assert_same(unrolled.next_state, looped.next_state, 1e-6)
  # Rings end where the sequence ends; the newest is one slot before the index.
  assert looped.next_state['h@past']['buffer'].shape == (ROWS, 1, 3)
  np.testing.assert_allclose(
    looped.next_state['h@past']['buffer'][:, 0], h[-1], atol=1e-5
  )


def test_a_delayed_connection_is_a_queue_that_is_new_at_each_episode():
  x = queues.draw('float32', STEPS, ROWS, 1)
  is_first = cases.masks(STEPS, ROWS)
  graph = graphs.chain(1, 2, 5)
  out = _unroll(graph, {'x': x}, is_first)
  expected = sum(queues.delayed(x, is_first, k) for k in (1, 2, 5))
  np.testing.assert_array_equal(out.output['b'], expected)
  # One ring serves all three connections.
  rings = [k for k, v in graph.initialize_state(1).items() if v != ()]
  assert rings == ['a@past']
  assert out.next_state['a@past']['buffer'].shape == (ROWS, 5, 1)


def test_a_reset_in_the_middle_of_a_ring_only_affects_its_row():
  graph = graphs.chain(3)
  # Steps:                    0  1  2  3  4  5  6  7  8
  x = jnp.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]] * 2).T[
    ..., None
  ]
  is_first = jnp.zeros((9, 2)).at[4, 0].set(1)
  out = _unroll(graph, {'x': x}, is_first)
  np.testing.assert_array_equal(
    out.output['b'][..., 0].T,
    [[0, 0, 0, 1, 0, 0, 0, 5, 6], [0, 0, 0, 1, 2, 3, 4, 5, 6]],
  )
  state = out.next_state
  reset = graph.reset_rows(jnp.array([0, 1]), state)
  assert reset['a@past']['buffer'] is state['a@past']['buffer']
  np.testing.assert_array_equal(reset['a@past']['count'], [3, 0])


def test_a_stale_nan_of_the_last_episode_is_never_read():
  graph = graphs.chain(1, 3)
  state = graph.initialize_state(1)
  nan = jnp.full((4, 1, 1), jnp.nan)
  stale = graph.unroll(state, {'x': nan}, jnp.zeros((4, 1))).next_state
  x = queues.draw('float32', 5, 1, 1)
  is_first = jnp.zeros((5, 1)).at[0].set(1)

  def loss(x):
    out = graph.unroll(stale, {'x': x}, is_first)
    return jnp.sum(out.output['b']), out.output['b']

  (_, output), grad = jax.value_and_grad(loss, has_aux=True)(x)
  expected = queues.delayed(x, is_first, 1) + queues.delayed(x, is_first, 3)
  np.testing.assert_array_equal(output, expected)
  # Input t is read at t + 1 and t + 3, as far as there are such steps.
  np.testing.assert_array_equal(grad[:, 0, 0], [2, 2, 1, 1, 0])


def test_a_population_sums_all_that_comes_in_and_activates_once():
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('a', 2, input_from='x', activation=jnp.tanh)
  graph.add_input('b', 2, input_from='y', activation=jnp.square)
  graph.add_output('sum', 2, activation=jnp.exp)
  graph.connect('a', 'b', transform=fakes.Gain())
  graph.connect('a', 'sum', transform=fakes.Gain())
  graph.connect('b', 'sum', transform=fakes.Gain())
  graph.finalize()
  x = {'x': cases.draw(2, 3), 'y': cases.draw(2, 3, seed=5), 'more': None}
  a = np.tanh(x['x'])
  expected = np.exp(a + np.square(x['y'] + a))
  output = graph(graph.initialize_state(3), x).output
  np.testing.assert_allclose(output['sum'], expected, rtol=1e-5)


@pytest.mark.parametrize('dtype', ['uint8', 'bool', 'int32', 'bfloat16'])
def test_observations_of_any_type_are_taken_as_numbers(dtype):
  graph = graphs.chain(0, 1)
  x = queues.draw(dtype, 3, 2, 1)
  out = graph.unroll(graph.initialize_state(2), {'x': x}, jnp.zeros((3, 2)))
  numbers = np.asarray(x, np.float32)
  expected = numbers + queues.delayed(numbers, np.zeros((3, 2)), 1)
  np.testing.assert_array_equal(out.output['b'], expected)


def test_one_observation_may_feed_two_populations_and_a_list_has_positions():
  graph = PopulationGraph(nnx.Rngs(0))
  position: Any = 1
  for name in 'ab':
    graph.add_input(name, 1, input_from=position)
  graph.add_output('c', 1)
  for name in 'ab':
    graph.connect(name, 'c', transform=fakes.Gain())
  graph.finalize()
  x = [None, jnp.array([[3.0]])]
  output = graph(graph.initialize_state(1), x).output
  np.testing.assert_array_equal(output['c'], [[6.0]])


def test_parallel_connections_add_up_and_have_names_of_their_own():
  graph = graphs.chain(0, 0, 2, 0)
  keys = ['a->b', 'a->b#2', 'a->b#3', 'a->b#4']
  assert graph.names == (*keys, 'a@past')
  for i, key in enumerate(keys):
    graph[key].gain[...] = 10.0**i
  x = jnp.array([[1.0], [2.0], [3.0]])[:, None]
  out = graph.unroll(graph.initialize_state(1), {'x': x}, jnp.zeros((3, 1)))
  np.testing.assert_array_equal(out.output['b'][:, 0, 0], [1011, 2022, 3133])


def test_a_self_loop_with_delay_accumulates():
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('a', 1, input_from='x')
  graph.add_output('b', 1)
  graph.connect('a', 'a', transform=fakes.Gain(), delay=1)
  graph.connect('a', 'b', transform=fakes.Gain())
  graph.finalize()
  x = jnp.array([1.0, 2.0, 3.0, 4.0])[:, None, None]
  is_first = jnp.array([0, 0, 0, 1])[:, None]
  out = graph.unroll(graph.initialize_state(1), {'x': x}, is_first)
  np.testing.assert_array_equal(out.output['b'][:, 0, 0], [1, 3, 6, 4])


def test_a_reciprocal_connection_is_a_second_one_with_weights_of_its_own():
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('a', 2, input_from='x')
  graph.add_output('b', 3)
  graph.connect('a', 'b', delay=2, reciprocal=True)
  graph.finalize()
  assert graph.names == ('a->b', 'b->a', 'a@past', 'b@past')
  assert graph['a->b'].linear.kernel.shape == (2, 3)
  assert graph['b->a'].linear.kernel.shape == (3, 2)
  carry = graph.initialize_state(1)
  for past in ('a@past', 'b@past'):
    assert carry[past]['buffer'].shape[1] == 2


def test_a_population_that_nothing_reaches_is_its_activation_of_zero():
  graph = graphs.chain(0)
  lone = PopulationGraph(nnx.Rngs(0))
  lone.add_input('a', 1, input_from='x')
  lone.add_population('idle', 2, activation=jnp.cos)
  lone.add_output('b', 1)
  lone.add_output('alone', 3, activation=jnp.exp)
  lone.connect('a', 'b', transform=fakes.Gain())
  lone.finalize()
  x = {'x': cases.draw(1, 4, 2)}
  out = _unroll(lone, x, jnp.zeros((4, 2)))
  np.testing.assert_array_equal(out.output['alone'], np.ones((4, 2, 3)))
  expected = _unroll(graph, x, jnp.zeros((4, 2))).output['b']
  np.testing.assert_array_equal(out.output['b'], expected)
  lone.record_activations = True
  step = lone(lone.initialize_state(2), {'x': x['x'][0]})
  np.testing.assert_array_equal(
    step.metrics[ACTIVATION_KEY]['idle'], np.ones((2, 2))
  )


def test_a_graph_without_inputs_runs_on_its_own():
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_output('clock', 1, activation=lambda a: a + 1)
  graph.connect('clock', 'clock', transform=fakes.Gain(), delay=1)
  graph.finalize()
  is_first = jnp.zeros((5, 2)).at[3, 1].set(1)
  out = _unroll(graph, cases.draw(3, 5, 2), is_first)
  np.testing.assert_array_equal(
    out.output['clock'][..., 0].T, [[1, 2, 3, 4, 5], [1, 2, 3, 1, 2]]
  )
  still = PopulationGraph(nnx.Rngs(0))
  still.add_population('a', 1, activation=jnp.exp)
  still.add_output('b', 1)
  still.connect('a', 'b', transform=fakes.Gain())
  still.finalize()
  out = _unroll(still, cases.draw(3, 5, 2), is_first)
  np.testing.assert_array_equal(out.output['b'], np.ones((5, 2, 1)))


def test_outputs_are_named_by_output_to():
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('a', 1, 'x')
  graph.add_output('b', 1, 'action', jnp.negative)
  graph.add_output('c', 1)
  graph.connect('a', 'b', fakes.Gain())
  graph.connect('b', 'c', fakes.Gain(), 1)
  graph.finalize()
  output = graph(graph.initialize_state(1), {'x': jnp.ones((1, 1))}).output
  np.testing.assert_array_equal(output['action'], [[-1]])
  np.testing.assert_array_equal(output['c'], [[0]])
  assert set(output) == {'action', 'c'}
  assert graph.population_names == ('a', 'b', 'c')


def _diamond(populations: str, connections: list[tuple[str, str]]) -> Any:
  """Builds one graph in any order; the weight of a connection is its own."""
  graph = PopulationGraph(nnx.Rngs(0))
  for name in populations:
    if name == 'a':
      graph.add_input('a', 1, input_from='x')
    elif name == 'd':
      graph.add_output('d', 1, activation=jnp.sin)
    else:
      graph.add_population(name, 1, activation=jnp.tanh)
  for src, dst in connections:
    gain = fakes.Gain()
    gain.gain[...] = ord(src) / 100 + ord(dst) / 77
    graph.connect(src, dst, transform=gain, delay=int((src, dst) == ('d', 'b')))
  graph.finalize()
  return graph


def test_the_order_of_building_changes_nothing_also_after_split_and_merge():
  ends = [
    ('a', 'b'),
    ('a', 'c'),
    ('b', 'c'),
    ('b', 'd'),
    ('c', 'd'),
    ('d', 'b'),
  ]
  x, is_first = {'x': cases.draw(1, 6, 2)}, cases.masks(6, 2)
  expected = _unroll(_diamond('abcd', ends), x, is_first)
  for populations in ('dcba', 'cadb'):
    graph = _diamond(populations, ends[::-1])
    assert set(graph.names) == {f'{a}->{b}' for a, b in ends} | {'d@past'}
    # `_unroll` splits, merges and compiles.
    cases.assert_same(_unroll(graph, x, is_first), expected, 1e-6)
    merged = nnx.merge(*nnx.split(graph))
    assert merged.names == graph.names and merged.order == graph.order
