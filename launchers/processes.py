"""Starting a run as one of several processes, by `jax.distributed`.

The first process reports and saves; the others only compute.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import os
import re
import socket
import sys
import threading
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from .errors import UserError

_FLAGS = ('coordinator_address', 'num_processes', 'process_id')

# Seconds that processes wait for each other: at the start, and at the end.
_START_TIMEOUT = 300
_END_TIMEOUT = 60
# JAX itself gives up later, and takes the program down without a sentence.
_MARGIN = 30


def settings(options: Mapping[str, Any]) -> dict[str, Any] | None:
  """Reads the flags; see `options.parse`.

  Args:
    options: the flags that were given.

  Returns:
    What `jax.distributed.initialize` is called with, nothing if the environment
    says it all; `None` for a single process.

  Raises:
    UserError: if flags are missing, or contradict.
  """
  given = {name: options[name] for name in _FLAGS if name in options}
  if 'distributed' in options:
    if given:
      raise UserError(
        f'--distributed={options["distributed"]} finds out what'
        f' --{", --".join(given)} would say; leave out one or the other.'
      )
    return {}
  if not given:
    return None
  if missing := [name for name in _FLAGS if name not in given]:
    raise UserError(
      f'--{", --".join(given)} needs --{" and --".join(missing)} too, as in'
      ' --coordinator_address=10.0.0.1:8476 --num_processes=2 --process_id=0.'
    )
  address, count, index = (given[name] for name in _FLAGS)
  port = re.fullmatch(r'.+:(\d+)', address)
  if port is None or not 0 < int(port[1]) < 2**16:
    raise UserError(
      f'--coordinator_address={address} must be the host of process 0 and a'
      ' free port there, as in 10.0.0.1:8476.'
    )
  if index >= count:
    raise UserError(
      f'--process_id={index} must be below --num_processes={count}: processes'
      ' are numbered from 0.'
    )
  return given


def _require_free_port(address: str) -> None:
  """Checks that process 0 can listen; JAX would crash if not."""
  port = int(address.rsplit(':', 1)[1])
  dual = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if dual else socket.AF_INET
  try:
    socket.create_server(('', port), family=family, dualstack_ipv6=dual).close()
  except OSError as e:
    raise UserError(
      f'--coordinator_address={address}: process 0 cannot listen at this port'
      f' ({e.strerror or e}). Choose another one, the same for all processes.'
    ) from e


def _give_up(
  program: str, arguments: Mapping[str, Any], seconds: float
) -> None:
  """Ends the program with a sentence, from another thread."""
  address = arguments.get('coordinator_address', 'the coordinator')
  count = arguments.get('num_processes', 'the')
  print(
    f'{program}: not all of {count} processes have met at {address} within'
    f' {seconds:g} seconds. Start all of them, with the same'
    ' --coordinator_address and --num_processes and a --process_id each, where'
    ' this address can be reached.',
    file=sys.stderr,
    flush=True,
  )
  os._exit(2)


def connect(
  options: Mapping[str, Any],
  program: str,
  timeout: float = _START_TIMEOUT,
) -> None:
  """Waits for the other processes, if there are any.

  To be called before JAX is used.

  Args:
    options: the flags that were given.
    program: name that begins what is said if they do not come.
    timeout: seconds after which the program ends.

  Raises:
    UserError: if the flags do not fit together, or JAX cannot do as they say.
  """
  arguments = settings(options)
  if arguments is None:
    return
  if arguments.get('process_id') == 0:
    _require_free_port(arguments['coordinator_address'])
  watchdog = threading.Timer(timeout, _give_up, (program, arguments, timeout))
  watchdog.daemon = True
  watchdog.start()
  try:
    jax.distributed.initialize(
      **arguments,
      initialization_timeout=round(timeout + _MARGIN),
      shutdown_timeout_seconds=_END_TIMEOUT,
    )
  except (RuntimeError, ValueError) as e:
    if not arguments and isinstance(e, ValueError):
      raise UserError(
        '--distributed=auto: JAX finds no Slurm, Open MPI, Kubernetes or Cloud'
        f' TPU here ({e}) Give --{", --".join(_FLAGS)} instead.'
      ) from e
    text = ' '.join(str(e).split())
    raise UserError(f'The processes cannot be joined: {text}') from e
  finally:
    watchdog.cancel()


@contextlib.contextmanager
def local_devices_only() -> Iterator[None]:
  """Lets `jax.devices` name devices of this process only.

  MJX puts the model of an environment on the first of them. That is one of
  process 0 and out of reach for the others, and no environment of Playground
  lets one choose.
  """
  everywhere = jax.devices
  if jax.process_count() > 1:
    jax.devices = lambda backend=None: jax.local_devices(backend=backend)
  try:
    yield
  finally:
    jax.devices = everywhere


@contextlib.contextmanager
def together() -> Iterator[None]:
  """Fails in all processes if the body fails in one: none waits for it.

  Raises:
    UserError: if it failed in another one.
  """
  failed = True
  try:
    yield
    failed = False
  finally:
    everywhere = [failed]
    if jax.process_count() > 1:
      flags = multihost_utils.process_allgather(np.array([failed]))
      everywhere = flags.ravel().tolist()
  if any(everywhere):
    raise UserError(
      f'process {everywhere.index(True)} cannot start; see what it says.'
    )
