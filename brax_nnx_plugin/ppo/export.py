"""Exporting a policy for deployment.

    export.export_policy('run', 'exported', control_dt=0.02)
    policy = export.load_exported('exported')     # or numpy_policy.load
    state = policy.initial_state()
    action, state = policy.step(observation, state)

An exported policy is a folder with all that acting needs, and no code of the
network:
  policy.json: names, shapes and types of observation, action and state, in the
    order of the program's arguments; how to reset; the control period.
  policy.stablehlo: one step (observation, state) -> (action, state), the most
    likely action, with weights and statistics inside; `jax.export` runs it.
  policy.npz: the initial state, and the constants of the next.
  program.json: the same step as operations of NumPy, where that is possible;
    `numpy_policy` runs it without JAX.

All arrays are those of one robot and have no batch axis.
"""

from collections.abc import Callable
from collections.abc import Mapping
import io
import json
import math
import os
from typing import Any

from etils import epath
import jax
import jax.export  # pyright: ignore[reportUnusedImport]
import numpy as np

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import numpy_policy
from brax_nnx_plugin.ppo import numpy_program
from brax_nnx_plugin.ppo import observations
from brax_nnx_plugin.ppo import sidecar as sidecar_lib
from brax_nnx_plugin.ppo import step_program
from brax_nnx_plugin.ppo.linen import as_functions
from brax_nnx_plugin.ppo.network_config import shapes
from brax_nnx_plugin.ppo.numpy_parameters import UnsupportedError

STABLEHLO = 'policy.stablehlo'
PLATFORMS = ('cpu', 'cuda', 'rocm', 'tpu')
_TEMPORARY = ('partial', 'old')


def export_policy(
  path: Any,
  out: Any,
  *,
  network_factory: Callable[..., Any] | str | None = None,
  control_dt: float | None = None,
  observation_names: sidecar_lib.Names | None = None,
  action_names: sidecar_lib.Names | None = None,
  extra: Mapping[str, Any] | None = None,
  overwrite: bool = False,
) -> epath.Path:
  """Exports the policy of a checkpoint.

  Args:
    path: as for `checkpoint.find`.
    out: the folder to write. It appears when it is complete.
    network_factory: as for `checkpoint.load`.
    control_dt: seconds from one step to the next.
    observation_names: what the numbers of the observation are, in order; a dict
      of lists if it has entries.
    action_names: likewise of the action.
    extra: anything else that whoever deploys the policy should know, such as
      the scale of the actions; JSON-compatible.
    overwrite: whether to replace a policy exported to `out` before.

  Returns:
    The folder.

  Raises:
    ValueError: if there is no checkpoint, it does not fit the network, `out` is
      taken, or an argument does not fit.
  """
  source = checkpoint.find(path)
  networks, params = checkpoint.load(source, network_factory)
  return export_networks(
    networks,
    params,
    out,
    observation_size=shapes(checkpoint.load_config(source)['observation_size']),
    control_dt=control_dt,
    observation_names=observation_names,
    action_names=action_names,
    extra=extra,
    overwrite=overwrite,
  )


def export_networks(
  networks: Any,
  params: Any,
  out: Any,
  *,
  observation_size: Any = None,
  control_dt: float | None = None,
  observation_names: sidecar_lib.Names | None = None,
  action_names: sidecar_lib.Names | None = None,
  extra: Mapping[str, Any] | None = None,
  overwrite: bool = False,
) -> epath.Path:
  """Exports a policy that is in memory.

  Args:
    networks: what a network factory returned.
    params: the triple (normalizer, policy, value) that `train` returns.
    out: as for `export_policy`, as all that follows.
    observation_size: of the environment; only networks of stock Brax need it.
    control_dt: see `export_policy`.
    observation_names: likewise.
    action_names: likewise.
    extra: likewise.
    overwrite: likewise.

  Raises:
    ValueError: if `out` is taken, or an argument does not fit.
  """
  functions = as_functions(networks, observation_size)
  spec = observations.spec_of(observation_size)
  spec = getattr(functions, 'observation_spec', spec) if spec is None else spec
  if spec is None:
    raise ValueError(
      'A network of stock Brax does not know the shape of an observation; pass'
      ' observation_size.'
    )
  out = epath.Path(out).resolve()
  _check_free(out, overwrite)
  if control_dt is not None and not 0 < control_dt < math.inf:
    raise ValueError(f'control_dt must be seconds above 0; got {control_dt}.')
  program = step_program.trace(functions, params, spec)
  initial, rules = sidecar_lib.reset_rules(functions, params, program)
  files = {STABLEHLO: _stablehlo(program)}
  numpy, constants = _numpy_part(program, initial, files)
  buffer = io.BytesIO()
  arrays = {f'state/{name}': leaf for name, leaf in initial.items()}
  np.savez(buffer, **arrays, **constants)
  files[numpy_policy.ARRAYS] = buffer.getvalue()
  sidecar = {
    'observation': sidecar_lib.describe(
      'observation', program.observation, observation_names
    ),
    'action': sidecar_lib.describe('action', program.action, action_names),
    'state': [
      {**entry, 'reset': rules[entry['name']]}
      for entry in sidecar_lib.describe('state', program.state)
    ],
    'reset_rule': sidecar_lib.RESET_RULE,
    'control_period_s': control_dt,
    'extra': dict(extra or {}),
    'jax_version': jax.__version__,
    'platforms': list(PLATFORMS),
    'numpy': numpy,
    'files': {k: numpy_policy.sha256(v) for k, v in files.items()},
  }
  files[numpy_policy.SIDECAR] = numpy_policy.seal(sidecar)
  _write(out, files)
  return out


