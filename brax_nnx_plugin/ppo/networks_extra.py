"""More networks by name: an MLP that sees late, and one with a bottleneck."""

from collections.abc import Callable
import inspect
from typing import Any

from brax.training import types as brax_types

from brax_nnx_plugin.ppo import actor_critic
from brax_nnx_plugin.ppo import checks
from brax_nnx_plugin.ppo.networks import StatefulPPONetworks
from brax_nnx_plugin.ppo.networks import make_network_factory
from brax_nnx_plugin.ppo.networks import make_ppo_networks

_identity = brax_types.identity_observation_preprocessor


def _with_mlp_parameters(factory: Callable[..., Any]) -> Callable[..., Any]:
  """Makes the signature name what `**mlp_arguments` stands for."""
  own = list(inspect.signature(factory).parameters.values())[:-1]
  names = {parameter.name for parameter in own}
  mlp = inspect.signature(make_ppo_networks).parameters.values()
  more = [p for p in mlp if p.name not in names]
  signature = inspect.Signature([*own, *more])
  factory.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
  return factory


def _mlp_arguments(given: dict[str, Any]) -> dict[str, Any]:
  """Returns all arguments that `make_ppo_networks` would have.

  Raises:
    TypeError: for one that it does not know.
  """
  bound = inspect.signature(make_ppo_networks).bind((), 0, **given)
  bound.apply_defaults()
  return bound.arguments


@_with_mlp_parameters
def make_delayed_ppo_networks(
  observation_size: Any,
  action_size: int,
  preprocess_observations_fn: Any = _identity,
  observation_delay: int = 1,
  delay_value: bool = False,
  **mlp_arguments: Any,
) -> StatefulPPONetworks:
  """Makes MLPs of which the policy sees what was `observation_delay` steps ago.

  It sees zeros until an episode is old enough.

  Args:
    observation_size: shape of an observation, or a dict of shapes.
    action_size: size of the action.
    preprocess_observations_fn: Brax's normalizer; `train` supplies it.
    observation_delay: in network steps.
    delay_value: whether the value function sees late, too.
    **mlp_arguments: see `networks.make_ppo_networks`.

  Raises:
    TypeError: for an argument that is not known.
    ValueError: as `make_ppo_networks`, or for a delay below 1.
  """
  checks.require(
    isinstance(observation_delay, int) and observation_delay > 0,
    'observation_delay must be a whole number of network steps above 0; got'
    f' {observation_delay!r}. Without a delay use make_ppo_networks.',
  )
  arguments = _mlp_arguments(mlp_arguments)
  policy, head, value = actor_critic.ports(arguments)
  policy['delay'] = observation_delay
  value['delay'] = observation_delay if delay_value else 0
  build = actor_critic.make_build(
    policy, head, value, arguments['normalize_inputs']
  )
  return make_network_factory(build)(
    observation_size, action_size, preprocess_observations_fn
  )


@_with_mlp_parameters
def make_variational_ppo_networks(
  observation_size: Any,
  action_size: int,
  preprocess_observations_fn: Any = _identity,
  latent_size: int = 16,
  kl_weight: float = 1e-3,
  **mlp_arguments: Any,
) -> StatefulPPONetworks:
  """Makes MLPs of which the policy acts on a noisy latent.

      observation -> Dense -> z ~ N(mean, std²) -> Dense ... -> action

  The divergence of the latent from a standard normal adds to the loss.

  Args:
    observation_size: shape of an observation, or a dict of shapes.
    action_size: size of the action.
    preprocess_observations_fn: Brax's normalizer; `train` supplies it.
    latent_size: numbers in the latent, after the first hidden layer.
    kl_weight: of the divergence; see `VariationalBottleneck`.
    **mlp_arguments: see `networks.make_ppo_networks`.

  Raises:
    TypeError: for an argument that is not known, or a size that is no int.
    ValueError: as `make_ppo_networks`, or for a size below 1.
  """
  arguments = _mlp_arguments(mlp_arguments)
  policy, head, value = actor_critic.ports(arguments)
  policy |= {
    'cell': 'bottleneck',
    'memory_size': latent_size,
    'kl_weight': kl_weight,
  }
  build = actor_critic.make_build(
    policy, head, value, arguments['normalize_inputs']
  )
  return make_network_factory(build)(
    observation_size, action_size, preprocess_observations_fn
  )
