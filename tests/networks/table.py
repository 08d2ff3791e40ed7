"""A table of modules: what makes each of them, and what it is given."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from flax import nnx
from nnx_ppo.networks.recurrent import LSTM as TheirLSTM

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import factories
from tests import fakes
from tests.networks import cases


class Case(NamedTuple):
  """How to build a module, and what features it takes."""

  build: Callable[[nnx.Rngs], Any]
  shape: Any


def nested(rngs: nnx.Rngs) -> networks.Sequential:
  """Containers in containers, with every kind of leaf."""
  branches = networks.Parallel(
    memory=networks.Sequential([cases.trained_lstm(rngs), cases.Penalty(0.3)]),
    deeper=networks.Parallel(
      {'z': networks.GRU(3, 2, rngs), 'a': networks.Dense(3, 2, rngs)}
    ),
    count=fakes.Count(),
  )
  return networks.Sequential(
    [cases.fold_history(networks.Normalizer(3)), branches]
  )


def recurrent_policy(rngs: nnx.Rngs) -> networks.PPOAdapter:
  """A policy and a value function that remember."""
  actor = [
    networks.Dense(3, 4, rngs, nnx.tanh),
    networks.GRU(4, 4, rngs),
    networks.Dense(4, 4, rngs),
    networks.NormalTanhSampler(rngs),
  ]
  critic = [
    cases.trained_lstm(rngs),
    cases.Penalty(0.2),
    networks.Dense(4, 1, rngs),
  ]
  return networks.PPOAdapter(
    action=networks.Sequential(actor), value=networks.Sequential(critic)
  )


def actor_critic(rngs: nnx.Rngs) -> Any:
  """A memoryless network with an embedded normalizer."""
  return factories.make_mlp_actor_critic(3, 2, [4], [4], rngs)


def two_samplers(rngs: nnx.Rngs) -> networks.PPOAdapter:
  """A policy with an action of two parts."""

  def part():
    return networks.Sequential(
      [networks.Dense(3, 4, rngs), networks.NormalTanhSampler(rngs)]
    )

  return networks.PPOAdapter(
    action=networks.Parallel({'legs': part(), 'arms': part()}),
    value=networks.Dense(3, 1, rngs),
  )


def foreign_child(rngs: nnx.Rngs) -> networks.Sequential:
  """A container with a child that has no `unroll`: nnx-ppo's LSTM."""
  return networks.Sequential(
    [networks.Dense(3, 3, rngs), TheirLSTM(3, 2, rngs)]
  )


def loop_graph(rngs: nnx.Rngs) -> networks.PopulationGraph:
  """A graph with delays, a loop, memory and statistics."""
  graph = networks.PopulationGraph(rngs)
  graph.add_input('sense', 3, input_from='x')
  graph.add_population('inner', 2, nnx.tanh)
  graph.add_output('motor', 2, activation=nnx.tanh)
  graph.connect(
    'sense', 'inner', networks.Sequential([_normalizer(), _dense(3, 2, rngs)])
  )
  graph.connect('inner', 'inner', delay=1)
  graph.connect('inner', 'motor', networks.GRU(2, 2, rngs), delay=2)
  graph.connect('sense', 'motor', delay=1)
  graph.connect('motor', 'inner', cases.Penalty(0.1), delay=3)
  graph.finalize()
  return graph


def _normalizer() -> networks.Normalizer:
  return cases.fold_history(networks.Normalizer(3))


def _dense(inputs: int, outputs: int, rngs: nnx.Rngs) -> networks.Dense:
  return networks.Dense(inputs, outputs, rngs, nnx.tanh)


def merged(rngs: nnx.Rngs) -> networks.Merge:
  """Two heads that return dicts, one of them with memory."""
  memory = networks.Sequential(
    [networks.LSTM(3, 4, rngs), networks.Splitter(c=1, d=3)]
  )
  return networks.Merge(
    z=networks.Sequential([_dense(3, 2, rngs), networks.Splitter(a=1, b=1)]),
    y=memory,
  )


def symmetric(rngs: nnx.Rngs) -> networks.MirrorLoss:
  """A policy that is penalised for telling left from right."""
  policy = networks.PPOAdapter(
    action=networks.Sequential(
      [networks.Dense(3, 4, rngs), networks.NormalTanhSampler(rngs)]
    ),
    value=networks.Dense(3, 1, rngs),
  )
  flip = lambda a: a[..., ::-1]
  return networks.MirrorLoss(policy, flip, flip, weight=0.1)


