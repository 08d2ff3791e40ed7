"""Stock networks, called as stock Brax calls them."""

from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import linen

_SIZES: dict[str, Any] = {
  'policy_hidden_layer_sizes': (5,),
  'value_hidden_layer_sizes': (6,),
  'preprocess_observations_fn': running_statistics.normalize,
}


@pytest.fixture(scope='module')
def stock():
  """A stock network, its functions, variables, statistics and inputs."""
  size: Any = (3,)
  networks: Any = brax_networks.make_ppo_networks(size, 2, **_SIZES)
  functions = linen.as_functions(networks, size)
  variables = functions.init(jax.random.PRNGKey(1), jax.random.PRNGKey(2))
  observation = jax.random.normal(jax.random.PRNGKey(3), (4, 3))
  statistics = running_statistics.update(
    running_statistics.init_state(jax.ShapeDtypeStruct((3,), jnp.float32)),
    5 + observation,
  )
  return networks, functions, variables, statistics, observation


def test_initial_parameters_come_from_a_key_each(stock):
  networks, _, variables, _, _ = stock

  jax.tree.map(
    np.testing.assert_array_equal,
    variables.params.policy,
    networks.policy_network.init(jax.random.PRNGKey(1)),
  )
  jax.tree.map(
    np.testing.assert_array_equal,
    variables.params.value,
    networks.value_network.init(jax.random.PRNGKey(2)),
  )
  assert not jax.tree.leaves(variables.statistics)


def test_parameters_survive_being_joined_and_taken_apart(stock):
  _, functions, variables, _, _ = stock

  again = functions.variables(*variables.inference_params())

  jax.tree.map(np.testing.assert_array_equal, variables, again)


@pytest.mark.parametrize('deterministic', [False, True])
def test_a_step_acts_as_stock_inference_does(stock, deterministic):
  networks, functions, variables, statistics, observation = stock
  params = (statistics, *variables.inference_params())
  key = jax.random.PRNGKey(4)
  make_policy: Any = brax_networks.make_inference_fn(networks, True)
  action, extras = make_policy(params, deterministic)(observation, key)

  out = functions.step(
    variables, statistics, (), observation, key, deterministic=deterministic
  )

  np.testing.assert_array_equal(out.action, action)
  value = networks.value_network.apply(statistics, params[2], observation)
  np.testing.assert_array_equal(out.value, value)
  if deterministic:
    return
  np.testing.assert_array_equal(out.log_likelihood, extras['log_prob'])
  np.testing.assert_array_equal(out.parameters, extras['distribution_params'])
  np.testing.assert_array_equal(out.extras, extras['raw_action'])


def test_a_replay_scores_the_action_that_was_taken(stock):
  _, functions, variables, statistics, observation = stock
  acted = functions.step(
    variables, statistics, (), observation, jax.random.PRNGKey(4)
  )

  again = functions.unroll(
    variables,
    statistics,
    (),
    observation[None],
    jax.random.PRNGKey(5),
    is_first=jnp.zeros((1, 4)),
    extras=acted.extras[None],
  )

  for name in ('action', 'log_likelihood', 'value', 'loc', 'scale'):
    np.testing.assert_allclose(
      getattr(again, name)[0], getattr(acted, name), rtol=1e-6, err_msg=name
    )


def test_a_stock_network_has_no_memory_and_no_statistics(stock):
  _, functions, variables, _, observation = stock

  assert not functions.stateful
  assert functions.initial_state(variables, 4) == ()
  assert functions.reset(variables, jnp.ones(4), ()) == ()
  assert functions.update_statistics(variables, observation, None) is variables


def test_the_shape_of_an_observation_is_known(stock):
  spec = linen.as_functions(stock[0], {'a': (4, 3), 'b': 2}).observation_spec
  assert {k: v.shape for k, v in spec.items()} == {'a': (4, 3), 'b': (2,)}


def test_something_else_than_networks_is_refused():
  with pytest.raises(TypeError, match='returned a dict.*make_network_factory'):
    linen.as_functions({}, (3,))
