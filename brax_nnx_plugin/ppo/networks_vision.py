"""PPO networks that see.

The twin of `brax.training.agents.ppo.networks_vision`. Observations are a dict;
its entries named `pixels/...` are images.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any

from brax.training import types as brax_types
import jax

from brax_nnx_plugin.networks import vision
from brax_nnx_plugin.networks.activations import Activation
from brax_nnx_plugin.ppo import actor_critic
from brax_nnx_plugin.ppo.networks import StatefulPPONetworks
from brax_nnx_plugin.ppo.networks import make_network_factory

_PADDING = {'zeros': 'SAME', 'valid': 'VALID'}


def make_ppo_networks_vision(
  observation_size: Mapping[str, tuple[int, ...]],
  action_size: int,
  preprocess_observations_fn: Any = (
    brax_types.identity_observation_preprocessor
  ),
  policy_hidden_layer_sizes: Sequence[int] = (256, 256),
  value_hidden_layer_sizes: Sequence[int] = (256, 256),
  activation: Activation = jax.nn.swish,
  normalise_channels: bool = False,
  policy_obs_key: str = '',
  value_obs_key: str = '',
  distribution_type: str = 'tanh_normal',
  noise_std_type: str = 'scalar',
  init_noise_std: float = 1.0,
  state_dependent_std: bool = False,
  policy_network_kernel_init_fn: Any = jax.nn.initializers.lecun_uniform,
  policy_network_kernel_init_kwargs: Mapping[str, Any] | None = None,
  value_network_kernel_init_fn: Any = jax.nn.initializers.lecun_uniform,
  value_network_kernel_init_kwargs: Mapping[str, Any] | None = None,
  mean_clip_scale: float | None = None,
  mean_kernel_init_fn: Any = None,
  mean_kernel_init_kwargs: Mapping[str, Any] | None = None,
  cnn_output_channels: Sequence[int] = (32, 64, 64),
  cnn_kernel_size: Sequence[int] = (8, 4, 3),
  cnn_stride: Sequence[int] = (4, 2, 1),
  cnn_padding: str = 'zeros',
  cnn_activation: Activation = jax.nn.relu,
  cnn_max_pool: bool = False,
  cnn_global_pool: str = 'avg',
  cnn_kernel_init_fn: Any = jax.nn.initializers.lecun_normal,
  cnn_kernel_init_kwargs: Mapping[str, Any] | None = None,
  output_kernel_init_fn: Any = None,
  output_kernel_init_kwargs: Mapping[str, Any] | None = None,
) -> StatefulPPONetworks:
  """Makes a CNN and an MLP for each of policy and value.

  The keyword arguments are those of Brax's factory and mean the same.

  Args:
    observation_size: a dict of shapes.
    action_size: size of the action.
    preprocess_observations_fn: Brax's normalizer; `train` supplies it. It
      leaves images alone.
    policy_hidden_layer_sizes: layers after the CNN, of the policy.
    value_hidden_layer_sizes: likewise of the value function.
    activation: of these layers, a function or its name.
    normalise_channels: standardise each channel of each image.
    policy_obs_key: a flat observation the policy reads beside the images.
    value_obs_key: likewise for the value function.
    distribution_type: this and what follows as in `make_ppo_networks`.
    noise_std_type: for 'normal' alone.
    init_noise_std: likewise.
    state_dependent_std: likewise.
    policy_network_kernel_init_fn: for the dense layers of the policy.
    policy_network_kernel_init_kwargs: for it.
    value_network_kernel_init_fn: for those of the value function.
    value_network_kernel_init_kwargs: for it.
    mean_clip_scale: for 'normal' alone.
    mean_kernel_init_fn: likewise.
    mean_kernel_init_kwargs: for it.
    cnn_output_channels: of each convolution.
    cnn_kernel_size: side of its square kernel.
    cnn_stride: its stride in both directions.
    cnn_padding: 'zeros' or 'valid'.
    cnn_activation: of the convolutions, a function or its name.
    cnn_max_pool: halve the image after each convolution.
    cnn_global_pool: 'avg', 'max', 'spatial_softmax' or 'none'.
    cnn_kernel_init_fn: called with the kwargs below, returns an initializer
      for the convolutions; or its name, as for all initializers.
    cnn_kernel_init_kwargs: for it.
    output_kernel_init_fn: likewise for the policy's last layer; for
      'tanh_normal' alone.
    output_kernel_init_kwargs: for it.

  Raises:
    ValueError: if there are no images, they are too small, or a name is
      unknown.
  """
  policy, head, value = actor_critic.ports(locals())
  kernel_init = actor_critic.initializer(
    'cnn_kernel_init_fn', cnn_kernel_init_fn, cnn_kernel_init_kwargs
  )
  for port in (policy, value):
    port['encoder'] = functools.partial(
      vision.VisionEncoder,
      observation_size,
      state_obs_key=port['obs_key'],
      channels=cnn_output_channels,
      kernel_sizes=cnn_kernel_size,
      strides=cnn_stride,
      padding=_PADDING.get(str(cnn_padding).lower(), cnn_padding),
      activation=cnn_activation,
      max_pool=cnn_max_pool,
      global_pool=cnn_global_pool,
      normalise_channels=normalise_channels,
      kernel_init=kernel_init,
    )
  build = actor_critic.make_build(policy, head, value)
  return make_network_factory(build)(
    observation_size, action_size, preprocess_observations_fn
  )
