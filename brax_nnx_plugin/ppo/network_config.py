"""Describing a network in JSON, and building it again from the description.

A checkpoint carries such a description, so that loading it names no size. Only
the built-in factories are looked up by name: nothing that a file names is ever
imported.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import Any

from brax.training import types as brax_types
from brax.training.acme import running_statistics
import jax
import numpy as np

from brax_nnx_plugin.networks.activations import ACTIVATIONS
from brax_nnx_plugin.ppo import import_path
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_extra
from brax_nnx_plugin.ppo import networks_vision
from brax_nnx_plugin.ppo.actor_critic import INITIALIZERS


def _import_path(fn: Any) -> str:
  return f'{fn.__module__}:{fn.__qualname__}'


_FACTORIES = {
  _import_path(fn): fn
  for fn in (
    ppo_networks.make_ppo_networks,
    ppo_networks.make_recurrent_ppo_networks,
    networks_extra.make_delayed_ppo_networks,
    networks_extra.make_variational_ppo_networks,
    networks_vision.make_ppo_networks_vision,
  )
}
CONFIG_KEYS = (
  'network_factory',
  'network_factory_kwargs',
  'observation_size',
  'action_size',
  'normalize_observations',
  'normalizer',
)


def is_built_in(config: Mapping[str, Any]) -> bool:
  """Whether a network is rebuilt without naming its factory."""
  return config['network_factory'] in _FACTORIES


def _encode(name: str, value: Any) -> Any:
  """Turns a factory argument into JSON."""
  if isinstance(value, Mapping):
    return {k: _encode(f'{name}.{k}', v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [_encode(name, v) for v in value]
  if isinstance(value, (np.ndarray, np.generic, jax.Array)):
    return np.asarray(value).tolist()
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  for key, fn in ACTIVATIONS.items():
    if value is fn:
      return {'activation': key}
  for key, fn in INITIALIZERS.items():
    if value is fn:
      return {'initializer': key}
  raise ValueError(
    f'The network argument {name} = {value!r} cannot be saved with a'
    ' checkpoint. Pass an activation by name, or train without'
    ' save_checkpoint_path.'
  )


def shapes(value: Any) -> Any:
  """Turns JSON back into an observation size: a shape, or a dict of shapes."""
  if isinstance(value, Mapping):
    return {k: shapes(v) for k, v in value.items()}
  return tuple(value) if isinstance(value, list) else value


def decode(value: Any) -> Any:
  """Turns JSON back into a factory argument; lists become tuples."""
  if isinstance(value, Mapping):
    if value.keys() == {'activation'}:
      return ACTIVATIONS[value['activation']]
    if value.keys() == {'initializer'}:
      return INITIALIZERS[value['initializer']]
    return {k: decode(v) for k, v in value.items()}
  return tuple(decode(v) for v in value) if isinstance(value, list) else value


def _unwrap(function: Any) -> tuple[Any, dict[str, Any]]:
  """Takes a function out of its `functools.partial`s."""
  kwargs: dict[str, Any] = {}
  while isinstance(function, functools.partial):
    if function.args:
      raise ValueError(
        'A network factory with positional arguments cannot be saved; bind'
        f' {function.args} by name.'
      )
    kwargs = {**function.keywords, **kwargs}
    function = function.func
  return function, kwargs


def network_config(
  network_factory: Callable[..., Any],
  observation_size: Any,
  action_size: int,
  normalize_observations: bool,
  **statistics: Any,
) -> dict[str, Any]:
  """Describes a network so that it can be built again.

  Args:
    network_factory: a factory of `ppo.networks`, possibly in
      `functools.partial`s, or one from `make_network_factory`.
    observation_size: as the factory gets it.
    action_size: likewise.
    normalize_observations: whether Brax's normalizer is in front.
    **statistics: `std_eps` and `mode` of the normalizer.

  Returns:
    A JSON-compatible dict.

  Raises:
    ValueError: if an argument of the factory cannot be written down.
  """
  source, kwargs = _unwrap(network_factory)
  if hasattr(source, 'build'):
    source, inner = _unwrap(source.build)
    kwargs = inner | kwargs
  shapes = jax.tree.map(
    list, observation_size, is_leaf=lambda n: isinstance(n, tuple)
  )
  return {
    'network_factory': _import_path(source),
    'network_factory_kwargs': _encode('network_factory', kwargs),
    'observation_size': _encode('observation_size', shapes),
    'action_size': int(action_size),
    'normalize_observations': bool(normalize_observations),
    'normalizer': statistics,
  }


def _resolve_factory(config: Mapping[str, Any]) -> Callable[..., Any]:
  if is_built_in(config):
    return _FACTORIES[config['network_factory']]
  raise ValueError(
    f'The checkpoint was made with {config["network_factory"]}, which is not'
    ' a built-in factory. Pass it as network_factory=..., or name it there:'
    f' network_factory={config["network_factory"]!r}.'
  )


def make_networks(
  config: Mapping[str, Any],
  network_factory: Callable[..., Any] | str | None = None,
) -> Any:
  """Builds the network of a checkpoint.

  Args:
    config: from `load_config`.
    network_factory: needed if the network was not made by a built-in factory;
      nothing named in a file is imported. It may be named as
      'package.module:function', a factory or a function that builds a module,
      and is then called with the arguments that were saved.

  Raises:
    ValueError: if the factory is needed and not given.
  """
  kwargs = {
    name: decode(value)
    for name, value in config['network_factory_kwargs'].items()
  }
  if network_factory is None:
    factory = functools.partial(_resolve_factory(config), **kwargs)
  elif isinstance(network_factory, str):
    factory = import_path.factory(network_factory, **kwargs)
  else:
    factory = network_factory
  preprocess = brax_types.identity_observation_preprocessor
  if config['normalize_observations']:
    preprocess = running_statistics.normalize
  return factory(
    shapes(config['observation_size']),
    config['action_size'],
    preprocess_observations_fn=preprocess,
  )


def contradictions(
  config: Mapping[str, Any], network_factory: Callable[..., Any] | str
) -> list[str]:
  """Says where a factory makes another network than the one described.

  Args:
    config: from `load_config`.
    network_factory: one that cannot be described contradicts nothing, and one
      that is named takes the arguments that were saved.
  """
  if isinstance(network_factory, str):
    return []
  try:
    given = network_config(
      network_factory,
      shapes(config['observation_size']),
      config['action_size'],
      config['normalize_observations'],
    )
  except ValueError:
    return []
  if given['network_factory'] != config['network_factory']:
    return []
  name = 'network_factory_kwargs'
  return [
    f'{key} = {given[name].get(key)!r}, saved with {config[name].get(key)!r}'
    for key in sorted({*given[name], *config[name]})
    if given[name].get(key) != config[name].get(key)
  ]
