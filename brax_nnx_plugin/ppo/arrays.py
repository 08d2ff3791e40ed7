"""Arrays by name in a folder, in Orbax's format.

Orbax finds a damaged index, not a damaged number; checksums beside the arrays
do. Nothing that is read is executed.
"""

from collections.abc import Mapping
import json
from typing import Any
import zlib

from etils import epath
import jax
import numpy as np
from orbax import checkpoint as ocp

LEAVES_NAME = 'leaves.json'


def _checkpointer() -> ocp.Checkpointer:
  """Returns what reads and writes arrays, for this process alone.

  Orbax would otherwise wait for all processes of `jax.distributed`, of which
  the others are busy training.
  """
  process = jax.process_index()
  alone = ocp.options.MultiprocessingOptions(
    primary_host=process, active_processes={process}
  )
  return ocp.Checkpointer(
    ocp.PyTreeCheckpointHandler(multiprocessing_options=alone),
    multiprocessing_options=alone,
  )


def _describe(array: np.ndarray) -> dict[str, Any]:
  data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
  return {
    'shape': list(array.shape),
    'dtype': str(array.dtype),
    'crc32': zlib.crc32(data.data),
  }


def write(folder: Any, groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
  """Writes arrays, and what they are.

  Args:
    folder: exists.
    groups: arrays by name, by the name of the subfolder they go to.
  """
  folder = epath.Path(folder)
  described = {}
  for group, arrays in groups.items():
    described[group] = {name: _describe(x) for name, x in arrays.items()}
    # Orbax has no arrays without numbers.
    filled = {name: x for name, x in arrays.items() if x.size}
    if filled:
      with _checkpointer() as checkpointer:
        checkpointer.save(folder / group, filled)
  (folder / LEAVES_NAME).write_text(json.dumps(described))


def read_json(file: epath.Path) -> dict[str, Any]:
  """Reads a JSON object.

  Args:
    file: exists.

  Raises:
    ValueError: if it is damaged.
  """
  try:
    content = json.loads(file.read_text())
  except ValueError as e:  # of JSON, or of its encoding
    raise ValueError(f'{file} is damaged: {e}') from None
  if not isinstance(content, dict):
    raise ValueError(f'{file} is damaged: it holds no JSON object.')
  return content


def described(folder: Any, group: str) -> dict[str, Any] | None:
  """Returns what is said of the arrays of a group; `None` if nothing is."""
  file = epath.Path(folder) / LEAVES_NAME
  return read_json(file).get(group) if file.exists() else None


def _restore(path: epath.Path) -> dict[str, np.ndarray]:
  try:
    with _checkpointer() as checkpointer:
      metadata = checkpointer.metadata(path).item_metadata
      args = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        metadata.tree,  # pyright: ignore[reportOptionalMemberAccess]
      )
      return dict(checkpointer.restore(path, restore_args=args))
  except Exception as e:  # of many kinds, by what is damaged
    reason = (str(e).splitlines() or [''])[0][:200]
    raise ValueError(
      f'{path} is damaged: its arrays cannot be read'
      f' ({type(e).__name__}: {reason}).'
    ) from e


def read(folder: Any, group: str) -> dict[str, np.ndarray]:
  """Reads the arrays of a group.

  Args:
    folder: of the checkpoint.
    group: as it was written.

  Raises:
    ValueError: if they are damaged.
  """
  path = epath.Path(folder) / group
  expected = described(folder, group) or {}
  try:
    empty = {
      name: np.zeros(leaf['shape'], leaf['dtype'])
      for name, leaf in expected.items()
      if 0 in leaf['shape']
    }
    arrays = {} if expected and len(empty) == len(expected) else _restore(path)
    wrong = [
      name
      for name, leaf in expected.items()
      if name in arrays
      and list(np.shape(arrays[name])) == leaf['shape']
      and _describe(arrays[name]) != leaf
    ]
  except (KeyError, TypeError) as e:
    raise ValueError(f'{path} is damaged: {LEAVES_NAME} lacks {e}.') from None
  if wrong:
    raise ValueError(
      f'{path} is damaged: {", ".join(wrong[:5])} are not the numbers that'
      ' were saved.'
    )
  return {**empty, **arrays}
