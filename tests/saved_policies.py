"""Networks that are saved and act again."""

import functools
from typing import Any

from brax.training.acme import running_statistics
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import small_runs

DICT_SIZE = {'state': (3,), 'privileged_state': (4,)}
CASES: dict[str, tuple[Any, Any, bool]] = {
  'MLP': (small_runs.small_mlp, (3,), True),
  'LSTM': (small_runs.small_lstm, (3,), False),
  'LSTM policy, MLP value': (
    functools.partial(small_runs.small_lstm, value_memory_size=None),
    (3,),
    False,
  ),
  'MLP policy, LSTM value': (
    functools.partial(small_runs.small_lstm, policy_memory_size=None),
    (3,),
    False,
  ),
  'GRU with statistics of dict observations': (
    functools.partial(
      small_runs.small_lstm,
      cell='gru',
      normalize_inputs=True,
      value_obs_key='privileged_state',
      trainable_initial_state=True,
    ),
    DICT_SIZE,
    False,
  ),
}


def observation_of(size: Any, center: float = 3.0) -> Any:
  """Four rows around `center`, of other numbers in every entry."""
  shapes = size if isinstance(size, dict) else {'': size}
  rows = {
    name: center + jax.random.normal(jax.random.PRNGKey(i), (4, *shape))
    for i, (name, shape) in enumerate(shapes.items())
  }
  return rows if isinstance(size, dict) else rows['']


def measured_params(networks: Any, size: Any, center: float = 3.0) -> Any:
  """Parameters whose every statistic has been measured."""
  observation = observation_of(size, center)
  functions = networks.functions
  variables = functions.init(jax.random.PRNGKey(3), jax.random.PRNGKey(4))
  state = functions.initial_state(variables, 4)
  out = functions.step(
    variables, None, state, observation, jax.random.PRNGKey(0)
  )
  variables = functions.update_statistics(
    variables, jax.tree.map(lambda x: x[None], out.extras), None
  )
  spec = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], jnp.float32), observation
  )
  statistics = running_statistics.update(
    running_statistics.init_state(spec), observation
  )
  return (statistics, *variables.inference_params())


def act(policy: Any, size: Any) -> Any:
  """The action of one step, or of two with memory."""
  observation, key = observation_of(size), jax.random.PRNGKey(9)
  if not hasattr(policy, 'initial_state'):
    return policy(observation, key)[0]
  state = policy.initial_state(4)
  _, extras = policy(observation, key, state)
  return policy(observation, key, extras['state'])[0]


def save(path: Any, factory: Any, size: Any, normalize: bool, step=7) -> Any:
  """Saves a network; returns its folder, parameters and action."""
  preprocess = running_statistics.normalize if normalize else lambda x, _: x
  networks = factory(size, 2, preprocess_observations_fn=preprocess)
  params = measured_params(factory(size, 2), size)
  config = checkpoint.network_config(
    factory, size, 2, normalize, std_eps=0.0, mode='welford'
  )
  folder = checkpoint.save(path, step, params, config)
  make_policy = ppo_networks.make_inference_fn(networks)
  return folder, params, act(make_policy(params, True), size)
