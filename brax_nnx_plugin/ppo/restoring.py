"""Starting a run from given parameters, as Brax's `train` does.

Parameters, embedded statistics and the observation normalizer are taken over;
the optimizer and the step count start anew. Going on with a run is another
thing; see `resuming`.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from brax.training.agents.ppo import checkpoint as brax_checkpoint
from etils import epath

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import convert
from brax_nnx_plugin.ppo import leaves
from brax_nnx_plugin.ppo.config import CheckpointConfig
from brax_nnx_plugin.ppo.linen import LinenFunctions
from brax_nnx_plugin.ppo.types import NetworkFunctions
from brax_nnx_plugin.ppo.types import TrainingState


def _fitted(name: str, given: Any, needed: Any) -> Any:
  """Returns the leaves of `given` in the structure and types of `needed`."""
  values = leaves.by_name(given)
  if wrong := leaves.misfits(values, leaves.by_name(needed)):
    raise ValueError(
      f'The {name} to start from do not fit the network: {"; ".join(wrong)}.'
      ' Make the network with the arguments that they were trained with; for'
      ' parameters of stock Brax see ppo.convert.'
    )
  return leaves.fill(needed, values)


def _load(
  path: Any, networks: NetworkFunctions, network_factory: Callable[..., Any]
) -> Any:
  """Loads the parameters of a checkpoint, of this package or of stock Brax."""
  folder = epath.Path(path).resolve()
  if not (folder / convert.BRAX_CONFIG).exists():
    return checkpoint.load(path, network_factory)[1]
  params = brax_checkpoint.load(folder)
  if isinstance(networks, LinenFunctions):
    return params
  return convert.convert(params, networks)


def restore(
  state: TrainingState,
  config: CheckpointConfig,
  networks: NetworkFunctions,
  network_factory: Callable[..., Any],
) -> TrainingState:
  """Puts the parameters that a run is to start from into its first state.

  Args:
    state: as initialized.
    config: says where from; `restore_params` wins over
      `restore_checkpoint_path`, and without `restore_value_fn` the value
      function stays as initialized.
    networks: what is trained.
    network_factory: makes it.

  Returns:
    The state; the one given if there is nothing to restore.

  Raises:
    ValueError: if parameters do not fit; the message names the leaves.
  """
  params = config.restore_params
  if params is None:
    if config.restore_checkpoint_path is None:
      return state
    params = _load(config.restore_checkpoint_path, networks, network_factory)
  if not isinstance(params, (tuple, list)) or len(params) < 2:
    raise ValueError(
      'restore_params must be what train returned, (normalizer, policy,'
      f' value); got a {type(params).__name__}.'
    )
  normalizer, policy, value = state.inference_params()
  policy = _fitted('policy parameters', params[1], policy)
  if config.restore_value_fn:
    if len(params) < 3:
      raise ValueError(
        'There are no parameters of the value function to start from; set'
        ' restore_value_fn=False.'
      )
    value = _fitted('value parameters', params[2], value)
  if params[0] is not None:
    normalizer = _fitted('observation statistics', params[0], normalizer)
  return dataclasses.replace(
    state,
    normalizer_params=normalizer,
    variables=networks.variables(policy, value),
  )
