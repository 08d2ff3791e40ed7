"""The snippets on delays and extras in the documentation of nnx-ppo.

As they stand there, under the new name; and its table of what each module does
with the extras.
"""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jp
import numpy as np
import pytest

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Concat
from brax_nnx_plugin.networks.containers import Parallel
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.containers import Splitter
from brax_nnx_plugin.networks.delay import Delay
from brax_nnx_plugin.networks.factories import make_mlp
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.graph import PopulationGraph
from brax_nnx_plugin.networks.normalizer import Normalizer
from brax_nnx_plugin.networks.parallel_recurrent import MinGRU
from brax_nnx_plugin.networks.recurrent import GRU
from brax_nnx_plugin.networks.recurrent import LSTM
from brax_nnx_plugin.networks.recurrent import SimpleRNN
from brax_nnx_plugin.networks.samplers import NormalSampler
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.networks.utils import Filter
from brax_nnx_plugin.networks.utils import Flattener
from brax_nnx_plugin.networks.utils import Map
from brax_nnx_plugin.networks.utils import Merge
from brax_nnx_plugin.networks.utils import Scale
from brax_nnx_plugin.networks.variational import AR1VariationalBottleneck
from brax_nnx_plugin.networks.variational import VariationalBottleneck
from tests import fakes
from tests.networks import cases

H = 4
N = fakes.ScriptEnv.observation_size


def _run(net: Any, x: jax.Array) -> list[Any]:
  """Steps `net` through x `[T, B, ...]`; returns what each step returned."""
  state, outs = net.initialize_state(x.shape[1]), []
  for row in x:
    outs.append(net(state, row))
    state = outs[-1].next_state
  return outs


def test_a_delay_on_top_gives_the_agent_stale_observations():
  env, inner = fakes.ScriptEnv([[3], [5]]), Scale(2.0)
  sample_obs = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 2)).obs[0]
  delayed_net = Sequential([Delay(sample_obs, k_steps=5), inner])
  x = cases.draw(N, 7, 2)
  outs = _run(delayed_net, x)
  np.testing.assert_array_equal(outs[4].output, jp.zeros((2, N)))
  np.testing.assert_array_equal(outs[6].output, 2 * x[1])


def test_a_delay_stands_inside_a_stack():
  rngs, latent_shape = nnx.Rngs(0), (H,)
  encoder, decoder = Dense(N, H, rngs), Dense(H, 1, rngs, use_bias=False)
  net = Sequential([encoder, Delay(latent_shape, k_steps=3), decoder])
  x = cases.draw(N, 5, 2)
  outs = _run(net, x)
  np.testing.assert_array_equal(outs[2].output, jp.zeros((2, 1)))
  undelayed = decoder((), encoder((), x[1]).output).output
  np.testing.assert_allclose(outs[4].output, undelayed, rtol=1e-6)


def test_a_delay_is_part_of_a_transform_of_a_graph():
  rngs = nnx.Rngs(0)
  graph = PopulationGraph(rngs)
  graph.add_input('src', H, input_from='x')
  graph.add_output('dst', H)
  graph.connect(
    'src',
    'dst',
    transform=Sequential([Dense(H, H, rngs), Delay(jp.zeros(H), k_steps=2)]),
  )
  graph.finalize()
  state, x, outs = graph.initialize_state(2), cases.draw(H, 4, 2), []
  for row in x:
    out = graph(state, {'x': row})
    state = out.next_state
    outs.append(out.output['dst'])
  np.testing.assert_array_equal(outs[1], jp.zeros((2, H)))
  expected = graph['src->dst'][0]((), x[1]).output
  np.testing.assert_allclose(outs[3], expected, rtol=1e-6)


def test_a_graph_needs_no_delay_for_recurrence():
  k = 'k'
  graph = PopulationGraph(nnx.Rngs(0))
  graph.add_input('in', H, input_from='x')
  graph.add_output(k, H)
  graph.connect('in', k, transform=Scale(1.0))
  graph.connect(k, k, transform=Scale(0.5), delay=1)
  graph.finalize()
  state = graph.initialize_state(1)
  x = {'x': jp.ones((1, H))}
  values = []
  for _ in range(3):
    out = graph(state, x)
    state = out.next_state
    values.append(float(out.output[k][0, 0]))
  assert values == [1.0, 1.5, 1.75]  # a leaky sum: v' = v / 2 + 1


