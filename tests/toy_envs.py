"""Small environments for tests of acting and learning.

`TableEnv` and `RecallEnv` are batched and end and reset episodes themselves
(`wrap_env=False`), as `fakes.ScriptEnv`; `DriftEnv` and `TickEnv` are single
environments for Brax's wrappers.
"""

from typing import Any

from brax.envs.base import State
import jax
import jax.numpy as jnp


def _info(batch: int) -> dict[str, Any]:
  """What Brax's episode wrapper would add, for `batch` rows."""
  zeros = jnp.zeros(batch)
  return {
    'clock': jnp.zeros(batch, jnp.int32),
    'steps': zeros,
    'truncation': zeros,
    'time_out': zeros,
  }


class TableEnv:
  """Plays tables, whatever the actions are.

  The observation after step k (counted from the last `reset`) is row k + 1 of
  the table plus `info['shift']`, which is 0 unless a test changes it.

  Args of the constructor:
    observations: `[S, B, F]`.
    done: `[S, B]`, 1 where step k ends an episode.
    truncated: 1 where that is a time limit; broadcast to `[S, B]`.
    rewards: likewise.
  """

  action_size = 1

  def __init__(
    self,
    observations: Any,
    done: Any = 0.0,
    truncated: Any = 0.0,
    rewards: Any = 1.0,
  ):
    self.observations = jnp.asarray(observations, jnp.float32)
    shape = self.observations.shape[:2]
    table = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), shape)
    self.done, self.rewards = table(done), table(rewards)
    self.truncated = self.done * table(truncated)

  @property
  def unwrapped(self):
    return self

  def reset(self, rng: jax.Array) -> State:
    batch = rng.shape[0]
    info = {**_info(batch), 'shift': jnp.zeros(batch)}
    zeros = jnp.zeros(batch)
    return State(None, self.observations[0, :batch], zeros, zeros, {}, info)

  def step(self, state: Any, action: jax.Array) -> State:
    batch = state.done.shape[0]
    clock = state.info['clock'][0]
    truncated = self.truncated[clock, :batch]
    info = dict(
      state.info,
      clock=state.info['clock'] + 1,
      truncation=truncated,
      time_out=truncated,
    )
    obs = self.observations[(clock + 1) % len(self.observations), :batch]
    return state.replace(
      obs=obs + info['shift'][:, None],
      reward=self.rewards[clock, :batch],
      done=self.done[clock, :batch],
      info=info,
    )


class RecallEnv:
  """Shows a cue, ±1, at t = 0 and rewards an action like it at t = 3.

  Episodes last 4 steps. Rows and episodes take turns with the cue, so that
  without memory every policy earns 0 on average; the maximum is 1.
  """

  action_size = 1

  @property
  def unwrapped(self):
    return self

  def _cue(self, clock):
    odd = (jnp.arange(clock.shape[0]) + clock // 4) % 2
    return jnp.where(odd, 1.0, -1.0)

  def _obs(self, clock):
    t = clock % 4
    return jnp.stack([self._cue(clock) * (t == 0), 1.0 * (t == 3)], axis=-1)

  def reset(self, rng: jax.Array) -> State:
    batch = rng.shape[0]
    info = _info(batch)
    zeros = jnp.zeros(batch)
    return State(None, self._obs(info['clock']), zeros, zeros, {}, info)

  def step(self, state: Any, action: jax.Array) -> State:
    clock = state.info['clock']
    last = clock % 4 == 3
    info = dict(state.info, clock=clock + 1, steps=clock % 4 + 1.0)
    return state.replace(
      obs=self._obs(clock + 1),
      reward=jnp.where(last, self._cue(clock) * action[:, 0], 0.0),
      done=last.astype(jnp.float32),
      info=info,
    )


class DriftEnv:
  """A decaying vector of 3 that actions push; an episode ends where it is big.

  Every observation and reward depends on the reset key and on all actions, so
  two runs agree only if everything before did.
  """

  action_size = 1

  def __init__(self, limit: float = 0.5):
    self.limit = limit

  @property
  def unwrapped(self):
    return self

  def reset(self, rng: jax.Array) -> State:
    obs = 0.5 * jax.random.normal(rng, (3,))
    zero = jnp.array(0.0)
    return State(None, obs, zero, zero, {}, {'time_out': zero})

  def step(self, state: Any, action: jax.Array) -> State:
    push = jnp.array([action[0], action[0] ** 2, 0.1])
    obs = 0.8 * jnp.asarray(state.obs) + push
    done = jnp.where(obs[0] > self.limit, 1.0, 0.0)
    return state.replace(
      obs=obs,
      reward=jnp.sum(obs) - action[0] ** 2,
      done=done,
      info=dict(state.info, time_out=done),
    )


class TickEnv:
  """Observes the steps of its own since the reset; ends at one of them."""

  action_size = 1

  def __init__(self, end: int = 1000):
    self.end = end

  @property
  def unwrapped(self):
    return self

  def reset(self, rng: jax.Array) -> State:
    zero = jnp.array(0.0)
    # The unwrapped step count is all the physics there is.
    physics: Any = zero
    return State(physics, jnp.zeros(1), zero, zero, {}, {})

  def step(self, state: Any, action: jax.Array) -> State:
    tick = jnp.asarray(state.pipeline_state) + 1
    return state.replace(
      pipeline_state=tick,
      obs=tick[None],
      reward=jnp.array(1.0),
      done=jnp.where(tick == self.end, 1.0, 0.0),
    )
