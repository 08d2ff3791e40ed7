"""The pytrees and the one interface that training is written against.

Nothing here knows NNX or linen: `NetworkFunctions` is what a network looks like
to the rollout, the loss, evaluation and inference. `networks` implements it for
NNX modules, `linen` for stock Brax networks.

Axes: `N` segments, `T` steps of a segment, `B` environments or rows. An env
step is one call of the environment's own `step`; with `action_repeat` one
network step takes several.
"""

from typing import Any
from typing import Protocol

from brax.training import types as brax_types
from brax.training.acme import running_statistics
from flax import struct
import jax
import optax

Params = Any
Key = jax.Array
Observation = Any


class TrainingDiverged(ArithmeticError):
  """Numbers are no longer finite; `train` raises it after the epoch.

  Attributes:
    metric: what went bad first: a loss by the name it is reported under, or
      'reward', or a leaf of the observation or of the training state.
    env_steps: taken before the training step in which it did.
    params: those at that time, the last that are finite: (normalizer, policy,
      value).
  """

  def __init__(self, metric: str, env_steps: int, params: Any):
    super().__init__(metric, env_steps, params)
    self.metric = metric
    self.env_steps = env_steps
    self.params = params

  def __str__(self) -> str:
    return (
      f'{self.metric} is not finite in the training step after'
      f' {self.env_steps} env steps.'
    )


@struct.dataclass
class PPONetworkParams:
  """One tree per network, as in `brax.training.agents.ppo.losses`.

  Attributes:
    policy: of the policy, and of what it shares with the value function.
    value: of the value function.
  """

  policy: Params
  value: Params


@struct.dataclass
class NetworkVariables:
  """All that a network has learned or measured.

  Attributes:
    params: what the optimizer trains, one tree for the policy and one for the
      value function; a shared trunk belongs to the policy.
    statistics: running statistics embedded in the network, split likewise.
  """

  params: PPONetworkParams
  statistics: PPONetworkParams

  def inference_params(self) -> tuple[Params, Params]:
    """Returns the trees of policy and value with statistics folded in."""

    def join(params, statistics):
      return {**params, **statistics}

    return (
      join(self.params.policy, self.statistics.policy),
      join(self.params.value, self.statistics.value),
    )


@struct.dataclass
class NetworkOutput:
  """What a network says of one step `[B]`, or of a sequence `[T, B]`.

  Attributes:
    state: the carry after the (last) step, `[B, ...]`.
    action: a pytree for the environment.
    log_likelihood: of that action, summed over samplers.
    value: the value estimate.
    quantiles: of the return, `[..., Q]`, if the critic is distributional.
    entropy: summed over samplers; `None` if the network does not say.
    loc: location of the action distribution before squashing, `[..., A]`.
    scale: its scale.
    parameters: what the distributions were made of, `[..., P]`.
    raw_action: the action before squashing, `[..., A]`.
    regularization_loss: a scalar, the mean over rows; `None` if there is none.
    metrics: nested dict of arrays.
    extras: rollout extras, as a pytree.
  """

  state: Any
  action: Any
  log_likelihood: jax.Array
  value: jax.Array
  quantiles: jax.Array | None = None
  entropy: jax.Array | None = None
  loc: jax.Array | None = None
  scale: jax.Array | None = None
  parameters: jax.Array | None = None
  raw_action: jax.Array | None = None
  regularization_loss: jax.Array | None = None
  metrics: Any = None
  extras: Any = None


