"""Checkpoints: policies to act with, and runs to go on with.

The twin of `brax.training.agents.ppo.checkpoint`. A checkpoint is a folder
named by the env step, `%012d`, which appears only when it is complete:

    params/         normalizer, policy and value function, in Orbax's format
    network.json    from which the network is rebuilt without naming a size
    state/          all else that a run is, likewise in Orbax's format
    run.json        its arguments, and how far it had come
    leaves.json     shapes, types and checksums of all arrays

`state` and `run.json` are in the newest one only, unless asked for.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
import warnings

from brax.training.acme import running_statistics
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import arrays
from brax_nnx_plugin.ppo import environments
from brax_nnx_plugin.ppo import folders
from brax_nnx_plugin.ppo import inference
from brax_nnx_plugin.ppo import leaves
from brax_nnx_plugin.ppo import run_state
from brax_nnx_plugin.ppo import saving
from brax_nnx_plugin.ppo.folders import CONFIG_NAME as CONFIG_NAME
from brax_nnx_plugin.ppo.folders import find as find
from brax_nnx_plugin.ppo.folders import latest as latest
from brax_nnx_plugin.ppo.keeper import named_params
from brax_nnx_plugin.ppo.linen import as_functions
from brax_nnx_plugin.ppo.network_config import CONFIG_KEYS
from brax_nnx_plugin.ppo.network_config import contradictions
from brax_nnx_plugin.ppo.network_config import make_networks as make_networks
from brax_nnx_plugin.ppo.network_config import network_config as network_config
from brax_nnx_plugin.ppo.network_config import shapes
from brax_nnx_plugin.ppo.preemption import Preempted as Preempted
from brax_nnx_plugin.ppo.preemption import save_on as save_on
from brax_nnx_plugin.ppo.resuming import params_only as params_only
from brax_nnx_plugin.ppo.saving import Folder as Folder
from brax_nnx_plugin.ppo.saving import SaveError as SaveError


def save(path: Any, step: int, params: Any, config: Mapping[str, Any]) -> Any:
  """Saves a policy; of several processes, only the first may.

  Args:
    path: the folder that checkpoints go into.
    step: env steps taken; names the checkpoint.
    params: the triple (normalizer, policy, value) that `train` returns.
    config: from `network_config`.

  Returns:
    The folder of the checkpoint.

  Raises:
    SaveError: if it fails; checkpoints that are there stay as they are.
  """
  named = run_state.copy_one(named_params(params))
  return saving.write(path, step, run_state.flatten(named), config)


def load_config(path: Any) -> dict[str, Any]:
  """Reads the network description of a checkpoint; `path` as for `find`."""
  file = find(path) / CONFIG_NAME
  config = arrays.read_json(file)
  if missing := set(CONFIG_KEYS) - set(config):
    raise ValueError(f'{file} is damaged: it lacks {sorted(missing)}.')
  return config


def _template(networks: Any, config: Mapping[str, Any]) -> Any:
  """Returns the parameter triple of a network, as shapes."""
  observation_size = shapes(config['observation_size'])

  def init():
    key = jax.random.PRNGKey(0)
    spec = jax.tree.map(
      lambda n: jax.ShapeDtypeStruct(n[-1:], jnp.float32),
      observation_size,
      is_leaf=lambda n: isinstance(n, tuple),
    )
    state = running_statistics.init_state(
      environments.without_pixels(spec), **config['normalizer']
    )
    functions = as_functions(networks, observation_size)
    return (state, *functions.init(key, key).inference_params())

  return jax.eval_shape(init)


def load(
  path: Any, network_factory: Callable[..., Any] | str | None = None
) -> Any:
  """Loads a checkpoint.

  Args:
    path: as for `find`.
    network_factory: as for `make_networks`.

  Returns:
    The network, and the parameter triple (normalizer, policy, value).

  Raises:
    ValueError: if there is no checkpoint, or it does not fit the network; the
      message names the leaves.
  """
  path = find(path)
  config = load_config(path)
  if network_factory and (wrong := contradictions(config, network_factory)):
    warnings.warn(
      f'The network of {path} is loaded with {", ".join(wrong)}.', stacklevel=2
    )
  networks = make_networks(config, network_factory)
  template = named_params(_template(networks, config))
  saved = arrays.read(path, folders.PARAMS_NAME)
  expected = leaves.by_name(template, separator='.')
  if wrong := leaves.misfits(saved, expected, 'saved'):
    raise ValueError(
      f'The checkpoint {path} does not fit the network: {"; ".join(wrong)}.'
    )
  values = [jnp.asarray(saved[name]) for name in expected]
  tree = jax.tree.unflatten(jax.tree.structure(template), values)
  return networks, (tree['normalizer'], tree['policy'], tree['value'])


def load_policy(
  path: Any,
  network_factory: Callable[..., Any] | str | None = None,
  deterministic: bool = True,
) -> Any:
  """Loads a policy, ready to act; see `inference`.

  Args:
    path: as for `find`.
    network_factory: as for `make_networks`.
    deterministic: act by the mode of the distribution.
  """
  networks, params = load(path, network_factory)
  return inference.make_inference_fn(networks)(params, deterministic)
