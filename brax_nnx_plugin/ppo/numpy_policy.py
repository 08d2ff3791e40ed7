"""Runs an exported policy with NumPy alone.

Neither this file nor what it imports needs more than NumPy and the standard
library, so it runs where JAX is not installed.

    policy = numpy_policy.load('exported')
    state = policy.initial_state()
    action, state = policy.step(observation, state)
    state = policy.reset(state)    # before the first step of an episode

What it runs is a list of array operations in `program.json`. The file can name
those of `numpy_operations` and no other; there is no code in the folder.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import io
import json
import os
from typing import Any

import numpy as np

from brax_nnx_plugin.ppo.numpy_operations import OPERATIONS

FORMAT = 'brax_nnx_plugin.policy'
FORMAT_VERSION = 1
SIDECAR = 'policy.json'
ARRAYS = 'policy.npz'
PROGRAM = 'program.json'

Run = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]


def sha256(data: bytes) -> str:
  """Returns the checksum by which a damaged file is told."""
  return hashlib.sha256(data).hexdigest()


def read(folder: Any, name: str, sidecar: Mapping[str, Any]) -> bytes:
  """Reads a file of an exported policy.

  Args:
    folder: of the policy.
    name: of the file.
    sidecar: from `load_sidecar`.

  Raises:
    ValueError: if it is missing or not what was written.
  """
  path = os.path.join(folder, name)
  try:
    with open(path, 'rb') as file:
      data = file.read()
  except OSError as e:
    raise ValueError(f'{path} cannot be read: {e.strerror}.') from None
  if sha256(data) != sidecar['files'].get(name):
    raise ValueError(
      f'{path} is damaged: it is not what was exported. Export again, or copy'
      ' the folder again.'
    )
  return data


def _checksum(sidecar: Mapping[str, Any]) -> str:
  text = json.dumps(sidecar, sort_keys=True, allow_nan=False)
  return sha256(text.encode())


def seal(description: Mapping[str, Any]) -> bytes:
  """Returns the contents of `policy.json`.

  Raises:
    ValueError: if JSON has no form for the description.
  """
  head = {'format': FORMAT, 'format_version': FORMAT_VERSION}
  try:
    text = json.dumps({**head, **description}, allow_nan=False)
  except (TypeError, ValueError) as e:
    raise ValueError(f'What goes into {SIDECAR} must fit JSON: {e}') from None
  sidecar = json.loads(text)  # with the keys that JSON makes of them
  sidecar['checksum'] = _checksum(sidecar)
  return json.dumps(sidecar, indent=2).encode()


def load_sidecar(folder: Any) -> dict[str, Any]:
  """Reads what `policy.json` says of a policy.

  Raises:
    ValueError: if it is missing, damaged or of another format.
  """
  path = os.path.join(folder, SIDECAR)
  try:
    with open(path, encoding='utf-8') as file:
      sidecar = json.load(file)
  except OSError as e:
    raise ValueError(
      f'There is no exported policy in {folder}: {SIDECAR}: {e.strerror}.'
    ) from None
  except ValueError as e:  # of JSON or of UTF-8
    raise ValueError(f'{path} is damaged: {e}') from None
  if not isinstance(sidecar, dict) or sidecar.get('format') != FORMAT:
    raise ValueError(f'{path} does not describe an exported policy.')
  if sidecar.get('format_version') != FORMAT_VERSION:
    raise ValueError(
      f'{path} has format_version {sidecar.get("format_version")}; this reader'
      f' knows {FORMAT_VERSION}.'
    )
  checksum = sidecar.pop('checksum', None)
  if checksum != _checksum(sidecar):
    raise ValueError(
      f'{path} is damaged or was edited: it is not what was exported.'
    )
  return sidecar


def load_arrays(folder: Any, sidecar: Mapping[str, Any]) -> dict[str, Any]:
  """Reads `policy.npz`; raises `ValueError` if it is damaged."""
  data = io.BytesIO(read(folder, ARRAYS, sidecar))
  with np.load(data, allow_pickle=False) as file:
    return {name: file[name] for name in file.files}


class ExportedPolicy:
  """A policy in the form it is deployed in: one row, no batch axis.

  Attributes:
    sidecar: what `policy.json` says.
    control_period: seconds from one step to the next, if it was said.
  """

  def __init__(
    self,
    sidecar: Mapping[str, Any],
    arrays: Mapping[str, Any],
    run: Run,
  ):
    """Binds a program to its description.

    Args:
      sidecar: from `load_sidecar`.
      arrays: from `load_arrays`.
      run: from the arrays of observation and state, in the order of the
        sidecar, to those of action and next state.
    """
    self.sidecar = sidecar
    self.control_period = sidecar.get('control_period_s')
    self._initial = {
      entry['name']: arrays[f'state/{entry["name"]}']
      for entry in sidecar['state']
    }
    self._run = run

  def initial_state(self) -> dict[str, Any]:
    """Returns the state before the first step, a dict of arrays."""
    return {name: np.array(leaf) for name, leaf in self._initial.items()}

  def reset(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the state that the next episode starts with.

    Args:
      state: at the end of the episode before, if there was one.
    """
    initial = self.initial_state()
    if state is None:
      return initial
    checked = self._arrays('state', state)
    for entry, leaf in zip(self.sidecar['state'], checked, strict=True):
      if entry['reset'] == 'keep':
        initial[entry['name']] = leaf
    return initial

  def step(self, observation: Any, state: Any) -> tuple[Any, dict[str, Any]]:
    """Acts once.

    Args:
      observation: an array, or a dict of arrays; entries that are not in the
        sidecar are not read.
      state: from `initial_state`, `reset` or the step before.

    Returns:
      The action, an array or a dict of them, and the next state.

    Raises:
      ValueError: if an entry is missing or of another shape or kind.
    """
    action, state = self._run(
      self._arrays('observation', observation), self._arrays('state', state)
    )
    actions = self._named('action', action)
    only = actions['action'] if list(actions) == ['action'] else actions
    return only, self._named('state', state)

  def _named(self, group: str, leaves: Any) -> dict[str, Any]:
    entries = self.sidecar[group]
    return {
      entry['name']: np.array(leaf)
      for entry, leaf in zip(entries, leaves, strict=True)
    }

  def _arrays(self, group: str, given: Any) -> list[Any]:
    """Returns the arrays of a group in order; raises unless they fit."""
    entries = self.sidecar[group]
    names = [entry['name'] for entry in entries]
    if not isinstance(given, Mapping):
      if names not in ([group], []):  # nothing is read of it
        raise ValueError(
          f'The {group} must be a dict with the entries {names}; got a'
          f' {type(given).__name__}.'
        )
      given = {group: given}
    if missing := [name for name in names if name not in given]:
      raise ValueError(f'The {group} lacks {missing}; it has {list(given)}.')
    return [_fit(group, entry, given[entry['name']]) for entry in entries]


