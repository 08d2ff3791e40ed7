"""The last module of a PPO network: an action port and a value port."""

from collections.abc import Mapping
from typing import Any

import jax

from brax_nnx_plugin.networks.containers import AbstractContainer
from brax_nnx_plugin.networks.types import PPONetworkOutput


def _is_sample(tree: Any) -> bool:
  return isinstance(tree, Mapping) and {'action', 'log_likelihood'} <= set(tree)


def _pick(samples: Any, name: str) -> Any:
  """Replaces each sampler's dict by one entry."""
  return jax.tree.map(lambda s: s[name], samples, is_leaf=_is_sample)


def _rest(samples: Any) -> Any:
  """Replaces each sampler's dict by what else it says of its distribution."""
  taken = ('action', 'log_likelihood')
  rest = lambda s: {k: v for k, v in s.items() if k not in taken}
  return jax.tree.map(rest, samples, is_leaf=_is_sample)


class PPOAdapter(AbstractContainer):
  """Runs two modules on the same input and makes a `PPONetworkOutput`.

  Args of the constructor:
    action: a module that ends in an `ActionSampler`, or in several (its output
      is then a pytree of what they return).
    value: a module whose output is `[B, 1]` or `[B]`, or one that ends in
      `Quantiles`.

  Example:
    PPOAdapter(
        action=Sequential([Dense(3, 2 * 1, rngs), NormalTanhSampler(rngs)]),
        value=Dense(3, 1, rngs),
    )
  """

  def __init__(self, action: Any, value: Any):
    super().__init__({'action': action, 'value': value})

  @property
  def action(self) -> Any:
    return self['action']

  @property
  def value(self) -> Any:
    return self['value']

  def route(self, run, x):
    """Feeds both ports the same input."""
    samples = run('action', x)
    leaves = jax.tree.leaves(samples, is_leaf=_is_sample)
    if not leaves or not all(_is_sample(leaf) for leaf in leaves):
      raise ValueError(
        'PPOAdapter: the action port must end in an ActionSampler, which'
        " returns {'action', 'log_likelihood', ...}; its output is"
        f' {jax.tree.structure(samples)}.'
      )
    value, quantiles = run('value', x), None
    if isinstance(value, Mapping) and {'value', 'quantiles'} == set(value):
      value, quantiles = value['value'], value['quantiles']
    return PPONetworkOutput(
      actions=_pick(samples, 'action'),
      loglikelihoods=_pick(samples, 'log_likelihood'),
      value_estimates=_squeeze(value, leaves[0]['log_likelihood']),
      distributions=(
        _rest(samples) if all('entropy' in leaf for leaf in leaves) else None
      ),
      quantiles=quantiles,
    )


def _squeeze(value: Any, loglikelihood: jax.Array) -> jax.Array:
  """Drops the feature axis of `[..., 1]`; rows tell it from a batch of one."""
  if getattr(value, 'shape', None) == (*loglikelihood.shape, 1):
    return value[..., 0]
  if getattr(value, 'shape', None) == loglikelihood.shape:
    return value
  raise ValueError(
    'PPOAdapter: the value port must return one number per row, shape'
    f' {(*loglikelihood.shape, 1)}; got'
    f' {jax.tree.map(lambda leaf: leaf.shape, value)}. For quantiles of the'
    ' return put Quantiles() at its end.'
  )
