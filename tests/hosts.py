"""Programs that run as several processes, with one CPU device each."""

import os
import pathlib
import socket
import subprocess
import sys
from typing import Any

_ROOT = pathlib.Path(__file__).parents[1]


def free_port() -> int:
  """Returns a port that nobody listens on."""
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return s.getsockname()[1]


def start(*arguments: Any, devices: int = 1, **kwargs: Any) -> Any:
  """Starts Python on some CPU devices; the text it writes is kept."""
  env = {
    'JAX_PLATFORMS': 'cpu',
    'PYTHONPATH': str(_ROOT),
    'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
  }
  return subprocess.Popen(
    [sys.executable, *map(str, arguments)],
    env=os.environ | env,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **kwargs,
  )


def finish(*processes: Any, timeout: float = 600) -> list[tuple[int, str, str]]:
  """Waits; returns exit codes, what was printed, and errors."""
  try:
    texts = [p.communicate(timeout=timeout) for p in processes]
  finally:
    for process in processes:
      process.kill()
  return [(p.returncode, *t) for p, t in zip(processes, texts, strict=True)]