def _fit(group: str, entry: Mapping[str, Any], given: Any) -> Any:
  """Returns an array of the type an entry has, if it can be one."""
  array, dtype = np.asarray(given), np.dtype(entry['dtype'])
  kinds = {'f': 'f', 'b': 'b'}.get(dtype.kind, 'iu')
  if list(array.shape) != entry['shape'] or array.dtype.kind not in kinds:
    raise ValueError(
      f'The {group} {entry["name"]!r} must have shape {entry["shape"]} and type'
      f' {dtype}; got {list(array.shape)} and {array.dtype}.'
    )
  return array.astype(dtype)


def runner(program: Mapping[str, Any], constants: Mapping[str, Any]) -> Run:
  """Returns the step of a policy as a function of arrays.

  Args:
    program: from `program.json`.
    constants: by the names that the program has for them.

  Raises:
    ValueError: if it has operations that are not known here.
  """
  instructions, outputs = program['instructions'], program['outputs']
  if unknown := {op for op, *_ in instructions} - set(OPERATIONS):
    raise ValueError(
      f'{PROGRAM} uses {sorted(unknown)}, which this reader does not know. Take'
      ' the reader of the version that exported it.'
    )

  def run(observation, state):
    values = [*observation, *state]

    def value(reference):
      is_name = isinstance(reference, str)
      return constants[reference] if is_name else values[reference]

    with np.errstate(all='ignore'):  # as JAX
      for operation, inputs, parameters in instructions:
        result = OPERATIONS[operation](*map(value, inputs), **parameters)
        values.extend(result if isinstance(result, list) else [result])
    results = [value(reference) for reference in outputs]
    count = len(results) - len(state)
    return results[:count], results[count:]

  return run


def load(folder: Any) -> ExportedPolicy:
  """Loads an exported policy; executes nothing from the folder.

  Args:
    folder: what `export.export_policy` wrote.

  Raises:
    ValueError: if it is damaged, or its network cannot be run by NumPy.
  """
  sidecar = load_sidecar(folder)
  if not sidecar['numpy']['available']:
    raise ValueError(
      f'The policy in {folder} cannot be run by NumPy:'
      f' {sidecar["numpy"]["reason"]} Run it with JAX: export.load_exported.'
    )
  program = json.loads(read(folder, PROGRAM, sidecar))
  arrays = load_arrays(folder, sidecar)
  return ExportedPolicy(sidecar, arrays, runner(program, arrays))
