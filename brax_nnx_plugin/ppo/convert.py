"""Parameters of stock Brax networks for the networks of this package.

    networks = make_ppo_networks(...)           # as the Brax run had them
    params = from_brax(brax_params, networks)

Parameters are the triple (normalizer, policy, value) that `train` returns, here
as in Brax.
"""

from collections.abc import Callable
from collections.abc import Mapping
import json
from typing import Any

from brax.training import types as brax_types
from brax.training.acme import running_statistics
from brax.training.agents.ppo import checkpoint as brax_checkpoint
from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.ppo import layer_slots
from brax_nnx_plugin.ppo import leaves
from brax_nnx_plugin.ppo import network_config
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import networks_vision
from brax_nnx_plugin.ppo.types import PPONetworkParams

# What stock Brax writes beside the parameters of a checkpoint.
BRAX_CONFIG = 'ppo_network_config.json'


def _functions(networks: Any) -> Any:
  functions = getattr(networks, 'functions', None)
  if functions is None:
    raise TypeError(
      'The networks must come from a factory of this package; got a'
      f' {type(networks).__name__}.'
    )
  return functions


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  return {name: np.shape(leaf) for name, leaf in leaves.by_name(tree).items()}


def _triple(params: Any) -> tuple[Any, Any, Any]:
  """Returns (normalizer, policy, value), after a check."""
  if not isinstance(params, (list, tuple)) or len(params) != 3:
    given = type(params).__name__
    if isinstance(params, (list, tuple)):
      given = f'{given} of {len(params)}'
    raise ValueError(
      'The parameters must be the triple (normalizer, policy, value) that'
      f' train returns; got a {given}.'
    )
  normalizer, policy, value = params
  return normalizer, policy, value


def _moved(normalizer: Any) -> dict[str, Any]:
  """Returns Brax's observation statistics as those of a `Normalizer`."""
  count: Any = normalizer.count
  rows = float(count.to_numpy() if hasattr(count, 'to_numpy') else count)
  # Before anything is measured Brax's std is 1; so it is after one such row.
  rows = max(rows, 1.0)
  return {
    'mean': normalizer.mean,
    'M2': jax.tree.map(lambda std: jnp.square(std) * rows, normalizer.std),
    'counter': jnp.float32(rows),
  }


def _move_statistics(
  normalizer: Any, statistics: PPONetworkParams
) -> tuple[Any, Any]:
  """Moves Brax's observation statistics into an embedded `Normalizer`, if any.

  Returns:
    A normalizer for the triple, and the tree of embedded statistics.

  Raises:
    ValueError: if the statistics of the two are not the same.
  """
  needed = leaves.by_name(statistics.policy)
  if not jax.tree.leaves(statistics):
    return normalizer, {}
  fronts = [name for name in needed if name.endswith('/counter')]
  if (
    len(fronts) != 1
    or jax.tree.leaves(statistics.value)
    or not isinstance(normalizer, running_statistics.RunningStatisticsState)
  ):
    raise ValueError(
      'Embedded statistics are read from those of Brax only for one Normalizer'
      f' in front of the network; this one has {list(needed)}, and the'
      f' parameters have a {type(normalizer).__name__}.'
    )
  front = fronts[0].removesuffix('counter')
  moved = leaves.by_name(_moved(normalizer))
  values = {f'{front}{name}': leaf for name, leaf in moved.items()}
  if wrong := leaves.misfits(values, needed):
    raise ValueError(
      "Brax's observation statistics do not fit the embedded Normalizer:"
      f' {"; ".join(wrong)}.'
    )
  # The embedded one does it now.
  neutral: Any = jax.tree.map(jnp.zeros_like, normalizer)
  neutral = neutral.replace(std=jax.tree.map(jnp.ones_like, normalizer.std))
  return neutral, leaves.fill(statistics.policy, values)


def from_brax(params: Any, networks: Any) -> tuple[Any, Any, Any]:
  """Turns the parameters of a stock Brax run into those of its NNX twin.

  Args:
    params: the triple (normalizer, policy, value) of a network that Brax's
      `make_ppo_networks` or `make_ppo_networks_vision` made.
    networks: from the factory of the same name here, with the same arguments.
      With `normalize_inputs` Brax's statistics go into the embedded
      `Normalizer`, which takes a standard deviation below 1e-3 for 1e-3; do so
      only if the run had `normalize_observations`.

  Returns:
    The triple for `networks`, for `make_inference_fn` or `checkpoint.save`.

  Raises:
    ValueError: if a leaf does not fit; the message names all that do not.
  """
  return convert(params, _functions(networks))


