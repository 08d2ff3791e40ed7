"""Delaying an environment's observation, as a slow sensor does."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from mujoco_playground import wrapper

from .errors import UserError

# Entries of `state.info`: the observations still to be shown, oldest first, and
# the env steps since they were last filled.
_PENDING = 'delayed_observations'
_AGE = 'delayed_steps'


class DelayObservations(wrapper.Wrapper):
  """Shows a flat observation some env steps late.

  Until that many steps of an episode are taken, its first observation is shown.
  To be put around the bare environment, before the training wrappers, so that
  nothing sees what is delayed.
  """

  def __init__(self, env: Any, delay: int):
    """Wraps an environment; its reset is traced once, and nothing compiled.

    Args:
      env: one environment, not batched.
      delay: env steps, at least 1.

    Raises:
      UserError: if the observation is not flat.
    """
    super().__init__(env)
    self._delay = delay
    state = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    if isinstance(state.obs, Mapping):
      raise UserError(
        'Only a flat observation can be delayed; this one is a dict with'
        f' {", ".join(state.obs)}. Leave --delay_observations out.'
      )

  def _filled(self, observation: jax.Array) -> jax.Array:
    return jnp.broadcast_to(observation, (self._delay, *observation.shape))

  def reset(self, rng: jax.Array) -> Any:
    state = self.env.reset(rng)
    own = {_PENDING: self._filled(state.obs), _AGE: jnp.zeros(())}
    return state.replace(info={**state.info, **own})

  def _is_first(self, info: Mapping[str, Any]) -> Any:
    """Whether auto-reset has begun a new episode since the last step.

    It puts the first observation back and leaves `info` alone, also what the
    episode wrapper has written there after the step before: that it was the
    last, and how many steps the episode had. As many steps are counted here
    only right after it, and not between repeats of one action.
    """
    if 'episode_done' not in info:
      return False
    length = info['episode_metrics']['length']
    return (info['episode_done'] > 0) & (info[_AGE] == length)

  def step(self, state: Any, action: jax.Array) -> Any:
    pending, age = state.info[_PENDING], state.info[_AGE]
    first = self._is_first(state.info)
    pending = jnp.where(first, self._filled(state.obs), pending)
    age = jnp.where(first, 0.0, age) + 1.0
    # Some environments build an observation on the one before.
    state = self.env.step(state.replace(obs=pending[-1]), action)
    own = {
      _PENDING: jnp.concatenate([pending[1:], state.obs[None]]),
      _AGE: age,
    }
    return state.replace(obs=pending[0], info={**state.info, **own})
