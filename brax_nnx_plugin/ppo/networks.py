"""PPO networks: the bridge between NNX modules and Brax's PPO.

The twin of `brax.training.agents.ppo.networks`, and the only file of `ppo` that
knows NNX. A function that builds a module becomes a Brax network factory; the
factory's `StatefulPPONetworks` *is* Brax's `PPONetworks`, so that a memoryless
network also works in stock Brax and one with memory says what to call instead.

Parameters are plain nested dicts, `{'params': ...}` and, for embedded
statistics, `{'statistics': ...}`: one tree for the policy and one for the value
function.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from brax.training import types as brax_types
from brax.training.agents.ppo import networks as brax_ppo_networks
from flax import nnx
from flax import struct
import jax

from brax_nnx_plugin.networks.activations import Activation
from brax_nnx_plugin.ppo import actor_critic
from brax_nnx_plugin.ppo import brax_view
from brax_nnx_plugin.ppo import observations
from brax_nnx_plugin.ppo.inference import make_inference_fn as make_inference_fn
from brax_nnx_plugin.ppo.module_functions import ModuleFunctions

BuildFn = Callable[[Any, int, nnx.Rngs], Any]
NetworkFactory = Callable[..., 'StatefulPPONetworks']

_identity = brax_types.identity_observation_preprocessor


@struct.dataclass
class StatefulPPONetworks(brax_ppo_networks.PPONetworks):
  """Brax's `PPONetworks`, and the functions that also know the carry.

  Attributes:
    functions: what training and inference use.
    brax_compatible: whether stock Brax can run the network too.
  """

  functions: Any = struct.field(pytree_node=False, default=None)
  brax_compatible: bool = struct.field(pytree_node=False, default=False)


def make_network_factory(build: BuildFn) -> NetworkFactory:
  """Makes a Brax network factory from a function that builds a module.

  Args:
    build: `build(observation_size, action_size, rngs)` returns a stateful
      module whose output is a `PPONetworkOutput`. `observation_size` is a shape
      tuple, or a dict of them. It is called several times, so it must depend
      on nothing but its arguments.

  Returns:
    A factory for `ppo.train(network_factory=...)`.

  Example:
    def build(observation_size, action_size, rngs):
      size = observation_size[0]
      return PPOAdapter(
          action=Sequential([
              LSTM(size, 32, rngs),
              Dense(32, 2 * action_size, rngs),
              NormalTanhSampler(rngs),
          ]),
          value=Dense(size, 1, rngs),
      )
    ppo.train(..., network_factory=make_network_factory(build))
  """

  def factory(
    observation_size: Any,
    action_size: int,
    preprocess_observations_fn: Any = _identity,
  ) -> StatefulPPONetworks:
    observation_size = observations.plain_size(observation_size)
    functions = ModuleFunctions(
      lambda key: build(observation_size, action_size, nnx.Rngs(key)),
      observation_size,
      action_size,
      preprocess_observations_fn,
    )
    return StatefulPPONetworks(  # pyright: ignore[reportCallIssue]
      *brax_view.view(functions, action_size),
      functions=functions,
      brax_compatible=brax_view.why_not(functions) is None,
    )

  factory.build = build
  return factory


def make_ppo_networks(
  observation_size: Any,
  action_size: int,
  preprocess_observations_fn: Any = _identity,
  policy_hidden_layer_sizes: Sequence[int] = (32,) * 4,
  value_hidden_layer_sizes: Sequence[int] = (256,) * 5,
  activation: Activation = jax.nn.swish,
  policy_obs_key: str = 'state',
  value_obs_key: str = 'state',
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
  use_distributional_critic: bool = False,
  num_quantiles: int = 32,
  normalize_inputs: bool = False,
) -> StatefulPPONetworks:
  """Makes MLPs for policy and value: the NNX twin of Brax's factory.

  The keyword arguments are those of `brax...ppo.networks.make_ppo_networks`
  and mean the same. Where Brax takes a function, the name that Brax registers
  it by will do.

  Args:
    observation_size: shape of an observation, or a dict of shapes.
    action_size: size of the action.
    preprocess_observations_fn: Brax's normalizer; `train` supplies it.
    policy_hidden_layer_sizes: of the policy.
    value_hidden_layer_sizes: of the value function.
    activation: a function or its name.
    policy_obs_key: the entry of a dict observation the policy reads.
    value_obs_key: the entry the value function reads.
    distribution_type: 'tanh_normal' or 'normal'. What is said of the mean and
      of the noise below is for 'normal' alone.
    noise_std_type: what is trained, the scale ('scalar') or its logarithm
      ('log').
    init_noise_std: scale before training.
    state_dependent_std: whether the scale is a function of the state.
    policy_network_kernel_init_fn: called with the kwargs below, returns an
      initializer for the policy's kernels.
    policy_network_kernel_init_kwargs: for it.
    value_network_kernel_init_fn: likewise for the value function.
    value_network_kernel_init_kwargs: for it.
    mean_clip_scale: keeps the mean within ± this number.
    mean_kernel_init_fn: likewise for the kernel of the mean.
    mean_kernel_init_kwargs: for it.
    use_distributional_critic: estimate quantiles of the return; set it in
      `train` too.
    num_quantiles: how many.
    normalize_inputs: put an embedded `Normalizer` in front of both networks.

  Raises:
    ValueError: for an unknown observation key, activation, initializer or
      distribution.
  """
  build = actor_critic.make_build(
    *actor_critic.ports(locals()), normalize_inputs
  )
  return make_network_factory(build)(
    observation_size, action_size, preprocess_observations_fn
  )


def make_recurrent_ppo_networks(
  observation_size: Any,
  action_size: int,
  preprocess_observations_fn: Any = _identity,
  cell: str = 'lstm',
  policy_hidden_layer_sizes: Sequence[int] = (64, 64),
  value_hidden_layer_sizes: Sequence[int] = (64, 64),
  policy_memory_size: int | None = 64,
  value_memory_size: int | None = 64,
  activation: Activation = jax.nn.swish,
  policy_obs_key: str = 'state',
  value_obs_key: str = 'state',
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
  use_distributional_critic: bool = False,
  num_quantiles: int = 32,
  trainable_initial_state: bool = False,
  normalize_inputs: bool = False,
) -> StatefulPPONetworks:
  """Makes an actor and a critic with memories of their own.

  Each is dense, memory, dense: the memory comes after the first hidden layer.

  Args:
    observation_size: shape of an observation, or a dict of shapes.
    action_size: size of the action.
    preprocess_observations_fn: Brax's normalizer; `train` supplies it.
    cell: 'lstm', 'gru', 'rnn' or 'mingru'.
    policy_hidden_layer_sizes: dense layers of the policy, the memory not
      counted.
    value_hidden_layer_sizes: likewise of the value function.
    policy_memory_size: units of the policy's memory; `None` for no memory.
    value_memory_size: likewise for the value function.
    activation: of the dense layers, a function or its name.
    policy_obs_key: the entry of a dict observation the policy reads.
    value_obs_key: the entry the value function reads.
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
    use_distributional_critic: as in `make_ppo_networks`.
    num_quantiles: likewise.
    trainable_initial_state: learn the carry an episode starts with.
    normalize_inputs: put an embedded `Normalizer` in front of both networks.

  Raises:
    ValueError: for an unknown cell, observation key, activation, initializer
      or distribution.
  """
  policy, head, value = actor_critic.ports(locals())
  for port, size in ((policy, policy_memory_size), (value, value_memory_size)):
    if size is not None:
      port.update(
        cell=cell,
        memory_size=size,
        trainable_initial_state=trainable_initial_state,
      )
  build = actor_critic.make_build(policy, head, value, normalize_inputs)
  return make_network_factory(build)(
    observation_size, action_size, preprocess_observations_fn
  )