class NetworkFunctions(Protocol):
  """A network as pure functions of its variables."""

  @property
  def stateful(self) -> bool:
    """Whether there is a carry."""
    ...

  @property
  def observation_spec(self) -> Any:
    """Shape of one observation, or a dict of them."""
    ...

  @property
  def distributional(self) -> bool | None:
    """Whether it estimates quantiles of the return; `None` if unknown."""
    ...

  def init(self, key_policy: Key, key_value: Key) -> NetworkVariables:
    """Returns initial variables."""
    ...

  def variables(self, policy: Params, value: Params) -> NetworkVariables:
    """Takes apart what `NetworkVariables.inference_params` joined."""
    ...

  def initial_state(
    self, variables: NetworkVariables, batch_size: int, key: Key | None = None
  ) -> Any:
    """Returns the carry of `batch_size` fresh episodes; `key` is for noise."""
    ...

  def reset(
    self, variables: NetworkVariables, is_first: jax.Array, state: Any
  ) -> Any:
    """Resets the rows of the carry where `is_first` is set."""
    ...

  def step(
    self,
    variables: NetworkVariables,
    normalizer_params: Any,
    state: Any,
    observation: Observation,
    key: Key,
    *,
    is_first: jax.Array | None = None,
    deterministic: bool = False,
  ) -> NetworkOutput:
    """Acts on `[B]` rows, after resetting those where `is_first` is set."""
    ...

  def unroll(
    self,
    variables: NetworkVariables,
    normalizer_params: Any,
    state: Any,
    observation: Observation,
    key: Key,
    *,
    is_first: jax.Array,
    extras: Any,
  ) -> NetworkOutput:
    """Replays a sequence `[T, B]` from the carry before its first reset."""
    ...

  def update_statistics(
    self, variables: NetworkVariables, extras: Any, axis_name: str | None
  ) -> NetworkVariables:
    """Folds a rollout's extras `[T, B, ...]` into embedded statistics."""
    ...


@struct.dataclass
class TrainingState:
  """What training changes; identical on every device.

  Attributes:
    optimizer_state: of optax.
    variables: of the network.
    normalizer_params: Brax's own observation statistics.
    env_steps: taken so far, exact beyond 2^32.
  """

  optimizer_state: optax.OptState
  variables: NetworkVariables
  normalizer_params: running_statistics.RunningStatisticsState
  env_steps: brax_types.UInt64

  def inference_params(self) -> tuple[Any, Params, Params]:
    """Returns Brax's triple (normalizer, policy, value)."""
    return (self.normalizer_params, *self.variables.inference_params())


@struct.dataclass
class ActorState:
  """What acting changes, one row per environment.

  Attributes:
    env_state: of the wrapped environment.
    carry: of the network, before the reset of the rows in `is_first`.
    is_first: `[B]`, 1 where `env_state.obs` is the first of an episode.
  """

  env_state: Any
  carry: Any
  is_first: jax.Array


@struct.dataclass
class Rollout:
  """Recorded segments, `[N, T, ...]` unless said otherwise.

  Attributes:
    observation: what the network saw.
    reward: after the step.
    done: 1 where the step ended an episode, in whatever way.
    truncation: 1 where it was a time limit that did.
    log_likelihood: of the action that was taken.
    extras: the network's rollout extras; where they are the observation itself,
      an `ObservationLeaf` says so. `rollout_data.full_extras` has them whole.
    loc: of the action distribution when it acted; `None` if unknown.
    scale: likewise.
    value: estimate when it acted; `None` unless the loss needs it.
    time_out: Brax's `info['time_out']`; `None` unless bootstrapped.
    start_carry: before the reset that precedes the first step, `[N, ...]`.
    start_is_first: 1 where the segment begins with an episode, `[N]`.
    last_observation: the one after the last step, `[N, ...]`.
    episode: Brax's `episode_metrics` and `episode_done`, if logged.
    end_carry: after the last step, `[N, ...]`; of minibatches alone.
  """

  observation: Any
  reward: jax.Array
  done: jax.Array
  truncation: jax.Array
  log_likelihood: jax.Array
  extras: Any
  loc: Any
  scale: Any
  value: Any
  time_out: Any
  start_carry: Any
  start_is_first: Any
  last_observation: Any
  episode: Any = None
  end_carry: Any = None