def _check_free(out: epath.Path, overwrite: bool) -> None:
  """Raises if the folder to write must not be written."""
  if not out.exists():
    return
  if not overwrite:
    raise ValueError(
      f'{out} exists. Pass overwrite=True to replace a policy that was exported'
      ' there, or name another folder.'
    )
  if not (out / numpy_policy.SIDECAR).exists():
    raise ValueError(
      f'{out} exists and is no exported policy; it is not overwritten.'
    )


def _stablehlo(program: step_program.StepProgram) -> bytes:
  exported = jax.export.export(jax.jit(program.__call__), platforms=PLATFORMS)(
    tuple(program.observation.values()), tuple(program.state.values())
  )
  return bytes(exported.serialize())


def _numpy_part(
  program: step_program.StepProgram,
  initial: Mapping[str, np.ndarray],
  files: dict[str, bytes],
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Adds the program for NumPy if there can be one; says why not."""
  try:
    operations, constants = numpy_program.lower(program)
    _compare(program, numpy_policy.runner(operations, constants), initial)
  except UnsupportedError as e:
    return {'available': False, 'reason': str(e)}, {}
  files[numpy_policy.PROGRAM] = json.dumps(operations).encode()
  return {'available': True}, constants


def _compare(
  program: step_program.StepProgram,
  run: numpy_policy.Run,
  initial: Mapping[str, np.ndarray],
) -> None:
  """Raises unless NumPy computes what JAX does, for a few steps."""
  draw = np.random.default_rng(0)
  wanted_of = jax.jit(program.__call__)
  state: Any = list(initial.values())
  for scale in (1.0, 10.0, 100.0):
    observation = [
      (scale * draw.normal(size=spec.shape)).astype(spec.dtype)
      for spec in program.observation.values()
    ]
    wanted = wanted_of(observation, state)
    found = run(observation, state)
    for a, b in zip(*map(jax.tree.leaves, (wanted, found)), strict=True):
      same = np.shape(a) == np.shape(b) and np.allclose(
        a, b, rtol=1e-3, atol=1e-3, equal_nan=True
      )
      if not same or np.asarray(b).dtype != a.dtype:
        raise UnsupportedError(
          'NumPy computes something else than JAX; this is a fault of the'
          ' exporter.'
        )
    state = list(wanted[1])


def _write(out: epath.Path, files: Mapping[str, bytes]) -> None:
  """Writes a folder; it appears under its name when it is complete."""
  partial, old = (
    out.parent / f'{out.name}.{what}-{os.getpid()}' for what in _TEMPORARY
  )
  for folder in (partial, old):
    if folder.exists():
      folder.rmtree()
  partial.mkdir(parents=True)
  for name, data in files.items():
    (partial / name).write_bytes(data)
  if out.exists():
    out.rename(old)
  partial.rename(out)
  if old.exists():
    old.rmtree()


def load_exported(folder: Any) -> numpy_policy.ExportedPolicy:
  """Loads an exported policy, to be run by JAX.

  Needs no source of the network, and executes nothing from the folder but the
  StableHLO program.

  Args:
    folder: what `export_policy` wrote.

  Raises:
    ValueError: if it is damaged, or written by a version of JAX that this one
      cannot read.
  """
  sidecar = numpy_policy.load_sidecar(folder)
  data = numpy_policy.read(folder, STABLEHLO, sidecar)
  arrays = numpy_policy.load_arrays(folder, sidecar)
  try:
    exported = jax.export.deserialize(bytearray(data))
  except Exception as e:
    raise ValueError(
      f'The program in {folder} was written by JAX {sidecar["jax_version"]} and'
      f' cannot be read by JAX {jax.__version__}: {e}'
    ) from e
  step = jax.jit(exported.call)

  def run(observation, state):
    return step(tuple(observation), tuple(state))

  return numpy_policy.ExportedPolicy(sidecar, arrays, run)
