"""A checkpoint and the environment it was trained in, ready to be played."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import jax

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import inference
from brax_nnx_plugin.ppo import network_config

from . import environments
from . import saved
from .errors import UserError
from .errors import nearest
from .errors import told
from .hiding import parse_indices
from .networks import KINDS
from .reporting import CONFIG_NAME

# What Brax's `train` does unless told otherwise.
_EPISODE_LENGTH = 1000


@dataclasses.dataclass(frozen=True)
class Scene:
  """An environment, and a policy that was trained for it.

  Attributes:
    env: one environment as it is made, but for what is hidden.
    env_name: in its suite.
    suite: one of `environments.SUITES`.
    hidden: entries of the observation that are left out.
    episode_length: env steps.
    action_repeat: env steps per action.
    path: of the checkpoint.
    network: kind of the network, in the words of `--network`.
    networks: what its factory returned.
    params: the triple (normalizer, policy, value).
    notes: sentences on what differs from training.
  """

  env: Any
  env_name: str
  suite: str
  hidden: tuple[int, ...]
  episode_length: int
  action_repeat: int
  path: Any
  network: str
  networks: Any
  params: Any
  notes: tuple[str, ...] = ()

  @property
  def control_dt(self) -> float | None:
    """Seconds from one action to the next; `None` without physics."""
    return environments.control_dt(self.env, self.action_repeat)

  @property
  def step_in_words(self) -> str:
    """What lies between two actions, in words and with its unit."""
    dt, steps = self.control_dt, f'steps of {self.action_repeat} env steps'
    if self.action_repeat == 1:
      return 'env steps' if dt is None else f'env steps of {dt:.4g} s'
    return steps if dt is None else f'{steps}, {dt:.4g} s'

  @property
  def num_steps(self) -> int:
    """Actions of the longest episode."""
    return -(-self.episode_length // self.action_repeat)

  @functools.cached_property
  def batched(self) -> Any:
    """The environment in the wrappers of training, without randomization."""
    return environments.wrap_fn(self.suite)(
      self.env,
      episode_length=self.episode_length,
      action_repeat=self.action_repeat,
    )

  @functools.cached_property
  def make_policy(self) -> Any:
    """`make_policy(params, deterministic)`, as `train` returns it."""
    return inference.make_inference_fn(self.networks)


def _base(step: Any, options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what the run of a checkpoint was, in the form of a preset.

  Raises:
    UserError: if there is nothing to tell the environment from, or flags
      contradict.
  """
  env_name = options.get('env_name')
  for folder in list(step.parents)[:2]:
    if (folder / CONFIG_NAME).exists():
      base = saved.read(folder, '--load_checkpoint_path')
      if env_name not in (None, base['env_name']):
        raise UserError(
          f'--env_name={env_name} contradicts the checkpoint, which was trained'
          f' in {base["env_name"]}; leave the flag out.'
        )
      return base
  if env_name is None:
    raise UserError(
      f'There is no {CONFIG_NAME} of a run beside {step}, which would say what'
      ' environment it was trained in. Name it with --env_name.'
    )
  return {
    'suite': environments.PLAYGROUND,
    'env_name': env_name,
    'environment': {},
    'hide_observations': (),
    'ppo': environments.ppo_config(env_name),
  }


def _make_env(
  base: Mapping[str, Any], changes: Mapping[str, Any], options: Any
) -> tuple[Any, list[str]]:
  """Makes the environment of a run; returns what differs from it, too."""
  name, suite, before = base['env_name'], base['suite'], base['environment']
  known = environments.default_config(name, suite)
  changes, notes = dict(changes), []
  if suite == environments.BRAX and 'impl' in options:
    raise UserError(f'--impl has no meaning for {name}, which is of Brax.')
  if 'impl' in options:
    changes['impl'] = options['impl']
  elif jax.default_backend() != 'gpu' and 'impl' in known:
    changes.setdefault('impl', 'jax')
  config = environments.config_of(name, {**before, **changes}, suite)
  for entry, value in changes.items():
    if entry in before and before[entry] != value:
      notes.append(
        f'env.{entry} is {value!r} here and was {before[entry]!r} in training.'
      )
  hidden, delay = base['hide_observations'], base.get('delay_observations', 0)
  return environments.load(name, config, hidden, suite, delay), notes


