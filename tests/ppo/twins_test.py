"""NNX twins of Brax's factories against Brax, weights copied."""

import inspect
from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_networks
from brax.training.agents.ppo import networks_vision as brax_vision
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import convert
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_vision

_ROWS, _ACTIONS = 3, 2
_FLAT: Any = (5,)
_DICT = {'state': (5,), 'privileged_state': (4,)}
_SEEN = {'pixels/left': (12, 10, 3), 'state': (4,), 'pixels/right': (9, 9, 2)}
_SMALL: dict[str, Any] = {
  'policy_hidden_layer_sizes': (4, 3),
  'value_hidden_layer_sizes': (6,),
}
_CNN: dict[str, Any] = _SMALL | {
  'cnn_output_channels': (3, 4),
  'cnn_kernel_size': (3, 2),
  'cnn_stride': (2, 1),
}
_NORMAL = {'distribution_type': 'normal', 'init_noise_std': 0.7}

_MLPS: dict[str, tuple[Any, dict[str, Any]]] = {
  'small': (_FLAT, _SMALL),
  'no hidden layers': (
    _FLAT,
    {'policy_hidden_layer_sizes': (), 'value_hidden_layer_sizes': ()},
  ),
  'another activation': (_FLAT, _SMALL | {'activation': jnp.sin}),
  'a dict': (_DICT, _SMALL),
  'two keys': (_DICT, _SMALL | {'value_obs_key': 'privileged_state'}),
  'normal': (_FLAT, _SMALL | _NORMAL),
  'normal, log': (_FLAT, _SMALL | _NORMAL | {'noise_std_type': 'log'}),
  'normal, of the state': (
    _FLAT,
    _SMALL | _NORMAL | {'state_dependent_std': True},
  ),
  'normal, log, of the state': (
    _DICT,
    _SMALL | _NORMAL | {'state_dependent_std': True, 'noise_std_type': 'log'},
  ),
  'normal, clipped': (_FLAT, _SMALL | _NORMAL | {'mean_clip_scale': 0.1}),
  # Brax ignores them too, with this distribution.
  'squashed, not clipped': (
    _FLAT,
    _SMALL | {'mean_clip_scale': 0.1, 'state_dependent_std': True},
  ),
}
_VISION: dict[str, dict[str, Any]] = {
  'images alone': _CNN,
  'and a state': _CNN | {'policy_obs_key': 'state', 'value_obs_key': 'state'},
  'a state for the critic': _CNN | {'value_obs_key': 'state'},
  'valid': _CNN | {'cnn_padding': 'valid'},
  'a padding of flax': _CNN | {'cnn_padding': 'CIRCULAR'},
  'max pool': _CNN | {'cnn_max_pool': True},
  'global max': _CNN | {'cnn_global_pool': 'max'},
  'no global pool': _CNN | {'cnn_global_pool': 'none'},
  'spatial softmax': _CNN | {'cnn_global_pool': 'spatial_softmax'},
  'normalised': _CNN | {'normalise_channels': True},
  'activations': _CNN | {'activation': jnp.sin, 'cnn_activation': 'elu'},
  'normal': _CNN | _NORMAL | {'policy_obs_key': 'state'},
  'normal, of the state': (
    _CNN
    | _NORMAL
    | {
      'state_dependent_std': True,
      'noise_std_type': 'log',
      'mean_clip_scale': 0.5,
    }
  ),
}


def _randomised(params: Any) -> Any:
  """Adds to every weight: zero biases would not tell whether they are used."""
  leaves, treedef = jax.tree.flatten(params)
  rng = np.random.default_rng(0)
  noise = [0.2 * rng.uniform(0.1, 1, x.shape).astype('f') for x in leaves]
  return jax.tree.unflatten(
    treedef, [x + n for x, n in zip(leaves, noise, strict=True)]
  )


def _observation(size: Any, dtype: Any = jnp.float32) -> Any:
  """Draws rows of an observation, its images as `dtype`."""
  rng = np.random.default_rng(1)

  def draw(name, shape):
    if str(name).startswith('pixels/'):
      bytes_ = rng.integers(0, 256, (_ROWS, *shape))
      scale = 1 if dtype == jnp.uint8 else 255
      return jnp.asarray(bytes_ / scale, dtype)
    return jnp.asarray(rng.normal(1, 2, (_ROWS, *shape)), jnp.float32)

  if not isinstance(size, dict):
    return draw('', size)
  # As a jitted step returns it: sorted by name.
  return {name: draw(name, size[name]) for name in sorted(size)}


def _statistics(observation: Any) -> Any:
  """Brax's statistics of an observation without its images."""
  if isinstance(observation, dict):
    observation = {k: v for k, v in observation.items() if '/' not in k}
  if not jax.tree.leaves(observation):
    return None
  spec = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), observation
  )
  state = running_statistics.init_state(spec)
  return running_statistics.update(state, observation)


