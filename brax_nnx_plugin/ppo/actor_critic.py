"""From the arguments of a network factory to a function that builds it."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from brax.training import networks as brax_networks
import jax

from brax_nnx_plugin.networks import factories
from brax_nnx_plugin.networks import heads
from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.normalizer import Normalizer
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.ppo import checks

_Options = dict[str, Any]

INITIALIZERS = brax_networks.KERNEL_INITIALIZER
# Brax registers these two beside functions that return an initializer.
_READY_MADE = (jax.nn.initializers.ones, jax.nn.initializers.zeros)


def initializer(name: str, fn: Any, kwargs: Mapping[str, Any] | None) -> Any:
  """Returns a kernel initializer.

  Args:
    name: of the argument `fn` was, for the error.
    fn: returns an initializer, or is the name Brax registers one by; `None`
      for none.
    kwargs: what `fn` is called with.

  Raises:
    ValueError: if there is no initializer of that name.
  """
  if fn is None:
    return None
  if isinstance(fn, str):
    if fn not in INITIALIZERS:
      raise ValueError(
        f'{name}: there is no initializer {fn!r}; choose one of'
        f' {", ".join(INITIALIZERS)}, or pass a function.'
      )
    fn = INITIALIZERS[fn]
  return fn if fn in _READY_MADE else fn(**(kwargs or {}))


def ports(arguments: Mapping[str, Any]) -> tuple[_Options, _Options, _Options]:
  """Sorts the arguments that all factories have, by what they are for.

  Args:
    arguments: of the factory, by name.

  Returns:
    The first three arguments of `make_build`.
  """

  def init(name):
    fn, kwargs = (arguments.get(f'{name}_init_{k}') for k in ('fn', 'kwargs'))
    return initializer(f'{name}_init_fn', fn, kwargs)

  def port(side):
    return {
      'hidden_sizes': arguments[f'{side}_hidden_layer_sizes'],
      'obs_key': arguments[f'{side}_obs_key'],
      'activation': arguments['activation'],
      'kernel_init': init(f'{side}_network_kernel'),
    }

  policy = port('policy')
  names = (
    'distribution_type',
    'noise_std_type',
    'init_noise_std',
    'state_dependent_std',
    'mean_clip_scale',
  )
  head = {name: arguments[name] for name in names} | {
    'kernel_init': policy['kernel_init'],
    'mean_kernel_init': init('mean_kernel'),
    'output_kernel_init': init('output_kernel'),
  }
  value = port('value')
  if arguments.get('use_distributional_critic'):
    value['num_quantiles'] = arguments['num_quantiles']
  return policy, head, value


def make_build(
  policy: _Options,
  head: _Options,
  value: _Options,
  normalize_inputs: bool = False,
) -> Callable[[Any, int, Any], StatefulModule]:
  """Returns a build function of two ports; see `make_network_factory`.

  Args:
    policy: arguments of `make_trunk_layers`.
    head: of `make_action_head`.
    value: of `make_port_layers`, and `num_quantiles` if the critic is
      distributional.
    normalize_inputs: put a `Normalizer` in front of both.

  Raises:
    ValueError: if the number of quantiles is no whole number above 0.
  """
  value = dict(value)
  num_quantiles = value.pop('num_quantiles', None)
  if num_quantiles is not None:
    checks.require(
      isinstance(num_quantiles, int) and num_quantiles > 0,
      'num_quantiles must be a whole number of at least 1; got'
      f' {num_quantiles!r}.',
    )

  def make_value(observation_size, rngs):
    layers = factories.make_port_layers(
      observation_size, num_quantiles or 1, rngs=rngs, **value
    )
    return Sequential(layers + [heads.Quantiles()] * bool(num_quantiles))

  def build(observation_size, action_size, rngs) -> StatefulModule:
    trunk, size = factories.make_trunk_layers(
      observation_size, rngs=rngs, **policy
    )
    action = heads.make_action_head(size, action_size, rngs, **head)
    adapter = PPOAdapter(
      action=Sequential([*trunk, *action]),
      value=make_value(observation_size, rngs),
    )
    if not normalize_inputs:
      return adapter
    return Sequential([Normalizer(observation_size), adapter])

  return build
