"""Memoryless layers."""

from collections.abc import Callable
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


class Dense(StatefulModule):
  """A linear map and an optional activation: `activation(x W + b)`."""

  def __init__(
    self,
    in_features: int,
    out_features: int,
    rngs: nnx.Rngs,
    activation: Callable[[jax.Array], jax.Array] | None = None,
    **linear_kwargs: Any,
  ):
    """Initializes the layer.

    Args:
      in_features: size of the last axis of the input.
      out_features: size of the last axis of the output.
      rngs: source of the initial weights.
      activation: applied to the result; `None` for none.
      **linear_kwargs: passed on to `nnx.Linear` (`kernel_init`, `use_bias`).
    """
    self.in_features = int(in_features)
    self.out_features = int(out_features)
    self.linear = nnx.Linear(
      self.in_features, self.out_features, rngs=rngs, **linear_kwargs
    )
    self.activation = activation

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    y = self.linear(x)
    if self.activation is not None:
      y = self.activation(y)
    return StatefulModuleOutput(state, y, jnp.array(0.0), {}, None)
