"""Videos of a policy while it is trained, and after.

No video is worth a run: whatever goes wrong with one is told in a sentence, and
the run goes on.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import pathlib
import sys
from typing import Any

from absl import logging
import jax

from brax_nnx_plugin.ppo import playing
from brax_nnx_plugin.ppo.environments import Unrandomized

from . import environments
from . import episodes
from . import rendering

FOLDER_NAME = 'videos'


class Videos:
  """Films one episode at a time, each with a fresh carry, up to its end."""

  def __init__(
    self,
    env: Any,
    folder: pathlib.Path,
    *,
    episode_length: int = 1000,
    action_repeat: int = 1,
    seed: int = 0,
  ):
    """Prepares; nothing is compiled yet.

    Args:
      env: one environment, as it is made.
      folder: that the videos go into.
      episode_length: env steps after which an episode is cut off.
      action_repeat: env steps per action.
      seed: of the first state of the first video; the others count on.
    """
    self._env = env.env if isinstance(env, Unrandomized) else env
    self._folder = folder
    self._limits = {
      'episode_length': episode_length,
      'action_repeat': action_repeat,
    }
    self._seed = seed
    self._play: Callable[..., playing.Played] | None = None

  @classmethod
  def of(cls, arguments: Mapping[str, Any], folder: pathlib.Path) -> 'Videos':
    """Takes what it needs out of the arguments of `train`."""
    names = ('episode_length', 'action_repeat', 'seed')
    named = {k: arguments[k] for k in names if arguments.get(k) is not None}
    return cls(arguments['eval_env'], folder, **named)

  def film(
    self, make_policy: Any, params: Any, name: str, number: int = 0
  ) -> pathlib.Path:
    """Plays an episode and writes its video; returns where it is.

    Args:
      make_policy: as `train` returns it, the same at every call.
      params: likewise.
      name: of the file, without a suffix.
      number: of the episode; each begins in a state of its own.

    Raises:
      CannotRender: if it cannot be drawn.
      OSError: if it cannot be written.
    """
    if self._play is None:
      repeat = self._limits['action_repeat']
      self._play = playing.make_rollout(
        self._env,
        functools.partial(make_policy, deterministic=True),
        -(-self._limits['episode_length'] // repeat),
        **self._limits,
      )
    played = self._play(params, jax.random.PRNGKey(self._seed + number))
    states = played.states[: int(episodes.first_end(played.dones))]
    path, _ = rendering.playable(self._folder / f'{name}.mp4')
    path.parent.mkdir(parents=True, exist_ok=True)
    dt = environments.control_dt(self._env, self._limits['action_repeat'])
    rendering.save(path, self._env, states, dt)
    return path

  def callbacks(
    self, every: int | None, env_steps_per_evaluation: int
  ) -> dict[str, Any]:
    """Returns arguments of `train`, as `during`; none if `every` is `None`."""
    if every is None:
      return {}
    return {'policy_params_fn': self.during(every, env_steps_per_evaluation)}

  def during(self, every: int, env_steps_per_evaluation: int) -> Any:
    """Returns a `policy_params_fn` that films at some of the evaluations.

    Args:
      every: evaluations from one video to the next; the one before training is
        the first.
      env_steps_per_evaluation: from one evaluation to the next.
    """
    failed = False

    def film(env_steps: int, make_policy: Any, params: Any) -> None:
      nonlocal failed
      if failed or round(env_steps / env_steps_per_evaluation) % every:
        return
      try:
        self.film(make_policy, params, f'{FOLDER_NAME}/{env_steps:012d}')
      except Exception as e:  # whatever a driver or a disk does
        failed = True
        logging.warning('Training goes on without videos: %s', _words(e))

    return film

  def after(self, make_policy: Any, params: Any, count: int) -> None:
    """Films some episodes, and says where they are or why they are not.

    Args:
      make_policy: as for `film`.
      params: likewise.
      count: how many.
    """
    for number in range(count):
      try:
        path = self.film(make_policy, params, f'rollout{number}', number)
      except Exception as e:  # as above
        print(f'There is no video: {_words(e)}', file=sys.stderr, flush=True)
        return
      print(f'  video          {path}', flush=True)


def _words(error: Exception) -> str:
  if isinstance(error, rendering.CannotRender):
    return str(error)
  return f'{type(error).__name__}: {error}'
