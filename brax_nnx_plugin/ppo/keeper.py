"""What `train` has to do with files: taking a run up, and saving it."""

from collections.abc import Mapping
from typing import Any
import warnings

from etils import epath
import numpy as np

from brax_nnx_plugin.ppo import agreement
from brax_nnx_plugin.ppo import arrays
from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo import folders
from brax_nnx_plugin.ppo import network_config
from brax_nnx_plugin.ppo import processes
from brax_nnx_plugin.ppo import resuming
from brax_nnx_plugin.ppo import run_state
from brax_nnx_plugin.ppo import saving
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.resuming import Progress
from brax_nnx_plugin.ppo.run_state import RunState
from brax_nnx_plugin.ppo.schedule import Schedule


def named_params(params: Any) -> dict[str, Any]:
  """Names the triple (normalizer, policy, value)."""
  return dict(zip(('normalizer', 'policy', 'value'), params, strict=True))


class Keeper:
  """Keeps one run in files.

  Attributes:
    resumed: the run that goes on; `None` if it starts.
  """

  def __init__(
    self, config: TrainConfig, schedule: Schedule, devices: device_lib.Devices
  ):
    """Finds what is to go on; nothing is made yet.

    Args:
      config: of the run.
      schedule: of the run.
      devices: of the run.

    Raises:
      ValueError: if the run cannot go on.
    """
    self._config, self._schedule, self._devices = config, schedule, devices
    self.resumed = resuming.find(config, schedule, devices.count)
    self._network: dict[str, Any] | None = None
    self._saver: saving.Saver | None = None
    self._saved: int | None = None
    path = config.checkpoint.save_checkpoint_path
    self._folder = None if path is None else saving.Folder.of(path)
    plan = (self._folder and self._folder.save_state, self.resumed is not None)
    if device_lib.differing_between_processes({'': repr(plan).encode()}):
      raise ValueError(
        'Some processes have a checkpoint to save or to go on with, and others'
        ' have not. Give all of them the same paths, in a folder that all see.'
      )

  @property
  def begin(self) -> Progress:
    """Where the run begins."""
    return self.resumed.progress if self.resumed else Progress()

  @property
  def finished(self) -> bool:
    """Whether the run had nothing left to train when it was found."""
    return self.resumed is not None and self.resumed.finished

  def prepare(self, observation_size: Any, action_size: int) -> None:
    """Describes the network and makes the folder: no late surprises.

    Args:
      observation_size: of the environment.
      action_size: likewise.

    Raises:
      ValueError: if the network cannot be written down or is another one than
        that of the run, or the folder cannot be made.
    """
    if self._folder is None and self.resumed is None:
      return
    network = self._config.network
    self._network = network_config.network_config(
      network.network_factory,
      observation_size,
      action_size,
      network.normalize_observations,
      std_eps=network.normalize_observations_std_eps,
      mode=network.normalize_observations_mode,
    )
    if self.resumed is not None:
      agreement.check_network(
        self.resumed.folder, self.resumed.network, self._network
      )
    if self._folder is not None and processes.is_main():
      self._make_folder(self._folder)

  def _make_folder(self, folder: saving.Folder) -> None:
    """Makes the folder early, and keeps its absolute path."""
    try:
      saver = saving.Saver(folder)
      saver.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
      raise ValueError(
        f'save_checkpoint_path = {str(folder.path)!r} cannot be made a folder'
        f' ({e.strerror or e}). Choose another one.'
      ) from e
    self._saver = saver
    begin = self.begin.env_steps
    later = [p for p in folders.complete(saver.parent) if int(p.name) > begin]
    if later:
      warnings.warn(
        f'{saver.parent} has checkpoints of another run, up to env step'
        f' {int(later[0].name)}, and this one begins at {begin}. The newest is'
        ' what is loaded from there: choose another save_checkpoint_path.',
        stacklevel=5,
      )

  def restore(self, fresh: RunState) -> RunState:
    """Puts what was saved into a fresh run.

    Args:
      fresh: says the structure; on the devices.

    Returns:
      Arrays on the host, with the rows of this process.

    Raises:
      ValueError: if they do not fit; the message names them.
    """
    resumed = self.resumed
    assert resumed is not None
    saved: dict[str, Any] = dict(
      arrays.read(resumed.folder, folders.STATE_NAME)
    )
    count = self._devices.count
    for name, value in saved.items():
      if name.startswith(('actors.', 'env_keys')) and len(value) == count:
        saved[name] = self._devices.own(value)
    if wrong := run_state.misfits(saved, fresh, resumed.key_types):
      raise ValueError(
        f'The run in {resumed.folder} cannot go on with this environment,'
        f' network and optimizer: {"; ".join(wrong[:10])}. Give the arguments'
        ' that it had, or start a new run from its parameters with'
        ' restore_checkpoint_path=checkpoint.params_only(path).'
      )
    return run_state.fill(fresh, saved)

  def save(self, state: RunState, progress: Progress) -> None:
    """Saves a checkpoint if asked for; all processes must call it.

    Args:
      state: of the run, its training state replicated.
      progress: of the run.

    Raises:
      SaveError: if this or the save before it fails.
    """
    if self._folder is None or progress.env_steps == self._saved:
      return
    self._saved = progress.env_steps
    training = run_state.copy_one(device_lib.first(state.training))
    kept = None
    if self._folder.save_state:
      kept = self._state(state, training, progress)
    if self._saver is not None:
      params = named_params(training.inference_params())
      self._saver.save(
        progress.env_steps, run_state.flatten(params), self._network, kept
      )

  def _state(
    self, state: RunState, training: Any, progress: Progress
  ) -> saving.State:
    keys = run_state.copy_one((state.key, state.eval_key))
    copied = RunState(
      training,
      run_state.gather(state.actors),
      run_state.gather(state.env_keys),
      *keys,
    )
    return saving.State(
      arrays=run_state.flatten(copied),
      description=resuming.describe(
        self._config,
        self._schedule,
        self._devices.count,
        progress,
        run_state.key_types(state),
      ),
    )

  def saved(self) -> epath.Path | None:
    """Waits for what is being saved; returns the last checkpoint."""
    self.wait()
    if self._folder is None or self._saved is None:
      return None
    return epath.Path(self._folder).resolve() / f'{self._saved:012d}'

  def wait(self) -> None:
    """Waits until nothing is being saved.

    Raises:
      SaveError: if the save failed.
    """
    if self._saver is not None:
      self._saver.wait()


def to_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
  """Returns the metrics that are numbers."""
  return {
    name: float(np.asarray(value))
    for name, value in metrics.items()
    if np.size(value) == 1
  }