def convert(params: Any, functions: Any) -> tuple[Any, Any, Any]:
  """Does what `from_brax` says, for `StatefulPPONetworks.functions`."""
  normalizer, *given = _triple(params)
  key = jax.random.key(0)
  variables = jax.eval_shape(functions.init, key, key)
  needed = variables.params.policy, variables.params.value
  trees, wrong = [], []
  for side, source, target in zip(
    ('policy', 'value'), given, needed, strict=True
  ):
    values, misfits = layer_slots.match(side, source, target)
    wrong += misfits
    if not misfits:
      trees.append(leaves.fill(target, values))
  if wrong:
    raise ValueError(
      f'The parameters do not fit the network: {"; ".join(wrong)}. Give the'
      ' factory the arguments of the Brax run.'
    )
  normalizer, statistics = _move_statistics(normalizer, variables.statistics)
  return normalizer, {**trees[0], **statistics}, trees[1]


def _argument(value: Any) -> Any:
  """Reads an argument of a Brax factory from JSON.

  Brax writes the functions it knows by name; others come out as a dict of their
  attributes, or as 'function name'.
  """
  if isinstance(value, Mapping) and '__name__' in value:
    return value['__name__']
  if isinstance(value, str):
    return value.removeprefix('function ')
  return network_config.decode(value)


def from_brax_checkpoint(
  path: Any, network_factory: Callable[..., Any] | None = None
) -> tuple[Any, tuple[Any, Any, Any]]:
  """Loads a checkpoint that stock Brax saved, for the NNX twin.

  Args:
    path: the folder of one checkpoint, as for Brax's `checkpoint.load`.
    network_factory: called for the twin instead of `make_ppo_networks` or
      `make_ppo_networks_vision` with the arguments that are in the folder;
      needed where Brax could not write an argument down.

  Returns:
    The twin, and the triple (normalizer, policy, value) for it.

  Raises:
    ValueError: if there is no such checkpoint, or it does not fit.
  """
  path = epath.Path(path).resolve()
  file = path / BRAX_CONFIG
  if not file.exists():
    raise ValueError(
      f'There is no {file}. Name the folder of one checkpoint that'
      ' brax.training.agents.ppo.checkpoint saved, like .../000000001000.'
    )
  config = json.loads(file.read_text())
  arguments = config['network_factory_kwargs']
  factory = network_factory or (
    networks_vision.make_ppo_networks_vision
    if 'cnn_output_channels' in arguments
    else ppo_networks.make_ppo_networks
  )
  if network_factory is not None:
    arguments = {}
  preprocess: Any = brax_types.identity_observation_preprocessor
  if config['normalize_observations']:
    preprocess = running_statistics.normalize
  networks = factory(
    network_config.shapes(config['observation_size']),
    config['action_size'],
    preprocess_observations_fn=preprocess,
    **{name: _argument(value) for name, value in arguments.items()},
  )
  return networks, from_brax(brax_checkpoint.load(path), networks)


def warm_start(
  params: Any, recurrent_networks: Any, key: jax.Array
) -> tuple[tuple[Any, Any, Any], dict[str, str]]:
  """Starts a network with memory from the dense layers of an MLP.

  The layers are paired in order, the last with the last, on either side of the
  memory; a pair whose kernel and bias have the same shapes is taken over. All
  else is as `key` initializes it. So, the memory is new: what comes after it
  has to learn to read it.

  Args:
    params: the triple (normalizer, policy, value) of an MLP, of stock Brax or
      of this package.
    recurrent_networks: from `make_recurrent_ppo_networks`.
    key: for what is new.

  Returns:
    The triple for `recurrent_networks`, and which leaf came from which leaf, by
    name.

  Raises:
    ValueError: if no layer of the policy can be taken over.
  """
  functions = _functions(recurrent_networks)
  normalizer, *given = _triple(params)
  variables = functions.init(*jax.random.split(key))
  fresh = variables.params.policy, variables.params.value
  taken: dict[str, str] = {}
  trees = []
  for side, source, target in zip(
    ('policy', 'value'), given, fresh, strict=True
  ):
    values, names = layer_slots.pairs(source, target)
    taken |= {f'{side}/{new}': f'{side}/{old}' for new, old in names.items()}
    trees.append(leaves.fill(target, values))
    if not values and side == 'policy':
      raise ValueError(
        'No layer of the policy can be taken over. Given are'
        f' {_shapes(source)}; the network has {_shapes(target)}. Choose the'
        ' same layer sizes.'
      )
  normalizer, statistics = _move_statistics(normalizer, variables.statistics)
  return (normalizer, {**trees[0], **statistics}, trees[1]), taken
