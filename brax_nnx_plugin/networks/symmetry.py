"""A penalty for acting differently in a mirror."""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


def _locations(out: Any) -> Any:
  """Returns the location of each sampler's distribution."""
  if getattr(out.output, 'distributions', None) is None:
    raise ValueError(
      'MirrorLoss needs a network that ends in a PPOAdapter with this'
      " package's samplers: it compares the locations of their distributions,"
      f' and the output is {jax.tree.structure(out.output)}.'
    )
  is_sample = lambda d: isinstance(d, dict) and 'loc' in d
  take = lambda d: d['loc']
  return jax.tree.map(take, out.output.distributions, is_leaf=is_sample)


def _modules_with_memory(network: Any) -> list[str]:
  """Names the layers that have a carry, or the network if none is a layer."""
  copy = nnx.clone(network)  # a layer may move a key on when it starts
  if not jax.tree.leaves(copy.initialize_state(1)):
    return []
  found = []
  modules: Any = nnx.iter_modules(copy)
  for path, module in modules:
    inner = any(
      hasattr(child, 'initialize_state')
      for where, child in nnx.iter_modules(module)
      if where
    )
    is_layer = hasattr(module, 'initialize_state') and not inner
    if is_layer and jax.tree.leaves(module.initialize_state(1)):
      found.append(f'{type(module).__name__} at {"/".join(map(str, path))!r}')
  return found or [type(network).__name__]


class MirrorLoss(StatefulModule):
  """Runs a network, and penalises it where its mirror image acts otherwise.

      L = weight Σ (loc(x) - M_a loc(M_o x))²          per row

  with M_o and M_a the mirrors of observations and actions. The sum goes over
  the numbers of the action; `loc` is taken before squashing. Everything else
  is the network's: output, carry, extras, statistics.

  The memory of a mirrored past is not the mirror of the memory, unless the
  network is built so. Hence a network with a carry needs `mirror_state`.

  References:
    Yu, Turk and Liu, Learning symmetric and low-energy locomotion, 2018,
    equation 5.
  """

  def __init__(
    self,
    network: Any,
    mirror_observation: Callable[[Any], Any],
    mirror_action: Callable[[Any], Any],
    weight: float = 1.0,
    mirror_state: Callable[[Any], Any] | None = None,
  ):
    """Initializes the wrapper.

    Args:
      network: a module whose output is a `PPONetworkOutput`.
      mirror_observation: from an observation `[..., F]` to its mirror image.
      mirror_action: likewise for an action `[..., A]`, or a pytree of them.
      weight: of the penalty in `regularization_loss`.
      mirror_state: from a carry to the carry of the mirrored past.

    Raises:
      ValueError: if the network has a carry and there is no `mirror_state`.
    """
    remembering = _modules_with_memory(network) if mirror_state is None else []
    if remembering:
      raise ValueError(
        f'MirrorLoss cannot mirror the memory of {", ".join(remembering)}: the'
        ' carry of a mirrored past is not known from the carry of the past.'
        ' Pass mirror_state, a function of the carry, or use a network without'
        ' memory.'
      )
    self.network = network
    self.mirror_observation = mirror_observation
    self.mirror_action = mirror_action
    self.mirror_state = mirror_state
    self.weight = weight

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    return self._compare(
      lambda *args: self.network(*args), state, x, rollout_extras
    )

  def unroll(self, state, x, is_first, rollout_extras=None):
    """Runs the sequence and its mirror image, each as the network does."""

    def run(state, x, extras):
      return stepping.unroll_module(self.network, state, x, is_first, extras)

    return self._compare(run, state, x, rollout_extras)

  def _compare(self, run, state, x, rollout_extras) -> StatefulModuleOutput:
    out = run(state, x, rollout_extras)
    if self.mirror_state is not None:
      state = self.mirror_state(state)
    # With extras the samplers score a given action and draw none.
    image = run(state, self.mirror_observation(x), out.rollout_extras)
    mirrored = self.mirror_action(_locations(image))
    squares = jax.tree.map(
      lambda a, b: jnp.sum(jnp.square(a - b), axis=-1),
      _locations(out),
      mirrored,
    )
    loss = sum(jax.tree.leaves(squares), jnp.array(0.0))
    return dataclasses.replace(
      out,
      regularization_loss=out.regularization_loss + self.weight * loss,
      metrics={'network': out.metrics, 'mirror_loss': loss},
    )

  def initialize_state(self, batch_size: int) -> Any:
    return self.network.initialize_state(batch_size)

  def reset_state(self, prev_state: Any) -> Any:
    return self.network.reset_state(prev_state)

  def reset_rows(self, is_first, state):
    return stepping.reset_rows(self.network, is_first, state)

  def update_statistics(self, rollout_extras, *, axis_name=None) -> None:
    stepping.update_module_statistics(self.network, rollout_extras, axis_name)
