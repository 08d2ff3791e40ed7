"""A stateful module as the pure functions that training is written against."""

from collections.abc import Callable
from collections.abc import Mapping
import copy
import dataclasses
import functools
from typing import Any

from brax.training import networks as brax_networks
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import contract
from brax_nnx_plugin.networks import dependence
from brax_nnx_plugin.networks import functional
from brax_nnx_plugin.networks import recording
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks import types as module_types
from brax_nnx_plugin.ppo import observations
from brax_nnx_plugin.ppo.types import NetworkOutput
from brax_nnx_plugin.ppo.types import NetworkVariables
from brax_nnx_plugin.ppo.types import PPONetworkParams


def _preprocess(fn, observation, normalizer_params):
  """Normalizes each entry that has statistics, as Brax does for its key."""
  if not isinstance(observation, Mapping):
    return fn(observation, normalizer_params)
  known = getattr(normalizer_params, 'mean', None)
  if not isinstance(known, Mapping):
    return observation
  select = brax_networks.normalizer_select
  return {
    key: fn(value, select(normalizer_params, key)) if key in known else value
    for key, value in observation.items()
  }


def _total(tree: Any) -> jax.Array:
  return functools.reduce(jnp.add, jax.tree.leaves(tree))


def _samples(distributions: Any) -> list[Any]:
  is_sample = lambda d: isinstance(d, Mapping) and 'entropy' in d
  return jax.tree.leaves(distributions, is_leaf=is_sample)


def _joined(samples: list[Any], name: str) -> jax.Array:
  leaves = [sample[name] for sample in samples]
  return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


def network_output(out: module_types.StatefulModuleOutput) -> NetworkOutput:
  """Sums up what all samplers of a network returned."""
  ppo = out.output
  known = {}
  samples = _samples(getattr(ppo, 'distributions', None))
  if samples:
    names = ('loc', 'scale', 'parameters', 'raw_action')
    known = {k: _joined(samples, k) for k in names if k in samples[0]}
    known['entropy'] = _total([sample['entropy'] for sample in samples])
  return NetworkOutput(
    state=out.next_state,
    action=ppo.actions,
    log_likelihood=_total(ppo.loglikelihoods),
    value=_total(ppo.value_estimates),
    quantiles=getattr(ppo, 'quantiles', None),
    regularization_loss=jnp.mean(out.regularization_loss),
    metrics=out.metrics,
    extras=out.rollout_extras,
    **known,
  )


