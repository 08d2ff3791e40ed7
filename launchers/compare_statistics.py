"""Numbers out of the curves of several runs. Pure functions."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

_REWARD = 'eval/episode_reward'


@dataclasses.dataclass(frozen=True)
class Curve:
  """What the evaluations of one run have measured.

  Attributes:
    env_steps: of its evaluations, increasing.
    rewards: mean over the episodes of each.
    missing: env steps of evaluations whose reward is not finite.
    seconds: wall time of the run so far, compiling included.
    last: env steps of the newest report of any kind.
  """

  env_steps: tuple[int, ...] = ()
  rewards: tuple[float, ...] = ()
  missing: tuple[int, ...] = ()
  seconds: float = 0.0
  last: int = 0

  @classmethod
  def of(cls, lines: Iterable[Mapping[str, Any]]) -> 'Curve':
    """Reads lines of metrics; see `reporting.Reporter`."""
    rewards: dict[int, float] = {}
    missing: set[int] = set()
    seconds, last = 0.0, 0
    for line in lines:
      steps = int(line['env_steps'])
      seconds, last = max(seconds, line.get('seconds') or 0.0), max(last, steps)
      if line.get(_REWARD) is not None:
        rewards[steps] = float(line[_REWARD])
      elif _REWARD in line:
        missing.add(steps)
    order = sorted(rewards)
    return cls(
      env_steps=tuple(order),
      rewards=tuple(rewards[steps] for steps in order),
      missing=tuple(sorted(missing)),
      seconds=seconds,
      last=last,
    )

  def final(self, total: int) -> float | None:
    """Returns the reward of the last evaluation of a run of `total` env steps.

    `None` if it has not come so far, or that reward is not finite.
    """
    if not self.env_steps or self.env_steps[-1] < total:
      return None
    return self.rewards[-1]

  def reached(self, threshold: float) -> int | None:
    """Returns the env steps of the first evaluation with this reward or more.

    Nothing is assumed between evaluations. `None` if there is none.
    """
    for steps, reward in zip(self.env_steps, self.rewards, strict=True):
      if reward >= threshold:
        return steps
    return None


@dataclasses.dataclass(frozen=True)
class Band:
  """Several curves as one.

  Attributes:
    env_steps: of all evaluations within the range that all curves have.
    mean: over the curves.
    low: lowest of them.
    high: highest of them.
    count: how many they are.
  """

  env_steps: np.ndarray
  mean: np.ndarray
  low: np.ndarray
  high: np.ndarray
  count: int


def band(curves: Sequence[Curve]) -> Band:
  """Combines curves where all of them have been measured.

  Between two evaluations of a curve, where another one has an evaluation, a
  straight line is assumed; before its first and after its last, nothing.

  Args:
    curves: those without an evaluation are left out, also of the count.
  """
  measured = [curve for curve in curves if curve.env_steps]
  if not measured:
    nothing = np.zeros(0)
    return Band(nothing, nothing, nothing, nothing, 0)
  first = max(curve.env_steps[0] for curve in measured)
  last = min(curve.env_steps[-1] for curve in measured)
  everywhere = np.unique(np.concatenate([c.env_steps for c in measured]))
  steps = everywhere[(everywhere >= first) & (everywhere <= last)]
  rewards = np.array(
    [np.interp(steps, c.env_steps, c.rewards) for c in measured]
  )
  return Band(
    env_steps=steps,
    mean=rewards.mean(axis=0),
    low=rewards.min(axis=0),
    high=rewards.max(axis=0),
    count=len(measured),
  )


@dataclasses.dataclass(frozen=True)
class Spread:
  """Numbers of several runs.

  Attributes:
    mean: of them; `None` without any.
    std: sample standard deviation, n - 1 in the denominator; `None` for fewer
      than two.
    low: lowest.
    high: highest.
    count: n.
  """

  mean: float | None
  std: float | None
  low: float | None
  high: float | None
  count: int

  @classmethod
  def of(cls, values: Iterable[float | None]) -> 'Spread':
    """Summarises the values that are there."""
    numbers = np.array([v for v in values if v is not None], np.float64)
    if not numbers.size:
      return cls(None, None, None, None, 0)
    return cls(
      mean=float(numbers.mean()),
      std=float(numbers.std(ddof=1)) if numbers.size > 1 else None,
      low=float(numbers.min()),
      high=float(numbers.max()),
      count=int(numbers.size),
    )
