"""The networks that a run can be told by name, and their arguments."""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import inspect
from typing import Any

from brax_nnx_plugin.networks import factories
from brax_nnx_plugin.ppo import import_path
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_extra

from . import overrides
from .errors import UserError
from .errors import nearest

# Options that are parameters of every network factory under the same name.
NETWORK_OPTIONS = (
  'policy_hidden_layer_sizes',
  'value_hidden_layer_sizes',
  'policy_obs_key',
  'value_obs_key',
  'normalize_inputs',
)

_CELLS = tuple(factories.CELLS)
_FACTORIES: dict[str, Callable[..., Any]] = {
  'mlp': ppo_networks.make_ppo_networks,
  **dict.fromkeys(_CELLS, ppo_networks.make_recurrent_ppo_networks),
  'delay_mlp': networks_extra.make_delayed_ppo_networks,
  'vae_mlp': networks_extra.make_variational_ppo_networks,
}
KINDS = tuple(_FACTORIES)
# What comes from the environment and from training, or from --network.
_FIXED = (
  'observation_size',
  'action_size',
  'preprocess_observations_fn',
  'rngs',
  'cell',
)
_MEMORY_SIZE = 64


def has_memory_size(network: str) -> bool:
  """Says whether --memory_size means anything for a network."""
  return network in _CELLS


def factory(network: str, named: Mapping[str, Any]) -> Callable[..., Any]:
  """Returns the factory of a network.

  Args:
    network: one of `KINDS`, or 'package.module:function'.
    named: its arguments.

  Raises:
    UserError: if there is no such network.
  """
  if network in _FACTORIES:
    return functools.partial(_FACTORIES[network], **named)
  try:
    return import_path.factory(network, **named)
  except ValueError as e:
    raise UserError(f'--network={e}') from e


def _parameters(network: str) -> dict[str, inspect.Parameter]:
  """Returns what a network can be told by --set.

  Raises:
    UserError: if there is no such network.
  """
  if network in _FACTORIES:
    parameters = dict(inspect.signature(_FACTORIES[network]).parameters)
  elif ':' in network:
    factory(network, {})
    parameters = import_path.parameters(import_path.load(network))
  else:
    raise UserError(
      f'--network={network}: there is no such network.'
      f' {nearest(network, KINDS)} One of your own is named as'
      ' package.module:function.'
    )
  return {k: p for k, p in parameters.items() if k not in _FIXED}


def arguments(
  options: Mapping[str, Any],
  base: Mapping[str, Any],
  network: str,
  changes: dict[str, Any],
) -> dict[str, Any]:
  """Works out what the factory of a network is called with.

  Args:
    options: the flags that were given; see `options.parse`.
    base: what holds without them, in the form of a preset.
    network: one of `KINDS`, or 'package.module:function'.
    changes: by --set, of single arguments.

  Raises:
    UserError: for an argument that the factory does not have, options that
      contradict, or a network of the user's own that no flag names.
  """
  if network not in _FACTORIES and 'network' not in options:
    raise UserError(
      f'The network of that run, {network}, is not one of this library, and'
      ' nothing that only a file names is imported. Name it:'
      f' --network={network}.'
    )
  known = _parameters(network)
  named = dict(base['network_factory'])
  if network != base['network']:  # what only the other kind has
    named = {k: v for k, v in named.items() if k in known}
  for name in NETWORK_OPTIONS:
    if name in options and name not in known:
      raise UserError(f'--{name} has no meaning for --network={network}.')
  named |= {k: options[k] for k in NETWORK_OPTIONS if k in options}
  if has_memory_size(network):
    named['cell'] = network
    for name in ('policy_memory_size', 'value_memory_size'):
      default = named.get(name, base.get('memory_size', _MEMORY_SIZE))
      named[name] = options.get('memory_size', default)
  elif 'memory_size' in options:
    raise UserError(
      f'--memory_size has no meaning for --network={network}; choose'
      f' {", ".join(_CELLS)}.'
    )
  changes = dict(changes)
  if 'hidden' in changes:
    hidden = changes.pop('hidden')
    named |= overrides.set_hidden(hidden, named, known)
  named |= overrides.check('network', changes, known, named)
  _require_units(named)
  return named


def _require_units(named: Mapping[str, Any]) -> None:
  """Requires layers and memories to have units.

  Raises:
    UserError: if one has none.
  """
  for name, value in named.items():
    if not name.endswith(('_hidden_layer_sizes', '_memory_size')):
      continue
    sizes = value if isinstance(value, (list, tuple)) else [value]
    if any(size == 0 for size in sizes):
      raise UserError(
        f'network.{name} is {value}, and a layer has at least 1 unit; a memory'
        ' that is null is none.'
      )
