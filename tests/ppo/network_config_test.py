"""Writing a network down and building it again."""

import functools
import json
from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import network_config
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_extra
from brax_nnx_plugin.ppo import networks_vision
from tests import fakes
from tests import small_runs

_DICT = {'state': (3,), 'privileged_state': (4,)}


def _written(factory: Any, size: Any = (3,), actions: Any = 2) -> Any:
  """Describes a network, by way of a file."""
  config = network_config.network_config(
    factory, size, actions, False, std_eps=0.0, mode='welford'
  )
  return json.loads(json.dumps(config))


def _variables(networks: Any) -> Any:
  keys = jax.random.split(jax.random.PRNGKey(0))
  return jax.jit(networks.functions.init)(*keys)


_NUMPY: dict[str, Any] = {
  'policy_hidden_layer_sizes': np.array([5, 6]),
  'value_hidden_layer_sizes': [np.int64(4), 3],
  'normalize_inputs': np.bool_(True),
}
_FACTORIES: dict[str, Any] = {
  'an MLP': small_runs.small_mlp,
  'an LSTM': small_runs.small_lstm,
  'a partial of a partial': functools.partial(
    functools.partial(
      small_runs.small_lstm, cell='lstm', normalize_inputs=True
    ),
    cell='gru',
  ),
  'NumPy and JAX numbers': functools.partial(
    ppo_networks.make_ppo_networks,
    mean_kernel_init_fn=jax.nn.initializers.uniform,
    mean_kernel_init_kwargs={'scale': jnp.array(0.5)},
    **_NUMPY,
  ),
  'functions': functools.partial(
    small_runs.small_mlp,
    activation=jax.nn.tanh,
    policy_network_kernel_init_fn=jax.nn.initializers.variance_scaling,
    policy_network_kernel_init_kwargs={
      'scale': np.float32(0.5),
      'mode': 'fan_in',
      'distribution': 'uniform',
    },
    mean_kernel_init_fn=jax.nn.initializers.lecun_normal,
  ),
  'names': functools.partial(
    small_runs.small_mlp,
    activation='gelu',
    policy_network_kernel_init_fn='orthogonal',
  ),
  'a normal distribution': functools.partial(
    small_runs.small_mlp,
    distribution_type='normal',
    noise_std_type='log',
    init_noise_std=0.5,
    mean_clip_scale=2.0,
  ),
  'a delay': functools.partial(
    networks_extra.make_delayed_ppo_networks,
    observation_delay=3,
    activation=jax.nn.tanh,
    policy_hidden_layer_sizes=(5,),
    value_hidden_layer_sizes=(6,),
  ),
  'a bottleneck': functools.partial(
    networks_extra.make_variational_ppo_networks,
    latent_size=2,
    policy_hidden_layer_sizes=(5,),
    value_hidden_layer_sizes=(6,),
  ),
}


@pytest.mark.parametrize('name', _FACTORIES)
@pytest.mark.parametrize('size', [(3,), _DICT], ids=['flat', 'dict'])
def test_a_network_is_built_again_from_its_description(name, size):
  factory = _FACTORIES[name]
  expected = _variables(factory(size, 2))

  networks = network_config.make_networks(_written(factory, size, np.int64(2)))

  # Equal initial weights: same shapes, same initializers.
  found = _variables(networks)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  # Equal outputs: same activations, same routes.
  outputs = [_step(n, expected, size) for n in (networks, factory(size, 2))]
  np.testing.assert_array_equal(outputs[0].action, outputs[1].action)
  np.testing.assert_array_equal(outputs[0].value, outputs[1].value)


def _step(networks: Any, variables: Any, size: Any) -> Any:
  observation = jax.tree.map(
    lambda n: jnp.arange(4.0).reshape(4, *(1,) * len(n)) * jnp.ones(n),
    size,
    is_leaf=lambda n: isinstance(n, tuple),
  )
  functions = networks.functions
  state = functions.initial_state(variables, 4)
  return functions.step(
    variables, None, state, observation, jax.random.PRNGKey(2)
  )


@pytest.mark.parametrize('normalize_inputs', [False, True])
def test_sizes_may_be_numpy_numbers(normalize_inputs):
  factory: Any = functools.partial(
    small_runs.small_mlp, normalize_inputs=normalize_inputs
  )

  config = _written(factory, (np.int32(3),), np.int64(2))
  factory((np.int32(3),), np.int64(2))

  networks = network_config.make_networks(config)
  jax.tree.map(
    np.testing.assert_array_equal,
    _variables(networks),
    _variables(factory((3,), 2)),
  )


