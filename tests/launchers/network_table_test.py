"""The table of layers, against sums over the parameters themselves."""

from typing import Any

from brax.training.agents.ppo import networks as brax_networks
from flax import nnx
import jax
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_extra
from brax_nnx_plugin.ppo.linen import as_functions
from launchers import network_table

_SMALL = {
  'policy_hidden_layer_sizes': (4, 6),
  'value_hidden_layer_sizes': (5,),
}


def _rows(made: Any) -> list[network_table.Row]:
  return network_table.rows(as_functions(made, (3,)))


def _count(tree: Any) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _of_build(build: Any) -> Any:
  return ppo_networks.make_network_factory(build)((3,), 2)


def _graph(observation_size, action_size, rngs):
  graph = networks.PopulationGraph(rngs)
  graph.add_input('sensors', observation_size[0], input_from='sensors')
  graph.add_population('cortex', 5)
  graph.add_output('muscles', 2 * action_size)
  graph.connect('sensors', 'cortex', delay=2)
  graph.connect('cortex', 'cortex', delay=1)
  graph.connect('cortex', 'muscles')
  graph.finalize()
  return networks.PPOAdapter(
    action=networks.Sequential(
      [
        networks.Splitter(sensors=observation_size[0]),
        graph,
        networks.Filter('muscles'),
        networks.NormalTanhSampler(rngs),
      ]
    ),
    value=networks.Dense(observation_size[0], 1, rngs),
  )


def _shared(observation_size, action_size, rngs):
  """Policy and value function read one trunk, by way of one layer."""
  layer = networks.Dense(observation_size[0], 4, rngs)
  return networks.PPOAdapter(
    action=networks.Sequential(
      [
        layer,
        networks.Dense(4, 2 * action_size, rngs),
        networks.NormalTanhSampler(rngs),
      ]
    ),
    value=networks.Sequential([layer, networks.Dense(4, 1, rngs)]),
  )


class _Own(networks.StatefulModule):
  """A layer of a user's own, with a layer inside that has memory."""

  def __init__(self, size, rngs):
    self.scale = nnx.Param(rngs.params.normal((size,)))
    self.inner = networks.GRU(size, size, rngs)

  def __call__(self, state, x, rollout_extras=None):
    return self.inner(state, x * self.scale[...], rollout_extras)

  def initialize_state(self, batch_size):
    return self.inner.initialize_state(batch_size)

  def reset_state(self, prev_state):
    return self.inner.reset_state(prev_state)


def _with_own(observation_size, action_size, rngs):
  n = observation_size[0]
  return networks.PPOAdapter(
    action=networks.Sequential(
      [
        _Own(n, rngs),
        networks.Dense(n, 2 * action_size, rngs),
        networks.NormalTanhSampler(rngs),
      ]
    ),
    value=networks.Dense(n, 1, rngs),
  )


_NETWORKS = {
  'mlp': lambda: ppo_networks.make_ppo_networks((3,), 2, **_SMALL),
  'normalized': lambda: ppo_networks.make_ppo_networks(
    (3,), 2, **_SMALL, normalize_inputs=True
  ),
  **{
    cell: lambda cell=cell: ppo_networks.make_recurrent_ppo_networks(
      (3,), 2, cell=cell, **_SMALL, trainable_initial_state=True
    )
    for cell in ('lstm', 'gru', 'rnn', 'mingru')
  },
  'delay': lambda: networks_extra.make_delayed_ppo_networks(
    (3,), 2, observation_delay=3, **_SMALL
  ),
  'vae': lambda: networks_extra.make_variational_ppo_networks(
    (3,), 2, latent_size=4, **_SMALL
  ),
  'graph': lambda: _of_build(_graph),
  'shared': lambda: _of_build(_shared),
  'own': lambda: _of_build(_with_own),
  'stock': lambda: brax_networks.make_ppo_networks(3, 2, **_SMALL),
}


@pytest.mark.parametrize('name', _NETWORKS)
def test_totals_are_those_of_what_is_trained(name):
  made = _NETWORKS[name]()
  functions = as_functions(made, (3,))
  key = jax.random.key(0)
  variables = jax.eval_shape(functions.init, key, key)
  carry = jax.eval_shape(
    lambda v: functions.initial_state(v, 1, key), variables
  )

  rows = _rows(made)

  assert sum(row.parameters for row in rows) == _count(variables.params)
  assert sum(row.statistics for row in rows) == _count(variables.statistics)
  # All numbers of a carry have 4 bytes.
  assert sum(row.carry for row in rows) == 4 * _count(carry)
  assert len({row.path for row in rows}) == len(rows)


def test_layers_of_an_lstm_are_named_in_order():
  made = ppo_networks.make_recurrent_ppo_networks(
    (3,), 2, **_SMALL, policy_memory_size=7, value_memory_size=None
  )
  rows = _rows(made)
  policy = [row for row in rows if row.path.startswith('action/')]
  kinds = ['Dense', 'LSTM', 'Dense', 'Dense', 'NormalTanhSampler']
  assert [row.kind for row in policy] == kinds
  # 3 -> 4; four gates of 4 and 7 inputs with biases; 7 -> 6; 6 -> mean, scale.
  sizes = [3 * 4 + 4, 4 * 7 * (4 + 7 + 1), 7 * 6 + 6, 6 * 4 + 4, 0]
  assert [row.parameters for row in policy] == sizes
  # A cell and a hidden activation of 7 numbers of 4 bytes.
  assert [row.carry for row in policy] == [0, 2 * 7 * 4, 0, 0, 0]
  assert [row.path for row in rows if row not in policy] == [
    'value/0',
    'value/1',
  ]


def test_what_a_module_has_beside_its_layers_is_its_own():
  rows = {row.kind: row for row in _rows(_NETWORKS['own']())}
  assert (rows['_Own'].parameters, rows['_Own'].carry) == (3, 0)
  assert rows['GRU'].carry == 3 * 4


def test_a_shared_layer_counts_once():
  parameters = [row.parameters for row in _rows(_NETWORKS['shared']())]
  assert parameters == [3 * 4 + 4, 4 * 4 + 4, 0, 0, 4 * 1 + 1]


def test_the_table_is_aligned_and_ends_with_totals():
  rows = [
    network_table.Row('action/0', 'Dense', 1200, 0, 0),
    network_table.Row('value', 'LSTM', 34, 5, 64),
  ]
  assert network_table.table(rows).splitlines() == [
    'layer     class  parameters  statistics  carry',
    'action/0  Dense       1,200           0      0',
    'value     LSTM           34           5     64',
    'total                 1,234           5     64',
  ]
