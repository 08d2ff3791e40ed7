"""Brax's own environments: their names, configurations, and making them.

Brax has no registry of configurations. An environment's is what its constructor
takes, and the PPO settings are those of Brax's training notebook
(`notebooks/training.ipynb` of its repository), which were found with the
`positional` backend. The notebook trains `hopper` and `walker2d` by SAC and
leaves `fast` and `swimmer` out: `fast` has what Brax's own test of PPO uses,
the other three what the notebook has for `halfcheetah`, which nobody has tuned
for them. Seeds are not taken over.
"""

from collections.abc import Mapping
import enum
import inspect
from typing import Any

from brax import envs
from ml_collections import config_dict

from .errors import UserError
from .errors import nearest

BACKENDS = ('generalized', 'mjx', 'positional', 'spring')
# Whose settings hold for an environment that Brax has none for.
_STAND_IN = 'halfcheetah'

_COMMON: dict[str, Any] = {
  'num_evals': 20,
  'episode_length': 1000,
  'normalize_observations': True,
  'action_repeat': 1,
  'num_minibatches': 32,
  'num_updates_per_batch': 8,
  'discounting': 0.97,
  'learning_rate': 3e-4,
  'entropy_cost': 1e-2,
  'num_envs': 2048,
  'batch_size': 1024,
}
_PENDULUM = {
  'reward_scaling': 10.0,
  'unroll_length': 5,
  'num_updates_per_batch': 4,
}
_SETTINGS: dict[str, dict[str, Any]] = {
  'ant': _PENDULUM
  | {
    'num_timesteps': 50_000_000,
    'num_evals': 10,
    'num_envs': 4096,
    'batch_size': 2048,
  },
  'fast': {
    'num_timesteps': 2**15,
    'num_evals': 3,
    'reward_scaling': 10.0,
    'episode_length': 128,
    'unroll_length': 5,
    'num_minibatches': 8,
    'num_updates_per_batch': 4,
    'discounting': 0.95,
    'num_envs': 64,
    'batch_size': 64,
    'normalize_advantage': False,
  },
  'halfcheetah': {
    'num_timesteps': 50_000_000,
    'reward_scaling': 1.0,
    'unroll_length': 20,
    'discounting': 0.95,
    'entropy_cost': 1e-3,
    'batch_size': 512,
  },
  'humanoid': {
    'num_timesteps': 50_000_000,
    'num_evals': 10,
    'reward_scaling': 0.1,
    'unroll_length': 10,
    'entropy_cost': 1e-3,
  },
  'humanoidstandup': {
    'num_timesteps': 100_000_000,
    'reward_scaling': 0.1,
    'unroll_length': 15,
    'learning_rate': 6e-4,
  },
  'inverted_double_pendulum': _PENDULUM | {'num_timesteps': 20_000_000},
  'inverted_pendulum': _PENDULUM | {'num_timesteps': 2_000_000},
  'pusher': {
    'num_timesteps': 50_000_000,
    'reward_scaling': 5.0,
    'unroll_length': 30,
    'num_minibatches': 16,
    'discounting': 0.95,
    'batch_size': 512,
  },
  'reacher': {
    'num_timesteps': 50_000_000,
    'reward_scaling': 5.0,
    'action_repeat': 4,
    'unroll_length': 50,
    'discounting': 0.95,
    'entropy_cost': 1e-3,
    'batch_size': 256,
  },
}


def registered_names() -> list[str]:
  """Returns every environment that is registered with Brax now."""
  return sorted(envs._envs)  # Brax has no public list of them.


def _parameters(env_name: str) -> dict[str, inspect.Parameter]:
  """Returns what an environment's constructor has defaults for.

  Raises:
    UserError: if there is no such environment.
  """
  names = registered_names()
  if env_name not in names:
    raise UserError(
      f'Brax has no environment {env_name!r}. {nearest(env_name, names)}'
      ' Those of MuJoCo Playground need --suite=playground, the default.'
    )
  parameters = inspect.signature(envs._envs[env_name]).parameters
  return {
    name: parameter
    for name, parameter in parameters.items()
    if parameter.default is not parameter.empty
  }


def default_config(env_name: str) -> config_dict.ConfigDict:
  """Returns the named arguments of an environment and their defaults.

  Raises:
    UserError: if there is no such environment.
  """

  def plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value

  return config_dict.ConfigDict(
    {name: plain(p.default) for name, p in _parameters(env_name).items()}
  )


def check_options(options: Mapping[str, Any]) -> None:
  """Refuses the flags that only environments of Playground have.

  Args:
    options: the flags that were given.

  Raises:
    UserError: for the first of them.
  """
  ways = {
    'impl': '--set env.backend=mjx and the like choose the physics',
    'playground_config_overrides': '--set env.<entry>=<value> changes it',
    'domain_randomization': 'Brax has no domain randomizers',
  }
  for name, way in ways.items():
    if options.get(name):
      raise UserError(f'--{name} is not for environments of Brax; {way}.')


def check(env_name: str, config: config_dict.ConfigDict) -> None:
  """Checks what constructors of Brax do not, or not in a sentence.

  Args:
    env_name: of Brax.
    config: all of its configuration.

  Raises:
    UserError: for a backend that does not exist, or a range that is none.
  """
  backend = config.get('backend')
  if backend is not None and backend not in BACKENDS:
    raise UserError(
      f'backend={backend}: Brax has no such backend; choose'
      f' {", ".join(BACKENDS)}.'
    )
  is_number = lambda x: type(x) in (int, float)
  for name, old in default_config(env_name).to_dict().items():
    new: Any = config[name]
    if isinstance(old, tuple) and not (
      len(new) == len(old) and all(map(is_number, new))
    ):
      raise UserError(
        f'The entry {name!r} of the configuration of {env_name} must be'
        f' {len(old)} numbers, as {list(old)}; got {list(new)}.'
      )


def ppo_config(env_name: str) -> dict[str, Any]:
  """Returns PPO settings for an environment; the module says whose they are.

  Raises:
    UserError: if there is no such environment.
  """
  _parameters(env_name)
  return _COMMON | _SETTINGS.get(env_name, _SETTINGS[_STAND_IN])


def note(env_name: str) -> str:
  """Returns a sentence on where the PPO settings of an environment are from."""
  if env_name not in _SETTINGS:
    return (
      f'Brax has no PPO settings for {env_name}; unless told otherwise, those'
      f' for {_STAND_IN} hold, which nobody has tuned for it.'
    )
  source = 'test of PPO' if env_name == 'fast' else 'training notebook'
  return (
    f"Unless told otherwise, the PPO settings are those of Brax's {source}."
  )


def load(env_name: str, config: config_dict.ConfigDict) -> Any:
  """Makes one environment.

  Args:
    env_name: registered with Brax.
    config: all of its configuration.

  Raises:
    UserError: if it cannot be made so.
  """
  try:
    return envs.get_environment(env_name, **config.to_dict())
  except (TypeError, ValueError, NotImplementedError) as e:
    raise UserError(
      f'{env_name} cannot be made with this configuration: {e}'
    ) from e
