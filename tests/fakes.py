"""Tiny environments and networks whose numbers can be worked out by hand."""

from collections.abc import Sequence
from typing import Any

from brax.envs.base import State
from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


class ScriptEnv:
  """A batched environment whose episodes end by script.

  Behaves as an environment in Brax's episode and auto-reset wrappers: the
  observation returned with `done == 1` is the first of the next episode, and
  `done` stays 1 until the next step. To be used with `wrap_env=False`.

  The observation is [t, row], with t the steps since the episode began; the
  reward is 1; the last action is in `info['action']`.

  Args of the constructor:
    ends: for each row the steps, counted from the last `reset` from 0, that end
      an episode.
    truncated: whether those are time limits; one flag for all, or one per row.
    horizon: steps that the script covers; it repeats afterwards.
  """

  action_size = 1
  observation_size = 2

  def __init__(
    self,
    ends: Sequence[Sequence[int]],
    truncated: bool | Sequence[bool] = False,
    horizon: int = 64,
  ):
    self.batch_size = len(ends)
    table = jnp.zeros((horizon, self.batch_size))
    for row, steps in enumerate(ends):
      for step in steps:
        table = table.at[step, row].set(1.0)
    self.ends = table
    self.truncated = jnp.broadcast_to(
      jnp.asarray(truncated, jnp.float32), (self.batch_size,)
    )

  @property
  def unwrapped(self):
    return self

  def _obs(self, t, rows):
    return jnp.stack([t, rows], axis=-1)

  def reset(self, rng: jax.Array) -> State:
    batch = rng.shape[0]
    zeros = jnp.zeros(batch)
    info = {
      'clock': jnp.zeros(batch, jnp.int32),
      'steps': zeros,
      'truncation': zeros,
      'episode_done': zeros,
      'episode_metrics': {'sum_reward': zeros, 'length': zeros},
      'action': zeros,
      'time_out': zeros,
    }
    rows = jnp.arange(batch, dtype=jnp.float32)
    return State(None, self._obs(zeros, rows), zeros, zeros, {}, info)

  def step(self, state: Any, action: jax.Array) -> State:
    info = dict(state.info)
    batch = state.done.shape[0]
    steps = jnp.where(state.done > 0, 0.0, info['steps']) + 1
    done = self.ends[info['clock'][0] % len(self.ends), :batch]
    info |= {
      'clock': info['clock'] + 1,
      'steps': steps,
      'truncation': done * self.truncated[:batch],
      'episode_done': done,
      'episode_metrics': {'sum_reward': steps, 'length': steps},
      'action': action.reshape((batch, -1))[:, 0],
    }
    rows = jnp.arange(batch, dtype=jnp.float32)
    obs = self._obs(jnp.where(done > 0, 0.0, steps), rows)
    return state.replace(obs=obs, reward=jnp.ones(batch), done=done, info=info)


class Count(StatefulModule):
  """Memory that counts: outputs the count `[B, 1]`, then adds one."""

  def __call__(self, state, x, rollout_extras=None):
    return StatefulModuleOutput(
      state + 1, state[:, None].astype(jnp.float32), jnp.array(0.0), {}
    )

  def initialize_state(self, batch_size):
    return jnp.zeros(batch_size, jnp.int32)

  def reset_state(self, prev_state):
    return jnp.zeros_like(prev_state)


class Echo(StatefulModule):
  """Memory of the last input's first feature: outputs it, or -1 at first."""

  def __call__(self, state, x, rollout_extras=None):
    return StatefulModuleOutput(x[:, :1], state, jnp.array(0.0), {})

  def initialize_state(self, batch_size):
    return jnp.full((batch_size, 1), -1.0, jnp.float32)

  def reset_state(self, prev_state):
    return jnp.full_like(prev_state, -1.0)


class LinCell(StatefulModule):
  """h' = a h + w x, output h', all `[B, 1]`."""

  def __init__(self, a: float, w: float):
    self.a = nnx.Param(jnp.array(a))
    self.w = nnx.Param(jnp.array(w))

  def __call__(self, state, x, rollout_extras=None):
    h = self.a[...] * state + self.w[...] * x
    return StatefulModuleOutput(h, h, jnp.array(0.0), {})

  def initialize_state(self, batch_size):
    return jnp.zeros((batch_size, 1))

  def reset_state(self, prev_state):
    return jnp.zeros_like(prev_state)


class Gain(StatefulModule):
  """Multiplies by a trainable number, 1 at first."""

  def __init__(self):
    self.gain = nnx.Param(jnp.array(1.0))

  def __call__(self, state, x, rollout_extras=None):
    return StatefulModuleOutput(state, self.gain[...] * x, jnp.array(0.0), {})


class PlainSampler(StatefulModule):
  """Acts by its input, without noise; scores actions as a unit normal."""

  def __call__(self, state, x, rollout_extras=None):
    action = x if rollout_extras is None else rollout_extras
    log_likelihood = -0.5 * jnp.sum(jnp.square(x - action), axis=-1)
    output = {
      'action': action,
      'log_likelihood': log_likelihood,
      'entropy': jnp.zeros_like(log_likelihood),
      'loc': x,
      'scale': jnp.ones_like(x),
      'parameters': x,
    }
    return StatefulModuleOutput(
      state, output, jnp.array(0.0), {}, jax.lax.stop_gradient(action)
    )


def plain_network(actor_memory: Any, critic_memory: Any) -> PPOAdapter:
  """A network whose action and value are what its two memories say."""
  return PPOAdapter(
    action=Sequential([actor_memory, Gain(), PlainSampler()]),
    value=Sequential([critic_memory, Gain()]),
  )


def count_network(*unused_args: Any) -> PPOAdapter:
  """CountNet: actor and critic count on their own; a build function."""
  return plain_network(Count(), Count())


def echo_network(*unused_args: Any) -> PPOAdapter:
  """EchoNet: actor and critic say the last observation; a build function."""
  return plain_network(Echo(), Echo())


def ref_gae(
  truncation, termination, rewards, values, bootstrap, lambda_, discount
):
  """Brax's targets and advantages by a double loop in NumPy, `[T]` each.

  δₜ = mₜ (rₜ + γ (1 - dₜ) vₜ₊₁ - vₜ)
  Eₜ = Σ_{k >= t} δₖ Π_{t <= j < k} γ λ (1 - dⱼ) mⱼ
  Aₜ = mₜ (rₜ + γ (1 - dₜ) (vₜ₊₁ + Eₜ₊₁) - vₜ)
  """
  steps = len(rewards)
  v = [*values, bootstrap]
  m = [1 - t for t in truncation]
  delta = [
    m[t] * (rewards[t] + discount * (1 - termination[t]) * v[t + 1] - v[t])
    for t in range(steps)
  ]
  errors = []
  for t in range(steps):
    total, weight = 0.0, 1.0
    for k in range(t, steps):
      total += weight * delta[k]
      weight *= discount * lambda_ * (1 - termination[k]) * m[k]
    errors.append(total)
  targets = [e + x for e, x in zip(errors, values, strict=True)]
  following = [*targets[1:], bootstrap]
  advantages = [
    m[t]
    * (rewards[t] + discount * (1 - termination[t]) * following[t] - values[t])
    for t in range(steps)
  ]
  return targets, advantages
