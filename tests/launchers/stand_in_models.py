"""Models of Playground's robots without the files that have to be downloaded.

Most robots are described in the package, and only the files of their meshes are
downloaded. Here a cube stands in for each of those, and simple robots for those
whose descriptions are downloaded, too. Observations, actions and the order of
joints are the real ones; shapes, and what collides by shape, are not.
"""

import io
import pathlib
import re
import struct
from typing import Any

from matplotlib import image
from mujoco_playground._src import mjx_env
import numpy as np

from tests.launchers import stand_in_robots

# Half the edge of the cube, in metres: enough for every body to have a mass.
_SIZE = 0.02


def _cube() -> tuple[list[Any], list[tuple[int, int, int]]]:
  """Returns corners, and triangles that turn outward."""
  corners = [
    (x * _SIZE, y * _SIZE, z * _SIZE)
    for x in (-1, 1)
    for y in (-1, 1)
    for z in (-1, 1)
  ]
  quads = [
    (0, 1, 3, 2),
    (4, 6, 7, 5),
    (0, 4, 5, 1),
    (2, 3, 7, 6),
    (0, 2, 6, 4),
    (1, 5, 7, 3),
  ]
  return corners, [t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))]


def _stl() -> bytes:
  corners, triangles = _cube()
  body = b''.join(
    struct.pack('<3f', 0, 0, 0)
    + b''.join(struct.pack('<3f', *corners[i]) for i in triangle)
    + struct.pack('<H', 0)
    for triangle in triangles
  )
  return bytes(80) + struct.pack('<I', len(triangles)) + body


def _obj() -> bytes:
  corners, triangles = _cube()
  lines = [f'v {x} {y} {z}' for x, y, z in corners]
  lines += [f'f {a + 1} {b + 1} {c + 1}' for a, b, c in triangles]
  return '\n'.join(lines).encode()


def _png() -> bytes:
  file = io.BytesIO()
  image.imsave(file, np.zeros((2, 2, 3)), format='png')
  return file.getvalue()


def files(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns a stand-in for every file that descriptions in `folder` name."""
  contents = {'.stl': _stl(), '.obj': _obj(), '.png': _png()}
  names = {
    pathlib.PurePosixPath(file).name
    for path in folder.rglob('*.xml')
    for file in re.findall(r'file="([^"]+)"', path.read_text())
  }
  suffixes = {name: pathlib.PurePath(name).suffix.lower() for name in names}
  return {n: contents[s] for n, s in suffixes.items() if s in contents}


def install(monkeypatch: Any, folder: pathlib.Path) -> None:
  """Lets Playground find the stand-ins where it has no files.

  Args:
    monkeypatch: of a test.
    folder: to write descriptions into.
  """
  stand_in_robots.write(folder)
  monkeypatch.setattr(mjx_env, 'MENAGERIE_PATH', folder)
  root = pathlib.Path(mjx_env.ROOT_PATH)
  robots = {
    robot: files(robot)
    for suite in ('locomotion', 'manipulation')
    for robot in (root / suite).iterdir()
  }
  update = mjx_env.update_assets

  def update_or_stand_in(assets, path, *args, **kwargs):
    update(assets, path, *args, **kwargs)
    known = {name.lower() for name in assets}
    for robot, stand_ins in robots.items():
      if robot in [pathlib.Path(path), *pathlib.Path(path).parents]:
        more = {n: c for n, c in stand_ins.items() if n.lower() not in known}
        assets.update(more)

  monkeypatch.setattr(mjx_env, 'update_assets', update_or_stand_in)
  monkeypatch.setattr(mjx_env, 'ensure_menagerie_exists', lambda: None)
