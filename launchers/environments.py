"""Environments by suite: their names, configurations, and making them.

Those of MuJoCo Playground are dealt with here, Brax's own in `brax_suite`.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import subprocess
from typing import Any

from brax import envs as brax_envs
from ml_collections import config_dict
import mujoco_playground
from mujoco_playground import registry
from mujoco_playground import wrapper
from mujoco_playground.config import dm_control_suite_params
from mujoco_playground.config import locomotion_params
from mujoco_playground.config import manipulation_params

from . import brax_suite
from .delaying import DelayObservations
from .errors import UserError
from .errors import nearest
from .hiding import HideObservations

PLAYGROUND, BRAX = 'playground', 'brax'
SUITES = (PLAYGROUND, BRAX)

# The order in which Playground's registry looks for a name.
_PARTS: tuple[tuple[Any, Any], ...] = (
  (mujoco_playground.manipulation, manipulation_params),
  (mujoco_playground.locomotion, locomotion_params),
  (mujoco_playground.dm_control_suite, dm_control_suite_params),
)


def registered_names() -> list[str]:
  """Returns every environment that is registered with Playground now."""
  return [name for suite, _ in _PARTS for name in suite.ALL_ENVS]


def _suite(env_name: str) -> tuple[Any, Any]:
  for suite, params in _PARTS:
    if env_name in suite.ALL_ENVS:
      return suite, params
  if env_name in brax_suite.registered_names():
    raise UserError(
      f'{env_name} is not one of MuJoCo Playground but of Brax; add'
      ' --suite=brax.'
    )
  raise UserError(
    f'There is no environment {env_name!r}.'
    f' {nearest(env_name, registered_names())}'
  )


def default_config(
  env_name: str, suite: str = PLAYGROUND
) -> config_dict.ConfigDict:
  """Returns an environment's configuration before any change.

  Args:
    env_name: registered with its suite.
    suite: one of `SUITES`.

  Raises:
    UserError: if there is no such environment.
  """
  if suite == BRAX:
    return brax_suite.default_config(env_name)
  return _suite(env_name)[0].get_default_config(env_name)


def _leaf_names(config: config_dict.ConfigDict, prefix: str = '') -> list[str]:
  names: list[str] = []
  for key, value in config.items():
    if isinstance(value, config_dict.ConfigDict):
      names += _leaf_names(value, f'{prefix}{key}.')
    else:
      names.append(f'{prefix}{key}')
  return names


def config_of(
  env_name: str, overrides: Mapping[str, Any], suite: str = PLAYGROUND
) -> config_dict.ConfigDict:
  """Returns an environment's whole configuration.

  Args:
    env_name: registered with its suite.
    overrides: by dotted name.
    suite: one of `SUITES`.

  Raises:
    UserError: for a name or a value that the environment does not have.
  """
  config = default_config(env_name, suite)
  names = _leaf_names(config)
  for name, value in overrides.items():
    if name not in names:
      raise UserError(
        f'The configuration of {env_name} has no entry {name!r}.'
        f' {nearest(name, names)}'
      )
    old: Any = config
    for key in name.split('.'):
      old = old[key]
    if isinstance(old, tuple) and isinstance(value, list):
      value = tuple(value)  # JSON has only lists
    try:
      config.update_from_flattened_dict({name: value})
    except TypeError:
      raise UserError(
        f'The entry {name!r} of the configuration of {env_name} must be a'
        f' {type(old).__name__}, as {old!r}; got {value!r}.'
      ) from None
  if suite == BRAX:
    brax_suite.check(env_name, config)
  return config


def ppo_config(env_name: str, suite: str = PLAYGROUND) -> dict[str, Any]:
  """Returns the PPO configuration that its makers have for an environment.

  Args:
    env_name: registered with its suite.
    suite: one of `SUITES`.

  Raises:
    UserError: if there is no such environment, or no configuration for it.
  """
  if suite == BRAX:
    return brax_suite.ppo_config(env_name)
  _, params = _suite(env_name)
  try:
    return params.brax_ppo_config(env_name).to_dict()
  except ValueError:
    raise UserError(
      f'Playground has no PPO configuration for {env_name}.'
    ) from None


def _load_playground(env_name: str, config: config_dict.ConfigDict) -> Any:
  try:
    env = registry.load(env_name, config.copy_and_resolve_references())
    moves = env.sim_dt > 0 and env.n_substeps > 0
  except (subprocess.CalledProcessError, OSError) as e:
    raise UserError(
      f'The models that {env_name} needs could not be read or downloaded ({e}).'
    ) from e
  except (TypeError, ValueError, NotImplementedError) as e:
    raise UserError(
      f'{env_name} cannot be made with this configuration: {e}'
    ) from e
  if not moves:
    raise UserError(
      f'Nothing would move with ctrl_dt = {env.dt} s and sim_dt = {env.sim_dt}'
      ' s; a control step must be at least one simulation step.'
    )
  return env


def load(
  env_name: str,
  config: config_dict.ConfigDict,
  hidden: Sequence[int] = (),
  suite: str = PLAYGROUND,
  delay: int = 0,
) -> Any:
  """Makes one environment.

  Args:
    env_name: registered with its suite.
    config: all of its configuration; it is copied.
    hidden: entries of the observation to leave out.
    suite: one of `SUITES`.
    delay: env steps that the observation comes late by.

  Raises:
    UserError: if it cannot be made, or nothing would move in it.
  """
  make = brax_suite.load if suite == BRAX else _load_playground
  env = make(env_name, config)
  env = HideObservations(env, hidden) if hidden else env
  return DelayObservations(env, delay) if delay else env


def control_dt(env: Any, action_repeat: int = 1) -> float | None:
  """Returns seconds from one action to the next; `None` without physics."""
  try:
    return float(env.dt) * action_repeat
  except AttributeError:  # as Brax's `fast`
    return None


def wrap_fn(suite: str) -> Callable[..., Any]:
  """Returns what wraps the environments of a suite for training.

  Args:
    suite: one of `SUITES`.
  """
  if suite == BRAX:
    return brax_envs.training.wrap
  return wrapper.wrap_for_brax_training


def domain_randomizer(env_name: str) -> Any:
  """Returns an environment's domain randomizer.

  Raises:
    UserError: if it has none.
  """
  randomizer = registry.get_domain_randomizer(env_name)
  if randomizer is None:
    raise UserError(
      f'{env_name} has no domain randomizer; leave --domain_randomization out.'
    )
  return randomizer
