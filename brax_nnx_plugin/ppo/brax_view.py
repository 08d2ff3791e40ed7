"""What stock Brax sees of our networks: a `PPONetworks` of two functions.

Brax applies a policy and a value network without a carry. A memoryless network
with one sampler and no embedded statistics is served exactly; any other one
raises an error that says what to call instead.
"""

import dataclasses
from typing import Any

from brax.training import distribution
from brax.training import networks as brax_networks
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo import observations
from brax_nnx_plugin.ppo.module_functions import ModuleFunctions
from brax_nnx_plugin.ppo.types import NetworkOutput


def why_not(functions: ModuleFunctions) -> str | None:
  """Says what keeps a network out of stock Brax, if anything does."""
  template = functions.template
  if functions.stateful:
    return 'carries memory, which stock Brax would drop after every step'
  if len(template.samplers) != 1 or len(template.ports) != 1:
    return (
      f'has {len(template.samplers)} action samplers behind'
      f' {len(template.ports)} PPOAdapters, and stock Brax knows one'
      ' distribution'
    )
  variables = jax.eval_shape(
    functions.init, jax.random.key(0), jax.random.key(0)
  )
  if jax.tree.leaves(variables.statistics):
    return 'has embedded statistics, which stock Brax would never update'
  if template.stream_count > len(template.samplers):
    return 'draws random numbers of its own, which stock Brax cannot seed'
  if functions.has_own_loss:
    return 'adds a loss of its own, which stock Brax would leave out'
  inside = (*template.ports[0],)
  if any(
    names[: len(inside)] != inside for names in template.parameter_names()
  ):
    return (
      'has a trunk shared by policy and value, which stock Brax keeps apart'
    )
  return None


def _refuse(reason: str):
  def refuse(*unused_args, **unused_kwargs):
    raise ValueError(
      f'This network {reason}. Train it with brax_nnx_plugin.ppo.train.train,'
      ' act with brax_nnx_plugin.ppo.networks.make_inference_fn, and load it'
      ' with brax_nnx_plugin.ppo.checkpoint.load_policy.'
    )

  return refuse


def view(
  functions: ModuleFunctions, action_size: int
) -> tuple[
  brax_networks.FeedForwardNetwork,
  brax_networks.FeedForwardNetwork,
  distribution.ParametricDistribution,
]:
  """Returns the three fields of Brax's `PPONetworks`.

  Args:
    functions: the network.
    action_size: of the environment.
  """
  samplers = functions.template.samplers
  dist = (
    samplers[0].distribution(action_size)
    if len(samplers) == 1
    else distribution.NormalTanhDistribution(event_size=action_size)
  )
  reason = why_not(functions)
  if reason is not None:
    refuse = _refuse(reason)
    network = brax_networks.FeedForwardNetwork(init=refuse, apply=refuse)
    return network, network, dist
  return _network(functions, 'policy'), _network(functions, 'value'), dist


def _value(out: NetworkOutput) -> Any:
  """Returns what Brax's critics do: a value, or quantiles beside it."""
  return out.value if out.quantiles is None else (out.value, out.quantiles)


def _network(
  functions: ModuleFunctions, side: str
) -> brax_networks.FeedForwardNetwork:
  """Makes Brax's network for one side; the other side's weights are zero."""
  blank = jax.eval_shape(functions.init, jax.random.key(0), jax.random.key(0))
  pick = lambda out: out.parameters if side == 'policy' else _value(out)

  def needed(normalizer_params):
    """Returns the entries of an observation that this side reads."""
    params = (normalizer_params, *blank.inference_params())
    return observations.entries_read(functions, params, output=pick)

  def init(key):
    return getattr(functions.init(key, key).params, side)

  def apply(normalizer_params, params, observation):
    variables = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), blank)
    variables = dataclasses.replace(
      variables, params=dataclasses.replace(variables.params, **{side: params})
    )
    spec = functions.observation_spec
    observation = observations.completed(
      spec, observation, lambda: needed(normalizer_params)
    )
    rows = observations.leading_axes(spec, observation)
    flat = jax.tree.map(
      lambda x: x.reshape((-1, *x.shape[len(rows) :])), observation
    )
    state = functions.initial_state(variables, 1)  # a tree without leaves
    out = functions.step(
      variables, normalizer_params, state, flat, jax.random.key(0)
    )
    return jax.tree.map(lambda x: x.reshape((*rows, *x.shape[1:])), pick(out))

  return brax_networks.FeedForwardNetwork(init=init, apply=apply)
