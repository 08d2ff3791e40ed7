"""Networks with memory that start from the layers of an MLP."""

from typing import Any

from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import convert
from brax_nnx_plugin.ppo import networks as ppo_networks

_KEY = jax.random.PRNGKey(5)


def _mlp_params(make: Any, policy: Any, value: Any, **kwargs: Any) -> Any:
  """Returns the parameter triple of an MLP with these layers."""
  networks = make(
    (3,),
    2,
    policy_hidden_layer_sizes=policy,
    value_hidden_layer_sizes=value,
    **kwargs,
  )
  keys = jax.random.split(jax.random.PRNGKey(1))
  return (
    None,
    networks.policy_network.init(keys[0]),
    networks.value_network.init(keys[1]),
  )


def _lstm(policy: Any, value: Any, memory: int = 4, **kwargs: Any) -> Any:
  return ppo_networks.make_recurrent_ppo_networks(
    (3,),
    2,
    policy_hidden_layer_sizes=policy,
    value_hidden_layer_sizes=value,
    policy_memory_size=memory,
    value_memory_size=memory,
    **kwargs,
  )


def _named(params: Any) -> dict[str, Any]:
  trees = {'policy': params[1], 'value': params[2]}
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees)
  }


def _action(i: int) -> str:
  return f'policy/params/components/action/components/{i}/linear'


def _value(i: int) -> str:
  return f'value/params/components/value/components/{i}/linear'


def test_layers_are_paired_in_order_and_the_last_with_the_last():
  mlp = _mlp_params(brax_networks.make_ppo_networks, (4, 4, 5), (4, 4))
  networks = _lstm((4, 4), (4, 6))

  params, taken = convert.warm_start(mlp, networks, _KEY)

  # Policy: 3-4-4-5-4 and 3-4-[4]-4-4; the last, 5-4, does not fit 4-4.
  # Value: 3-4-4-1 and 3-4-[4]-6-1: only the first layer fits.
  pairs = {
    _action(0): 'policy/params/hidden_0',
    _action(2): 'policy/params/hidden_1',
    _value(0): 'value/params/hidden_0',
  }
  assert taken == {
    f'{new}/{part}': f'{old}/{part}'
    for new, old in pairs.items()
    for part in ('kernel', 'bias')
  }
  new, old = _named(params), _named(mlp)
  for name, source in taken.items():
    np.testing.assert_array_equal(new[name], old[source])


def test_the_rest_is_as_the_key_initializes_it():
  mlp = _mlp_params(brax_networks.make_ppo_networks, (4, 4), (5,))
  networks = _lstm((4, 4), (4,))

  params, taken = convert.warm_start(mlp, networks, _KEY)

  keys = jax.random.split(_KEY)
  fresh = _named((None, *networks.functions.init(*keys).inference_params()))
  found = _named(params)
  assert found.keys() == fresh.keys()
  for name in fresh.keys() - taken.keys():
    np.testing.assert_array_equal(found[name], fresh[name])
  # All dense layers of the policy fit.
  assert sum(name.endswith('kernel') for name in taken) == 3


def test_a_bias_does_not_come_without_its_kernel():
  mlp = _mlp_params(brax_networks.make_ppo_networks, (4, 4), (4,))
  networks = _lstm((4, 4), (4,), memory=7)

  _, taken = convert.warm_start(mlp, networks, _KEY)

  # 7-4 after the memory, where the MLP has 4-4.
  assert f'{_action(2)}/bias' not in taken
  assert {f'{_action(0)}/bias', f'{_action(3)}/bias'} <= taken.keys()


def test_an_mlp_of_ours_and_its_noise_are_taken():
  noise: Any = {'distribution_type': 'normal', 'init_noise_std': 0.3}
  mlp = _mlp_params(ppo_networks.make_ppo_networks, (4,), (4,), **noise)
  networks = _lstm((4,), (4,), distribution_type='normal')

  params, taken = convert.warm_start(mlp, networks, _KEY)

  noise_name = 'policy/params/components/action/components/3/std'
  assert taken[noise_name].endswith('components/2/std')
  np.testing.assert_allclose(_named(params)[noise_name], 0.3)


def test_the_warm_network_acts():
  mlp = _mlp_params(brax_networks.make_ppo_networks, (4,), (4,))
  networks = _lstm((4,), (4,))

  params, _ = convert.warm_start(mlp, networks, _KEY)

  policy: Any = ppo_networks.make_inference_fn(networks)(params)
  action, _ = policy(jnp.ones((2, 3)), _KEY, policy.initial_state(2))
  assert action.shape == (2, 2)


def test_nothing_to_take_is_an_error_that_names_the_shapes():
  mlp = _mlp_params(brax_networks.make_ppo_networks, (8,), (4,))
  networks = _lstm((4,), (4,))

  with pytest.raises(ValueError, match=r'hidden_0.*\(3, 8\).*linear.*\(3, 4\)'):
    convert.warm_start(mlp, networks, _KEY)
