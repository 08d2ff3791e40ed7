"""Stopping where numbers are no longer finite.

Every training step says what first went bad in it, if anything did, as one
number; from that step on the training state stands still, so that what an epoch
returns is the last finite state. Nothing is copied to the host for it. The
arithmetic of finite numbers is not touched.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import contextvars
from typing import Any

import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo.types import Rollout
from brax_nnx_plugin.ppo.types import TrainingState

# The entry of a training step's metrics that says what went bad.
FIRST_BAD = 'guards/first_bad'
# Its value if nothing did.
NOTHING = -1

_NEVER = jnp.iinfo(jnp.int32).max

_allowed: contextvars.ContextVar[bool] = contextvars.ContextVar(
  'allow_non_finite', default=False
)


@contextlib.contextmanager
def allow_non_finite() -> Iterator[None]:
  """Lets `train` go on when numbers are no longer finite, as Brax's does.

  Example:
    with guards.allow_non_finite():
      ppo.train(...)
  """
  token = _allowed.set(True)
  try:
    yield
  finally:
    _allowed.reset(token)


def active() -> bool:
  """Returns whether `train` stops where numbers are no longer finite."""
  return not _allowed.get()


def _losses(metrics: Mapping[str, Any]) -> list[str]:
  """Returns the metrics that must be finite: the loss, its parts first.

  A network's own metrics may be what they like.
  """
  names = [k for k in metrics if k.endswith('loss') and '/' not in k]
  return sorted(names, key=lambda name: (name == 'total_loss', name))


def _leaves(name: str, tree: Any) -> list[tuple[str, Any]]:
  """Returns the leaves of a tree that could be not finite, with names."""
  named = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
      rest = jax.tree_util.keystr(path, simple=True, separator='.')
      named.append((f'{name}.{rest}' if rest else name, leaf))
  return named


def _state_leaves(state: TrainingState) -> list[tuple[str, Any]]:
  """Returns the parameters, which are what matters most, and then the rest."""
  return [
    *_leaves('variables', state.variables),
    *_leaves('normalizer_params', state.normalizer_params),
    *_leaves('optimizer_state', state.optimizer_state),
  ]


def names(
  observation: Any, metrics: Mapping[str, Any], state: TrainingState
) -> list[str]:
  """Returns what the numbers of `first_bad` stand for.

  Args:
    observation: of any number of rows.
    metrics: of a training step, or their means.
    state: of training, on any number of devices.
  """
  return [
    *(name for name, _ in _leaves('observation', observation)),
    'reward',
    *(f'training/{name}' for name in _losses(metrics)),
    *(name for name, _ in _state_leaves(state)),
  ]


def first_bad(
  data: Rollout,
  metrics: Mapping[str, jax.Array],
  before: TrainingState,
  after: TrainingState,
  axis_name: str,
) -> jax.Array:
  """Finds what went bad first in a training step, on any device.

  Observations come first, then rewards, then the losses in the order of the
  gradient steps, then the state that is left. A number of the state that was
  not finite before counts as meant.

  Args:
    data: what was learned from.
    metrics: of the gradient steps, `[num_updates_per_batch, num_minibatches]`.
    before: the state before the training step.
    after: the state after it.
    axis_name: the device axis.

  Returns:
    An index into `names`, or `NOTHING`.
  """

  def when(bad, time):
    return jnp.where(jnp.any(bad), time, _NEVER)

  def data_time(leaf, *more):
    bad = [jnp.any(~jnp.isfinite(x)) for x in (leaf, *more)]
    return when(jnp.stack(bad), -1)

  def loss_time(loss):
    bad = ~jnp.isfinite(loss.ravel())
    return when(bad, jnp.argmax(bad).astype(jnp.int32))

  last = _leaves('observation', data.last_observation)
  seen = _leaves('observation', data.observation)
  old, new = _state_leaves(before), _state_leaves(after)
  times = [
    *(data_time(a, b) for (_, a), (_, b) in zip(seen, last, strict=True)),
    data_time(data.reward),
    *(loss_time(metrics[name]) for name in _losses(metrics)),
    *(
      when(jnp.isfinite(a) & ~jnp.isfinite(b), _NEVER - 1)
      for (_, a), (_, b) in zip(old, new, strict=True)
    ),
  ]
  time = jax.lax.pmin(jnp.stack(times), axis_name)
  bad = jnp.any(time != _NEVER)
  return jnp.where(bad, jnp.argmin(time).astype(jnp.int32), NOTHING)


def hold(
  found: jax.Array,
  now: jax.Array,
  before: TrainingState,
  after: TrainingState,
) -> tuple[jax.Array, TrainingState]:
  """Keeps the state before the first bad training step.

  Args:
    found: `first_bad` of the training steps so far.
    now: of this one.
    before: the state before it.
    after: the state after it.

  Returns:
    `first_bad` up to this step, and the state to go on with.
  """
  found = jnp.where(found == NOTHING, now, found)
  fine = found == NOTHING
  state = jax.tree.map(
    lambda new, old: jnp.where(fine, new, old), after, before
  )
  return found, state
