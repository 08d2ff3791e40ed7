"""An MLP that sees late, and one with a bottleneck."""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_extra
from brax_nnx_plugin.testing import check_module
from tests import small_runs

_SIZES: dict[str, Any] = {
  'policy_hidden_layer_sizes': (5, 4),
  'value_hidden_layer_sizes': (6,),
}
_delayed = functools.partial(
  networks_extra.make_delayed_ppo_networks, observation_delay=2, **_SIZES
)
_variational = functools.partial(
  networks_extra.make_variational_ppo_networks, latent_size=3, **_SIZES
)
_KEYS = jax.random.split(jax.random.PRNGKey(0))


def _act(networks: Any, observations: Any) -> list[Any]:
  """Steps one episode `[T, B, ...]` by the modes of the actions."""
  functions = networks.functions
  variables = functions.init(*_KEYS)
  state = functions.initial_state(variables, observations.shape[1])
  outputs = []
  for observation in observations:
    out = functions.step(
      variables, None, state, observation, _KEYS[0], deterministic=True
    )
    state = out.state
    outputs.append(out)
  return outputs


@pytest.mark.parametrize('delay_value', [False, True])
def test_the_delayed_policy_is_the_other_one_on_what_was(delay_value):
  observations = jax.random.normal(_KEYS[0], (5, 2, 3))
  late = jnp.concatenate([jnp.zeros((2, 2, 3)), observations[:-2]])
  plain: Any = ppo_networks.make_ppo_networks((3,), 1, **_SIZES)

  found = _act(_delayed((3,), 1, delay_value=delay_value), observations)

  # Built from equal keys, they have equal weights.
  action = [out.action for out in _act(plain, late)]
  value = [
    out.value for out in _act(plain, late if delay_value else observations)
  ]
  np.testing.assert_allclose([o.action for o in found], action, rtol=1e-6)
  np.testing.assert_allclose([o.value for o in found], value, rtol=1e-6)


def test_the_mode_of_the_variational_policy_goes_through_the_mean():
  networks: Any = _variational((3,), 1)
  observation = jax.random.normal(_KEYS[0], (1, 2, 3))
  (out,) = _act(networks, observation)

  policy = networks.functions.init(*_KEYS).params.policy['params']
  layers = policy['components']['action']['components']

  def dense(tree, x):
    linear = tree['linear']
    return x @ np.asarray(linear['kernel']) + np.asarray(linear['bias'])

  swish = lambda x: x / (1 + np.exp(-x))
  hidden = swish(dense(layers['0'], np.asarray(observation[0])))
  mean = dense(layers['1']['components']['0'], hidden)[:, :3]
  loc = dense(layers['3'], swish(dense(layers['2'], mean)))[:, :1]
  np.testing.assert_allclose(out.action, np.tanh(loc), rtol=1e-5)


@pytest.mark.parametrize('factory', [_delayed, _variational])
def test_they_keep_the_laws(factory):
  build = factory.func((3,), 1, **factory.keywords).functions

  def make(rngs):
    return build.template._build(rngs.params())

  check_module(make, jnp.zeros(3))


@pytest.mark.slow
@pytest.mark.parametrize('factory', [_delayed, _variational])
def test_they_are_trained(factory):
  _, params, metrics = small_runs.small_train(
    network_factory=factory, num_timesteps=2 * small_runs.STEP
  )

  assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
  assert (metrics['training/regularization_loss'] > 0) == (
    factory is _variational
  )


@pytest.mark.parametrize(
  ('factory', 'given', 'error', 'message'),
  [
    (_delayed, {'observation_delay': 0}, ValueError, 'observation_delay .* 0'),
    (_delayed, {'observation_delay': 1.5}, ValueError, 'whole number'),
    (_delayed, {'delay': 1}, TypeError, "'delay'"),
    (_delayed, {'policy_obs_key': 'x'}, ValueError, "no observation 'x'"),
    (_variational, {'latent_size': 0}, ValueError, 'latent_size'),
    (_variational, {'latent_size': 2.0}, TypeError, 'latent_size'),
    (_variational, {'kl_weight': -1.0}, ValueError, 'kl_weight'),
    (_variational, {'latents': 1}, TypeError, "'latents'"),
  ],
)
def test_a_wrong_argument_is_told(factory, given, error, message):
  with pytest.raises(error, match=message):
    factory({'state': (3,)}, 1, **given)


@pytest.mark.parametrize('factory', [_delayed, _variational])
def test_the_signature_names_all_arguments(factory):
  names = inspect.signature(factory.func).parameters
  mlp = inspect.signature(ppo_networks.make_ppo_networks).parameters

  assert mlp.keys() <= names.keys()
  assert all(names[n].default == mlp[n].default for n in list(mlp)[3:])
