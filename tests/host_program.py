"""Trains an LSTM as one of several processes, and writes down what it saw.

host_program.py <process> <processes> <port> <folder>
"""

import functools
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo import processes
from brax_nnx_plugin.ppo.training_run import TrainingRun
from tests import small_runs


def arguments(reports: list[Any], folder: pathlib.Path) -> dict[str, Any]:
  """What all processes train with, and a single one on as many devices."""
  return {
    'num_timesteps': 4 * small_runs.STEP,
    'max_devices_per_host': None,
    'num_evals': 3,
    'run_evals': True,
    'log_training_metrics': True,
    'network_factory': functools.partial(
      small_runs.small_lstm, normalize_inputs=True
    ),
    'progress_fn': lambda step, metrics: reports.append((step, metrics)),
    'policy_params_fn': lambda step, *unused: reports.append((step, {})),
    'save_checkpoint_path': checkpoint.Folder(
      folder / 'checkpoints', keep_states=2
    ),
  }


def scalars(reports: list[Any]) -> list[Any]:
  """Reports for JSON."""
  return [
    (step, {name: float(np.asarray(v)) for name, v in metrics.items()})
    for step, metrics in reports
  ]


def _refusal(check: Any, *args: Any) -> str:
  try:
    check(*args)
  except ValueError as e:
    return str(e)
  return ''


def refusals(process: int, **settings: Any) -> dict[str, str]:
  """What is said if processes are given different things."""
  config = functools.partial(small_runs.config, **settings)
  replicate = device_lib.Devices.of(None).replicate
  arrays: Any = {'a': jnp.ones(2), 'b': jnp.arange(2.0) + process}
  more: Any = {'a': jnp.ones(2 + process)}
  arguments_of = processes.require_same_arguments
  start = processes.require_same_start
  return {
    'seed': _refusal(arguments_of, config(seed=process, num_envs=4)),
    'nothing': _refusal(arguments_of, config(seed=3)),
    'numbers': _refusal(start, replicate(arrays)),
    'shapes': _refusal(start, replicate(more)),
    'drift': ' '.join(device_lib.drifted_leaves(replicate(arrays))),
    'run': _refusal(TrainingRun, config(seed=process)),
  }


def programs() -> int:
  """How many programs one function of a replicated tree needs."""
  devices = device_lib.Devices.of(None)
  tree = devices.replicate({'a': jnp.ones(3)})
  double: Any = jax.jit(lambda t: 2 * t['a'])
  for copies in (tree, devices.pmap(lambda t: t)(tree)):
    double(device_lib.first(copies))
  return double._cache_size()


def _save(file: pathlib.Path, params: Any) -> None:
  np.savez(file, *map(np.asarray, jax.tree.leaves(params)))


def _main(process: int, count: int, port: int, path: str) -> None:
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(
    f'localhost:{port}', count, process, initialization_timeout=120
  )
  folder = pathlib.Path(path)
  said = refusals(process, max_devices_per_host=None)
  reports: list[Any] = []
  own = folder / str(process)
  own.mkdir()
  _, params, metrics = small_runs.small_train(**arguments(reports, own))
  jax.effects_barrier()
  _save(own / 'params.npz', params)
  # What the first process saved has all rows.
  half = folder / '0' / 'checkpoints' / f'{2 * small_runs.STEP:012d}'
  again = arguments([], own) | {
    'save_checkpoint_path': None,
    'restore_checkpoint_path': half,
  }
  _save(own / 'resumed.npz', small_runs.small_train(**again)[1])
  seen = {
    'refusals': said,
    'reports': scalars(reports),
    'metrics': sorted(metrics),
    'programs': programs(),
    'devices': [jax.device_count(), jax.local_device_count()],
  }
  (own / 'seen.json').write_text(json.dumps(seen))


if __name__ == '__main__':
  _main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
