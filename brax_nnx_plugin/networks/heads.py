"""Heads: the last layers of a policy or of a value function."""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import entries
from brax_nnx_plugin.networks.containers import AbstractContainer
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.samplers import NOISE_STD_TYPES
from brax_nnx_plugin.networks.samplers import NormalSampler
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput

DISTRIBUTIONS = ('tanh_normal', 'normal')


@dataclasses.dataclass(frozen=True)
class SoftClip:
  """An activation that keeps numbers within ±scale: `scale x / (1 + |x|)`."""

  scale: float

  def __call__(self, x: jax.Array) -> jax.Array:
    return self.scale * (x / (1.0 + jnp.abs(x)))


class MeanAndScale(AbstractContainer):
  """Runs two modules on the same input and joins what they return.

      y = [mean(x), scale(x)]

  Output `[B, 2 A]`, as a `NormalSampler` with `state_dependent_std` needs it.

  Args of the constructor:
    mean: a module whose output is `[B, A]`.
    scale: likewise.
  """

  def __init__(self, mean: Any, scale: Any):
    super().__init__({'mean': mean, 'scale': scale})

  def route(self, run, x):
    """Feeds both children the same input."""
    parts = {key: run(key, x) for key in self.names}
    return entries.concatenate(type(self).__name__, parts)


class Quantiles(StatefulModule):
  """Ends a value port whose outputs are quantiles of the return.

      value = mean(quantiles)

  Input `[B, Q]`, the quantiles at `(i + 1/2) / Q`; output a dict of `value`
  `[B, 1]` and `quantiles` `[B, Q]`. Train it with
  `use_distributional_critic=True`.

  Example:
    value=Sequential([Dense(3, 32, rngs), Quantiles()])

  References:
    `brax.training.networks.DistributionalCritic`.
  """

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    if getattr(x, 'ndim', 0) < 2:
      raise ValueError(
        'Quantiles needs an input of shape [B, Q], a row per environment; got'
        f' {entries.describe(x)}.'
      )
    output = {'value': jnp.mean(x, axis=-1, keepdims=True), 'quantiles': x}
    return StatefulModuleOutput(state, output, jnp.array(0.0), {}, None)


def _check(distribution_type: str, noise_std_type: str) -> None:
  for name, value, known in (
    ('distribution_type', distribution_type, DISTRIBUTIONS),
    ('noise_std_type', noise_std_type, NOISE_STD_TYPES),
  ):
    if value not in known:
      raise ValueError(
        f'There is no {name} {value!r}; choose one of {", ".join(known)}.'
      )


def make_action_head(
  in_features: int,
  action_size: int,
  rngs: nnx.Rngs,
  *,
  distribution_type: str = 'tanh_normal',
  noise_std_type: str = 'scalar',
  init_noise_std: float = 1.0,
  state_dependent_std: bool = False,
  mean_clip_scale: float | None = None,
  kernel_init: Callable[..., Any] | None = None,
  mean_kernel_init: Callable[..., Any] | None = None,
  output_kernel_init: Callable[..., Any] | None = None,
) -> list[StatefulModule]:
  """Makes the last layers of an action port: dense ones and a sampler.

      tanh_normal:  Dense(2 A) -> NormalTanhSampler
      normal:       Dense(A) -> NormalSampler, or with a scale of the state
                    MeanAndScale(Dense(A), Dense(A)) -> NormalSampler

  Args:
    in_features: size of the input.
    action_size: A.
    rngs: source of the initial weights.
    distribution_type: 'tanh_normal' for actions squashed by tanh, or 'normal'.
    noise_std_type: see `NormalSampler`; this and the next three are for
      'normal' alone and change nothing of 'tanh_normal', as in Brax.
    init_noise_std: likewise.
    state_dependent_std: likewise.
    mean_clip_scale: keeps the mean within ± this number (see `SoftClip`).
    kernel_init: initializer of the kernels; LeCun uniform, as Brax's, by
      default.
    mean_kernel_init: of the mean of 'normal', if another.
    output_kernel_init: of the layer before the sampler of 'tanh_normal', if
      another.

  Raises:
    ValueError: for an unknown distribution or noise type.

  References:
    `brax.training.networks`: `make_policy_network`, `PolicyModuleWithStd`.
  """
  _check(distribution_type, noise_std_type)
  kernel_init = kernel_init or jax.nn.initializers.lecun_uniform()

  def dense(size, activation=None, init=None):
    return Dense(
      in_features, size, rngs, activation, kernel_init=init or kernel_init
    )

  if distribution_type == 'tanh_normal':
    output = dense(2 * action_size, init=output_kernel_init)
    return [output, NormalTanhSampler(rngs)]
  clip = None if mean_clip_scale is None else SoftClip(mean_clip_scale)
  mean = dense(action_size, clip, mean_kernel_init)
  sampler = NormalSampler(
    action_size,
    rngs,
    state_dependent_std=state_dependent_std,
    noise_std_type=noise_std_type,
    init_noise_std=init_noise_std,
  )
  if not state_dependent_std:
    return [mean, sampler]
  return [MeanAndScale(mean, dense(action_size)), sampler]
