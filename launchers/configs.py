"""From options to the configuration of a run. Pure functions."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import inspect
from typing import Any

from ml_collections import config_dict

from brax_nnx_plugin.ppo import train as ppo

from . import brax_suite
from . import environments
from . import networks
from . import overrides
from . import presets
from . import saved
from .errors import UserError
from .hiding import parse_indices

# Options that are parameters of `train` under the same name.
PPO_OPTIONS = (
  'seed',
  'num_timesteps',
  'num_evals',
  'num_resets_per_eval',
  'reward_scaling',
  'episode_length',
  'normalize_observations',
  'action_repeat',
  'unroll_length',
  'num_minibatches',
  'num_updates_per_batch',
  'discounting',
  'gae_lambda',
  'learning_rate',
  'entropy_cost',
  'num_envs',
  'num_eval_envs',
  'batch_size',
  'max_grad_norm',
  'clipping_epsilon',
  'deterministic_eval',
  'run_evals',
  'log_training_metrics',
  'training_metrics_steps',
)

# Parameters of `train` that are no numbers to write down.
OBJECTS = (
  'environment',
  'eval_env',
  'network_factory',
  'policy_params_fn',
  'progress_fn',
  'randomization_fn',
  'restore_checkpoint_path',
  'restore_params',
  'restore_value_fn',
  'save_checkpoint_path',
  'wrap_env_fn',
)


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """What is trained, where, and how.

  Attributes:
    suite: one of `environments.SUITES`.
    env_name: registered with the suite.
    env_config: the environment's whole configuration.
    hidden: entries of the observation that are left out.
    delay: env steps that the observation is shown late by.
    domain_randomization: whether physics differs between environments.
    randomize_eval: whether it does in evaluations too.
    network: 'mlp', or the kind of memory.
    network_arguments: keyword arguments of the network's factory.
    ppo: keyword arguments of `train`.
    stop_on_nan: whether to stop when numbers are no longer finite.
  """

  suite: str
  env_name: str
  env_config: config_dict.ConfigDict
  hidden: tuple[int, ...]
  delay: int
  domain_randomization: bool
  randomize_eval: bool
  network: str
  network_arguments: dict[str, Any]
  ppo: dict[str, Any]
  stop_on_nan: bool


def _overrides(
  options: Mapping[str, Any],
  base: Mapping[str, Any],
  changes: Mapping[str, Any],
  has_gpu: bool,
) -> dict[str, Any]:
  """Gathers what differs from the environment's default configuration."""
  changed = dict(base['environment'])
  written = overrides.parse_json(
    options.get('playground_config_overrides', '{}')
  )
  if twice := written.keys() & changes.keys():
    raise UserError(
      f'{", ".join(sorted(twice))} is both in --playground_config_overrides and'
      ' in --set env.'
    )
  written |= changes
  impl = options.get('impl')
  if impl is not None and written.get('impl', impl) != impl:
    raise UserError(
      f'--impl={impl} contradicts "impl": "{written["impl"]}" in'
      ' --playground_config_overrides or --set.'
    )
  defaults = environments.default_config(base['env_name'], base['suite'])
  if impl is not None:
    changed['impl'] = impl
  elif not has_gpu and 'impl' in defaults and 'impl' not in changed:
    changed['impl'] = 'jax'
  return changed | written