def test_a_normalizer_behind_a_delay_tracks_delayed_observations():
  rngs = nnx.Rngs(0)
  sample_obs, obs_shape = jp.zeros(N), (N,)
  actor = make_mlp([N, H, 2], rngs)
  net = Sequential([Delay(sample_obs, k=5), Normalizer(obs_shape), actor])
  x = cases.draw(N, 8, 2)
  extras = net.unroll(
    net.initialize_state(2), x, jp.zeros((8, 2))
  ).rollout_extras
  net.update_statistics(extras)
  seen = np.concatenate([np.zeros((5, 2, N)), x[:3]]).reshape(-1, N)
  np.testing.assert_allclose(net[1].mean[...], seen.mean(0), atol=1e-6)


def _graph(rngs: nnx.Rngs) -> PopulationGraph:
  graph = PopulationGraph(rngs)
  graph.add_input('a', H, input_from='a')
  graph.add_output('b', H)
  graph.connect('a', 'b', transform=Normalizer(H))
  graph.finalize()
  return graph


# The columns of the table: what makes the module, its input, what it emits.
NOTHING, INPUT, ACTION, TREE = 'None', 'the input', 'the raw action', 'a tree'
TABLE = {
  'Normalizer': (lambda r: Normalizer(H), H, INPUT),
  'NormalTanhSampler': (NormalTanhSampler, H, ACTION),
  'NormalSampler': (lambda r: NormalSampler(H, r), H, ACTION),
  'VariationalBottleneck': (lambda r: VariationalBottleneck(2, r), H, NOTHING),
  'AR1VariationalBottleneck': (
    lambda r: AR1VariationalBottleneck(2, r),
    H,
    NOTHING,
  ),
  'Dense': (lambda r: Dense(H, 2, r), H, NOTHING),
  'LSTM': (lambda r: LSTM(H, 2, r), H, NOTHING),
  'GRU': (lambda r: GRU(H, 2, r), H, NOTHING),
  'SimpleRNN': (lambda r: SimpleRNN(H, 2, r), H, NOTHING),
  'MinGRU': (lambda r: MinGRU(H, 2, r), H, NOTHING),
  'Delay': (lambda r: Delay(H, 2), H, NOTHING),
  'Filter': (lambda r: Filter({'c': 'a'}), {'a': H}, NOTHING),
  'Flattener': (lambda r: Flattener(), {'a': H}, NOTHING),
  'Scale': (lambda r: Scale(0.5), H, NOTHING),
  'Splitter': (lambda r: Splitter(a=1, b=H - 1), H, NOTHING),
  'Sequential': (lambda r: Sequential([Normalizer(H)]), H, TREE),
  'Parallel': (lambda r: Parallel(a=Normalizer(H)), H, TREE),
  'Concat': (lambda r: Concat(a=Normalizer(H)), {'a': H}, TREE),
  'Map': (lambda r: Map(a=Normalizer(H)), {'a': H}, TREE),
  'Merge': (
    lambda r: Merge(a=Sequential([Normalizer(H), Splitter(a=H)])),
    H,
    TREE,
  ),
  'PopulationGraph': (_graph, {'a': H}, TREE),
  'PPOAdapter': (
    lambda r: PPOAdapter(
      action=Sequential([Normalizer(H), NormalTanhSampler(r)]),
      value=Dense(H, 1, r),
    ),
    H,
    TREE,
  ),
}


def _without_entropy(out: Any) -> Any:
  return cases.numbers((out.output, out.regularization_loss))


@pytest.mark.parametrize('name', TABLE)
def test_extras_are_used_and_emitted_as_the_table_says(name):
  make, shape, emitted = TABLE[name]
  module, x = make(nnx.Rngs(0)), cases.draw(shape, 3)
  state = module.initialize_state(3)
  out = module(state, x)
  extras = out.rollout_extras
  if emitted == NOTHING:
    assert extras is None
  elif emitted == INPUT:
    np.testing.assert_array_equal(extras, x)
  elif emitted == ACTION:
    np.testing.assert_array_equal(extras, out.output['raw_action'])
  else:
    assert type(extras) is type(out.next_state)
    assert len(extras) == len(out.next_state)
    leaves = jax.tree.leaves(extras)
    assert any(np.array_equal(leaf, jax.tree.leaves(x)[0]) for leaf in leaves)

  other = jax.tree.map(lambda leaf: leaf + 1, extras)
  again = _without_entropy(module(state, x, other))
  first = _without_entropy(out)
  changed = any(np.any(again[path] != first[path]) for path in first)
  # Only a sampler reads what it is handed; everything else passes it on.
  assert changed == (emitted == ACTION or name == 'PPOAdapter')
