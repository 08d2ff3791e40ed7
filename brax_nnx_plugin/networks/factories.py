"""Builders of common networks."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import numbers
from typing import Any

from flax import nnx
import jax

from brax_nnx_plugin.networks.activations import ACTIVATIONS as ACTIVATIONS
from brax_nnx_plugin.networks.activations import Activation as Activation
from brax_nnx_plugin.networks.activations import activation_fn as activation_fn
from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.delay import Delay
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.normalizer import Normalizer
from brax_nnx_plugin.networks.parallel_recurrent import MinGRU
from brax_nnx_plugin.networks.recurrent import GRU
from brax_nnx_plugin.networks.recurrent import LSTM
from brax_nnx_plugin.networks.recurrent import SimpleRNN
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.utils import Filter
from brax_nnx_plugin.networks.variational import VariationalBottleneck

CELLS: dict[str, Callable[..., StatefulModule]] = {
  'lstm': LSTM,
  'gru': GRU,
  'rnn': SimpleRNN,
  'mingru': MinGRU,
}


def _bottleneck(
  in_features: int, latent_size: int, rngs: nnx.Rngs, **kwargs: Any
) -> Sequential:
  """Makes a dense layer of mean and scale, and the latent they describe."""
  # First, since it checks the size.
  latent = VariationalBottleneck(latent_size, rngs, **kwargs)
  return Sequential([Dense(in_features, 2 * latent_size, rngs), latent])


# What may stand between the first dense layer and the others.
_MIDDLES = CELLS | {'bottleneck': _bottleneck}


def observation_features(observation_size: Any, key: str) -> int:
  """Returns the size of a flat observation, or of one entry of a dict.

  Args:
    observation_size: an int or a one-element tuple, or a mapping from
      observation keys to those, as Brax hands it to a network factory.
    key: the entry to read, if there are entries.

  Raises:
    ValueError: if the entry is missing or is not flat.
  """
  size = observation_size
  if isinstance(size, Mapping):
    if key not in size:
      raise ValueError(
        f'There is no observation {key!r}; the environment has'
        f' {sorted(size)}. Set policy_obs_key and value_obs_key.'
      )
    size = size[key]
  shape = (size,) if isinstance(size, numbers.Integral) else tuple(size)
  if len(shape) != 1:
    raise ValueError(
      f'This network needs a flat observation; {key!r} has shape {shape}.'
    )
  return int(shape[0])


def make_mlp_layers(
  sizes: Sequence[int],
  rngs: nnx.Rngs,
  activation: Activation = nnx.relu,
  activation_last_layer: bool = True,
  **linear_kwargs: Any,
) -> list[Dense]:
  """Makes the `Dense` layers of an MLP, to go into a larger `Sequential`.

  Args:
    sizes: sizes of input, hidden layers and output.
    rngs: source of the initial weights.
    activation: a function or its name.
    activation_last_layer: whether the last layer has the activation too.
    **linear_kwargs: passed on to `nnx.Linear`.
  """
  fn = activation_fn(activation)
  pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
  last = len(pairs) - 1
  return [
    Dense(
      n_in,
      n_out,
      rngs,
      fn if i < last or activation_last_layer else None,
      **linear_kwargs,
    )
    for i, (n_in, n_out) in enumerate(pairs)
  ]


def make_mlp(
  sizes: Sequence[int],
  rngs: nnx.Rngs,
  activation: Activation = nnx.relu,
  activation_last_layer: bool = True,
  **linear_kwargs: Any,
) -> Sequential:
  """Makes an MLP; the arguments are those of `make_mlp_layers`."""
  return Sequential(
    make_mlp_layers(
      sizes, rngs, activation, activation_last_layer, **linear_kwargs
    )
  )


def make_mlp_actor_critic(
  obs_size: int,
  action_size: int,
  actor_hidden_sizes: Sequence[int],
  critic_hidden_sizes: Sequence[int],
  rngs: nnx.Rngs,
  activation: Activation = nnx.relu,
  normalize_obs: bool = True,
  initializer_scale: float = 1.0,
  entropy_weight: float = 0.0,
  min_std: float = 1e-3,
  std_scale: float = 1.0,
) -> StatefulModule:
  """Makes separate actor and critic MLPs behind an optional `Normalizer`.

  Args:
    obs_size: size of the flat observation.
    action_size: size of the action.
    actor_hidden_sizes: hidden layers of the actor.
    critic_hidden_sizes: hidden layers of the critic.
    rngs: source of the initial weights.
    activation: a function or its name.
    normalize_obs: put a `Normalizer` in front of both.
    initializer_scale: scale of the uniform fan-in initializer.
    entropy_weight: see `NormalTanhSampler`.
    min_std: likewise.
    std_scale: likewise.

  Returns:
    A module whose output is a `PPONetworkOutput`.
  """
  kernel_init = nnx.initializers.variance_scaling(
    initializer_scale, 'fan_in', 'uniform'
  )
  actor = make_mlp_layers(
    [obs_size, *actor_hidden_sizes, 2 * action_size],
    rngs,
    activation,
    activation_last_layer=False,
    kernel_init=kernel_init,
  )
  critic = make_mlp(
    [obs_size, *critic_hidden_sizes, 1],
    rngs,
    activation,
    activation_last_layer=False,
    kernel_init=kernel_init,
  )
  sampler = NormalTanhSampler(rngs, entropy_weight, min_std, std_scale)
  adapter = PPOAdapter(action=Sequential([*actor, sampler]), value=critic)
  return (
    Sequential([Normalizer(obs_size), adapter]) if normalize_obs else adapter
  )


def make_trunk_layers(
  observation_size: Any,
  hidden_sizes: Sequence[int],
  rngs: nnx.Rngs,
  *,
  obs_key: str = 'state',
  activation: Activation = nnx.swish,
  kernel_init: Callable[..., Any] | None = None,
  cell: str | None = None,
  memory_size: int = 64,
  encoder: Callable[[nnx.Rngs], Any] | None = None,
  delay: int = 0,
  **cell_kwargs: Any,
) -> tuple[list[StatefulModule], int]:
  """Makes the layers of one port but for the last.

      observation[obs_key] -> Delay -> Dense -> memory -> Dense ...

  Args:
    observation_size: as Brax hands it to a network factory.
    hidden_sizes: sizes of the dense layers. Memory comes after the first, or
      sees the observation itself if there are none.
    rngs: source of the initial weights.
    obs_key: the entry of a dict observation this port reads, and no other.
    activation: a function or its name.
    kernel_init: initializer of the dense layers; LeCun uniform, as Brax's, by
      default.
    cell: a key of `CELLS`, or 'bottleneck' for a `VariationalBottleneck` in
      place of memory; `None` for neither.
    memory_size: units of the memory, or latents of the bottleneck.
    encoder: makes a module that reads the whole observation in place of
      `obs_key`; its attribute `out_features` is the size of its output.
    delay: network steps by which the observation comes late; 0 for no delay.
    **cell_kwargs: passed on to the cell (`trainable_initial_state`, ...).

  Returns:
    The layers, and the size of their output.

  Raises:
    ValueError: for an unknown cell, observation key or activation.
  """
  if cell is not None and cell not in _MIDDLES:
    raise ValueError(
      f'There is no cell {cell!r}; choose one of {", ".join(CELLS)}, or None'
      ' for no memory.'
    )
  kernel_init = kernel_init or jax.nn.initializers.lecun_uniform()
  layers: list[StatefulModule] = []
  if encoder is not None:
    layers.append(front := encoder(rngs))
    size = front.out_features
  else:
    size = observation_features(observation_size, obs_key)
    if isinstance(observation_size, Mapping):
      layers.append(Filter(obs_key))

  if delay:
    layers.append(Delay(size, k_steps=delay))

  def dense(sizes):
    layers.extend(
      make_mlp_layers(sizes, rngs, activation, kernel_init=kernel_init)
    )
    return sizes[-1]

  before = list(hidden_sizes[:1]) if cell else list(hidden_sizes)
  after = list(hidden_sizes[1:]) if cell else []
  size = dense([size, *before])
  if cell is not None:
    layers.append(_MIDDLES[cell](size, memory_size, rngs, **cell_kwargs))
    size = dense([memory_size, *after])
  return layers, size


def make_port_layers(
  observation_size: Any,
  output_size: int,
  hidden_sizes: Sequence[int],
  rngs: nnx.Rngs,
  *,
  kernel_init: Callable[..., Any] | None = None,
  output_kernel_init: Callable[..., Any] | None = None,
  **trunk_kwargs: Any,
) -> list[StatefulModule]:
  """Makes the layers of one port: a trunk, and a dense layer as its output.

  Args:
    observation_size: as Brax hands it to a network factory.
    output_size: size of the output; the last layer has no activation.
    hidden_sizes: see `make_trunk_layers`.
    rngs: source of the initial weights.
    kernel_init: initializer of the dense layers; LeCun uniform, as Brax's, by
      default.
    output_kernel_init: initializer of the last layer, if another.
    **trunk_kwargs: passed on to `make_trunk_layers`.

  Raises:
    ValueError: for an unknown cell, observation key or activation.
  """
  kernel_init = kernel_init or jax.nn.initializers.lecun_uniform()
  layers, size = make_trunk_layers(
    observation_size,
    hidden_sizes,
    rngs,
    kernel_init=kernel_init,
    **trunk_kwargs,
  )
  output_init = output_kernel_init or kernel_init
  return [*layers, Dense(size, output_size, rngs, kernel_init=output_init)]
