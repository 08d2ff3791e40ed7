"""Hiding a part of an environment's observation."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
from mujoco_playground import wrapper
import numpy as np

from . import command_line
from .errors import UserError


def parse_indices(text: str) -> tuple[int, ...]:
  """Reads indices and half-open ranges, `'0,3:5'` -> `(0, 3, 4)`.

  Raises:
    UserError: if it is neither.
  """
  numbers = command_line.parse_ranges('--hide_observations', text)
  return tuple(sorted(set(numbers)))


class HideObservations(wrapper.Wrapper):
  """Leaves some entries of a flat observation out.

  To be put around the bare environment, before the training wrappers, so that
  nothing sees what is hidden.
  """

  def __init__(self, env: Any, hidden: Sequence[int]):
    """Wraps an environment; its step is traced once, and nothing compiled.

    Args:
      env: one environment, not batched.
      hidden: indices to leave out.

    Raises:
      UserError: if these cannot be hidden.
    """
    super().__init__(env)
    state = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    if isinstance(state.obs, Mapping):
      raise UserError(
        'Only a flat observation can be hidden in part; this one is a dict with'
        f' {", ".join(state.obs)}. Choose with policy_obs_key and'
        ' value_obs_key.'
      )
    size = state.obs.shape[-1]
    outside = [i for i in hidden if not 0 <= i < size]
    if outside:
      raise UserError(
        f'Observation {outside[0]} cannot be hidden: there are {size}, from 0'
        f' to {size - 1}.'
      )
    self._kept = np.setdiff1d(np.arange(size), hidden)
    if not self._kept.size:
      raise UserError(f'All {size} observations are hidden; leave one.')
    self._require_own_observation(state)

  def _require_own_observation(self, state: Any) -> None:
    """Some environments build an observation on the one before, whole.

    One that does not can do without.
    """
    action = jax.ShapeDtypeStruct((self.action_size,), np.float32)
    try:
      jax.eval_shape(self.env.step, state.replace(obs=None), action)
    except (AttributeError, TypeError, ValueError) as e:
      raise UserError(
        'Nothing can be hidden here: this environment makes an observation out'
        ' of the one before.'
      ) from e

  def _hide(self, state: Any) -> Any:
    return state.replace(obs=state.obs[..., self._kept])

  def reset(self, rng: jax.Array) -> Any:
    return self._hide(self.env.reset(rng))

  def step(self, state: Any, action: jax.Array) -> Any:
    return self._hide(self.env.step(state, action))

  @property
  def observation_size(self) -> int:
    return len(self._kept)
