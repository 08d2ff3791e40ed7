"""Whole episodes of a policy: how much reward, and for how long."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from brax_nnx_plugin.ppo import playing

from .scenes import Scene


@dataclasses.dataclass(frozen=True)
class Episodes:
  """What came of some episodes, each played to its end.

  Attributes:
    returns: `[N]`, sums of rewards.
    lengths: `[N]`, env steps.
    actions: `[T, N, A]`; those after the end are of a next episode.
    states: of the first episode, those in which its actions were taken.
  """

  returns: np.ndarray
  lengths: np.ndarray
  actions: np.ndarray
  states: list[Any]


def first_end(dones: Any) -> Any:
  """Returns how many steps there are up to the first end, along the first axis.

  Args:
    dones: `[T, ...]`, nonzero where a step ended an episode; all of them if
      there is no such step.
  """
  dones = np.asarray(dones) > 0
  return np.where(dones.any(0), dones.argmax(0) + 1, len(dones))


def play(
  scene: Scene,
  num_episodes: int,
  seed: int = 0,
  deterministic: bool = True,
  keep_states: bool = False,
) -> Episodes:
  """Plays episodes side by side, each with a memory of its own.

  Args:
    scene: what is played.
    num_episodes: N.
    seed: of the resets, and of the actions if they are drawn.
    deterministic: act by the mode of the policy.
    keep_states: whether to keep the states of the first episode.
  """
  played = playing.make_rollout(
    scene.batched,
    functools.partial(scene.make_policy, deterministic=deterministic),
    scene.num_steps,
    render_every=1 if keep_states else None,
    batch_size=num_episodes,
  )(scene.params, jax.random.PRNGKey(seed))
  steps = first_end(played.dones)
  counted = np.arange(scene.num_steps)[:, None] < steps
  rewards = np.asarray(played.rewards, np.float64)
  return Episodes(
    returns=np.sum(np.where(counted, rewards, 0.0), axis=0),
    lengths=steps * scene.action_repeat,
    actions=np.asarray(played.actions),
    states=played.states[: steps[0]],
  )


def table(episodes: Episodes) -> str:
  """Returns a table of all episodes, with mean and spread."""
  returns, lengths = episodes.returns, episodes.lengths
  lines = ['episode       return  length [env steps]']
  for i, (reward, length) in enumerate(zip(returns, lengths, strict=True), 1):
    lines.append(f'{i:7d}  {reward:11.4g}  {length:18d}')
  for name, of in (('mean', np.mean), ('std', np.std)):
    lines.append(f'{name:>7}  {of(returns):11.4g}  {of(lengths):18.1f}')
  lowest = f'{returns.min():.4g} to {returns.max():.4g}'
  lines.append(f'Returns from {lowest}.')
  return '\n'.join(lines)