CASES: dict[str, Case] = {
  'dense': Case(lambda r: networks.Dense(3, 4, r, nnx.tanh), 3),
  'filter': Case(
    lambda _: networks.Filter({'b': ('n', 'v'), 'a': 'u'}),
    {'u': 2, 'n': {'v': 3}},
  ),
  'penalty': Case(lambda _: cases.Penalty(), 3),
  'normalizer': Case(lambda _: cases.fold_history(networks.Normalizer(3)), 3),
  'normalizer_fresh': Case(lambda _: networks.Normalizer((2, 2)), (2, 2)),
  'normalizer_tree': Case(
    lambda _: cases.fold_history(networks.Normalizer({'q': 3, 'p': (2,)})),
    {'q': 3, 'p': 2},
  ),
  'sampler': Case(networks.NormalTanhSampler, 4),
  'count': Case(lambda _: fakes.Count(), 3),
  'echo': Case(lambda _: fakes.Echo(), 3),
  'lstm': Case(lambda r: networks.LSTM(3, 4, r), 3),
  'lstm_plain': Case(
    lambda r: networks.LSTM(3, 4, r, use_optimized=False, forget_bias=1.0), 3
  ),
  'lstm_trained': Case(cases.trained_lstm, 3),
  'gru': Case(lambda r: networks.GRU(3, 4, r), 3),
  'gru_trained': Case(cases.trained_gru, 3),
  'nested': Case(nested, 3),
  'actor_critic': Case(actor_critic, 3),
  'recurrent_policy': Case(recurrent_policy, 3),
  'two_samplers': Case(two_samplers, 3),
  'foreign_child': Case(foreign_child, 3),
  'normal_sampler': Case(lambda r: networks.NormalSampler(2, r), 2),
  'normal_sampler_log': Case(
    lambda r: networks.NormalSampler(
      2, r, 0.1, state_dependent_std=True, noise_std_type='log'
    ),
    4,
  ),
  'simple_rnn': Case(lambda r: networks.SimpleRNN(3, 4, r), 3),
  'min_gru': Case(
    lambda r: cases.fill(
      networks.MinGRU(3, 4, r, trainable_initial_state=True), 'initial_h'
    ),
    3,
  ),
  'delay': Case(
    lambda _: networks.Delay({'q': 3, 'p': (2, 2)}, 3, initial_value=-1.0),
    {'q': 3, 'p': (2, 2)},
  ),
  'variational': Case(lambda r: networks.VariationalBottleneck(2, r), 4),
  'variational_ar1': Case(
    lambda r: networks.AR1VariationalBottleneck(2, r, ar1_weight=0.5), 4
  ),
  'concat': Case(
    lambda r: networks.Concat(z=_dense(3, 2, r), a=networks.GRU(2, 2, r)),
    {'z': 3, 'a': 2},
  ),
  'map': Case(
    lambda r: networks.Map(z=networks.LSTM(3, 2, r), a=networks.Scale(0.5)),
    {'z': 3, 'a': 2},
  ),
  'merge': Case(merged, 3),
  'splitter': Case(lambda _: networks.Splitter(b=1, a=2), 3),
  'flattener': Case(
    lambda _: networks.Flattener(1), {'u': {'b': (2, 2), 'a': 1}, 't': 2}
  ),
  'quantiles': Case(lambda _: networks.Quantiles(), 3),
  'scale': Case(lambda _: networks.Scale(2.0), {'u': 2, 't': (2, 2)}),
  'graph': Case(loop_graph, {'x': 3}),
  'symmetric': Case(symmetric, 3),
}
POLICIES = ('actor_critic', 'recurrent_policy', 'two_samplers', 'symmetric')


def build(name: str, seed: int = 0) -> Any:
  """Builds a module of the table."""
  return CASES[name].build(nnx.Rngs(seed))


def inputs(name: str, *lead: int, seed: int = 1) -> Any:
  """Draws an input for a module of the table, leaves `[*lead, *features]`."""
  return cases.draw(CASES[name].shape, *lead, seed=seed)
