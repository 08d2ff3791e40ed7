"""Playing a policy in an environment, outside training.

    result = playing.rollout(env, policy, jax.random.PRNGKey(0), 500)
    env.render(result.states)                             # Playground
    html.render(env.sys, [s.pipeline_state for s in result.states])     # Brax

`env` is the environment as it is made, one and unwrapped. At the end of an
episode it is reset, and so is the memory of the policy.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Played:
  """What happened in a rollout, `[T]` or `[T, B]`.

  Attributes:
    actions: `[T, ...]` or `[T, B, ...]`.
    rewards: after each step.
    dones: 1 where the step ended an episode, in whatever way.
    states: the environment's states in which the actions of steps 0,
      `render_every`, 2 `render_every`, ... were taken, a list; of row 0 if
      there are several.
  """

  actions: Any
  rewards: jax.Array
  dones: jax.Array
  states: list[Any]


@dataclasses.dataclass(frozen=True)
class _Player:
  """A policy with or without memory, for one row or several."""

  policy: Any
  rows: int | None

  @property
  def remembers(self) -> bool:
    return hasattr(self.policy, 'initial_state')

  def start(self) -> Any:
    """Returns the carry before the first step."""
    return self.policy.initial_state(self.rows) if self.remembers else ()

  def reset(self, carry: Any, done: jax.Array) -> Any:
    """Clears the memory of the episodes that are over."""
    return self.policy.reset(carry, done) if self.remembers else carry

  def act(self, observation: Any, key: jax.Array, carry: Any) -> Any:
    """Returns the action and the next carry."""
    if not self.remembers:
      return self.policy(observation, key)[0], ()
    action, extras = self.policy(observation, key, carry)
    return action, extras['state']


def rollout(
  env: Any, policy: Any, key: jax.Array, num_steps: int, **options: Any
) -> Played:
  """Plays a policy, in one compiled program.

  Args:
    env: a Brax or Playground environment, unwrapped; with `batch_size` one that
      is batched and resets itself, as `wrap_for_brax_training` makes it.
    policy: with memory or without, as `make_policy` or `load_policy` return it.
    key: for the resets and for the policy.
    num_steps: actions to take, over as many episodes as that makes.
    **options: as for `make_rollout`.

  Raises:
    ValueError: as `make_rollout`.
  """
  return make_rollout(env, lambda _: policy, num_steps, **options)(None, key)


def make_rollout(
  env: Any,
  make_policy: Callable[[Any], Any],
  num_steps: int,
  *,
  episode_length: int | None = 1000,
  action_repeat: int = 1,
  render_every: int | None = 1,
  batch_size: int | None = None,
) -> Callable[[Any, jax.Array], Played]:
  """Makes a program that plays a policy with whatever parameters.

  Args:
    env: as for `rollout`.
    make_policy: from parameters to a policy, as `train` returns it.
    num_steps: actions to take, over as many episodes as that makes.
    episode_length: env steps after which an episode ends; `None` for no limit.
      With `batch_size` the wrappers know.
    action_repeat: env steps per action; with `batch_size` the wrappers know.
    render_every: how many steps from one state that is kept to the next; `None`
      for no states.
    batch_size: rows of a batched environment.

  Returns:
    A function of parameters and a key, compiled at its first call.

  Raises:
    ValueError: if a number is below 1, or `num_steps` is no multiple of
      `render_every`.
  """
  every = num_steps if render_every is None else render_every
  if min(num_steps, every, action_repeat, episode_length or 1) < 1:
    raise ValueError(
      'num_steps, render_every, action_repeat and episode_length must be at'
      f' least 1; got {num_steps}, {every}, {action_repeat} and'
      f' {episode_length}.'
    )
  if num_steps % every:
    raise ValueError(
      f'num_steps must be a multiple of render_every; got {num_steps} and'
      f' {every}. Take {num_steps - num_steps % every} or'
      f' {num_steps + every - num_steps % every} steps.'
    )
  limit = episode_length if episode_length is not None else jnp.inf
  game = (
    _One(env, limit, action_repeat)
    if batch_size is None
    else _Batch(env, batch_size)
  )

  @jax.jit
  def play(params, key):
    player = _Player(make_policy(params), batch_size)
    return _play(game, player, num_steps, every, key)

  def run(params: Any, key: jax.Array) -> Played:
    kept, (actions, rewards, dones) = play(params, key)
    states = jax.device_get(kept) if render_every is not None else None
    count = 0 if render_every is None else num_steps // every
    return Played(
      actions,
      rewards,
      dones,
      [jax.tree.map(lambda x, i=i: x[i], states) for i in range(count)],
    )

  return run


@struct.dataclass
class _Position:
  """Where a game is: before a step.

  Attributes:
    state: of the environment.
    count: env steps of the episode so far.
    is_first: 1 where the memory of the policy is to be cleared.
  """

  state: Any
  count: jax.Array
  is_first: jax.Array


class _One:
  """One unwrapped environment, and what its wrappers would do."""

  def __init__(self, env: Any, limit: int | float, action_repeat: int):
    self._env = env
    self._limit = limit
    self._action_repeat = action_repeat

  def start(self, key: jax.Array) -> _Position:
    """Returns a position to `begin` from; its state is blank."""
    blank = jax.tree.map(
      lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(self._reset, key)
    )
    return _Position(blank, jnp.int32(0), jnp.float32(1))

  def _reset(self, key: jax.Array) -> Any:
    return jax.tree.map(jnp.asarray, self._env.reset(key))

  def begin(self, position: _Position, key: jax.Array) -> _Position:
    """Resets the environment if an episode begins."""
    state, count = jax.lax.cond(
      position.is_first > 0,
      lambda: (self._reset(key), jnp.int32(0)),
      lambda: (position.state, position.count),
    )
    return position.replace(state=state, count=count)  # pyright: ignore[reportAttributeAccessIssue]

  def step(self, position: _Position, action: Any) -> tuple[_Position, Any]:
    """Returns the next position and the reward."""

    def repeat(state, _):
      state = self._env.step(state, action)
      return state, state.reward

    state, rewards = jax.lax.scan(
      repeat, position.state, length=self._action_repeat
    )
    count = position.count + self._action_repeat
    over = (state.done > 0) | (count >= self._limit)
    position = _Position(state, count, over.astype(jnp.float32))
    return position, jnp.sum(rewards)

  def row(self, state: Any) -> Any:
    """Returns the state that is kept."""
    return state


class _Batch:
  """A batched environment that resets itself."""

  def __init__(self, env: Any, rows: int):
    self._env = env
    self._rows = rows

  def start(self, key: jax.Array) -> _Position:
    """Returns the first position."""
    state = self._env.reset(jax.random.split(key, self._rows))
    return _Position(state, jnp.int32(0), jnp.ones(self._rows))

  def begin(self, position: _Position, key: jax.Array) -> _Position:
    """Returns the position; the environment resets itself."""
    del key
    return position

  def step(self, position: _Position, action: Any) -> tuple[_Position, Any]:
    """Returns the next position and the reward."""
    state = self._env.step(position.state, action)
    return _Position(state, position.count, state.done), state.reward

  def row(self, state: Any) -> Any:
    """Returns the state that is kept, that of row 0."""
    return jax.tree.map(lambda x: x[0], state)


def _play(
  game: _One | _Batch,
  player: _Player,
  num_steps: int,
  every: int,
  key: jax.Array,
) -> Any:
  """Plays `num_steps` steps and keeps every `every`-th state."""

  def one_step(carry, inputs):
    position, memory, kept = carry
    key, keep = inputs
    key_act, key_reset = jax.random.split(key)
    position = game.begin(position, key_reset)
    kept = jax.tree.map(
      lambda new, old: jnp.where(keep, new, old),
      game.row(position.state),
      kept,
    )
    memory = player.reset(memory, position.is_first)
    action, memory = player.act(position.state.obs, key_act, memory)
    position, reward = game.step(position, action)
    record = action, reward, position.is_first
    return (position, memory, kept), record

  def some_steps(carry, keys):
    position, memory = carry
    keep = jnp.arange(every) == 0
    (position, memory, kept), record = jax.lax.scan(
      one_step, (position, memory, game.row(position.state)), (keys, keep)
    )
    return (position, memory), (kept, record)

  key_start, key = jax.random.split(key)
  keys = jax.random.split(key, num_steps)
  keys = keys.reshape(num_steps // every, every, *keys.shape[1:])
  _, (states, record) = jax.lax.scan(
    some_steps, (game.start(key_start), player.start()), keys
  )
  return states, jax.tree.map(
    lambda x: x.reshape(num_steps, *x.shape[2:]), record
  )