@pytest.mark.parametrize('keys', [('activation',), ('initializer', 'state')])
def test_an_observation_is_not_taken_for_a_function(keys):
  size = dict.fromkeys(keys, (3,))
  factory = functools.partial(
    small_runs.small_mlp, policy_obs_key=keys[0], value_obs_key=keys[0]
  )

  networks = network_config.make_networks(_written(factory, size))

  jax.tree.map(
    np.testing.assert_array_equal,
    _variables(networks),
    _variables(factory(size, 2)),
  )


@pytest.mark.parametrize(
  ('kwargs', 'name'),
  [
    ({'activation': lambda x: x}, 'activation'),
    ({'mean_kernel_init_fn': lambda: None}, 'mean_kernel_init_fn'),
    (
      {'mean_kernel_init_kwargs': {'scale': object()}},
      'mean_kernel_init_kwargs.scale',
    ),
  ],
)
def test_what_cannot_be_written_is_named(kwargs, name):
  factory = functools.partial(small_runs.small_mlp, **kwargs)

  with pytest.raises(ValueError, match=rf'{name} = .*save_checkpoint_path'):
    _written(factory)


def test_one_argument_is_not_taken_for_a_function():
  for kwargs in (
    {'activation': jax.nn.relu},
    {'mean_kernel_init_fn': jax.nn.initializers.normal},
  ):
    factory = functools.partial(ppo_networks.make_ppo_networks, **kwargs)
    made = network_config.make_networks(_written(factory))
    assert made.brax_compatible


def test_a_vision_network_is_built_again():
  size = {'pixels/view_0': (8, 8, 3), 'state': (3,)}
  factory = functools.partial(
    networks_vision.make_ppo_networks_vision,
    policy_obs_key='state',
    cnn_output_channels=(2, 3),
    cnn_kernel_size=(3, 2),
    cnn_stride=(2, 1),
    cnn_activation=jax.nn.elu,
    cnn_kernel_init_fn=jax.nn.initializers.orthogonal,
    cnn_kernel_init_kwargs={'scale': 1.5},
  )
  expected = _variables(factory(size, 2))

  networks = network_config.make_networks(_written(factory, size))

  found = _variables(networks)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  outputs = [_step(n, expected, size) for n in (networks, factory(size, 2))]
  np.testing.assert_array_equal(outputs[0].action, outputs[1].action)


def test_positional_arguments_cannot_be_written():
  factory = functools.partial(ppo_networks.make_ppo_networks, (3,))

  with pytest.raises(ValueError, match='positional.*by name'):
    _written(factory)


@pytest.mark.parametrize(
  'factory',
  [
    ppo_networks.make_network_factory(fakes.count_network),
    functools.partial(ppo_networks.make_network_factory(fakes.count_network)),
    brax_networks.make_ppo_networks,
    lambda *args, **kwargs: small_runs.small_mlp(*args, **kwargs),
  ],
)
def test_a_factory_of_the_user_must_be_given_again(factory):
  config = _written(factory, (2,), 1)

  with pytest.raises(ValueError, match='network_factory='):
    network_config.make_networks(config)
  made = network_config.make_networks(config, factory)
  assert hasattr(made, 'parametric_action_distribution')


def test_nothing_that_a_file_names_is_imported():
  config = _written(ppo_networks.make_ppo_networks)

  for name in ('os:system', 'brax_nnx_plugin.ppo.networks:jax', 'antigravity:'):
    with pytest.raises(ValueError, match='not a built-in factory'):
      network_config.make_networks(config | {'network_factory': name})


def test_the_normalizer_of_brax_comes_back():
  config = network_config.network_config(
    small_runs.small_mlp, (3,), 2, True, std_eps=0.5, mode='ema'
  )
  assert config['normalizer'] == {'std_eps': 0.5, 'mode': 'ema'}

  networks = network_config.make_networks(json.loads(json.dumps(config)))

  # (x - mean) / std with mean 1 and std 2 turns 3 into 1.
  spec = jax.ShapeDtypeStruct((3,), jnp.float32)
  statistics: Any = running_statistics.init_state(spec)
  statistics = statistics.replace(mean=jnp.ones(3), std=jnp.full(3, 2.0))
  plain: Any = small_runs.small_mlp((3,), 2)
  weights = _variables(plain).params.policy
  np.testing.assert_allclose(
    networks.policy_network.apply(statistics, weights, jnp.full((1, 3), 3.0)),
    plain.policy_network.apply(None, weights, jnp.ones((1, 3))),
    rtol=1e-6,
  )
