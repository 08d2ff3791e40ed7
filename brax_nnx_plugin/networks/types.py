"""What every stateful network module is: the contract and its two outputs.

A `StatefulModule` is an NNX module whose memory is explicit. Weights,
statistics and RNG streams are NNX variables on the module; the *carry* (hidden
activations, delay lines, keys) is an argument and a result, one row per
environment, so that whoever steps the environment can also reset it.

    carry[t + 1], output[t] = module(carry[t], x[t])

The same module runs in two ways that must agree: step by step while the
environment is stepped (`__call__`), and over a whole recorded sequence while
the loss is computed (`unroll`). `rollout_extras` is the channel from the first
to the second: what a module emits in the rollout is handed back in the replay,
so that an action sampler can score the action that was really taken.

Axes: `T` time steps of a sequence, `B` environments, features last. One call is
`[B, ...]`; `unroll` and `update_statistics` are `[T, B, ...]`.

Containers live in `containers`, concrete layers beside this file, and nothing
in this package knows Brax, except that `samplers` borrows its distributions.
"""

import abc
from typing import Any

from flax import nnx
from flax import struct
import jax

from brax_nnx_plugin.networks import stepping

# The carry of a module: any pytree whose leaves are `[B, ...]`; `()` if none.
ModuleState = Any
# Where a recording module puts its output among its metrics.
ACTIVATION_KEY = '<activation>'


@struct.dataclass
class StatefulModuleOutput:
  """What one call of a `StatefulModule` returns.

  Attributes:
    next_state: the carry after the step, with the structure, shapes and dtypes
      of the carry that went in.
    output: any pytree of `[B, ...]` arrays.
    regularization_loss: `[]` or `[B]`, never summed over the batch.
    metrics: nested dict of arrays, for logging only.
    rollout_extras: what the module needs back to replay this step; it mirrors
      the state tree (`None` if nothing).
  """

  next_state: ModuleState
  output: Any
  regularization_loss: jax.Array
  metrics: dict[Any, Any]
  rollout_extras: Any = None


@struct.dataclass
class PPONetworkOutput:
  """The output of a network that PPO can train; made by `PPOAdapter`.

  Attributes:
    actions: what the environment is given, a pytree of `[B, A]`.
    loglikelihoods: log-likelihood of those actions, a pytree of `[B]`.
    value_estimates: `[B]`.
    distributions: one dict a sampler, with what the loss wants to know of the
      action distribution: `loc` and `scale` before squashing `[B, A]`,
      `entropy` `[B]`, `parameters` (what the distribution was made of) and
      `raw_action`.
      `None` for networks that do not say; PPO then has no entropy and no KL.
    quantiles: of the return, `[B, Q]`, whose mean is the value estimate;
      `None` unless the critic is distributional.
  """

  actions: Any
  loglikelihoods: Any
  value_estimates: jax.Array
  distributions: Any = None
  quantiles: jax.Array | None = None


class StatefulModule(nnx.Module, abc.ABC):
  """An NNX module with an explicit carry.

  Subclasses implement `__call__`; a module with memory also implements
  `initialize_state` and `reset_state`, one with running statistics
  `update_statistics`.

  `__call__` must not write any NNX variable that affects the output: gradients
  are taken from a replay, and a replay of a module that has changed meanwhile
  is the replay of another module. RNG streams are the exception, and only for
  samples that the extras carry.
  """

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    if (
      cls.initialize_state is not StatefulModule.initialize_state
      and cls.reset_state is StatefulModule.reset_state
    ):
      raise TypeError(
        f'{cls.__name__} overrides initialize_state but not reset_state, so'
        ' its memory would survive the end of an episode. Implement'
        ' reset_state(prev_state): return the initial carry for every row of'
        ' prev_state.'
      )

  @abc.abstractmethod
  def __call__(
    self, state: ModuleState, x: Any, rollout_extras: Any = None
  ) -> StatefulModuleOutput:
    """Runs one step for a batch.

    Args:
      state: the carry, leaves `[B, ...]`.
      x: the input, leaves `[B, ...]`.
      rollout_extras: `None` to act (sample fresh); what this module emitted
        for this step in the rollout to replay it.

    Returns:
      A `StatefulModuleOutput`.
    """

  def initialize_state(self, batch_size: int) -> ModuleState:
    """Returns the carry of `batch_size` fresh episodes; `()` if memoryless."""
    del batch_size
    return ()

  def reset_state(self, prev_state: ModuleState) -> ModuleState:
    """Returns the initial carry for every row of `prev_state`."""
    return prev_state

  def reset_rows(self, is_first: jax.Array, state: ModuleState) -> ModuleState:
    """Resets the carry of the rows that begin an episode.

    Override it, besides `reset_state`, where a row can be reset without
    rewriting all of its carry.

    Args:
      is_first: `[B]`, nonzero where the next input is the first of an episode.
      state: the carry, `[B, ...]`.

    Returns:
      A carry that behaves like `reset_state(state)` in the rows that are set,
      and is bitwise unchanged in the others.
    """
    return stepping.select_rows(is_first, self.reset_state(state), state)

  def update_statistics(
    self, rollout_extras: Any, *, axis_name: str | None = None
  ) -> None:
    """Folds the inputs of a whole rollout into running statistics.

    Called once per training step, after the gradient phase. The only method
    that may write variables other than RNG streams.

    Args:
      rollout_extras: what the module emitted in the rollout, stacked to
        `[T, B, ...]`.
      axis_name: the mapped device axis to combine statistics over; given when
        there is more than one device.
    """
    del rollout_extras, axis_name

  def unroll(
    self,
    state: ModuleState,
    x: Any,
    is_first: jax.Array,
    rollout_extras: Any = None,
  ) -> StatefulModuleOutput:
    """Runs a whole sequence; equals a loop of reset and `__call__`.

    Memoryless modules run on all `T * B` rows at once; others are scanned.

    Args:
      state: the carry before the first reset, `[B, ...]`.
      x: the inputs, `[T, B, ...]`.
      is_first: `[T, B]`, nonzero where `x` is the first input of an episode:
        the carry is reset there before the step.
      rollout_extras: as emitted in the rollout, `[T, B, ...]`, or `None`.

    Returns:
      A `StatefulModuleOutput` whose `next_state` is the carry after the last
      step, `[B, ...]`, and whose other leaves are `[T, B, ...]`.
    """
    if jax.tree.leaves(state):
      return stepping.scan_steps(self, state, x, is_first, rollout_extras)
    return stepping.fold_steps(self, state, x, is_first, rollout_extras)
