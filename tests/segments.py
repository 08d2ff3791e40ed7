"""Records segments with a network and replays them, for tests."""

from collections.abc import Callable
import functools
from typing import Any

from brax import envs
from brax.training import types as brax_types
from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_ppo_networks
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import losses
from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo import rollout_data
from brax_nnx_plugin.ppo.linen import LinenFunctions
from brax_nnx_plugin.ppo.networks import make_network_factory
from brax_nnx_plugin.ppo.types import Rollout
from tests import toy_envs
from tests import toy_modules


def wrapped(env: Any, episode_length: int = 1000, action_repeat: int = 1):
  """Wraps a single environment as Brax does for training."""
  return envs.training.wrap(env, episode_length, action_repeat)


def network_functions(
  env: Any,
  network_factory: Callable[..., Any],
  preprocess: Any = brax_types.identity_observation_preprocessor,
) -> Any:
  """The network of a factory, as functions, for observations of `env`."""
  spec = jax.eval_shape(env.reset, jax.random.split(jax.random.key(0), 2))
  size = jax.tree.map(lambda x: x.shape[1:], spec.obs)
  ppo_networks = network_factory(
    size, env.action_size, preprocess_observations_fn=preprocess
  )
  functions = getattr(ppo_networks, 'functions', None)
  return functions or LinenFunctions(ppo_networks)


def module_functions(env: Any, build: Callable[..., Any]) -> Any:
  """The network that `build` makes, as functions."""
  return network_functions(env, make_network_factory(build))


def stock_networks() -> Any:
  """A network of Brax's own for `DriftEnv`, with its observation normalizer."""
  make: Any = brax_ppo_networks.make_ppo_networks
  return make((3,), 1, running_statistics.normalize, (8, 8), (8,))


def stock_statistics() -> Any:
  """Observation statistics for it that are far from doing nothing."""
  state: Any = running_statistics.init_state(jnp.zeros(3))
  batch = jax.random.normal(jax.random.PRNGKey(5), (16, 3)) * 2 + 1
  return running_statistics.update(state, batch)


def init(functions: Any, seed: int = 0) -> Any:
  """Variables of a network, drawn from `seed`."""
  return jax.jit(functions.init)(*jax.random.split(jax.random.PRNGKey(seed)))


def first_actors(env: Any, functions: Any, variables: Any, rows: int) -> Any:
  """`rows` freshly reset environments."""
  env_state = env.reset(jax.random.split(jax.random.PRNGKey(1), rows))
  return rollout.start(env_state, functions.initial_state(variables, rows))


def record(
  env: Any,
  functions: Any,
  variables: Any,
  rows: int,
  unroll_length: int,
  num_unrolls: int = 1,
  **kwargs: Any,
) -> Any:
  """Segments `[N, T, ...]` from the first step on, values included."""
  collect = functools.partial(
    rollout.collect,
    env,
    functions,
    unroll_length=unroll_length,
    num_unrolls=num_unrolls,
    store_value=True,
    **kwargs,
  )
  actors = first_actors(env, functions, variables, rows)
  return jax.jit(collect)(variables, None, actors, key=jax.random.PRNGKey(2))[1]


def recorded(
  network: Any, env: Any, rows: int, unroll_length: int, *args: Any, **kwargs
) -> tuple[Any, Any, Any]:
  """Returns functions and variables of a network, and segments by it.

  Args:
    network: a build function, or functions and variables.
    env: see `record`, as for the rest.
    rows: environments.
    unroll_length: steps of a segment.
    *args: further ones of `record`.
    **kwargs: likewise.
  """
  if callable(network):
    functions = module_functions(env, network)
    variables = init(functions)
  else:
    functions, variables = network
  data = record(env, functions, variables, rows, unroll_length, *args, **kwargs)
  return functions, variables, data


@functools.cache
def cell_functions(cell: Any, **kwargs: Any) -> tuple[Any, Any]:
  """The network of one cell for 3 features; shared, as it compiles once."""
  build = toy_modules.cell_network(cell, **kwargs)
  functions = module_functions(wrapped(toy_envs.DriftEnv()), build)
  return functions, init(functions)


def time_first(data: Rollout) -> Rollout:
  """Swaps the axes of segments and steps, as the loss does."""
  swap = lambda x: jnp.swapaxes(x, 0, 1)
  return rollout_data.map_rollout(data, swap, lambda x: x)


def replay(
  functions: Any, variables: Any, data: Rollout, normalizer_params: Any = None
) -> tuple[Any, Any]:
  """Replays segments `[N, T, ...]`; the outputs are `[T, N, ...]`."""
  return _jit_replay(functions)(
    variables, normalizer_params, time_first(data), jax.random.PRNGKey(3)
  )


@functools.cache
def _jit_replay(functions: Any) -> Any:
  return jax.jit(functools.partial(losses.replay, functions))
