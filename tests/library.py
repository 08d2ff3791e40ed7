"""One network for each kind of layer, as build functions for training.

Each takes an observation of two or more features and has a normalizer where its
kind calls for one. Sizes are as small as they can be.
"""

from collections.abc import Callable
import math
from typing import Any

from flax import nnx

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import factories

Build = Callable[[Any, int, nnx.Rngs], Any]
UNITS = 4


def _features(observation_size: Any) -> int:
  if isinstance(observation_size, int):
    return observation_size
  return math.prod(observation_size)


def _policy(observation_size, action_size, rngs, layers) -> Any:
  """A network of `layers`, a policy and a value function on top of them."""
  head = [
    networks.Dense(UNITS, 2 * action_size, rngs),
    networks.NormalTanhSampler(rngs),
  ]
  critic = factories.make_mlp(
    [_features(observation_size), UNITS, 1], rngs, activation_last_layer=False
  )
  return networks.PPOAdapter(
    action=networks.Sequential([*layers, *head]), value=critic
  )


def delay_lstm(observation_size, action_size, rngs) -> Any:
  """An LSTM that sees the observation three steps late."""
  n = _features(observation_size)
  layers = [networks.Delay(n, k_steps=3), networks.LSTM(n, UNITS, rngs)]
  return _policy(observation_size, action_size, rngs, layers)


def loop_graph(n: int, rngs: nnx.Rngs) -> Any:
  """A population graph with delays of several lengths and a loop."""
  graph = networks.PopulationGraph(rngs)
  graph.add_input('sense', n, input_from='x')
  graph.add_population('inner', 3, activation=nnx.tanh)
  graph.add_output('motor', UNITS, activation=nnx.tanh)
  graph.connect('sense', 'inner')
  graph.connect('sense', 'motor', delay=2)
  graph.connect('inner', 'inner', delay=1)
  graph.connect('inner', 'motor', transform=networks.LSTM(3, UNITS, rngs))
  graph.connect('motor', 'inner', delay=3)
  graph.finalize()
  return graph


def graph(observation_size, action_size, rngs) -> Any:
  """A policy that is a population graph."""
  layers = [
    networks.Filter({'x': lambda x: x}),
    loop_graph(_features(observation_size), rngs),
    networks.Filter('motor'),
  ]
  return _policy(observation_size, action_size, rngs, layers)


def variational(observation_size, action_size, rngs) -> Any:
  """A policy through a noisy latent that is pulled to its last value."""
  n = _features(observation_size)
  layers = [
    networks.Dense(n, 4, rngs),
    networks.AR1VariationalBottleneck(2, rngs, kl_weight=1e-2, ar1_weight=0.1),
    networks.Dense(2, 4, rngs),
    networks.VariationalBottleneck(2, rngs, kl_weight=1e-2),
    networks.Dense(2, UNITS, rngs),
  ]
  return _policy(observation_size, action_size, rngs, layers)


def normalizer_behind_delay(observation_size, action_size, rngs) -> Any:
  """A policy that normalizes delayed observations."""
  n = _features(observation_size)
  layers = [
    networks.Delay(n, k=2),
    networks.Normalizer(n),
    networks.Dense(n, UNITS, rngs, nnx.tanh),
  ]
  return _policy(observation_size, action_size, rngs, layers)


def min_gru(observation_size, action_size, rngs) -> Any:
  """A policy with the memory that is replayed in parallel."""
  n = _features(observation_size)
  memory = networks.MinGRU(n, UNITS, rngs, trainable_initial_state=True)
  return _policy(observation_size, action_size, rngs, [memory])


def simple_rnn(observation_size, action_size, rngs) -> Any:
  """A policy with the simplest memory."""
  n = _features(observation_size)
  layers = [networks.SimpleRNN(n, UNITS, rngs)]
  return _policy(observation_size, action_size, rngs, layers)


def map_of_samplers(observation_size, action_size, rngs) -> Any:
  """A policy whose action comes from two samplers of different kinds."""
  n, legs = _features(observation_size), action_size // 2
  arms = action_size - legs
  action = networks.Sequential(
    [
      networks.Dense(n, 2 * legs + arms, rngs),
      networks.Splitter(legs=2 * legs, arms=arms),
      networks.Map(
        legs=networks.NormalTanhSampler(rngs),
        arms=networks.NormalSampler(arms, rngs),
      ),
    ]
  )
  return networks.PPOAdapter(action=action, value=networks.Dense(n, 1, rngs))


NETWORKS: dict[str, Build] = {
  'delay_lstm': delay_lstm,
  'graph': graph,
  'variational': variational,
  'normalizer_behind_delay': normalizer_behind_delay,
  'min_gru': min_gru,
  'simple_rnn': simple_rnn,
  'map_of_samplers': map_of_samplers,
}
