"""What a run would be: its configuration, its layers, its steps, its memory.

Everything is worked out on abstract values; nothing of the run is compiled.
"""

from collections.abc import Mapping
import dataclasses
import inspect
import json
import textwrap
from typing import Any

import jax

from brax_nnx_plugin.ppo import assembly
from brax_nnx_plugin.ppo import environments
from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo import train as ppo
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.devices import Devices
from brax_nnx_plugin.ppo.learner import Learner
from brax_nnx_plugin.ppo.schedule import Schedule

from . import brax_suite
from . import description
from . import network_table
from .configs import RunConfig
from .environments import BRAX
from .network_table import num_bytes


@dataclasses.dataclass(frozen=True)
class Memory:
  """What a run keeps on each device between two steps, in bytes.

  With D devices, B = num_envs / D environments and
  N = batch_size * num_minibatches / D segments of T = unroll_length steps:

      parameters    Σ of all trained and measured numbers of the network
      optimizer     two moments per trained number, and a count
      normalizer    mean, deviation and sum of squares per observation entry
      environments  B * (state of one, with what auto-reset goes back to)
      carries       B * (carry of one)
      rollout       N * (T * step + carry + last observation + first flag)

  where a step is what the loss reads: observation, reward, done, truncation,
  log-likelihood, the network's extras, location and scale of the action, and
  the value if it is needed. 4 bytes a number, but for those of other types.
  Gradients, activations, the minibatches that are picked out of the rollout,
  evaluation environments, models made by domain randomization and compiled
  programs are not counted.
  """

  parameters: int
  optimizer: int
  normalizer: int
  environments: int
  carries: int
  rollout: int

  @property
  def total(self) -> int:
    return sum(dataclasses.astuple(self))


class _Standstill:
  """An environment that stays where it is, of the same types as any other."""

  def step(self, state: Any, action: Any) -> Any:
    del action
    return state


def make_learner(
  arguments: Mapping[str, Any],
) -> tuple[Learner, Any]:
  """Makes what would train, and the shapes of its environments' first state.

  Args:
    arguments: keyword arguments of `train`.

  Returns:
    The learner of one device, and the state of its environments.
  """
  bound = inspect.signature(ppo.train).bind(**arguments)
  bound.apply_defaults()
  devices = Devices.of(bound.arguments['max_devices_per_host'])
  config = TrainConfig.from_arguments(bound.arguments, devices.count)
  schedule = Schedule.of(config, devices.count)
  # Models of its own would be computed here.
  fixed = dataclasses.replace(config.environment, randomization_fn=None)
  count = schedule.envs_per_device
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.PRNGKey(0), count))
  env = environments.wrap(fixed.environment, fixed, count, keys)
  env_state = jax.eval_shape(env.reset, keys)
  size = jax.tree.map(lambda x: x.shape[1:], env_state.obs)
  _, learner = assembly.make_learner(
    env, size, config, schedule, devices.axis_name, 0
  )
  return learner, env_state


def measure(learner: Learner, env_state: Any) -> Memory:
  """Works out the memory of a run.

  Args:
    learner: of one device.
    env_state: of its environments, at least the shapes.
  """
  networks = learner.networks
  key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
  spec = environments.statistics_spec(env_state)
  state = jax.eval_shape(lambda k: learner.init(k, k, spec), key)
  count = learner.schedule.envs_per_device
  carry = jax.eval_shape(
    lambda v, k: networks.initial_state(v, count, k), state.variables, key
  )
  actors = jax.eval_shape(rollout.start, env_state, carry)
  # A step keeps all types, so the real one need not be traced.
  still = dataclasses.replace(learner, env=_Standstill())
  _, data = jax.eval_shape(still.collect, state, actors, key)
  return Memory(
    parameters=num_bytes(state.variables),
    optimizer=num_bytes(state.optimizer_state),
    normalizer=num_bytes(state.normalizer_params),
    environments=num_bytes(env_state),
    carries=num_bytes(carry),
    rollout=num_bytes(data),
  )


def _steps(learner: Learner) -> str:
  """Says how much will be done."""
  schedule, budget = learner.schedule, learner.config.budget
  steps = (
    schedule.num_rounds * schedule.epochs_per_round * schedule.steps_per_epoch
  )
  gradient_steps = steps * budget.num_updates_per_batch * budget.num_minibatches
  evaluations = budget.num_evals if learner.config.evaluation.run_evals else 0
  text = (
    f'{schedule.total_env_steps:,} env steps'
    f' ({budget.num_timesteps:,} asked for) in {steps:,} training steps with'
    f' {gradient_steps:,} gradient steps, and {evaluations} evaluations.'
  )
  return textwrap.fill(text, 80)


def _memory(learner: Learner, env_state: Any) -> str:
  """Returns the memory as aligned text."""
  memory = measure(learner, env_state)
  budget, schedule = learner.config.budget, learner.schedule
  segments = schedule.unrolls_per_step * schedule.envs_per_device
  length = budget.unroll_length
  texts = {
    'parameters': 'parameters and embedded statistics',
    'optimizer': 'optimizer',
    'normalizer': "Brax's observation statistics",
    'environments': f'{schedule.envs_per_device:,} environments',
    'carries': 'their carries',
    'rollout': f'rollout, {segments:,} segments of {length} steps',
  }
  sizes = {text: getattr(memory, name) for name, text in texts.items()}
  sizes['total'] = memory.total
  width = max(map(len, sizes))
  return '\n'.join(
    f'{text:<{width}}  {size:>15,}  {size / 2**20:>10,.1f} MiB'
    for text, size in sizes.items()
  )


def report(config: RunConfig, arguments: Mapping[str, Any]) -> str:
  """Says what a run would be.

  Args:
    config: of the run.
    arguments: what `train` would be called with; they fit together.
  """
  learner, env_state = make_learner(arguments)
  layers = network_table.rows(learner.networks)
  text = json.dumps(description.describe(config), indent=2)
  if config.suite == BRAX:
    text += '\n\n' + textwrap.fill(brax_suite.note(config.env_name), 80)
  return f"""{text}

Network: {config.network}
(numbers in each layer, and bytes of carry per environment)

{network_table.table(layers)}

{_steps(learner)}

Memory on each device, in bytes:

{_memory(learner, env_state)}

Gradients, activations, minibatches, evaluations, randomized models and compiled
programs come on top. Nothing was trained, and no folder was made."""