def _pair(
  stock_factory: Any, factory: Any, size: Any, kwargs: Any
) -> tuple[Any, Any]:
  """Makes both networks with the same weights: (network, params) of each."""
  stock, ours = (
    make(
      size,
      _ACTIONS,
      preprocess_observations_fn=running_statistics.normalize,
      **kwargs,
    )
    for make in (stock_factory, factory)
  )
  keys = jax.random.split(jax.random.PRNGKey(2))
  params = (
    _statistics(_observation(size)),
    _randomised(stock.policy_network.init(keys[0])),
    _randomised(stock.value_network.init(keys[1])),
  )
  return (stock, params), (ours, convert.from_brax(params, ours))


def _assert_same(theirs: Any, ours: Any, observation: Any) -> None:
  """Checks parameters, values, actions and their scores of two networks."""
  key = jax.random.PRNGKey(3)
  outputs = []
  for networks, params in (theirs, ours):
    policy: Any = brax_networks.make_inference_fn(networks, True)(params)
    action, extras = policy(observation, key)
    logits = extras['distribution_params']
    if isinstance(logits, tuple):
      logits = jnp.concatenate(logits, axis=-1)
    dist = networks.parametric_action_distribution
    given = extras['distribution_params']
    outputs.append(
      {
        'parameters': logits,
        'value': extras['value'],
        'action': action,
        'raw_action': extras['raw_action'],
        'log_prob': extras['log_prob'],
        'mode': dist.mode(given),
        'entropy': dist.entropy(given, key),
      }
    )
  for name, expected in outputs[0].items():
    scale = max(1.0, float(jnp.max(jnp.abs(expected))))
    np.testing.assert_allclose(
      outputs[1][name] / scale, expected / scale, atol=1e-6, err_msg=name
    )


@pytest.mark.parametrize('case', _MLPS)
def test_an_mlp_is_that_of_brax(case):
  size, kwargs = _MLPS[case]
  stock, ours = _pair(
    brax_networks.make_ppo_networks,
    ppo_networks.make_ppo_networks,
    size,
    kwargs,
  )

  _assert_same(stock, ours, _observation(size))


@pytest.mark.parametrize('case', _VISION)
def test_a_vision_network_is_that_of_brax(case):
  stock, ours = _pair(
    brax_vision.make_ppo_networks_vision,
    networks_vision.make_ppo_networks_vision,
    _SEEN,
    _VISION[case],
  )

  _assert_same(stock, ours, _observation(_SEEN))


@pytest.mark.parametrize('normalise', [False, True])
def test_bytes_are_read_as_brax_reads_them(normalise):
  stock, ours = _pair(
    brax_vision.make_ppo_networks_vision,
    networks_vision.make_ppo_networks_vision,
    _SEEN,
    _CNN | {'normalise_channels': normalise},
  )

  _assert_same(stock, ours, _observation(_SEEN, jnp.uint8))


def test_the_order_of_the_images_does_not_matter():
  (_, _), (networks, params) = _pair(
    brax_vision.make_ppo_networks_vision,
    networks_vision.make_ppo_networks_vision,
    _SEEN,
    _CNN | {'policy_obs_key': 'state'},
  )
  observation = _observation(_SEEN)
  backwards = dict(reversed(observation.items()))

  apply: Any = networks.policy_network.apply
  np.testing.assert_array_equal(
    apply(params[0], params[1], observation),
    apply(params[0], params[1], backwards),
  )


@pytest.mark.parametrize(
  ('stock', 'ours', 'more'),
  [
    (
      brax_networks.make_ppo_networks,
      ppo_networks.make_ppo_networks,
      ['normalize_inputs'],
    ),
    (
      brax_vision.make_ppo_networks_vision,
      networks_vision.make_ppo_networks_vision,
      [],
    ),
  ],
)
def test_arguments_and_defaults_are_those_of_brax(stock, ours, more):
  expected = inspect.signature(stock).parameters
  found = inspect.signature(ours).parameters

  assert list(found) == [*expected, *more]
  for name, parameter in expected.items():
    assert found[name].default == parameter.default, name


def test_recurrent_networks_take_what_can_be_said_of_any_policy():
  stock = inspect.signature(brax_networks.make_ppo_networks).parameters
  ours = inspect.signature(ppo_networks.make_recurrent_ppo_networks).parameters

  assert not stock.keys() - ours.keys()
  sizes = {'policy_hidden_layer_sizes', 'value_hidden_layer_sizes'}
  for name in stock.keys() - sizes:
    assert ours[name].default == stock[name].default, name
