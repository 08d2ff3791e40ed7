"""Acting: stepping environments with a network and recording what it saw.

The twin of `brax.training.acting`. The order of one step, everywhere:

    carry = reset(carry) where is_first      (the observation begins an episode)
    carry, action = network(carry, observation)
    env_state = env.step(env_state, action)
    is_first = env_state.done

With Brax's auto-reset the observation that comes with `done == 1` already
belongs to the next episode, so the call that made the last action still sees
the old carry, and the next call a fresh one.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

from brax import envs
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo.rollout_data import map_rollout
from brax_nnx_plugin.ppo.rollout_data import without_observation
from brax_nnx_plugin.ppo.types import ActorState
from brax_nnx_plugin.ppo.types import NetworkFunctions
from brax_nnx_plugin.ppo.types import NetworkVariables
from brax_nnx_plugin.ppo.types import Rollout

# Brax derives the keys of its environments by `split`, which hashes a counter
# from 0 up; this one stays clear of them without changing their order.
_CARRY = 0xFFFFFFFF


def carry_key(key: jax.Array) -> jax.Array:
  """Returns the key of the noise in carries, beside those split off `key`."""
  return jax.random.fold_in(key, _CARRY)


def start(env_state: envs.State, carry: Any) -> ActorState:
  """Returns the actors of freshly reset environments.

  Args:
    env_state: what `env.reset` returned.
    carry: of the network; any, since every row is reset at the first step.
  """
  return ActorState(env_state, carry, jnp.ones_like(env_state.done))


def _info(env_state: envs.State, name: str) -> Any:
  if name not in env_state.info:
    raise ValueError(
      f'The environment has no info[{name!r}], which PPO reads. Wrap it with'
      ' brax.envs.wrappers.training.EpisodeWrapper (wrap_env=True does), or'
      ' turn off the option that needs it.'
    )
  return env_state.info[name]


def unroll_env(
  env: envs.Env,
  networks: NetworkFunctions,
  variables: NetworkVariables,
  normalizer_params: Any,
  actors: ActorState,
  key: jax.Array,
  unroll_length: int,
  *,
  store_value: bool = False,
  info_fields: Sequence[str] = (),
) -> tuple[ActorState, Rollout]:
  """Records one segment of every environment.

  Args:
    env: a batched environment with auto-reset.
    networks: the network.
    variables: of the network.
    normalizer_params: Brax's observation statistics.
    actors: where the environments are.
    key: split once per step, as in Brax's `generate_unroll`.
    unroll_length: network steps.
    store_value: keep the value estimates.
    info_fields: further entries of `env_state.info` to keep: 'time_out',
      'episode_metrics', 'episode_done'.

  Returns:
    The actors after the segment, and the segment: leaves with time are
    `[T, B, ...]` (segments last), the others `[B, ...]`.
  """

  def step(carry, _):
    actors, key = carry
    key, next_key = jax.random.split(key)
    observation = actors.env_state.obs
    out = networks.step(
      variables,
      normalizer_params,
      actors.carry,
      observation,
      key,
      is_first=actors.is_first,
    )
    env_state = env.step(actors.env_state, out.action)
    info = {name: _info(env_state, name) for name in info_fields}
    record = Rollout(
      observation=observation,
      reward=env_state.reward,
      done=env_state.done,
      truncation=_info(env_state, 'truncation'),
      log_likelihood=out.log_likelihood,
      extras=without_observation(out.extras, observation),
      loc=out.loc,
      scale=out.scale,
      value=out.value if store_value else None,
      time_out=info.pop('time_out', None),
      start_carry=None,
      start_is_first=None,
      last_observation=None,
      episode=info,
    )
    actors = ActorState(env_state, out.state, env_state.done)
    return (actors, next_key), record

  first = actors
  (actors, _), record = jax.lax.scan(
    step, (actors, key), (), length=unroll_length
  )
  return actors, dataclasses.replace(
    record,
    start_carry=first.carry,
    start_is_first=first.is_first,
    last_observation=actors.env_state.obs,
  )


def collect(
  env: envs.Env,
  networks: NetworkFunctions,
  variables: NetworkVariables,
  normalizer_params: Any,
  actors: ActorState,
  key: jax.Array,
  unroll_length: int,
  num_unrolls: int,
  **unroll_kwargs: Any,
) -> tuple[ActorState, Rollout]:
  """Records `num_unrolls` consecutive segments of every environment.

  Args:
    env: see `unroll_env`, as for the rest.
    networks: the network.
    variables: of the network.
    normalizer_params: Brax's observation statistics.
    actors: where the environments are.
    key: split once per unroll, as in Brax's training step.
    unroll_length: network steps of a segment.
    num_unrolls: segments per environment.
    **unroll_kwargs: passed on to `unroll_env`.

  Returns:
    The actors, and a `Rollout` of `N = num_unrolls * B` segments, leaves
    `[N, T, ...]`.
  """

  def unroll(carry, _):
    actors, key = carry
    key, next_key = jax.random.split(key)
    actors, segment = unroll_env(
      env,
      networks,
      variables,
      normalizer_params,
      actors,
      key,
      unroll_length,
      **unroll_kwargs,
    )
    return (actors, next_key), segment

  (actors, _), segments = jax.lax.scan(
    unroll, (actors, key), (), length=num_unrolls
  )
  merge = lambda x: x.reshape((-1, *x.shape[2:]))
  with_time = lambda x: merge(jnp.swapaxes(x, 1, 2))
  return actors, map_rollout(segments, with_time, merge)


def eval_rollout(
  env: envs.Env,
  networks: NetworkFunctions,
  variables: NetworkVariables,
  normalizer_params: Any,
  key: jax.Array,
  num_envs: int,
  num_steps: int,
  *,
  deterministic: bool = False,
) -> envs.State:
  """Runs fresh episodes without recording.

  Args:
    env: a batched environment in Brax's `EvalWrapper`, which adds up metrics.
    networks: the network.
    variables: of the network.
    normalizer_params: Brax's observation statistics.
    key: for resets and actions, used as Brax's `Evaluator` does.
    num_envs: environments, one episode each.
    num_steps: network steps.
    deterministic: act by the mode.

  Returns:
    The last environment state; `info['eval_metrics']` has the sums.
  """
  env_state = env.reset(jax.random.split(key, num_envs))
  carry = networks.initial_state(variables, num_envs, carry_key(key))
  actors = start(env_state, carry)

  def step(carry, _):
    actors, key = carry
    key, next_key = jax.random.split(key)
    out = networks.step(
      variables,
      normalizer_params,
      actors.carry,
      actors.env_state.obs,
      key,
      is_first=actors.is_first,
      deterministic=deterministic,
    )
    env_state = env.step(actors.env_state, out.action)
    return (ActorState(env_state, out.state, env_state.done), next_key), None

  (actors, _), _ = jax.lax.scan(step, (actors, key), (), length=num_steps)
  return actors.env_state
