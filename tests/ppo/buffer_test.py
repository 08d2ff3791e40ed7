"""What a rollout keeps: nothing twice, and carries once per segment."""

import functools
from typing import Any

from brax import envs
from brax.training import acting
from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.delay import Delay
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.normalizer import Normalizer
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.networks.utils import Filter
from brax_nnx_plugin.networks.utils import Flattener
from brax_nnx_plugin.networks.utils import Scale
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo import rollout_data
from tests import parity_envs
from tests import segments
from tests import small_runs
from tests import toy_envs

_ENVS, _STEPS = 1024, 20


def _bytes(tree: Any) -> int:
  """The size of all arrays of a tree."""
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _shapes(
  network_factory: Any, env: Any, steps: int = _STEPS, rows: int = _ENVS
) -> Any:
  """The segments that one rollout of a network records, abstract."""
  functions = segments.network_functions(env, network_factory)

  def record(key):
    variables = functions.init(key, key)
    env_state = env.reset(jax.random.split(key, rows))
    actors = rollout.start(env_state, functions.initial_state(variables, rows))
    collect = functools.partial(rollout.collect, env, functions, variables)
    return collect(None, actors, key, steps, 1)[1]

  return jax.eval_shape(record, jax.random.PRNGKey(0))


def _head(size, action_size, rngs, *before):
  """A network whose two ports come after the layers `before`."""
  return Sequential(
    [
      *before,
      PPOAdapter(
        action=Sequential(
          [Dense(size, 2 * action_size, rngs), NormalTanhSampler(rngs)]
        ),
        value=Dense(size, 1, rngs),
      ),
    ]
  )


def _factory(*before: Any) -> Any:
  """A network factory; `before` are functions from a size to a layer."""

  def build(observation_size, action_size, rngs):
    layers = [make(observation_size) for make in before]
    return _head(observation_size[0], action_size, rngs, *layers)

  return ppo_networks.make_network_factory(build)


def _env(name: str = 'drift') -> Any:
  return segments.wrapped(
    {
      'drift': toy_envs.DriftEnv,
      'fast': lambda: envs.get_environment('fast'),
      'pixels': parity_envs.PixelEnv,
    }[name]()
  )


# Case 2.22 of the field: memory.
@pytest.mark.parametrize('normalize', [False, True])
def test_replay_needs_start_carries_raw_actions_and_log_likelihoods(normalize):
  factory = functools.partial(
    ppo_networks.make_recurrent_ppo_networks,
    cell='lstm',
    policy_memory_size=256,
    value_memory_size=256,
    normalize_inputs=normalize,
  )
  env = _env()
  data = _shapes(factory, env)
  carries = 2 * 2 * 256 * _ENVS * 4
  raw_actions = env.action_size * _ENVS * _STEPS * 4
  log_likelihoods = _ENVS * _STEPS * 4
  kept = _bytes((data.extras, data.start_carry, data.log_likelihood))
  # The inputs of the normalizer are the observation, which is kept anyway.
  assert kept == carries + raw_actions + log_likelihoods


def test_a_long_delay_is_kept_once_per_segment():
  factory = _factory(lambda shape: Delay(shape, k_steps=100))
  env = _env()
  short, long = (_shapes(factory, env, steps) for steps in (1, _STEPS))
  assert _bytes(long.start_carry) == _bytes(short.start_carry)
  assert _bytes(long.start_carry) >= 100 * 3 * _ENVS * 4
  # Beside the buffer a place per row is kept, and no more.
  assert _bytes(long.start_carry) <= 1.01 * 100 * 3 * _ENVS * 4
  assert _bytes(long.extras) == env.action_size * _ENVS * _STEPS * 4


@pytest.mark.parametrize('name', ['drift', 'fast'])
@pytest.mark.parametrize('normalize', [False, True])
def test_a_rollout_of_mlps_is_no_larger_than_that_of_stock_brax(
  name, normalize
):
  env = _env(name)
  keys = jax.random.split(jax.random.PRNGKey(0), 2)
  (size,) = jax.eval_shape(env.reset, keys).obs.shape[1:]
  factory = functools.partial(
    ppo_networks.make_ppo_networks, normalize_inputs=normalize
  )
  networks: Any = brax_networks.make_ppo_networks(size, env.action_size)

  def record(key):
    params = (
      running_statistics.init_state(jnp.zeros(size)),
      networks.policy_network.init(key),
      networks.value_network.init(key),
    )
    policy = brax_networks.make_inference_fn(networks)(params)
    env_state = env.reset(jax.random.split(key, _ENVS))
    return acting.generate_unroll(
      env, env_state, policy, key, _STEPS, extra_fields=('truncation',)
    )[1]

  stock = jax.eval_shape(record, jax.random.PRNGKey(0))
  assert _bytes(_shapes(factory, env)) <= _bytes(stock)


@pytest.mark.parametrize('filtered', [False, True])
def test_images_are_never_copied_into_extras(filtered):
  env = _env('pixels')
  keys = ['pixels/a', 'pixels/b']

  def build(observation_size, action_size, rngs):
    sizes = {k: observation_size[k] for k in keys}
    front = [Filter({k: k for k in keys})] if filtered else []
    seen = sizes if filtered else observation_size
    total = sum(int(np.prod(shape)) for shape in seen.values())
    layers = [*front, Normalizer(seen), Flattener()]
    return _head(total, action_size, rngs, *layers)

  data = _shapes(ppo_networks.make_network_factory(build), env, 2, 3)
  assert _bytes(data.extras) == env.action_size * 3 * 2 * 4


def _recorded(*before: Any) -> tuple[Any, Any, Any]:
  """Functions, variables and segments of a network in `DriftEnv`."""
  functions = segments.network_functions(_env(), _factory(*before))
  variables = segments.init(functions)
  data = segments.record(_env(), functions, variables, 2, 4)
  return functions, variables, data


def test_extras_are_made_whole_again():
  _, _, data = _recorded(Normalizer)
  assert [x.shape for x in jax.tree.leaves(data.extras)] == [(2, 4, 1)]
  first, rest = rollout_data.full_extras(data)
  assert first is data.observation
  assert jax.tree.structure(rest) == jax.tree.structure(data.extras[1])


def test_an_input_that_only_resembles_the_observation_is_stored():
  # The second normalizer sees twice the observation; the first, itself.
  _, _, data = _recorded(Normalizer, lambda _: Scale(2.0), Normalizer)
  stored = [x.shape for x in jax.tree.leaves(data.extras)]
  assert stored == [(2, 4, 3), (2, 4, 1)]
  whole = rollout_data.full_extras(data)
  np.testing.assert_allclose(whole[2], 0.2 * whole[0], rtol=1e-6)


def test_statistics_are_those_of_the_observation():
  functions, variables, data = _recorded(Normalizer)
  extras = jax.tree.map(
    lambda x: jnp.swapaxes(x, 0, 1), rollout_data.full_extras(data)
  )
  folded = functions.update_statistics(variables, extras, None)
  means = [
    x for x in jax.tree.leaves(folded.statistics.policy) if x.shape == (3,)
  ]
  expected = np.mean(np.asarray(data.observation), axis=(0, 1))
  assert any(np.allclose(x, expected, atol=1e-6) for x in means)


def test_training_with_and_without_a_normalizer_in_front_costs_no_memory():
  sizes = [
    _bytes(
      _shapes(
        functools.partial(small_runs.small_lstm, normalize_inputs=normalize),
        _env(),
      )
    )
    for normalize in (False, True)
  ]
  assert sizes[0] == sizes[1]
