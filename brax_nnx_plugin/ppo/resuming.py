"""Going on with a run: what must be as it was, and how far it had come.

`run.json` of a checkpoint describes the run; `agreement` compares it with the
arguments now. More steps may be asked for as long as epochs keep their size,
since `train` would have done the same up to here.
"""

from collections.abc import Mapping
import dataclasses
import os
from typing import Any
import warnings

from etils import epath

from brax_nnx_plugin.ppo import agreement
from brax_nnx_plugin.ppo import arrays
from brax_nnx_plugin.ppo import convert
from brax_nnx_plugin.ppo import folders
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class ParamsOnly(os.PathLike):
  """A checkpoint to take parameters from, and nothing else."""

  path: Any

  def __fspath__(self) -> str:
    return os.fspath(self.path)


def params_only(path: Any) -> ParamsOnly:
  """Names a checkpoint to start a new run from, as Brax does.

  `train(restore_checkpoint_path=params_only(path))` takes parameters and
  statistics; optimizer, step count, environments and keys start anew.

  Args:
    path: the folder of a run, of its checkpoints, or of one checkpoint.
  """
  return ParamsOnly(path)


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a run has come.

  Attributes:
    epochs: done.
    env_steps: taken.
    walltime: seconds of training.
    eval_walltime: seconds of evaluation.
    metrics: of the last epoch, for the report at the end of its round.
  """

  epochs: int = 0
  env_steps: int = 0
  walltime: float = 0.0
  eval_walltime: float = 0.0
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Resumed:
  """A run to go on with.

  Attributes:
    folder: of its checkpoint.
    progress: how far it had come.
    key_types: of the random keys in it.
    network: its description.
    finished: whether there is nothing left to train.
  """

  folder: epath.Path
  progress: Progress
  key_types: Mapping[str, str]
  network: Mapping[str, Any]
  finished: bool


def describe(
  config: TrainConfig,
  schedule: Schedule,
  device_count: int,
  progress: Progress,
  key_types: Mapping[str, str],
) -> dict[str, Any]:
  """Describes a run for JSON.

  Args:
    config: of the run.
    schedule: of the run.
    device_count: of all processes.
    progress: so far.
    key_types: of the random keys in its state.
  """
  return {
    'arguments': agreement.arguments(config, device_count),
    'env_steps_per_epoch': schedule.env_steps_per_epoch,
    'progress': dataclasses.asdict(progress),
    'key_types': dict(key_types),
  }


def _read(folder: epath.Path) -> tuple[dict[str, Any], Progress]:
  """Reads `run.json`, whoever wrote it."""
  file = folder / folders.RUN_NAME
  description = arrays.read_json(file)
  try:
    progress = Progress(**description['progress'])
    whole = (progress.epochs, progress.env_steps)
    whole += (description['env_steps_per_epoch'],)
    if not all(isinstance(n, int) and n > 0 for n in whole):
      raise TypeError('counts must be whole numbers')
    dict(description['arguments'], **description['key_types'])
    dict(progress.metrics)
  except (KeyError, TypeError, ValueError) as e:
    raise ValueError(f'{file} is damaged: {type(e).__name__}: {e}') from None
  return description, progress


def env_steps_per_epoch(folder: epath.Path) -> int | None:
  """Returns the size of the epochs of a run, which stays when it goes on.

  Args:
    folder: of a checkpoint.

  Returns:
    `None` if the checkpoint has parameters only.

  Raises:
    ValueError: if its description is damaged.
  """
  if not (folder / folders.RUN_NAME).exists():
    return None
  return _read(folder)[0]['env_steps_per_epoch']


def find(
  config: TrainConfig, schedule: Schedule, device_count: int
) -> Resumed | None:
  """Finds the run that is to go on.

  Args:
    config: of the run that is starting.
    schedule: likewise.
    device_count: of all processes.

  Returns:
    `None` if it starts anew, perhaps from parameters.

  Raises:
    ValueError: if there is no checkpoint, or it is one of another run.
  """
  path = config.checkpoint.restore_checkpoint_path
  if path is None or isinstance(path, ParamsOnly):
    return None
  if (epath.Path(path).resolve() / convert.BRAX_CONFIG).exists():
    return None
  folder = folders.find(path)
  if config.budget.num_timesteps == 0:
    return None
  if not (folder / folders.RUN_NAME).exists():
    _warn_of_lost_state(folder)
    return None
  _check_restore_arguments(config, folder)
  description, progress = _read(folder)
  agreement.check_arguments(
    folder, description['arguments'], agreement.arguments(config, device_count)
  )
  finished = _is_finished(config, schedule, description, progress)
  if finished:
    warnings.warn(
      f'The run in {folder} has taken its {progress.env_steps} env steps: there'
      ' is nothing left to train. To train longer raise num_timesteps; to start'
      ' a new run from its parameters use'
      ' restore_checkpoint_path=checkpoint.params_only(path).',
      stacklevel=5,
    )
  return Resumed(
    folder=folder,
    progress=progress,
    key_types=description['key_types'],
    network=arrays.read_json(folder / folders.CONFIG_NAME),
    finished=finished,
  )


def _warn_of_lost_state(folder: epath.Path) -> None:
  if arrays.described(folder, folders.STATE_NAME):
    warnings.warn(
      f'{folder} keeps parameters only, as an older checkpoint does: the run'
      ' starts anew from them. To go on exactly, name the newest one, or keep'
      ' more with checkpoint.Folder(path, keep_states=...).',
      stacklevel=5,
    )


def _check_restore_arguments(config: TrainConfig, folder: epath.Path) -> None:
  for name, other in (('restore_params', None), ('restore_value_fn', True)):
    if getattr(config.checkpoint, name) is not other:
      raise ValueError(
        f'{name} has no meaning when a run goes on, as from {folder}, which has'
        ' parameters, optimizer and environments. Leave it out, or start a new'
        ' run with restore_checkpoint_path=checkpoint.params_only(path).'
      )


def _is_finished(
  config: TrainConfig,
  schedule: Schedule,
  description: Mapping[str, Any],
  progress: Progress,
) -> bool:
  """Whether all epochs are done, which must be of the size they had."""
  size = description['env_steps_per_epoch']
  budget = config.budget
  if size == schedule.env_steps_per_epoch:
    epochs = schedule.num_rounds * schedule.epochs_per_round
    return progress.epochs >= epochs
  if progress.env_steps >= budget.num_timesteps:
    return True
  per_round = size * schedule.epochs_per_round
  rounds = -(-int(budget.num_timesteps) // per_round)
  raise ValueError(
    f'num_timesteps = {budget.num_timesteps} with num_evals ='
    f' {budget.num_evals} makes epochs of {schedule.env_steps_per_epoch} env'
    f' steps; those of the run to go on with have {size}. Choose num_evals ='
    f' {rounds + 1} and num_timesteps = {rounds * per_round}, or start a new'
    ' run with restore_checkpoint_path=checkpoint.params_only(path).'
  )
