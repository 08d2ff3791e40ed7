"""Parameters of stock Brax runs in networks of this package."""

import functools
from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import checkpoint as brax_checkpoint
from brax.training.agents.ppo import networks as brax_networks
from brax.training.agents.ppo import networks_vision as brax_vision
from flax.core import frozen_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import convert
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_vision

_SIZES: dict[str, Any] = {
  'policy_hidden_layer_sizes': (4, 4),
  'value_hidden_layer_sizes': (6, 6),
}
_stock = functools.partial(brax_networks.make_ppo_networks, **_SIZES)
_twin = functools.partial(ppo_networks.make_ppo_networks, **_SIZES)
_DICT: Any = {'state': (3,), 'privileged_state': (2,)}
_SEEN: Any = {'pixels/view_0': (8, 8, 3), 'state': (3,)}
_CNN: dict[str, Any] = _SIZES | {
  'cnn_output_channels': (2,),
  'cnn_kernel_size': (3,),
  'cnn_stride': (2,),
  'policy_obs_key': 'state',
}
_stock_vision = functools.partial(brax_vision.make_ppo_networks_vision, **_CNN)


def _observation(size: Any) -> Any:
  """Draws four rows, far from standardised."""
  rng = np.random.default_rng(0)
  draw = lambda shape: jnp.asarray(rng.normal(3, 2, (4, *shape)), jnp.float32)
  return jax.tree.map(draw, size, is_leaf=lambda n: isinstance(n, tuple))


def _statistics(observation: Any) -> Any:
  """Brax's statistics of what is no image."""
  if isinstance(observation, dict):
    observation = {k: v for k, v in observation.items() if '/' not in k}
  spec = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), observation
  )
  state = running_statistics.init_state(spec)
  return running_statistics.update(state, observation)


def _stock_run(factory: Any, size: Any) -> Any:
  """Returns a stock network with Brax's normalizer, and parameters for it."""
  networks = factory(
    size, 2, preprocess_observations_fn=running_statistics.normalize
  )
  keys = jax.random.split(jax.random.PRNGKey(1))
  params = (
    _statistics(_observation(size)),
    networks.policy_network.init(keys[0]),
    networks.value_network.init(keys[1]),
  )
  return networks, params


def _act(networks: Any, params: Any, size: Any) -> tuple[Any, Any]:
  """Returns actions and values, as stock or our policies give them."""
  make = ppo_networks.make_inference_fn(networks, compute_value=True)
  action, extras = make(params)(_observation(size), jax.random.PRNGKey(2))
  return action, extras['value']


def _assert_acts_alike(theirs: Any, ours: Any, size: Any) -> None:
  # A distributional critic of Brax says its quantiles beside the value.
  both = [
    jax.tree.leaves(_act(networks, params, size))
    for networks, params in (theirs, ours)
  ]
  for expected, found in zip(*both, strict=True):
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize('normalize_inputs', [False, True])
@pytest.mark.parametrize('size', [(3,), _DICT], ids=['flat', 'dict'])
def test_the_normalizer_is_converted(size, normalize_inputs):
  stock = _stock_run(_stock, size)
  ours: Any = _twin(
    size,
    2,
    preprocess_observations_fn=running_statistics.normalize,
    normalize_inputs=normalize_inputs,
  )

  params = convert.from_brax(stock[1], ours)

  _assert_acts_alike(stock, (ours, params), size)


def test_a_run_that_measured_nothing_has_a_normalizer_that_does_nothing():
  networks, params = _stock_run(_stock, (3,))
  spec = jax.ShapeDtypeStruct((3,), jnp.float32)
  params = (running_statistics.init_state(spec), *params[1:])
  ours: Any = _twin((3,), 2, normalize_inputs=True)

  converted = convert.from_brax(params, ours)

  _assert_acts_alike((networks, params), (ours, converted), (3,))


def _saved(factory: Any, size: Any, folder: Any) -> tuple[Any, Any, Any]:
  """Saves a stock run as Brax does; returns it and the checkpoint's folder."""
  networks, params = _stock_run(factory, size)
  config = brax_checkpoint.network_config(size, 2, True, factory)
  brax_checkpoint.save(folder, 7, params, config)
  return networks, params, folder / '000000000007'


