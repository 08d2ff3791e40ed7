"""A training run: what is on the devices, and what `train` does to it."""

from collections.abc import Mapping
import dataclasses
import time
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import assembly
from brax_nnx_plugin.ppo import checks
from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo import environments
from brax_nnx_plugin.ppo import evaluation
from brax_nnx_plugin.ppo import guards
from brax_nnx_plugin.ppo import preemption
from brax_nnx_plugin.ppo import processes
from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.keeper import Keeper
from brax_nnx_plugin.ppo.keeper import to_floats
from brax_nnx_plugin.ppo.run_state import RunState
from brax_nnx_plugin.ppo.schedule import Schedule
from brax_nnx_plugin.ppo.types import ActorState
from brax_nnx_plugin.ppo.types import TrainingDiverged
from brax_nnx_plugin.ppo.types import TrainingState


class TrainingRun:
  """The states of a run and the compiled programs that advance them.

  Attributes:
    config: of the run.
    schedule: how many of what.
    make_policy: from parameters to a policy.
    progress: how far it has come.
    state: of training, replicated.
    actors: of the environments, one row of the leading axis a device.
  """

  def __init__(self, config: TrainConfig):
    """Sets up a run as Brax's `train` does, with its order of keys.

    The network is checked on abstract values, before anything compiles. A run
    that goes on starts anew and is then filled with what was saved.

    Args:
      config: of the run.

    Raises:
      ValueError: if the network, the environment and the parameters do not fit.
      TypeError: if the network factory is none.
    """
    checks.require_factory(config.network.network_factory)
    self.config = config
    self._devices = device_lib.Devices.of(config.budget.max_devices_per_host)
    self.schedule = Schedule.of(config, self._devices.count)
    processes.require_same_arguments(config)
    self._keeper = Keeper(config, self.schedule, self._devices)
    self.progress = self._keeper.begin

    global_key, local_key = jax.random.split(
      jax.random.PRNGKey(config.budget.seed)
    )
    # Brax folds in the index of the process. Here every process draws the keys
    # of all devices, as the first, and takes its own: a run is the same however
    # its devices are spread over processes.
    local_key = jax.random.fold_in(local_key, 0)
    self._key, key_env, self._eval_key = jax.random.split(local_key, 3)
    key_policy, key_value = jax.random.split(global_key)

    env = environments.wrap(
      config.environment.environment,
      config.environment,
      self.schedule.envs_per_device,
      key_env,
    )
    self._env_keys = self._split_env_keys(key_env)
    self._carry_key = rollout.carry_key(key_env)
    spec = jax.eval_shape(env.reset, self._env_keys[0])
    environments.check_spaces(env, spec, self.schedule.envs_per_device)
    self._observation_size = jax.tree.map(lambda x: x.shape[1:], spec.obs)
    environments.check_eval_env(config, self._observation_size, env.action_size)
    self.make_policy, self._learner = assembly.make_learner(
      env,
      self._observation_size,
      config,
      self.schedule,
      self._devices.axis_name,
      self.env_steps // config.environment.action_repeat,
    )
    self._keeper.prepare(self._observation_size, env.action_size)
    state = assembly.initial_state(
      self._learner,
      (key_policy, key_value),
      environments.statistics_spec(spec),
      restored=not self.resumed,
    )
    self.state: TrainingState = self._devices.replicate(state)
    self._reset = environments.make_reset_fn(
      env, self._devices, config.environment.use_pmap_on_reset
    )
    self.actors = self._start_actors()
    self._run_epoch = self._devices.pmap(
      self._epoch_of_device, donate_argnums=(0, 1)
    )
    self._evaluator: evaluation.Evaluator | None = None
    self._next_eval_key = self._eval_key
    if self.resumed:
      self._resume()
    processes.require_same_start(self.state)

  @property
  def env_steps(self) -> int:
    """Env steps taken so far."""
    return self.progress.env_steps

  @property
  def resumed(self) -> bool:
    """Whether the run goes on from a checkpoint."""
    return self._keeper.resumed is not None

  @property
  def finished(self) -> bool:
    """Whether there is nothing left to train."""
    total = self.schedule.num_rounds * self.schedule.epochs_per_round
    return self._keeper.finished or self.progress.epochs >= total

  @property
  def round_is_complete(self) -> bool:
    """Whether the next thing to do is a report."""
    return self.progress.epochs % self.schedule.epochs_per_round == 0

  def _snapshot(self) -> RunState:
    return RunState(
      self.state, self.actors, self._env_keys, self._key, self._next_eval_key
    )

  def _resume(self) -> None:
    """Puts in place what was saved."""
    first = device_lib.first(self.state)
    saved = self._keeper.restore(
      dataclasses.replace(self._snapshot(), training=first)
    )
    self.state = self._devices.replicate(saved.training)
    # Made on the devices, as when they are reset.
    self.actors = self._devices.pmap(lambda x: x)(saved.actors)
    self._env_keys = jnp.asarray(saved.env_keys)
    self._key = jnp.asarray(saved.key)
    self._next_eval_key = jnp.asarray(saved.eval_key)

  def _split_env_keys(self, key: jax.Array) -> jax.Array:
    keys = jax.random.split(key, self.config.environment.num_envs)
    return self._devices.own(
      keys.reshape((self._devices.count, -1, *keys.shape[1:]))
    )

  def _split_for_devices(self, key: jax.Array) -> jax.Array:
    return self._devices.own(jax.random.split(key, self._devices.count))

  def _start_actors(self) -> ActorState:
    """Resets all environments; their carries are reset at the first step."""
    networks, rows = self._learner.networks, self.schedule.envs_per_device
    initial = lambda v, key: networks.initial_state(v, rows, key)
    keys = self._split_for_devices(self._carry_key)
    if networks.stateful:
      carry = self._devices.pmap(initial)(self.state.variables, keys)
    else:  # a tree without leaves
      carry = initial(device_lib.first(self.state.variables), keys[0])
    return self._reset_actors(carry)

  def _reset_actors(self, carry: Any) -> ActorState:
    env_state = self._reset(self._env_keys)
    # Made on the devices: placed elsewhere it would cost a second compilation.
    is_first = self._devices.pmap(jnp.ones_like)(env_state.done)
    return ActorState(env_state, carry, is_first)

  def params(self) -> tuple[Any, Any, Any]:
    """Returns one copy of (normalizer, policy, value)."""
    return device_lib.first(self.state).inference_params()

  def train_round(self) -> dict[str, Any]:
    """Trains up to the next report.

    Returns:
      Means over the last epoch, under 'training/'; 'training/sps' is in env
      steps per second, 'training/walltime' in seconds since the start.

    Raises:
      TrainingDiverged: after an epoch in which numbers are no longer finite.
      Preempted: after an epoch within the round; see `preemption.save_on`.
    """
    while True:
      metrics = self._train_epoch()
      self._env_keys = environments.next_keys(self._env_keys)
      if self.config.budget.num_resets_per_eval > 0:
        self.actors = self._reset_actors(self.actors.carry)
      if self.round_is_complete:
        return metrics
      self.stop_if_preempted({})

  def _epoch_of_device(self, *args: Any) -> Any:
    state, actors, metrics = self._learner.run_epoch(*args)
    return state, actors, self._devices.average(metrics)

  def _train_epoch(self) -> dict[str, Any]:
    begin = time.time()
    epoch_key, self._key = jax.random.split(self._key)
    keys = self._split_for_devices(epoch_key)
    self.state, self.actors = device_lib.strip_weak_type(
      (self.state, self.actors)
    )
    self.state, self.actors, metrics = self._run_epoch(
      self.state, self.actors, keys
    )
    metrics = jax.tree.map(jnp.mean, metrics)
    jax.block_until_ready(metrics)
    seconds = time.time() - begin
    self.progress = dataclasses.replace(
      self.progress,
      epochs=self.progress.epochs + 1,
      env_steps=int(device_lib.first(self.state.env_steps)),
      walltime=self.progress.walltime + seconds,
    )
    self._stop_if_diverged(metrics)
    sps = self.schedule.env_steps_per_epoch / seconds
    return {
      'training/sps': sps,
      'training/walltime': self.progress.walltime,
      **{f'training/{name}': value for name, value in metrics.items()},
    }

  def _stop_if_diverged(self, metrics: dict[str, Any]) -> None:
    """Raises what the guard found in the epoch, and takes it out."""
    # A mean over devices, which all say the same.
    found = round(float(metrics.pop(guards.FIRST_BAD, guards.NOTHING)))
    if found != guards.NOTHING:
      observation = self.actors.env_state.obs
      names = guards.names(observation, metrics, self.state)
      raise TrainingDiverged(names[found], self.env_steps, self.params())

  def evaluate(self, training_metrics: dict[str, Any]) -> dict[str, Any]:
    """Evaluates the policy; returns its metrics along with the given ones."""
    if self._evaluator is None:
      self._evaluator = evaluation.make_evaluator(
        self.config,
        self._learner.networks,
        self._eval_key,
        self._next_eval_key,
        self.progress.eval_walltime,
      )
    metrics = self._evaluator.run(
      device_lib.first(self.state), training_metrics
    )
    self._next_eval_key = self._evaluator.key
    self.progress = dataclasses.replace(
      self.progress, eval_walltime=self._evaluator.walltime
    )
    logging.info(metrics)
    return metrics

  def save(self, training_metrics: Mapping[str, Any]) -> None:
    """Saves a checkpoint, if asked for; all processes must call it.

    Args:
      training_metrics: what is to be reported next.

    Raises:
      SaveError: if this or the save before it fails.
    """
    metrics = to_floats(training_metrics)
    progress = dataclasses.replace(self.progress, metrics=metrics)
    self._keeper.save(self._snapshot(), progress)

  def stop_if_preempted(self, training_metrics: Mapping[str, Any]) -> None:
    """Saves and stops, if a signal has asked for it.

    Args:
      training_metrics: as for `save`.

    Raises:
      Preempted: if it has.
    """
    if signum := preemption.received():
      self.save(training_metrics)
      raise preemption.Preempted(signum, self.env_steps, self._keeper.saved())

  def close(self) -> None:
    """Waits until the last checkpoint is saved; raises if it is not."""
    self._keeper.wait()
