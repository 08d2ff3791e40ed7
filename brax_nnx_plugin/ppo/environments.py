"""Wrapping environments for training, and resetting them on every device."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
import warnings

from brax import envs
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks.vision import PIXELS
from brax_nnx_plugin.ppo.config import EnvironmentConfig
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.devices import Devices


@dataclasses.dataclass(frozen=True)
class Unrandomized:
  """An environment that domain randomization leaves alone.

  Brax randomizes evaluation environments too; this one it does not:

      ppo.train(..., randomization_fn=fn, eval_env=Unrandomized(env))

  Attributes:
    env: one environment.
  """

  env: Any


def wrap(
  env: Any, config: EnvironmentConfig, num_envs: int, key: jax.Array
) -> Any:
  """Wraps an environment as Brax's `train` does.

  Args:
    env: one environment, perhaps `Unrandomized`.
    config: of the run; its own environment is not looked at.
    num_envs: rows that domain randomization draws, per device.
    key: for domain randomization; every device draws the same.

  Returns:
    A batched environment with episodes and auto-reset, or `env` itself if
    `wrap_env` is off.
  """
  fixed = isinstance(env, Unrandomized)
  env = env.env if isinstance(env, Unrandomized) else env
  if not config.wrap_env:
    for name in ('wrap_env_fn', 'randomization_fn'):
      if getattr(config, name) is not None:
        warnings.warn(
          f'{name} has no effect with wrap_env=False.', stacklevel=5
        )
    return env
  randomization_fn = None
  if config.randomization_fn is not None and not fixed:
    randomization_fn = functools.partial(
      config.randomization_fn, rng=jax.random.split(key, num_envs)
    )
  wrap_fn: Any = config.wrap_env_fn or envs.training.wrap
  return wrap_fn(
    env,
    episode_length=config.episode_length,
    action_repeat=config.action_repeat,
    randomization_fn=randomization_fn,
  )


def make_reset_fn(
  env: Any, devices: Devices, use_pmap_on_reset: bool
) -> Callable[[jax.Array], Any]:
  """Returns a function that resets the environments of every device.

  Args:
    env: a batched environment.
    devices: of the run.
    use_pmap_on_reset: as in Brax; on one device `False` uses `jit(vmap)`.

  Returns:
    A function from keys `[D, B, ...]` to environment states `[D, B, ...]`.
  """
  if len(devices.local) > 1 or use_pmap_on_reset:
    return devices.pmap(env.reset)
  return jax.jit(jax.vmap(env.reset))


def next_keys(keys: jax.Array) -> jax.Array:
  """Draws the next reset keys `[D, B, ...]` of every device, as Brax does."""
  return jax.vmap(
    lambda row, n: jax.random.split(row[0], n), in_axes=(0, None)
  )(keys, keys.shape[1])


def without_pixels(observation: Any) -> Any:
  """Drops the entries `pixels/...`, which Brax does not normalize."""
  if not isinstance(observation, Mapping):
    return observation
  return {k: v for k, v in observation.items() if not k.startswith(PIXELS)}


def statistics_spec(env_state: Any) -> Any:
  """Returns what Brax's running statistics are kept of, as shapes."""
  spec = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[-1:], jnp.float32), env_state.obs
  )
  return without_pixels(spec)


def check_spaces(env: Any, env_state: Any, rows: int) -> None:
  """Checks what a batched environment says of itself.

  Args:
    env: the environment.
    env_state: what `env.reset` returns for `rows` keys, as shapes.
    rows: environments.

  Raises:
    ValueError: if there is nothing to act with, no batch, or an observation
      that Brax keeps no statistics of.
  """
  if env.action_size < 1:
    raise ValueError(
      f'The environment has action_size = {env.action_size}; a policy needs at'
      ' least 1.'
    )
  if env_state.done.shape != (rows,):
    raise ValueError(
      f'env.reset returned done of shape {env_state.done.shape} for {rows}'
      f' keys, not ({rows},). With wrap_env=False the environment must be'
      ' batched, as brax.envs.training.wrap makes it.'
    )
  entries = jax.tree_util.tree_leaves_with_path(without_pixels(env_state.obs))
  ranks = {
    'observation' + jax.tree_util.keystr(path): leaf.ndim - 1
    for path, leaf in entries
  }
  if scalars := [name for name, rank in ranks.items() if rank < 1]:
    raise ValueError(
      f'{", ".join(scalars)}: a single number per environment. Give it an axis,'
      ' x[None], to make it a vector of one.'
    )
  if len(set(ranks.values())) > 1:
    raise ValueError(
      'The entries of an observation must have equally many axes, but for'
      f' images, whose names begin with {PIXELS!r}; got {ranks}.'
    )


def check_eval_env(
  config: TrainConfig, observation_size: Any, action_size: int
) -> None:
  """Checks that the policy can be evaluated where it is asked to be.

  Args:
    config: of the run.
    observation_size: of the environment that is trained in.
    action_size: likewise.

  Raises:
    ValueError: if observations or actions of `eval_env` have other sizes.
  """
  evaluation = config.evaluation
  unused = not evaluation.run_evals or config.budget.num_evals == 0
  if unused or evaluation.eval_env is None:
    return
  plain = dataclasses.replace(config.environment, randomization_fn=None)
  key = jax.random.PRNGKey(0)
  env = wrap(evaluation.eval_env, plain, evaluation.num_eval_envs, key)
  keys = jax.random.split(key, evaluation.num_eval_envs)
  observation = jax.eval_shape(env.reset, keys).obs
  given = jax.tree.map(lambda x: x.shape[1:], observation), env.action_size
  if given != (observation_size, action_size):
    raise ValueError(
      'A policy for environment cannot act in eval_env: observations and'
      f' actions have sizes {observation_size} and {action_size}, in eval_env'
      f' {given[0]} and {given[1]}.'
    )
