"""Layers that see: convolutions over images, and images beside numbers."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import entries
from brax_nnx_plugin.networks.activations import Activation
from brax_nnx_plugin.networks.activations import activation_fn
from brax_nnx_plugin.networks.containers import AbstractContainer
from brax_nnx_plugin.networks.factories import observation_features
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput

# How Brax and Playground name the observations that are images.
PIXELS = 'pixels/'
_EPSILON = 1e-6


def _spatial_softmax(maps: jax.Array) -> jax.Array:
  """Returns where each channel `[..., H, W, C]` is large: `[..., 2 C]`."""
  height, width, channels = maps.shape[-3:]
  flat = maps.reshape((*maps.shape[:-3], height * width, channels))
  weights = jax.nn.softmax(flat, axis=-2).reshape(maps.shape)
  rows, columns = jnp.linspace(-1, 1, height), jnp.linspace(-1, 1, width)
  return jnp.concatenate(
    [
      jnp.einsum('...hwc,h->...c', weights, rows),
      jnp.einsum('...hwc,w->...c', weights, columns),
    ],
    axis=-1,
  )


POOLS: dict[str, Callable[[jax.Array], jax.Array]] = {
  'avg': lambda maps: jnp.mean(maps, axis=(-3, -2)),
  'max': lambda maps: jnp.max(maps, axis=(-3, -2)),
  'spatial_softmax': _spatial_softmax,
  'none': lambda maps: maps.reshape((*maps.shape[:-3], -1)),
}


def standardise_channels(images: jax.Array) -> jax.Array:
  """Gives each channel of each image `[..., H, W, C]` mean 0 and variance 1.

      y = (x - mean) / sqrt(var + 1e-6)

  References:
    `flax.linen.LayerNorm` over the two axes of an image, as Brax's
    `normalise_channels`.
  """
  x = jnp.asarray(images).astype(jnp.float32)
  mean = jnp.mean(x, axis=(-3, -2), keepdims=True)
  # Flax's formula, with its rounding.
  squares = jnp.mean(jnp.square(x), axis=(-3, -2), keepdims=True)
  variance = jnp.maximum(squares - jnp.square(mean), 0.0)
  return (x - mean) * jax.lax.rsqrt(variance + _EPSILON)


class CNN(StatefulModule):
  """Convolutions over an image, and a pooling of what they find.

      x -> (convolution -> activation -> max pool?) ... -> global pool

  Input `[B, H, W, C]`, of floats or of whole numbers (uint8 pixels count from 0
  to 255, as in Brax). Output `[B, out_features]`.

  The global pool is 'avg' or 'max' of each channel, 'spatial_softmax', the
  position of each channel's largest activations, or 'none', all activations.

  References:
    `brax.training.networks.CNN` and `VisionMLP`; the default sizes are those of
    Mnih et al., Human-level control through deep reinforcement learning, 2015.
    Finn et al., Deep spatial autoencoders for visuomotor learning, 2016, for
    'spatial_softmax'.
  """

  def __init__(
    self,
    shape: Sequence[int],
    rngs: nnx.Rngs,
    *,
    channels: Sequence[int] = (32, 64, 64),
    kernel_sizes: Sequence[int] = (8, 4, 3),
    strides: Sequence[int] = (4, 2, 1),
    padding: Any = 'SAME',
    activation: Activation = 'relu',
    max_pool: bool = False,
    global_pool: str = 'avg',
    normalise_channels: bool = False,
    kernel_init: Callable[..., Any] | None = None,
    use_bias: bool = True,
  ):
    """Initializes the layer.

    Args:
      shape: of an image, (H, W, C).
      rngs: source of the initial weights.
      channels: output channels of each convolution.
      kernel_sizes: side of its square kernel.
      strides: its stride in both directions.
      padding: 'SAME' or 'VALID', or what else `nnx.Conv` takes.
      activation: a function or its name.
      max_pool: halve the image after each activation, by the maximum of 2 x 2.
      global_pool: a key of `POOLS`.
      normalise_channels: see `standardise_channels`; applied to the input.
      kernel_init: initializer of the kernels; LeCun normal by default.
      use_bias: whether the convolutions have one.

    Raises:
      ValueError: if the image is not (H, W, C) or too small for the
        convolutions, their three lists differ in length, or a name is unknown.
    """
    self.shape = tuple(int(n) for n in shape)
    if len(self.shape) != 3:
      raise ValueError(f'CNN needs images (H, W, C); got the shape {shape}.')
    sizes = tuple(channels), tuple(kernel_sizes), tuple(strides)
    if not sizes[0] or len({len(s) for s in sizes}) > 1:
      raise ValueError(
        'CNN needs as many channels as kernel sizes and strides, and at least'
        f' one; got {sizes[0]}, {sizes[1]} and {sizes[2]}.'
      )
    if global_pool not in POOLS:
      raise ValueError(
        f'There is no global pool {global_pool!r}; choose one of'
        f' {", ".join(POOLS)}.'
      )
    self.activation = activation_fn(activation)
    self.max_pool = max_pool
    self.global_pool = global_pool
    self.normalise_channels = normalise_channels
    inputs = (self.shape[-1], *sizes[0][:-1])
    self.convs = nnx.List(
      [
        nnx.Conv(
          n_in,
          n_out,
          (kernel, kernel),
          strides=(stride, stride),
          padding=padding,
          use_bias=use_bias,
          kernel_init=kernel_init or jax.nn.initializers.lecun_normal(),
          rngs=rngs,
        )
        for n_in, n_out, kernel, stride in zip(inputs, *sizes, strict=True)
      ]
    )
    image = jax.ShapeDtypeStruct((1, *self.shape), jnp.float32)
    self.out_features = jax.eval_shape(self._features, image).shape[-1]

  def _features(self, x: jax.Array) -> jax.Array:
    if self.normalise_channels:
      x = standardise_channels(x)
    for conv in self.convs:
      x = self.activation(conv(x))
      if self.max_pool:
        x = nnx.max_pool(x, (2, 2), strides=(2, 2), padding='SAME')
      if 0 in x.shape[-3:]:
        raise ValueError(
          f'CNN: convolutions leave nothing of an image of shape {self.shape}.'
          " Use smaller kernels and strides, or the padding 'SAME'."
        )
    return POOLS[self.global_pool](x)

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    if x.shape[-3:] != self.shape:
      raise ValueError(
        f'CNN was made for images of shape {self.shape}, but got an input of'
        f' shape {x.shape}.'
      )
    return StatefulModuleOutput(
      state, self._features(x), jnp.array(0.0), {}, None
    )


class VisionEncoder(AbstractContainer):
  """Turns the images of an observation into features, each by its own `CNN`.

      y = [cnn_0(x['pixels/a']), cnn_1(x['pixels/b']), ..., x[state_obs_key]]

  Input: a mapping; images are the entries named `pixels/...`, taken in the
  order of their names whatever the order of the mapping. Output
  `[B, out_features]`.

  References:
    `brax.training.networks.VisionMLP`.
  """

  def __init__(
    self,
    observation_size: Any,
    rngs: nnx.Rngs,
    *,
    state_obs_key: str = '',
    **cnn_kwargs: Any,
  ):
    """Initializes the encoder.

    Args:
      observation_size: a mapping from observation keys to shapes.
      rngs: source of the initial weights.
      state_obs_key: the flat entry that is joined to the features, if any.
      **cnn_kwargs: passed on to each `CNN`.

    Raises:
      ValueError: if there are no images, or no such flat entry.
    """
    sizes = observation_size if isinstance(observation_size, Mapping) else {}
    images = sorted(key for key in sizes if key.startswith(PIXELS))
    if not images:
      raise ValueError(
        f'A network that sees needs observations named {PIXELS}...; the'
        f' environment has {sorted(sizes) or observation_size}.'
      )
    children = {
      f'view_{i}': CNN(sizes[key], rngs, **cnn_kwargs)
      for i, key in enumerate(images)
    }
    self.images = tuple(images)
    self.state_obs_key = state_obs_key
    self.out_features = sum(cnn.out_features for cnn in children.values())
    if state_obs_key:
      self.out_features += observation_features(sizes, state_obs_key)
    super().__init__(children)

  def route(self, run, x):
    """Feeds each child its image and joins the features."""
    kind = type(self).__name__
    parts = {
      key: run(name, entries.take(kind, x, key))
      for name, key in zip(self.names, self.images, strict=True)
    }
    if self.state_obs_key:
      key = self.state_obs_key
      parts[key] = entries.take(kind, x, key)
    return entries.concatenate(kind, parts)
