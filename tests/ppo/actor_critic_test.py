"""Options of the factories: names, refusals, and that they arrive."""

from typing import Any

from brax.training import networks as brax_modules
from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
from mujoco_playground.config import dm_control_suite_params
from mujoco_playground.config import manipulation_params
import numpy as np
import pytest

from brax_nnx_plugin.networks import activations
from brax_nnx_plugin.ppo import actor_critic
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_vision
from tests import small_runs

_SEEN = {'pixels/view_0': (16, 16, 3), 'state': (3,)}
_SMALL_CNN: dict[str, Any] = {
  'policy_hidden_layer_sizes': (4,),
  'value_hidden_layer_sizes': (4,),
  'cnn_output_channels': (2,),
  'cnn_kernel_size': (3,),
  'cnn_stride': (2,),
}
_MLP = ppo_networks.make_ppo_networks
_LSTM = ppo_networks.make_recurrent_ppo_networks
_VISION = networks_vision.make_ppo_networks_vision


def test_activations_of_brax_that_keep_the_shape_have_their_name():
  x = jnp.array([[-3.0, -0.5, 0.2, 4.0]])
  for name, fn in activations.ACTIVATIONS.items():
    expected = brax_modules.ACTIVATION[name](x)
    np.testing.assert_array_equal(fn(x), expected, err_msg=name)
  # They need more arguments or change the shape.
  left_out = {'compact', 'glu', 'logsumexp', 'one_hot'}
  assert brax_modules.ACTIVATION.keys() - activations.ACTIVATIONS == left_out


_KWARGS = {
  'constant': {'value': 0.5},
  'variance_scaling': {
    'scale': 2.0,
    'mode': 'fan_in',
    'distribution': 'uniform',
  },
}


@pytest.mark.parametrize('name', sorted(brax_modules.KERNEL_INITIALIZER))
def test_an_initializer_goes_by_its_name(name):
  kwargs = _KWARGS.get(name, {})
  shape = (3, 4, 4) if name == 'delta_orthogonal' else (4, 4)
  key = jax.random.key(0)

  fn = brax_modules.KERNEL_INITIALIZER[name]
  expected = fn if name in ('ones', 'zeros') else fn(**kwargs)

  for given in (name, fn):
    made = actor_critic.initializer('x', given, kwargs)
    np.testing.assert_array_equal(
      made(key, shape, jnp.float32), expected(key, shape, jnp.float32)
    )


@pytest.mark.parametrize(
  ('factory', 'kwargs', 'message'),
  [
    (_MLP, {'distribution_type': 'beta'}, "'beta'.*tanh_normal, normal"),
    (_LSTM, {'noise_std_type': 'exp'}, "noise_std_type 'exp'.*scalar, log"),
    (
      _MLP,
      {'value_network_kernel_init_fn': 'lecun'},
      "value_network_kernel_init_fn: there is no.*'lecun'.*lecun_normal",
    ),
    (_LSTM, {'mean_kernel_init_fn': 'x'}, "mean_kernel_init_fn: .*'x'"),
    (_VISION, {'cnn_kernel_init_fn': 'x'}, "cnn_kernel_init_fn: .*'x'"),
    (_VISION, {'cnn_activation': 'rleu'}, "no activation 'rleu'"),
    (_VISION, {'cnn_global_pool': 'mean'}, "pool 'mean'.*avg, max"),
    (_VISION, {'policy_obs_key': 'stat'}, "no observation 'stat'"),
    (_VISION, {'value_obs_key': 'pixels/view_0'}, 'flat'),
    (
      _LSTM,
      {'use_distributional_critic': True, 'num_quantiles': 0},
      'num_quantiles .* got 0',
    ),
  ],
)
def test_a_choice_that_is_not_there_is_explained(factory, kwargs, message):
  with pytest.raises(ValueError, match=message):
    factory(_SEEN, 2, **kwargs)


@pytest.mark.parametrize('size', [(3,), {'state': (3,)}])
def test_a_network_that_sees_needs_images(size):
  with pytest.raises(ValueError, match=r'named pixels/\.\.\..*3|state'):
    _VISION(size, 2)


def test_a_recurrent_policy_may_be_normal():
  networks: Any = small_runs.small_lstm(
    (3,),
    2,
    distribution_type='normal',
    noise_std_type='log',
    init_noise_std=0.5,
    mean_clip_scale=0.1,
    mean_kernel_init_fn='constant',
    mean_kernel_init_kwargs={'value': 1e4},
  )
  keys = jax.random.split(jax.random.PRNGKey(0))
  variables = networks.functions.init(*keys)
  state = networks.functions.initial_state(variables, 4)
  out = networks.functions.step(
    variables, None, state, jnp.ones((4, 3)), jax.random.PRNGKey(1)
  )

  np.testing.assert_allclose(out.scale, 0.5, rtol=1e-6)
  np.testing.assert_array_equal(out.action, out.raw_action)
  # A large kernel: the mean is at its bound.
  np.testing.assert_allclose(np.abs(out.loc), 0.1, rtol=0.1)
  assert np.all(np.abs(out.loc) < 0.1)


def test_initializers_reach_the_layers_of_a_vision_network():
  fill = {'cnn': 0.5, 'policy_network': 0.25, 'output': 0.125}
  kwargs: dict[str, Any] = {}
  for name, value in fill.items():
    kwargs[f'{name}_kernel_init_fn'] = 'constant'
    kwargs[f'{name}_kernel_init_kwargs'] = {'value': value}
  networks: Any = _VISION(
    _SEEN,
    2,
    **(_SMALL_CNN | kwargs),
  )
  params = networks.policy_network.init(jax.random.PRNGKey(0))

  found = [
    float(np.unique(x).item()) for x in jax.tree.leaves(params) if x.ndim > 1
  ]
  assert found == list(fill.values())
  value = networks.value_network.init(jax.random.PRNGKey(0))
  assert sum(len(np.unique(x)) == 1 for x in jax.tree.leaves(value)) == 4


@pytest.mark.parametrize(
  'config',
  [
    dm_control_suite_params.brax_vision_ppo_config('CartpoleBalance'),
    manipulation_params.brax_vision_ppo_config('PandaPickCubeCartesian'),
  ],
)
def test_vision_configurations_of_playground_are_taken(config):
  arguments = config.network_factory.to_dict()
  networks: Any = _VISION({'pixels/view_0': (64, 64, 3)}, 2, **arguments)

  params = jax.eval_shape(networks.policy_network.init, jax.random.PRNGKey(0))
  sizes = [x.shape for x in jax.tree.leaves(params) if x.ndim == 2]
  assert [n for _, n in sizes] == [*arguments['policy_hidden_layer_sizes'], 4]


@pytest.mark.parametrize('name', ['normal', 'vision'])
def test_stock_inference_acts_with_them(name):
  networks: Any = {
    'normal': lambda: small_runs.small_mlp(
      _SEEN, 2, distribution_type='normal', state_dependent_std=True
    ),
    'vision': lambda: _VISION(_SEEN, 2, policy_obs_key='state', **_SMALL_CNN),
  }[name]()
  keys = jax.random.split(jax.random.PRNGKey(0))
  params = (
    None,
    networks.policy_network.init(keys[0]),
    networks.value_network.init(keys[1]),
  )
  observation = {k: jnp.ones((3, 2, *n)) for k, n in _SEEN.items()}

  policy: Any = brax_networks.make_inference_fn(networks, True)(params)
  action, extras = policy(observation, keys[0])

  assert networks.brax_compatible
  assert action.shape == (3, 2, 2)
  assert extras['value'].shape == (3, 2)
