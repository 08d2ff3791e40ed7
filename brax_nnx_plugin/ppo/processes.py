"""What the processes of one run (`jax.distributed`) owe each other.

They run the same program on their own devices and meet in its collectives. One
that was given something else would hang or be nonsense, so it is found before
training.
"""

import jax

from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.types import TrainingState

_PLAIN = (bool, int, float, str, type(None))


def is_main() -> bool:
  """Whether this process evaluates, reports and saves: the first one does."""
  return jax.process_index() == 0


def require_same_arguments(config: TrainConfig) -> None:
  """Checks that all processes train with the same numbers.

  Args:
    config: of the run, in this process.

  Raises:
    ValueError: naming the arguments that differ; in all processes.
  """
  groups = (
    config.environment,
    config.budget,
    config.loss,
    config.optimizer,
    config.network,
  )
  arguments = {name: v for group in groups for name, v in vars(group).items()}
  arguments['log_training_metrics'] = config.reporting.log_training_metrics
  # Functions and environments have no text that is the same everywhere.
  values = {
    name: repr(value).encode() if isinstance(value, _PLAIN) else b''
    for name, value in arguments.items()
  }
  if names := device_lib.differing_between_processes(values):
    here = ', '.join(f'{name} = {arguments[name]}' for name in names)
    raise ValueError(
      f'Processes were given different {", ".join(names)}; this one: {here}.'
      ' Start all of them with the same arguments.'
    )


def require_same_start(state: TrainingState) -> None:
  """Checks that all processes start with the same network.

  Args:
    state: of training, replicated.

  Raises:
    ValueError: naming what differs; in all processes.
  """
  structure = [
    (jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype))
    for path, leaf in jax.tree_util.tree_leaves_with_path(state)
  ]
  if device_lib.differing_between_processes({'': repr(structure).encode()}):
    raise ValueError(
      'Processes made networks with different parameters. Give all of them the'
      ' same environment and network_factory.'
    )
  if names := device_lib.drifted_leaves(state):
    raise ValueError(
      f'Processes start with different numbers in {", ".join(names)}. Let'
      ' network_factory draw all of them from the keys it is given.'
    )
