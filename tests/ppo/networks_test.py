"""The factories: every argument arrives, and mistakes are explained."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from mujoco_playground import registry
from mujoco_playground.config import dm_control_suite_params
from mujoco_playground.config import locomotion_params
from mujoco_playground.config import manipulation_params
import numpy as np
import pytest

from brax_nnx_plugin.networks import Dense
from brax_nnx_plugin.networks import Normalizer
from brax_nnx_plugin.networks import factories
from brax_nnx_plugin.ppo import networks as ppo_networks

_SIZES = {'state': (3,), 'privileged_state': (4,), 'other': (7,)}


def _init(networks: Any, seed: int = 0) -> Any:
  keys = jax.random.split(jax.random.PRNGKey(seed))
  return networks.functions.init(*keys)


def _modules(networks: Any, port: str, kind: Any) -> list[Any]:
  """Returns the layers of one kind in one port, first to last."""
  variables = _init(networks)
  module = networks.functions.template.module(
    (variables.params.policy, variables.params.value),
    (variables.statistics.policy, variables.statistics.value),
  )
  adapter = module if hasattr(module, 'action') else module['1']
  return [
    layer for layer in _layers(getattr(adapter, port)) if type(layer) is kind
  ]


def _layers(sequential: Any) -> list[Any]:
  found = {
    int(str(path[1])): m
    for path, m in nnx.iter_modules(sequential)
    if len(path) == 2 and path[0] == 'components'
  }
  return [found[i] for i in sorted(found)]


def _shapes(networks: Any, port: str) -> list[tuple[int, ...]]:
  return [d.linear.kernel.shape for d in _modules(networks, port, Dense)]


def test_mlp_sizes_and_observation_keys_are_those_of_their_port():
  networks = ppo_networks.make_ppo_networks(
    _SIZES,
    2,
    policy_hidden_layer_sizes=(5, 6),
    value_hidden_layer_sizes=(8,),
    policy_obs_key='other',
    value_obs_key='privileged_state',
  )

  # The policy ends in a location and a scale for each action.
  assert _shapes(networks, 'action') == [(7, 5), (5, 6), (6, 4)]
  assert _shapes(networks, 'value') == [(4, 8), (8, 1)]


@pytest.mark.parametrize('activation', [jnp.sin, 'tanh'])
@pytest.mark.parametrize(
  'factory',
  [ppo_networks.make_ppo_networks, ppo_networks.make_recurrent_ppo_networks],
)
def test_the_activation_reaches_all_hidden_layers_and_no_last_one(
  factory, activation
):
  networks = factory(
    (3,),
    2,
    policy_hidden_layer_sizes=(5, 6),
    value_hidden_layer_sizes=(8, 9),
    activation=activation,
  )

  expected = jnp.tanh if activation == 'tanh' else activation
  for port in ('action', 'value'):
    *hidden, last = _modules(networks, port, Dense)
    assert len(hidden) == 2
    assert last.activation is None
    for layer in hidden:
      x = jnp.array([-2.0, 0.3, 4.0])
      np.testing.assert_allclose(layer.activation(x), expected(x))


@pytest.mark.parametrize(
  'factory',
  [ppo_networks.make_ppo_networks, ppo_networks.make_recurrent_ppo_networks],
)
@pytest.mark.parametrize(
  # As in Brax, a squashed distribution has no mean of its own.
  ('distribution', 'mean'),
  [('normal', 0.125), ('tanh_normal', 0.5)],
)
def test_kernel_initializers_reach_their_own_layers(
  factory, distribution, mean
):
  constant = 'constant' if mean == 0.125 else jax.nn.initializers.constant
  networks = factory(
    (3,),
    2,
    distribution_type=distribution,
    policy_hidden_layer_sizes=(5, 6),
    value_hidden_layer_sizes=(8,),
    policy_network_kernel_init_fn=constant,
    policy_network_kernel_init_kwargs={'value': 0.5},
    value_network_kernel_init_fn=constant,
    value_network_kernel_init_kwargs={'value': 0.25},
    mean_kernel_init_fn=constant,
    mean_kernel_init_kwargs={'value': 0.125},
  )

  values = {
    port: [
      np.unique(d.linear.kernel[...]).tolist()
      for d in _modules(networks, port, Dense)
    ]
    for port in ('action', 'value')
  }
  assert values == {'action': [[0.5], [0.5], [mean]], 'value': [[0.25]] * 2}


@pytest.mark.parametrize('cell', factories.CELLS)
def test_memory_is_of_the_cell_and_size_asked_for(cell):
  networks = ppo_networks.make_recurrent_ppo_networks(
    _SIZES,
    2,
    cell=cell,
    policy_hidden_layer_sizes=(5, 6),
    value_hidden_layer_sizes=(8,),
    policy_memory_size=3,
    value_memory_size=4,
    policy_obs_key='other',
    value_obs_key='privileged_state',
    trainable_initial_state=True,
  )

  # Memory comes after the first dense layer.
  assert _shapes(networks, 'action') == [(7, 5), (3, 6), (6, 4)]
  assert _shapes(networks, 'value') == [(4, 8), (4, 1)]
  for port, size in (('action', 3), ('value', 4)):
    (memory,) = _modules(networks, port, factories.CELLS[cell])
    carry = memory.initialize_state(2)
    assert {leaf.shape for leaf in jax.tree.leaves(carry)} == {(2, size)}
  names = networks.functions.template.parameter_names()
  learned = [n for n in names if any('initial' in part for part in n)]
  assert len(learned) == len(jax.tree.leaves(carry)) * 2


@pytest.mark.parametrize(
  ('policy_size', 'value_size'), [(3, None), (None, 3), (None, None)]
)
def test_either_memory_can_be_left_out(policy_size, value_size):
  networks = ppo_networks.make_recurrent_ppo_networks(
    (3,), 2, policy_memory_size=policy_size, value_memory_size=value_size
  )

  for port, size in (('action', policy_size), ('value', value_size)):
    assert len(_modules(networks, port, factories.CELLS['lstm'])) == (
      size is not None
    )
  assert networks.functions.stateful == bool(policy_size or value_size)


@pytest.mark.parametrize(
  'factory',
  [ppo_networks.make_ppo_networks, ppo_networks.make_recurrent_ppo_networks],
)
@pytest.mark.parametrize('normalize_inputs', [False, True])
def test_the_normalizer_stands_in_front_of_both_ports(
  factory, normalize_inputs
):
  networks = factory((3,), 2, normalize_inputs=normalize_inputs)
  variables = _init(networks)

  modules = networks.functions.template.module(
    (variables.params.policy, variables.params.value),
    (variables.statistics.policy, variables.statistics.value),
  )
  found = [m for _, m in nnx.iter_modules(modules) if isinstance(m, Normalizer)]
  assert len(found) == normalize_inputs
  statistics = jax.tree.leaves(variables.statistics)
  assert sorted(leaf.shape for leaf in statistics) == (
    [(), (3,), (3,)] if normalize_inputs else []
  )


@pytest.mark.parametrize(
  ('factory', 'kwargs', 'message'),
  [
    (
      ppo_networks.make_ppo_networks,
      {'policy_obs_key': 'stat'},
      "no observation 'stat'.*other.*privileged_state.*state",
    ),
    (
      ppo_networks.make_recurrent_ppo_networks,
      {'value_obs_key': 'pixels'},
      "no observation 'pixels'",
    ),
    (
      ppo_networks.make_ppo_networks,
      {'activation': 'swosh'},
      "no activation 'swosh'.*swish",
    ),
    (
      ppo_networks.make_recurrent_ppo_networks,
      {'cell': 'elman'},
      "no cell 'elman'.*lstm, gru",
    ),
  ],
)
def test_an_unknown_choice_is_answered_with_the_known_ones(
  factory, kwargs, message
):
  with pytest.raises(ValueError, match=message):
    factory(_SIZES, 2, **kwargs)


@pytest.mark.parametrize(
  'factory',
  [ppo_networks.make_ppo_networks, ppo_networks.make_recurrent_ppo_networks],
)
def test_an_unknown_argument_is_an_error(factory):
  with pytest.raises(TypeError, match='hidden_sizes'):
    factory((3,), 2, hidden_sizes=(3,))


def _playground_configs() -> list[dict[str, Any]]:
  """Returns the network arguments of Playground, one for each set of names."""
  found: dict[Any, dict[str, Any]] = {}
  for env_name in registry.ALL_ENVS:
    for module in (
      dm_control_suite_params,
      locomotion_params,
      manipulation_params,
    ):
      try:
        config = module.brax_ppo_config(env_name)
      except ValueError:  # not an environment of this suite
        continue
      arguments = config.get('network_factory')
      if arguments is not None:
        found[tuple(sorted(arguments))] = arguments.to_dict()
  return list(found.values())


def test_the_configurations_of_playground_are_taken_as_they_are():
  configs = _playground_configs()

  assert configs, 'Playground configures no network'
  for config in configs:
    networks = ppo_networks.make_ppo_networks(_SIZES, 2, **config)
    variables = jax.eval_shape(
      networks.functions.init, jax.random.key(0), jax.random.key(0)
    )
    for side, last in (('policy', 4), ('value', 1)):
      tree = getattr(variables.params, side)
      kernels = {x.shape for x in jax.tree.leaves(tree) if x.ndim == 2}
      sizes = config[f'{side}_hidden_layer_sizes']
      key = config.get(f'{side}_obs_key', 'state')
      widths = (*_SIZES[key], *sizes, last)
      assert kernels == set(zip(widths[:-1], widths[1:], strict=True))


def test_each_key_initializes_one_side():
  """As Brax does: policy_network.init(key), value_network.init(key)."""
  networks = ppo_networks.make_ppo_networks((3,), 2)
  key_policy, key_value = jax.random.split(jax.random.PRNGKey(0))
  both = networks.functions.init(key_policy, key_value)

  policy = networks.policy_network.init(key_policy)
  value = networks.value_network.init(key_value)
  swapped = networks.functions.init(key_value, key_policy)

  jax.tree.map(np.testing.assert_array_equal, both.params.policy, policy)
  jax.tree.map(np.testing.assert_array_equal, both.params.value, value)
  for side in ('policy', 'value'):
    kernels = [
      np.array_equal(a, b)
      for a, b in zip(
        jax.tree.leaves(getattr(both.params, side)),
        jax.tree.leaves(getattr(swapped.params, side)),
        strict=True,
      )
      if a.ndim == 2
    ]
    assert not any(kernels)
