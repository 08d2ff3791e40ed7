"""Containers: routing and the order of children."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from nnx_ppo.networks import containers as their_containers
from nnx_ppo.networks import feedforward as their_feedforward
from nnx_ppo.networks import recurrent as their_recurrent
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks import types
from brax_nnx_plugin.networks.containers import Concat
from brax_nnx_plugin.networks.containers import Splitter
from brax_nnx_plugin.networks.utils import Map
from brax_nnx_plugin.networks.utils import Merge
from tests import fakes
from tests.networks import cases
from tests.networks import table


class Tag(types.StatefulModule):
  """Adds a number; every channel of its output says which number."""

  def __init__(self, number: int):
    self.number = number

  def __call__(self, state, x, rollout_extras=None):
    given = jnp.zeros_like(state) if rollout_extras is None else rollout_extras
    return types.StatefulModuleOutput(
      next_state=state + self.number,
      output=x + self.number,
      regularization_loss=jnp.full(state.shape, float(self.number)),
      metrics={'given': given},
      rollout_extras=state + 100.0 * self.number,
    )

  def initialize_state(self, batch_size):
    return jnp.full(batch_size, float(self.number))

  def reset_state(self, prev_state):
    return jnp.full_like(prev_state, -float(self.number))

  def update_statistics(self, rollout_extras, *, axis_name=None):
    self.history = nnx.Variable(rollout_extras)


X = jnp.zeros((2, 1))


def test_sequential_feeds_each_layer_the_output_of_the_one_before():
  net = networks.Sequential([Tag(1), Tag(2)])
  state = net.initialize_state(2)
  cases.assert_same(state, [jnp.full(2, 1.0), jnp.full(2, 2.0)])
  out = net(state, X, [jnp.full(2, 7.0), jnp.full(2, 8.0)])
  np.testing.assert_array_equal(out.output, X + 3)
  cases.assert_same(out.next_state, [jnp.full(2, 2.0), jnp.full(2, 4.0)])
  cases.assert_same(
    out.rollout_extras, [jnp.full(2, 101.0), jnp.full(2, 202.0)]
  )
  expected = {0: {'given': jnp.full(2, 7.0)}, 1: {'given': jnp.full(2, 8.0)}}
  cases.assert_same(out.metrics, expected)
  np.testing.assert_array_equal(out.regularization_loss, [3.0, 3.0])
  reset = net.reset_state(out.next_state)
  cases.assert_same(reset, [jnp.full(2, -1.0), jnp.full(2, -2.0)])


def test_parallel_feeds_every_child_the_same_input():
  net = networks.Parallel(b=Tag(1), a=Tag(2))
  state = net.initialize_state(2)
  cases.assert_same(state, {'b': jnp.full(2, 1.0), 'a': jnp.full(2, 2.0)})
  out = net(state, X, {'b': jnp.full(2, 7.0), 'a': jnp.full(2, 8.0)})
  cases.assert_same(out.output, {'b': X + 1, 'a': X + 2})
  cases.assert_same(
    out.next_state, {'b': jnp.full(2, 2.0), 'a': jnp.full(2, 4.0)}
  )
  cases.assert_same(
    out.rollout_extras, {'b': jnp.full(2, 101.0), 'a': jnp.full(2, 202.0)}
  )
  given = {'b': {'given': jnp.full(2, 7.0)}, 'a': {'given': jnp.full(2, 8.0)}}
  cases.assert_same(out.metrics, given)
  np.testing.assert_array_equal(out.regularization_loss, [3.0, 3.0])


def test_concat_joins_what_children_make_of_their_entries():
  net = Concat(b=Tag(1), a=Tag(2))
  state = net.initialize_state(2)
  x = {'a': X + 20, 'b': X + 10, 'unread': None}
  out = net(state, x, {'b': jnp.full(2, 7.0), 'a': jnp.full(2, 8.0)})
  np.testing.assert_array_equal(out.output, [[11.0, 22.0]] * 2)
  cases.assert_same(
    out.next_state, {'b': jnp.full(2, 2.0), 'a': jnp.full(2, 4.0)}
  )
  cases.assert_same(
    out.rollout_extras, {'b': jnp.full(2, 101.0), 'a': jnp.full(2, 202.0)}
  )
  given = {'b': {'given': jnp.full(2, 7.0)}, 'a': {'given': jnp.full(2, 8.0)}}
  cases.assert_same(out.metrics, given)
  np.testing.assert_array_equal(out.regularization_loss, [3.0, 3.0])


@pytest.mark.parametrize('kind', [networks.Parallel, Concat, Map, Merge])
@pytest.mark.parametrize('keywords', [True, False])
def test_children_come_as_keywords_or_as_one_dict(kind, keywords):
  children = {'modules': Tag(1), 'kind': Tag(2), 'a': Tag(3)}
  net = kind(**children) if keywords else kind(children)
  names = tuple(children)
  children['late'] = Tag(4)
  assert net.names == names
  assert all(net[name] is children[name] for name in names)


def test_names_may_be_any_text():
  net = Concat({'pixels/view': Tag(1), 'two words': Tag(2)})
  x = {'two words': X, 'pixels/view': X}
  out = jax.jit(lambda x: net(net.initialize_state(2), x).output)(x)
  np.testing.assert_array_equal(out, [[1.0, 2.0]] * 2)


@pytest.mark.parametrize('make', [Splitter, lambda d: Splitter(**d)])
def test_splitter_cuts_the_last_axis_in_order(make):
  layer = make({'z': 2, 'a': np.int64(1), 'sizes': 3})
  x = jnp.arange(12.0).reshape(2, 6)
  out = layer((), x)
  assert list(out.output) == ['z', 'a', 'sizes']
  expected = {'z': x[:, :2], 'a': x[:, 2:3], 'sizes': x[:, 3:]}
  cases.assert_same(out.output, expected)
  assert (out.next_state, out.rollout_extras) == ((), None)
  merged = nnx.merge(*nnx.split(layer))
  cases.assert_same(jax.jit(lambda x: merged((), x).output)(x), expected)


def test_splitter_names_a_whole_input():
  cases.assert_same(
    Splitter(action_params=1)((), X).output, {'action_params': X}
  )


def test_splitter_cuts_images_by_their_channels():
  x = cases.draw((2, 2, 3), 4)
  out = Splitter(rgb=2, depth=1)((), x).output
  cases.assert_same(out, {'rgb': x[..., :2], 'depth': x[..., 2:]})


def test_without_extras_every_child_gets_none():
  net = networks.Parallel(a=networks.Sequential([Tag(1)]), b=Tag(2))
  out = net(net.initialize_state(2), X)
  cases.assert_same(out.metrics['a'][0]['given'], jnp.zeros(2))
  cases.assert_same(out.metrics['b']['given'], jnp.zeros(2))


def test_regularization_of_rows_and_of_the_batch_add_up():
  net = networks.Sequential([cases.Penalty(), fakes.Gain(), cases.Penalty(2.0)])
  x = jnp.array([[1.0], [3.0]])
  loss = net([(), (), ()], x).regularization_loss
  np.testing.assert_array_equal(loss, [3.0, 27.0])  # x² + 2 x²


def test_statistics_go_to_the_child_they_belong_to():
  net = networks.Parallel(
    b=networks.Sequential([fakes.Gain(), Tag(1)]), a=Tag(2)
  )
  net.update_statistics({'b': [None, jnp.array(5.0)], 'a': jnp.array(6.0)})
  assert net['b'][1].history.get_value() == 5
  assert net['a'].history.get_value() == 6


def _parallel():
  return networks.Parallel({'b': Tag(1), 'a': Tag(2), 'c': Tag(3)})


@pytest.mark.parametrize('way', ['fresh', 'merged', 'cloned', 'jit'])
def test_the_order_of_the_children_is_kept(way):
  net = _parallel()
  order = []

  def look(net):
    order.extend([net.names, *map(tuple, _trees(net))])
    return net.initialize_state(2)

  if way == 'merged':
    net = nnx.merge(*nnx.split(net))
  elif way == 'cloned':
    net = nnx.clone(net)
  jitted = lambda net: nnx.jit(look)(net)
  (jitted if way == 'jit' else look)(net)
  assert order == [('b', 'a', 'c')] * 6


def _trees(net):
  state = net.initialize_state(2)
  out = net(state, X)
  return state, out.output, out.next_state, out.metrics, out.rollout_extras


WAYS = {
  'direct': lambda net, run: run(net),
  'merged': lambda net, run: run(nnx.merge(*nnx.split(net))),
  'cloned': lambda net, run: run(nnx.clone(net)),
  'nnx.jit': lambda net, run: nnx.jit(run)(net),
  'jit': cases.jitted,
}


@pytest.mark.parametrize('way', WAYS)
def test_an_output_that_depends_on_the_order_is_the_same(way):
  net = Concat({'b': Tag(1), 'a': Tag(2), 'c': Tag(3)})
  x = {name: X for name in net.names}
  run = lambda net: net(net.initialize_state(2), x).output
  np.testing.assert_array_equal(WAYS[way](net, run), [[1.0, 2.0, 3.0]] * 2)


@pytest.mark.parametrize('run', [Concat.unroll, stepping.scan_steps])
def test_the_order_over_time_is_the_same(run):
  net = Concat({'b': Tag(1), 'a': Tag(2), 'c': Tag(3)})
  x = {name: jnp.zeros((4, 2, 1)) for name in net.names}
  out = run(net, net.initialize_state(2), x, jnp.zeros((4, 2)), None)
  np.testing.assert_array_equal(out.output, [[[1.0, 2.0, 3.0]] * 2] * 4)


def test_more_than_ten_layers_run_in_order():
  class Digit(types.StatefulModule):
    def __init__(self, digit):
      self.digit = digit

    def __call__(self, state, x, rollout_extras=None):
      # Reads as a number whose digits are the layers, in base 12.
      return types.StatefulModuleOutput(
        state, [*x, self.digit], jnp.array(0.0), {}
      )

  net = networks.Sequential([Digit(i) for i in range(12)])
  merged = nnx.merge(*nnx.split(net))
  for n in (net, merged):
    assert n(n.initialize_state(1), []).output == list(range(12))


@pytest.mark.parametrize('shape', [(1, 1), (3, 1), (1, 2)], ids=str)
def test_containers_keep_the_axes_of_one_step_and_of_one_row(shape):
  net = table.build('nested')
  x = cases.draw(3, *shape)
  out = net.unroll(net.initialize_state(shape[1]), x, jnp.zeros(shape))
  for leaf in jax.tree.leaves((out.output, out.metrics, out.rollout_extras)):
    assert leaf.shape[:2] == shape
  assert out.regularization_loss.shape == shape
  for leaf in jax.tree.leaves(out.next_state):
    assert leaf.shape[0] == shape[1]


def test_only_children_with_memory_are_scanned():
  shapes = []

  class Spy(fakes.Gain):
    def __call__(self, state, x, rollout_extras=None):
      shapes.append(x.shape)
      return super().__call__(state, x)

  inner = networks.Sequential([Spy(), fakes.LinCell(0.5, 1.0), Spy()])
  net = networks.Parallel(a=inner)
  net.unroll(net.initialize_state(2), jnp.ones((4, 2, 1)), jnp.zeros((4, 2)))
  assert shapes == [(8, 1), (8, 1)]


def test_modules_of_nnx_ppo_are_children_too():
  rngs = nnx.Rngs(0)
  theirs: Any = their_containers.Sequential(
    [
      their_feedforward.Dense(1, 3, rngs),
      their_recurrent.LSTM(3, 2, rngs, trainable_initial_state=True),
    ]
  )
  assert not hasattr(theirs, 'unroll')
  net = networks.Sequential([networks.Dense(2, 1, rngs), theirs])
  x, is_first = cases.draw(2, 4, 3), cases.masks(4, 3)
  state = net(net.initialize_state(3), x[0]).next_state
  unrolled = net.unroll(state, x, is_first)
  looped = cases.loop(net, state, x, is_first)
  cases.assert_same(unrolled.output, looped.output, 1e-6)
  cases.assert_same(unrolled.next_state, looped.next_state, 1e-6)
