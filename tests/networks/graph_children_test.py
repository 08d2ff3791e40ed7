"""Population graphs as containers: what happens to their children."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.delay import Delay
from brax_nnx_plugin.networks.graph import PopulationGraph
from brax_nnx_plugin.networks.types import ACTIVATION_KEY
from tests import fakes
from tests.networks import cases
from tests.networks import graphs
from tests.networks import queues

STEPS, ROWS = 5, 3


def _rich(delay: int) -> PopulationGraph:
  """A graph with transforms of every kind; `delay` is that of one of them."""
  rngs = nnx.Rngs(0)
  memory = networks.Sequential(
    [cases.trained_lstm(rngs), networks.Dense(4, 3, rngs)]
  )
  graph = PopulationGraph(rngs)
  graph.add_input('a', 3, input_from='x')
  graph.add_population('b', 3, activation=jnp.tanh)
  graph.add_output('c', 3)
  graph.connect('a', 'b', transform=networks.Normalizer(3))
  graph.connect('a', 'b', transform=memory, delay=delay)
  graph.connect('b', 'c', transform=cases.Penalty(0.5))
  graph.connect('a', 'c', transform=cases.Penalty(2.0))
  graph.connect('a', 'c', transform=Delay(3, k_steps=2))
  graph.finalize()
  return graph


@pytest.fixture(scope='module', params=[0, 2], ids=['undelayed', 'delayed'])
def recorded(request) -> Any:
  """A graph, what it was given, and what a loop and an unroll made of it."""
  graph = _rich(request.param)
  x = {'x': cases.draw(3, STEPS, ROWS)}
  is_first = cases.masks(STEPS, ROWS)
  start = graph.initialize_state(ROWS)
  args = (graph(start, {'x': x['x'][-1]}).next_state, x, is_first)
  looped = cases.jitted(graph, cases.loop, *args)
  unrolled = cases.jitted(graph, PopulationGraph.unroll, *args)
  return graph, args, looped, unrolled


def test_unroll_equals_the_loop(recorded):
  _, _, looped, unrolled = recorded
  for name in ('next_state', 'output', 'metrics', 'rollout_extras'):
    cases.assert_same(getattr(unrolled, name), getattr(looped, name), 1e-6)
  np.testing.assert_allclose(
    unrolled.regularization_loss, looped.regularization_loss, rtol=1e-5
  )


def test_carry_extras_and_metrics_have_an_entry_per_child(recorded):
  graph, args, looped, _ = recorded
  keys = {'a->b', 'a->b#2', 'b->c', 'a->c', 'a->c#2'}
  keys |= {'a@past'} if 'a@past' in graph.names else set()
  for tree in (args[0], looped.rollout_extras, looped.metrics):
    assert set(tree) == set(graph.names) == keys
  assert isinstance(args[0]['a->b#2'], list)


def test_regularization_adds_up_per_row_and_metrics_surface(recorded):
  _, args, looped, _ = recorded
  x = np.asarray(args[1]['x'])
  on_input = 2.0 * np.sum(x**2, axis=-1)
  metrics = looped.metrics
  np.testing.assert_allclose(metrics['a->c']['penalty'], on_input, rtol=1e-5)
  assert np.all(metrics['b->c']['penalty'] > 0)
  np.testing.assert_allclose(
    looped.regularization_loss,
    on_input + metrics['b->c']['penalty'],
    rtol=1e-5,
  )
  assert looped.regularization_loss.shape == (STEPS, ROWS)


def test_statistics_of_a_transform_are_those_of_what_it_saw(recorded):
  graph, args, looped, _ = recorded
  graph = nnx.clone(graph)
  graph.update_statistics(looped.rollout_extras)
  seen = np.asarray(args[1]['x']).reshape(-1, 3)
  layer = graph['a->b']
  np.testing.assert_allclose(layer.mean[...], seen.mean(0), atol=1e-6)
  np.testing.assert_allclose(
    layer.M2[...] / layer.counter[...], seen.var(0), rtol=1e-5
  )
  assert layer.counter[...] == STEPS * ROWS


def test_a_normalizer_behind_a_delay_sees_the_past_and_the_zeros_before_it():
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('a', 2, input_from='x')
  graph.add_output('b', 2)
  graph.connect('a', 'b', transform=networks.Normalizer(2), delay=2)
  graph.finalize()
  x, is_first = cases.draw(2, 6, 2) + 3, cases.masks(6, 2)
  out = graph.unroll(graph.initialize_state(2), {'x': x}, is_first)
  graph.update_statistics(out.rollout_extras)
  seen = queues.delayed(x, is_first, 2)
  np.testing.assert_array_equal(out.rollout_extras['a->b'], seen)
  mean = graph['a->b'].mean[...]
  np.testing.assert_allclose(mean, seen.reshape(-1, 2).mean(0), rtol=1e-5)


@pytest.mark.parametrize(('delay', 'rows'), [(0, 4 * 2), (1, 2)])
def test_only_a_graph_with_delays_is_scanned_as_a_whole(delay, rows):
  seen = []

  class Spy(networks.StatefulModule):
    def __call__(self, state, x, rollout_extras=None):
      seen.append(x.shape)
      return networks.StatefulModuleOutput(state, x, jnp.array(0.0), {})

  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('a', 1, input_from='x')
  graph.add_output('b', 1)
  graph.connect('a', 'b', transform=networks.LSTM(1, 1, nnx.Rngs(0)))
  graph.connect('a', 'b', transform=Spy(), delay=delay)
  graph.finalize()
  state, x = graph.initialize_state(2), {'x': jnp.zeros((4, 2, 1))}
  jax.eval_shape(graph.unroll, state, x, jnp.zeros((4, 2)))
  assert seen == [(rows, 1)]


def test_parameters_are_those_of_the_connections_and_nothing_else():
  graph = graphs.loop()
  params = jax.tree.leaves(nnx.state(graph, nnx.Param))
  # in->h, in->out, h->h, h->out, out->h: kernels and biases.
  kernels = 2 * 3 + 2 * 2 + 3 * 3 + 3 * 2 + 2 * 3
  assert sum(p.size for p in params) == kernels + 3 + 2 + 3 + 2 + 3
  assert len(params) == 10
  assert not jax.tree.leaves(nnx.state(graph, nnx.RngState))
  assert len(jax.tree.leaves(nnx.state(graph))) == 10
  paths = [
    path
    for path, node in jax.tree.leaves_with_path(
      graph, is_leaf=lambda n: isinstance(n, nnx.Variable)
    )
    if isinstance(node, nnx.Variable)
  ]
  assert len(paths) == len(set(map(str, paths))) == 10
  assert not hasattr(graph, 'rngs')


def test_two_connections_may_share_a_transform():
  gain = fakes.Gain()
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('a', 1, input_from='x')
  graph.add_output('b', 1)
  graph.connect('a', 'b', transform=gain)
  graph.connect('a', 'b', transform=gain, delay=1)
  graph.finalize()
  graphdef, params = nnx.split(graph)
  assert len(jax.tree.leaves(params)) == 1
  x = jnp.array([2.0, 5.0])[:, None, None]

  def loss(params):
    graph = nnx.merge(graphdef, params)
    state = graph.initialize_state(1)
    out = graph.unroll(state, {'x': x}, jnp.zeros((2, 1)))
    return jnp.sum(out.output['b'])

  grads = jax.grad(loss)(params)
  # x[0] + x[1] directly, and x[0] once more a step later.
  assert [float(g) for g in jax.tree.leaves(grads)] == [9.0]


def test_weights_are_drawn_from_the_streams_that_were_given():
  def graph(rngs):
    result = PopulationGraph(rngs)
    result.add_input('a', 2, input_from='x')
    result.add_output('b', 3)
    result.connect('a', 'b')
    result.finalize()
    return result

  first = graph(nnx.Rngs(3))
  expected = networks.Dense(2, 3, nnx.Rngs(3)).linear.kernel[...]
  np.testing.assert_array_equal(first['a->b'].linear.kernel[...], expected)
  rngs = nnx.Rngs(3)
  kernels = [graph(rngs)['a->b'].linear.kernel[...] for _ in range(2)]
  assert np.all(kernels[0] != kernels[1])


def test_gradients_through_a_loop_are_finite_differences():
  graph = graphs.loop()
  x = {'x': cases.draw(2, 6, 2)}
  is_first = jnp.zeros((6, 2)).at[3, 0].set(1)
  state = graph.initialize_state(2)
  weights = cases.draw(2, 6, 2, seed=8)
  graphdef, params = nnx.split(graph)

  @jax.jit
  def loss(params):
    out = nnx.merge(graphdef, params).unroll(state, x, is_first)
    return jnp.sum(weights * out.output['out'])

  grads = jax.grad(loss)(params)
  rng = np.random.default_rng(0)
  for _ in range(3):
    way = jax.tree.map(
      lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), params
    )
    up, down = (
      loss(jax.tree.map(lambda p, w, s=sign: p + s * 1e-2 * w, params, way))
      for sign in (1, -1)
    )
    slope = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, grads, way)))
    np.testing.assert_allclose((up - down) / 2e-2, slope, rtol=1e-2)


def test_recording_puts_every_activation_into_the_metrics():
  graph = graphs.loop()
  x, is_first = cases.draw(2, 4, 2), jnp.zeros((4, 2))
  state = graph.initialize_state(2)
  plain = graph.unroll(state, {'x': x}, is_first)
  assert ACTIVATION_KEY not in plain.metrics
  graph.record_activations = True
  out = graph.unroll(state, {'x': x}, is_first)
  cases.assert_same(out.output, plain.output)
  cases.assert_same(out.next_state, plain.next_state)
  recorded = out.metrics[ACTIVATION_KEY]
  assert set(recorded) == set(graph.population_names)
  expected, h = graphs.loop_by_hand(graph, np.asarray(x), np.zeros((4, 2)))
  np.testing.assert_array_equal(recorded['in'], x)
  np.testing.assert_allclose(recorded['h'], h, atol=1e-5)
  np.testing.assert_allclose(recorded['out'], expected, atol=1e-5)
  rest = {k: v for k, v in out.metrics.items() if k != ACTIVATION_KEY}
  assert set(rest) == set(plain.metrics) == set(graph.names)


def test_a_graph_in_a_network_acts_and_replays_alike():
  rngs = nnx.Rngs(0)
  graph = graphs.loop()
  head = [networks.Dense(2, 4, rngs), networks.NormalTanhSampler(rngs)]
  net = networks.PPOAdapter(
    action=networks.Sequential([graph, networks.Filter('out'), *head]),
    value=networks.Sequential(
      [networks.Filter('x'), networks.Dense(2, 1, rngs)]
    ),
  )
  x, is_first = {'x': cases.draw(2, 3, 2)}, cases.masks(3, 2)
  start = net.initialize_state(2)
  acted = cases.jitted(net, cases.loop, start, x, is_first)
  replay = cases.jitted(
    net, type(net).unroll, start, x, is_first, acted.rollout_extras
  )
  cases.assert_same(
    replay.output.loglikelihoods, acted.output.loglikelihoods, 1e-5
  )
  cases.assert_same(replay.output.actions, acted.output.actions, 1e-6)
