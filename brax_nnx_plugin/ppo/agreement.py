"""Comparing the arguments of a run with those it was saved with.

Sizes, devices, network and seed must agree, or what follows would be another
run. Coefficients may change, with a warning.
"""

from collections.abc import Mapping
from typing import Any
import warnings

from etils import epath
import jax
import numpy as np

from brax_nnx_plugin.ppo.config import TrainConfig

# Arguments that decide what a run is. Those of the network are compared by its
# description; num_timesteps and num_evals by the size of an epoch.
_FIXED = (
  'seed',
  'num_envs',
  'action_repeat',
  'unroll_length',
  'batch_size',
  'num_minibatches',
  'num_updates_per_batch',
  'num_resets_per_eval',
  'learning_rate_schedule',
  'normalize_observations',
  'normalize_observations_mode',
  'normalize_observations_std_eps',
  'devices',
)
_NOT_COMPARED = (
  'num_timesteps',
  'num_evals',
  'max_devices_per_host',
  'use_pmap_on_reset',
)
_PLAIN = (bool, int, float, str, type(None))


def _plain(value: Any) -> Any:
  """Returns a number or a name for JSON; of a function, that it is one."""
  if isinstance(value, (np.generic, np.ndarray, jax.Array)) and not value.ndim:
    value = value.item()
  if isinstance(value, _PLAIN):
    return value
  return 'a function' if callable(value) else str(value)


def arguments(config: TrainConfig, device_count: int) -> dict[str, Any]:
  """Returns the arguments that are compared, for JSON.

  Args:
    config: of the run.
    device_count: of all processes.
  """
  groups = (config.environment, config.budget, config.loss, config.optimizer)
  named = {name: v for group in groups for name, v in vars(group).items()}
  adaptive = config.optimizer.adaptive_kl
  named |= vars(config.network) | {
    'devices': device_count,
    # It has several spellings.
    'learning_rate_schedule': 'ADAPTIVE_KL' if adaptive else 'NONE',
  }
  skip = (*_NOT_COMPARED, 'environment', 'network_factory')
  return {name: _plain(v) for name, v in named.items() if name not in skip}


def check_arguments(
  folder: epath.Path, saved: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
  """Checks that a run can go on with the arguments it is given.

  Args:
    folder: of the checkpoint.
    saved: arguments of the run.
    now: those given.

  Raises:
    ValueError: naming the ones that must not change, with both values.
  """
  changed = {n: v for n, v in now.items() if n in saved and saved[n] != v}
  say = lambda names: ', '.join(
    f'{n} = {changed[n]!r}, saved with {saved[n]!r}' for n in names
  )
  if fixed := [name for name in changed if name in _FIXED]:
    raise ValueError(
      f'The run in {folder} cannot go on with {say(fixed)}. Give the saved'
      ' values, or start a new run from its parameters with'
      ' restore_checkpoint_path=checkpoint.params_only(path).'
    )
  if changed:
    warnings.warn(
      f'The run in {folder} goes on with {say(changed)}. It will not end where'
      ' it would have ended.',
      stacklevel=6,
    )


def check_network(
  folder: epath.Path, saved: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
  """Checks that the network is the one of the run.

  A builder of the user may have moved to another module; its arrays say whether
  it is the same.

  Args:
    folder: of the checkpoint.
    saved: description of the network of the run.
    now: of the one given.

  Raises:
    ValueError: naming what differs.
  """
  different = {
    name: f'{name} = {value!r}, saved with {saved.get(name)!r}'
    for name, value in now.items()
    if saved.get(name) != value
  }
  moved = different.pop('network_factory', None)
  if different:
    raise ValueError(
      f'The run in {folder} cannot go on with'
      f' {", ".join(different.values())}. Give the saved values, or start a new'
      ' run with restore_checkpoint_path=checkpoint.params_only(path).'
    )
  if moved:
    warnings.warn(f'The run in {folder} goes on with {moved}.', stacklevel=5)
