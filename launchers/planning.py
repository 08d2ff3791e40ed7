"""What can be found out about a run before anything compiles."""

from collections.abc import Mapping
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import train as ppo
from brax_nnx_plugin.ppo.config import TrainConfig
from brax_nnx_plugin.ppo.devices import Devices
from brax_nnx_plugin.ppo.environments import check_spaces
from brax_nnx_plugin.ppo.schedule import Schedule

from .errors import UserError
from .errors import told


def _first_states(env: Any, rows: int, step: bool) -> Any:
  """Returns the shapes of first states; see `plan`."""
  keys = jax.random.split(jax.random.PRNGKey(0), rows)
  action = jax.ShapeDtypeStruct((rows, env.action_size), jnp.float32)
  method = 'reset'
  try:
    state = jax.eval_shape(jax.vmap(env.reset), keys)
    if step:
      method = 'step'
      jax.eval_shape(jax.vmap(env.step), state, action)
  except Exception as e:  # whatever the code of an environment may raise
    raise UserError(
      f'The environment fails in its own {method}(), with JAX'
      f' {jax.__version__}: {told(e)}'
    ) from e
  return state


def check_step(env: Any) -> None:
  """Requires that an environment can be stepped, as far as tracing tells.

  Args:
    env: not wrapped.

  Raises:
    UserError: if it cannot.
  """
  _first_states(env, rows=2, step=True)


def plan(arguments: Mapping[str, Any], step: bool = True) -> Schedule:
  """Checks the arguments of `train`; an error out of it is then our fault.

  Args:
    arguments: keyword arguments of `train`.
    step: whether to see if the environment can be stepped, too.

  Returns:
    How many steps will be taken.

  Raises:
    UserError: if they do not fit together or do not fit the environment.
  """
  bound = inspect.signature(ppo.train).bind(**arguments)
  bound.apply_defaults()
  env = arguments['environment']
  state = _first_states(env, 2, step)
  shapes = jax.tree.map(lambda x: x.shape[1:], state.obs)
  try:
    check_spaces(env, state, rows=2)
    count = Devices.of(bound.arguments['max_devices_per_host']).count
    config = TrainConfig.from_arguments(bound.arguments, count)
    schedule = Schedule.of(config, count)
  except ValueError as e:
    raise UserError(str(e)) from e
  try:
    arguments['network_factory'](shapes, env.action_size)
  except (TypeError, ValueError) as e:
    raise UserError(f'The network cannot be made: {e}') from e
  except Exception as e:  # whatever a network of the user's own may raise
    raise UserError(f'The network cannot be made: {told(e)}') from e
  return schedule