_SAVED: dict[str, tuple[Any, Any]] = {
  'defaults': (_stock, (3,)),
  'options': (
    functools.partial(
      _stock,
      activation=jax.nn.tanh,
      value_obs_key='privileged_state',
      distribution_type='normal',
      noise_std_type='log',
      mean_clip_scale=2.0,
      mean_kernel_init_fn=jax.nn.initializers.orthogonal,
      mean_kernel_init_kwargs={'scale': 0.1},
    ),
    _DICT,
  ),
  'quantiles': (
    functools.partial(_stock, use_distributional_critic=True, num_quantiles=5),
    (3,),
  ),
  'vision': (
    functools.partial(
      _stock_vision,
      cnn_activation=jax.nn.elu,
      cnn_kernel_init_fn=jax.nn.initializers.orthogonal,
    ),
    _SEEN,
  ),
}


@pytest.mark.parametrize('case', _SAVED)
def test_a_checkpoint_of_stock_brax_is_read(case, tmp_path):
  factory, size = _SAVED[case]
  networks, params, folder = _saved(factory, size, tmp_path)

  ours = convert.from_brax_checkpoint(folder)

  _assert_acts_alike((networks, params), ours, size)


def test_what_brax_loads_is_converted_and_saved_as_ours(tmp_path):
  networks, params, folder = _saved(_stock, (3,), tmp_path)
  ours = _twin((3,), 2, preprocess_observations_fn=running_statistics.normalize)
  converted = convert.from_brax(brax_checkpoint.load(folder), ours)
  config = checkpoint.network_config(
    _twin, (3,), 2, True, std_eps=0.0, mode='welford'
  )

  saved = checkpoint.save(tmp_path / 'ours', 8, converted, config)

  _assert_acts_alike((networks, params), checkpoint.load(saved), (3,))


def test_an_argument_that_brax_could_not_write_is_given_again(tmp_path):
  def bend(x):
    return jnp.sin(x)

  factory = functools.partial(_stock_vision, cnn_activation=bend)
  networks, params, folder = _saved(factory, _SEEN, tmp_path)

  with pytest.raises(ValueError, match="no activation 'bend'"):
    convert.from_brax_checkpoint(folder)
  ours = convert.from_brax_checkpoint(
    folder,
    functools.partial(
      networks_vision.make_ppo_networks_vision, **_CNN, cnn_activation=bend
    ),
  )
  _assert_acts_alike((networks, params), ours, _SEEN)


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
  with pytest.raises(ValueError, match='ppo_network_config.json.*one checkp'):
    convert.from_brax_checkpoint(tmp_path)


def test_every_leaf_that_does_not_fit_is_named():
  _, params = _stock_run(_stock, (3,))
  normal: Any = ppo_networks.make_ppo_networks(
    (3,),
    2,
    policy_hidden_layer_sizes=(4, 5, 5),
    value_hidden_layer_sizes=(6,),
    distribution_type='normal',
  )

  with pytest.raises(ValueError, match='do not fit') as error:
    convert.from_brax(params, normal)

  for part in (
    'policy/params/hidden_1/kernel has shape (4, 4) where (4, 5)',
    'policy/params/components/action/components/2/linear/kernel is needed',
    'policy/params/components/action/components/4/std is needed',
    'policy/params/hidden_2/bias has shape (4,) where (2,)',
    'value/params/hidden_1/bias is given and not needed',
  ):
    assert part in str(error.value)
  # The first layers fit.
  assert 'hidden_0' not in str(error.value)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda p: p[1:], 'triple.*tuple of 2'),
    (lambda p: {'policy': p[1]}, 'triple.*dict'),
    (lambda p: (None, *p[1:]), 'Embedded.*a NoneType'),
    (lambda p: (p[0].replace(mean=jnp.zeros(5)), *p[1:]), 'do not fit.*mean'),
  ],
)
def test_parameters_of_another_form_are_refused(change, message):
  _, params = _stock_run(_stock, (3,))
  ours = _twin((3,), 2, normalize_inputs=True)

  with pytest.raises(ValueError, match=message):
    convert.from_brax(change(params), ours)


def test_a_stock_network_is_no_target():
  networks, params = _stock_run(_stock, (3,))

  with pytest.raises(TypeError, match='factory of this package'):
    convert.from_brax(params, networks)


def test_frozen_parameters_are_read():
  networks, params = _stock_run(_stock, (3,))
  frozen = (params[0], *map(frozen_dict.freeze, params[1:]))
  ours: Any = _twin(
    (3,), 2, preprocess_observations_fn=running_statistics.normalize
  )

  converted = convert.from_brax(frozen, ours)

  _assert_acts_alike((networks, params), (ours, converted), (3,))
