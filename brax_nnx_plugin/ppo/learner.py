"""The training step, as pure functions of the training state.

    run_epoch -> ppo_step -> sgd_epoch -> minibatch_step -> losses.ppo_loss

Each level is one scan over the next. Keys are split in Brax's order, so that a
memoryless network ends with Brax's numbers.
"""

import dataclasses
import functools
from typing import Any
from typing import cast

from brax.training import gradients
from brax.training import types as brax_types
from brax.training.acme import running_statistics
import jax
import jax.numpy as jnp
import optax

from brax_nnx_plugin.ppo import environments
from brax_nnx_plugin.ppo import guards
from brax_nnx_plugin.ppo import losses
from brax_nnx_plugin.ppo import optimizers
from brax_nnx_plugin.ppo import pixels
from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo import rollout_data
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.devices import AXIS_NAME
from brax_nnx_plugin.ppo.schedule import Schedule
from brax_nnx_plugin.ppo.types import ActorState
from brax_nnx_plugin.ppo.types import NetworkFunctions
from brax_nnx_plugin.ppo.types import Rollout
from brax_nnx_plugin.ppo.types import TrainingState

Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Learner:
  """PPO updates of one network in one environment.

  The methods run inside `pmap` over the axis 'i'.

  Attributes:
    env: batched, with auto-reset.
    networks: what is trained.
    config: of the run.
    schedule: of the run.
    axis_name: the device axis if there is more than one device.
    episode_logger: called with episode metrics and losses, if they are logged.
    guarded: stand still where numbers are no longer finite; see `guards`.
  """

  env: Any
  networks: NetworkFunctions
  config: TrainConfig
  schedule: Schedule
  axis_name: str | None = None
  episode_logger: Any = None
  guarded: bool = False

  @functools.cached_property
  def optimizer(self) -> optax.GradientTransformation:
    return optimizers.make_optimizer(self.config.optimizer)

  def init(
    self, key_policy: jax.Array, key_value: jax.Array, observation_spec: Any
  ) -> TrainingState:
    """Returns the state before the first step.

    Args:
      key_policy: for the policy's weights.
      key_value: for the value function's.
      observation_spec: of Brax's running statistics.

    Raises:
      ValueError: if an option does not fit the network or the observation.
    """
    network = self.config.network
    if network.augment_pixels:
      pixels.check(observation_spec)
    distributional = self.networks.distributional
    if distributional is not None:
      losses.check_critic(distributional, self.config.loss)
    variables = self.networks.init(key_policy, key_value)
    return TrainingState(
      optimizer_state=self.optimizer.init(cast(optax.Params, variables.params)),
      variables=variables,
      normalizer_params=running_statistics.init_state(
        observation_spec,
        std_eps=network.normalize_observations_std_eps,
        mode=network.normalize_observations_mode,
      ),
      env_steps=brax_types.UInt64(hi=0, lo=0),  # pyright: ignore[reportCallIssue]
    )

  def collect(
    self, state: TrainingState, actors: ActorState, key: jax.Array
  ) -> tuple[ActorState, Rollout]:
    """Acts for one training step; see `rollout.collect`."""
    loss = self.config.loss
    info_fields = ['time_out'] if loss.bootstrap_on_timeout else []
    if self.episode_logger is not None:
      info_fields += ['episode_metrics', 'episode_done']
    actors, data = rollout.collect(
      self.env,
      self.networks,
      state.variables,
      state.normalizer_params,
      actors,
      key,
      self.config.budget.unroll_length,
      self.schedule.unrolls_per_step,
      store_value=loss.needs_old_value,
      info_fields=info_fields,
    )
    if loss.bootstrap_on_timeout:
      bonus = loss.discounting * cast(Any, data.time_out) * data.value
      data = dataclasses.replace(data, reward=data.reward + bonus)
    return actors, data

  def minibatch_step(
    self,
    carry: Any,
    rows: jax.Array,
    *,
    state: TrainingState,
    data: Rollout,
    last_carry: Any = None,
  ) -> tuple[Any, Metrics]:
    """Takes one gradient step on the segments `rows` of `data`.

    Memory's drift is measured if the actors' `last_carry` is given.
    """
    optimizer_state, params, key = carry
    key, key_loss = jax.random.split(key)
    minibatch = jax.tree.map(lambda x: x[rows], data)
    if last_carry is not None:
      end_carry = rollout_data.end_carry(data.start_carry, last_carry, rows)
      minibatch = dataclasses.replace(minibatch, end_carry=end_carry)
    loss_fn: Any = functools.partial(
      losses.ppo_loss, networks=self.networks, config=self.config.loss
    )
    (_, metrics), grads = gradients.loss_and_pgrad(
      loss_fn, pmap_axis_name=AXIS_NAME, has_aux=True
    )(
      params,
      state.variables,
      state.normalizer_params,
      minibatch,
      key_loss,
      optimizers.gradient_steps(optimizer_state),
    )
    kl_mean = jax.lax.pmean(metrics['kl_mean'], axis_name=AXIS_NAME)
    optimizer_state, learning_rate = optimizers.adapt_learning_rate(
      optimizer_state, kl_mean, self.config.optimizer
    )
    metrics['learning_rate'] = learning_rate
    updates, optimizer_state = self.optimizer.update(grads, optimizer_state)
    params = optax.apply_updates(params, updates)
    return (optimizer_state, params, key), metrics

  def sgd_epoch(
    self,
    carry: Any,
    _: Any,
    *,
    state: TrainingState,
    data: Rollout,
    last_carry: Any = None,
  ) -> tuple[Any, Metrics]:
    """Goes once through all segments, in an order of its own."""
    optimizer_state, params, key = carry
    key, key_perm, key_grad = jax.random.split(key, 3)
    if self.config.network.augment_pixels:
      key, key_shift = jax.random.split(key)
      data = pixels.augment(data, key_shift)
    # One order for all leaves: a segment is shuffled whole, carry included.
    order = jax.random.permutation(key_perm, data.start_is_first.shape[0])
    rows = order.reshape((self.config.budget.num_minibatches, -1))
    (optimizer_state, params, _), metrics = jax.lax.scan(
      functools.partial(
        self.minibatch_step, state=state, data=data, last_carry=last_carry
      ),
      (optimizer_state, params, key_grad),
      rows,
    )
    return (optimizer_state, params, key), metrics

  def _observe(self, state: TrainingState, data: Rollout) -> TrainingState:
    """Folds the rollout into Brax's observation statistics."""
    return dataclasses.replace(
      state,
      normalizer_params=running_statistics.update(
        state.normalizer_params,
        environments.without_pixels(data.observation),
        pmap_axis_name=AXIS_NAME,
        until_count=self.config.network.normalize_until_count,
      ),
    )

  def ppo_step(
    self, state: TrainingState, actors: ActorState, key: jax.Array
  ) -> tuple[TrainingState, ActorState, jax.Array, Metrics]:
    """Acts, learns from it, and folds it into the statistics.

    Brax's own statistics are updated before the gradient phase (after it with
    the adaptive learning rate), embedded ones always after it.

    Args:
      state: of training.
      actors: where the environments are.
      key: split in three, as in Brax.

    Returns:
      Both states after the step, the next key, and metrics
      `[num_updates_per_batch, num_minibatches]`; if guarded also
      `guards.FIRST_BAD`, a scalar.
    """
    before = state
    key_sgd, key_unroll, key = jax.random.split(key, 3)
    actors, data = self.collect(state, actors, key_unroll)
    observe_first = not self.config.optimizer.adaptive_kl
    if observe_first:
      state = self._observe(state, data)
    train_data = dataclasses.replace(data, episode=None)
    (optimizer_state, params, _), metrics = jax.lax.scan(
      functools.partial(
        self.sgd_epoch, state=state, data=train_data, last_carry=actors.carry
      ),
      (state.optimizer_state, state.variables.params, key_sgd),
      (),
      length=self.config.budget.num_updates_per_batch,
    )
    if not observe_first:
      state = self._observe(state, data)
    variables = self.networks.update_statistics(
      dataclasses.replace(state.variables, params=params),
      jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1), rollout_data.full_extras(data)
      ),
      self.axis_name,
    )
    if self.episode_logger is not None:
      jax.debug.callback(
        self.episode_logger,
        data.episode['episode_metrics'],
        data.episode['episode_done'],
        metrics,
      )
    state = dataclasses.replace(
      state,
      optimizer_state=optimizer_state,
      variables=variables,
      env_steps=state.env_steps + self.schedule.env_steps_per_training_step,
    )
    if self.guarded:
      metrics[guards.FIRST_BAD] = guards.first_bad(
        data, metrics, before, state, AXIS_NAME
      )
    return state, actors, key, metrics

  def run_epoch(
    self, state: TrainingState, actors: ActorState, key: jax.Array
  ) -> tuple[TrainingState, ActorState, Metrics]:
    """Takes `schedule.steps_per_epoch` training steps.

    Args:
      state: of training.
      actors: where the environments are.
      key: of this device.

    Returns:
      Both states, and the means of all metrics; if guarded the last finite
      state, and `guards.FIRST_BAD`.
    """

    def step(carry, _):
      before, actors, key, found = carry
      state, actors, key, metrics = self.ppo_step(before, actors, key)
      if self.guarded:
        found, state = guards.hold(
          found, metrics.pop(guards.FIRST_BAD), before, state
        )
      return (state, actors, key, found), metrics

    (state, actors, _, found), metrics = jax.lax.scan(
      step,
      (state, actors, key, jnp.int32(guards.NOTHING)),
      (),
      length=self.schedule.steps_per_epoch,
    )
    metrics = jax.tree.map(jnp.mean, metrics)
    if self.guarded:
      metrics[guards.FIRST_BAD] = found
    return state, actors, metrics