def _base(options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what holds where no flag says otherwise, in a preset's form."""
  env_name, suite = options.get('env_name'), options.get('suite')
  for flag in ('resume', 'config'):
    if flag not in options:
      continue
    base = saved.read(options[flag], f'--{flag}')
    if base['suite'] not in environments.SUITES:
      raise UserError(
        f'--{flag}={options[flag]}: there is no suite {base["suite"]!r}; there'
        f' are {", ".join(environments.SUITES)}.'
      )
    # A value of a file is as good as one of --set, and may be as bad.
    where = f'--{flag}={options[flag]}:'
    overrides.check('ppo', base['ppo'], _known(base['ppo']), {}, where)
    for name, value in (('env_name', env_name), ('suite', suite)):
      if value not in (None, base[name]):
        raise UserError(
          f'--{name}={value} contradicts --{flag}, which is of'
          f' {base[name]}; leave one of them out.'
        )
    return base
  suite = suite or environments.PLAYGROUND
  if env_name is None:
    if suite == environments.BRAX:
      raise UserError(
        '--suite=brax needs --env_name, one of'
        f' {", ".join(brax_suite.registered_names())}.'
      )
    return presets.CARTPOLE_BALANCE
  config = environments.ppo_config(env_name, suite)
  return {
    'suite': suite,
    'env_name': env_name,
    'environment': {},
    'hide_observations': (),
    'network': 'mlp',
    'network_factory': config.pop('network_factory', {}),
    'ppo': config,
  }


def _known(arguments: Iterable[str]) -> dict[str, inspect.Parameter]:
  """Returns the parameters of `train` that can be set.

  Args:
    arguments: names that must be among them.

  Raises:
    UserError: if one is not.
  """
  known = {
    name: parameter
    for name, parameter in inspect.signature(ppo.train).parameters.items()
    if name not in OBJECTS
  }
  if unknown := sorted(set(arguments) - known.keys()):
    raise UserError(f'train has no parameter {", ".join(unknown)}.')
  return known


def _ppo_arguments(
  options: Mapping[str, Any], base: Mapping[str, Any], changes: dict[str, Any]
) -> dict[str, Any]:
  flags = {k: options[k] for k in PPO_OPTIONS if k in options}
  if twice := flags.keys() & changes.keys():
    name = min(twice)
    raise UserError(f'--{name} and --set ppo.{name} say the same; leave one.')
  ppo_arguments = base['ppo'] | flags
  known = _known(ppo_arguments)
  return ppo_arguments | overrides.check('ppo', changes, known, ppo_arguments)


def resolve(options: Mapping[str, Any], has_gpu: bool) -> RunConfig:
  """Works out the configuration of a run.

  Args:
    options: the flags that were given; see `options.parse`.
    has_gpu: whether jax has one.

  Raises:
    UserError: for a name that does not exist, or options that contradict.
  """
  base = _base(options)
  if base['suite'] == environments.BRAX:
    brax_suite.check_options(options)
  changes = overrides.parse(options.get('set', ()))
  network = options.get('network', base['network'])
  given = lambda name, default: options.get(name, base.get(name, default))
  config = RunConfig(
    suite=base['suite'],
    env_name=base['env_name'],
    env_config=environments.config_of(
      base['env_name'],
      _overrides(options, base, changes['env'], has_gpu),
      base['suite'],
    ),
    hidden=parse_indices(options['hide_observations'])
    if 'hide_observations' in options
    else base['hide_observations'],
    delay=given('delay_observations', 0),
    domain_randomization=given('domain_randomization', False),
    randomize_eval=given('randomize_eval', True),
    network=network,
    network_arguments=networks.arguments(
      options, base, network, changes['network']
    ),
    ppo=_ppo_arguments(options, base, changes['ppo']),
    stop_on_nan=given('stop_on_nan', True),
  )
  _check_randomization(options, config)
  _check_delay(config)
  return config


def _check_delay(config: RunConfig) -> None:
  length = config.ppo.get('episode_length')
  if isinstance(length, int) and 0 < length <= config.delay:
    raise UserError(
      f'--delay_observations={config.delay}: an episode of {length} env steps'
      ' ends before anything but its first observation is seen.'
    )


def _check_randomization(options: Mapping[str, Any], config: RunConfig) -> None:
  if 'randomize_eval' in options and not config.domain_randomization:
    raise UserError(
      '--randomize_eval has no meaning without --domain_randomization.'
    )
  for flag, wrapped, what in (
    ('hide_observations', config.hidden, 'hidden'),
    ('delay_observations', config.delay, 'delayed'),
  ):
    if wrapped and config.domain_randomization:
      raise UserError(
        f'--{flag} and --domain_randomization exclude each other:'
        " Playground's randomization steps the bare environment, in which"
        f' nothing is {what}.'
      )


def network_factory(config: RunConfig) -> Callable[..., Any]:
  """Returns the network factory of a run."""
  return networks.factory(config.network, config.network_arguments)
