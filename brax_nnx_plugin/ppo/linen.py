"""A stock Brax network as the pure functions that training is written against.

Calls the network exactly as Brax's own loss and rollout do, with the same
shapes and the same keys, so that the numbers are Brax's.
"""

from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_ppo_networks
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import environments
from brax_nnx_plugin.ppo import observations
from brax_nnx_plugin.ppo.types import NetworkFunctions
from brax_nnx_plugin.ppo.types import NetworkOutput
from brax_nnx_plugin.ppo.types import NetworkVariables
from brax_nnx_plugin.ppo.types import PPONetworkParams


class LinenFunctions:
  """Implements `types.NetworkFunctions` for Brax's `PPONetworks`."""

  stateful = False

  def __init__(
    self,
    ppo_networks: brax_ppo_networks.PPONetworks,
    observation_size: Any = None,
  ):
    """Wraps the networks.

    Args:
      ppo_networks: as a stock Brax factory returns them.
      observation_size: shape of an observation, or a dict of shapes, if known.
    """
    self._networks = ppo_networks
    self.observation_spec = observations.spec_of(observation_size)

  @property
  def distributional(self) -> bool | None:
    """See `types.NetworkFunctions`; traces the critic."""
    if self.observation_spec is None:
      return None
    observation = jax.tree.map(
      lambda s: jnp.zeros((1, *s.shape)), self.observation_spec
    )
    spec = jax.tree.map(lambda x: x[(0,) * (x.ndim - 1)], observation)

    def value():
      network = self._networks.value_network
      return network.apply(
        running_statistics.init_state(environments.without_pixels(spec)),
        network.init(jax.random.PRNGKey(0)),
        observation,
      )

    try:
      return _split_value(jax.eval_shape(value))[1] is not None
    except TypeError:  # it reads whole numbers; the loss will tell
      return None

  def init(self, key_policy, key_value) -> NetworkVariables:
    """See `types.NetworkFunctions`."""
    params = PPONetworkParams(
      policy=self._networks.policy_network.init(key_policy),
      value=self._networks.value_network.init(key_value),
    )
    return self.variables(params.policy, params.value)

  def variables(self, policy, value) -> NetworkVariables:
    """See `types.NetworkFunctions`; linen trains all it has."""
    return NetworkVariables(
      PPONetworkParams(policy=policy, value=value),
      PPONetworkParams(policy={}, value={}),
    )

  def initial_state(self, variables, batch_size, key=None):
    """See `types.NetworkFunctions`."""
    del variables, batch_size, key
    return ()

  def reset(self, variables, is_first, state):
    """See `types.NetworkFunctions`."""
    del variables, is_first
    return state

  def step(
    self,
    variables,
    normalizer_params,
    state,
    observation,
    key,
    *,
    is_first=None,
    deterministic=False,
  ) -> NetworkOutput:
    """See `types.NetworkFunctions`."""
    del is_first
    dist: Any = self._networks.parametric_action_distribution
    params = variables.params
    logits = self._networks.policy_network.apply(
      normalizer_params, params.policy, observation
    )
    if deterministic:
      raw_action = dist.create_dist(logits).mode()
    else:
      raw_action = dist.sample_no_postprocessing(logits, key)
    value = self._networks.value_network.apply(
      normalizer_params, params.value, observation
    )
    return self._output(logits, raw_action, value, key, state)

  def unroll(
    self,
    variables,
    normalizer_params,
    state,
    observation,
    key,
    *,
    is_first,
    extras,
  ) -> NetworkOutput:
    """See `types.NetworkFunctions`."""
    del is_first
    params = variables.params
    logits = self._networks.policy_network.apply(
      normalizer_params, params.policy, observation
    )
    value = self._networks.value_network.apply(
      normalizer_params, params.value, observation
    )
    return self._output(logits, extras, value, key, state)

  def _output(self, logits: Any, raw_action, value, key, state):
    dist: Any = self._networks.parametric_action_distribution
    unsquashed = dist.create_dist(logits)
    value, quantiles = _split_value(value)
    return NetworkOutput(
      state=state,
      action=dist.postprocess(raw_action),
      log_likelihood=dist.log_prob(logits, raw_action),
      value=value,
      quantiles=quantiles,
      entropy=dist.entropy(logits, key),
      loc=unsquashed.loc,
      scale=unsquashed.scale,
      parameters=logits,
      raw_action=raw_action,
      extras=raw_action,
    )

  def update_statistics(self, variables, extras, axis_name):
    """See `types.NetworkFunctions`."""
    del extras, axis_name
    return variables


def _split_value(value: Any) -> tuple[jax.Array, jax.Array | None]:
  """Takes apart what Brax's critics return: a value, or quantiles with it."""
  return value if isinstance(value, tuple) else (value, None)


def as_functions(ppo_networks: Any, observation_size: Any) -> NetworkFunctions:
  """Returns the functions of any network that `train` takes.

  Args:
    ppo_networks: what a network factory returned, ours or a stock one.
    observation_size: shape of an observation, or a dict of shapes.

  Raises:
    TypeError: if it is not `PPONetworks`.
  """
  functions = getattr(ppo_networks, 'functions', None)
  if functions is not None:
    return functions
  if not hasattr(ppo_networks, 'parametric_action_distribution'):
    raise TypeError(
      'network_factory must return PPONetworks; it returned a'
      f' {type(ppo_networks).__name__}. Wrap a function that builds a module'
      ' in ppo.networks.make_network_factory.'
    )
  return LinenFunctions(ppo_networks, observation_size)