def _network_name(
  step: Any, saved_kind: str, config: Mapping[str, Any], given: str | None
) -> str | None:
  """Returns what `checkpoint.load` is to import, if anything.

  Raises:
    UserError: if the flag contradicts, or is needed and not given.
  """
  own = not network_config.is_built_in(config)
  if given is None:
    if own:
      raise UserError(
        f'The network of {step} is not one of this library, and nothing that'
        f' only a file names is imported. Name it: --network={saved_kind}.'
      )
    return None
  if ':' not in given and given not in KINDS:
    raise UserError(
      f'--network={given}: there is no such network. {nearest(given, KINDS)}'
    )
  if not (':' in given if own else given == saved_kind):
    raise UserError(
      f'--network={given} contradicts the checkpoint {step}, whose network is'
      f' {saved_kind}; leave the flag out, or name that one.'
    )
  return given if own else None


def _without_effect(
  base: Mapping[str, Any], options: Mapping[str, Any]
) -> list[str]:
  """Says which flags of a network contradict the one that was saved."""
  before = dict(base.get('network_factory', {}))
  before['memory_size'] = before.get('policy_memory_size')
  before['hide_observations'] = tuple(base['hide_observations'])
  given = {name: options[name] for name in before if name in options}
  if 'hide_observations' in given:
    given['hide_observations'] = parse_indices(given['hide_observations'])
  return [
    f'--{name}={options[name]} has no effect: the checkpoint was saved with'
    f' {before[name]}.'
    for name, value in given.items()
    if value != before[name]
  ]


def _require_same_sizes(env: Any, config: Mapping[str, Any], step: Any) -> None:
  """Checks that the policy can act in the environment.

  Raises:
    UserError: if observations or actions have other sizes.
  """
  state = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
  here = jax.tree.map(lambda x: x.shape, state.obs), env.action_size
  there = network_config.shapes(config['observation_size'])
  there = there if not isinstance(there, int) else (there,)
  if here != (there, config['action_size']):
    raise UserError(
      f'The network of {step} is for observations of {there} and'
      f' {config["action_size"]} action(s); the environment has {here[0]} and'
      f' {here[1]}.'
    )


def load(
  path: Any,
  options: Mapping[str, Any] = {},
  changes: Mapping[str, Any] = {},
) -> Scene:
  """Loads a checkpoint, and makes the environment of its run.

  Args:
    path: of a run, of its checkpoints, or of one of them.
    options: of the flags `network`, `env_name`, `impl` and `episode_length`,
      those that were given.
    changes: entries of the environment configuration, by dotted name.

  Raises:
    UserError: if it cannot be done; nothing has been compiled.
  """
  try:
    step = checkpoint.find(path)
    config = checkpoint.load_config(step)
  except (ValueError, OSError) as e:
    raise UserError(str(e)) from None
  base = _base(step, options)
  kind = base.get('network', config['network_factory'])
  name = _network_name(step, kind, config, options.get('network'))
  env, notes = _make_env(base, changes, options)
  _require_same_sizes(env, config, step)
  try:
    networks, params = checkpoint.load(step, name)
  except (TypeError, ValueError, OSError) as e:
    raise UserError(f'The checkpoint {step} cannot be loaded: {e}') from e
  except Exception as e:  # whatever a network of the user's own may raise
    raise UserError(f'The checkpoint {step} cannot be loaded: {told(e)}') from e
  ppo = base['ppo']
  length = ppo.get('episode_length') or _EPISODE_LENGTH
  if options.get('episode_length', length) != length:
    notes.append(
      f'episode_length is {options["episode_length"]} here and was {length} in'
      ' training.'
    )
  return Scene(
    env=env,
    env_name=base['env_name'],
    suite=base['suite'],
    hidden=tuple(base['hide_observations']),
    episode_length=options.get('episode_length', length),
    action_repeat=ppo.get('action_repeat') or 1,
    path=step,
    network=kind,
    networks=networks,
    params=params,
    notes=(*notes, *_without_effect(base, options)),
  )