class ModuleFunctions:
  """Implements `types.NetworkFunctions` for a stateful module.

  Attributes:
    template: the structure of the module.
    stateful: whether the module has a carry.
    distributional: whether its output has quantiles of the return.
    has_own_loss: whether its regularization loss is more than a constant.
    observation_spec: shape of one observation, or a dict of them.
    layers_with_memory: paths of the layers with a carry, if the metrics have
      the outputs of all layers (see `recording`); `None` if they do not.
  """

  layers_with_memory: list[str] | None = None

  def __init__(
    self,
    build: Callable[[jax.Array], Any],
    observation_size: Any,
    action_size: int,
    preprocess_observations_fn: Callable[..., Any],
  ):
    """Traces the module once and checks that it keeps the contract.

    Args:
      build: makes the module from a PRNG key.
      observation_size: as Brax gives it: a shape, or a dict of shapes.
      action_size: of the environment.
      preprocess_observations_fn: Brax's normalizer, or the identity.

    Raises:
      TypeError: if the module does not return a `PPONetworkOutput`.
      ValueError: if a call writes a variable or changes the carry's type, or
        a size is wrong.
    """
    self._preprocess = functools.partial(
      _preprocess, preprocess_observations_fn
    )
    self.template = functional.ModuleTemplate(build)

    self.observation_spec = observations.spec_of(observation_size)
    observation = jax.tree.map(
      lambda s: jnp.zeros((2, *s.shape), s.dtype), self.observation_spec
    )

    def trace():
      module = build(jax.random.key(0))
      state = module.initialize_state(2)
      contract.check_fresh_carry(module, state, 2)
      out = contract.call_without_writes(module, state, observation)
      contract.check_ppo_output(module, out, 2, action_size)
      contract.check_carry(module, state, out.next_state)
      quantiles = getattr(out.output, 'quantiles', None)
      return state, out.rollout_extras, quantiles

    state, extras, quantiles = jax.eval_shape(trace)
    self.distributional = quantiles is not None
    self.stateful = bool(jax.tree.leaves(state))
    self._refuse_unrecorded_noise(state, observation, extras)
    self.has_own_loss = self._depends_on_its_input(observation)

  def _refuse_unrecorded_noise(self, state, observation, extras) -> None:
    """Raises if a replay would draw noise that the rollout did not see."""

    def replay(rngs, params, statistics):
      module = self.template.module(params, statistics, rngs=rngs)
      zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), extras)
      blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), state)
      blank = stepping.reset_rows(module, jnp.ones(2), blank)
      out = module(blank, observation, zeros)
      ppo = out.output
      return out.next_state, ppo.loglikelihoods, ppo.value_estimates

    used, _, _ = dependence.depends_on(
      replay, self.template.rngs, *self._trees()
    )
    hits = [names for names, hit in functional.flatten(used) if hit]
    if hits:
      raise ValueError(
        f'The noise of the RNG stream {"/".join(hits[0][:-1])!r} reaches the'
        ' log-likelihood, the value or the carry, and a replay would draw it'
        ' anew: it would score another network than the one that acted. Draw'
        ' it from a key in the carry (as VariationalBottleneck does), or emit'
        ' it in rollout_extras and use it when it is handed back. nnx.Dropout'
        ' can do neither.'
      )

  def _depends_on_its_input(self, observation: Any) -> bool:
    """Traces whether the regularization loss is more than a constant."""

    def loss(params, statistics, observation):
      module = self.template.module(params, statistics)
      state = module.initialize_state(2)
      return jnp.asarray(module(state, observation).regularization_loss)

    used = dependence.depends_on(loss, *self._trees(), observation)
    return any(jax.tree.leaves(used))

  def _trees(self) -> tuple[Any, Any]:
    """Returns abstract (params, statistics)."""
    trees = jax.eval_shape(self.template.init, jax.random.key(0))
    return trees['params'], trees['statistics']

  def recording(self) -> 'ModuleFunctions':
    """Returns the same network with the outputs of its layers as metrics."""
    found: list[str] = []

    def change(module):
      found[:] = recording.layers_with_memory(module)
      return recording.with_recording(module)

    recorder = copy.copy(self)
    recorder.template = self.template.mapped(change)
    recorder.layers_with_memory = found
    return recorder

  def _module(self, variables: NetworkVariables, key=None, evaluate=False):
    params, statistics = variables.params, variables.statistics
    return self.template.module(
      (params.policy, params.value),
      (statistics.policy, statistics.value),
      key,
      evaluate=evaluate,
    )

  def init(self, key_policy, key_value) -> NetworkVariables:
    """Builds the module once per key and takes each network's own part."""
    policy = self.template.init(key_policy)
    value = self.template.init(key_value)
    return NetworkVariables(
      *(
        PPONetworkParams(policy=policy[part][0], value=value[part][1])
        for part in functional.PARTS
      )
    )

  def variables(self, policy, value) -> NetworkVariables:
    """Splits inference parameters into trained and measured ones."""

    def part(name):
      return PPONetworkParams(
        *({name: t[name]} if name in t else {} for t in (policy, value))
      )

    return NetworkVariables(*map(part, functional.PARTS))

  def initial_state(self, variables, batch_size, key=None):
    """See `types.NetworkFunctions`."""
    return self._module(variables, key).initialize_state(batch_size)

  def reset(self, variables, is_first, state):
    """See `types.NetworkFunctions`."""
    return stepping.reset_rows(self._module(variables), is_first, state)

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
    module = self._module(variables, key, deterministic)
    if is_first is not None:
      state = stepping.reset_rows(module, is_first, state)
    x = self._preprocess(observation, normalizer_params)
    return network_output(module(state, x))

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
    module = self._module(variables, key)
    x = self._preprocess(observation, normalizer_params)
    return network_output(
      stepping.unroll_module(module, state, x, is_first, extras)
    )

  def update_statistics(self, variables, extras, axis_name):
    """See `types.NetworkFunctions`."""
    if not jax.tree.leaves(variables.statistics):
      return variables
    module = self._module(variables)
    stepping.update_module_statistics(module, extras, axis_name)
    statistics = self.template.trees(module)['statistics']
    return dataclasses.replace(
      variables, statistics=PPONetworkParams(*statistics)
    )
