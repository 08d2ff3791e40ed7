"""The whole configuration of a run in words, as a file keeps it."""

import importlib.metadata
import inspect
import platform
from typing import Any

from brax_nnx_plugin.ppo import train as ppo

from . import configs

_PACKAGES = (
  'brax',
  'brax-nnx-plugin',
  'flax',
  'jax',
  'jaxlib',
  'mujoco',
  'mujoco-mjx',
  'optax',
  'playground',
)


def describe(config: configs.RunConfig) -> dict[str, Any]:
  """Returns the whole configuration for JSON, defaults of `train` too."""
  defaults = {
    name: parameter.default
    for name, parameter in inspect.signature(ppo.train).parameters.items()
    if name not in configs.OBJECTS
  }
  effective = defaults | config.ppo
  return {
    'environment': {
      'suite': config.suite,
      'name': config.env_name,
      'config': config.env_config.to_dict(),
      'hidden_observations': list(config.hidden),
      'delay_observations': config.delay,
      'domain_randomization': config.domain_randomization,
      'randomize_eval': config.randomize_eval,
    },
    'network': {
      'kind': config.network,
      'arguments': config.network_arguments,
    },
    'ppo': effective,
    'seed': effective['seed'],
    'stop_on_nan': config.stop_on_nan,
    'versions': versions(),
  }


def versions() -> dict[str, str | None]:
  """Returns the versions of what takes part; `None` if not installed."""
  found: dict[str, str | None] = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      found[package] = None
  return found
