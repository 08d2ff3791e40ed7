"""Variational bottlenecks: layers whose output is a sample of a latent.

    z = mean + std ε,   ε ~ N(0, 1)

A replay must meet the latents that acted, and still differentiate through mean
and std. So no latent is recorded: the key of the noise is in the carry, and a
replay that starts from the same carry draws the same ε.

The carry has one row per environment, `[B, K + 1]` words of uint32: the K words
of a key, and a count of the draws made with it. Plain words survive shuffles,
replication checks and checkpoints, which typed keys do not. The noise of a step
is a function of key and count alone:

    ε = normal(fold_in(key, count)),   count' = count + 1

A reset does not rewind the count, so no noise comes twice, and the noise of a
whole sequence is drawn at once.
"""

import dataclasses
import numbers
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


class CarryKey(nnx.RngKey):
  """The key that the carries of the next `initialize_state` descend from."""


def _noise(rows: jax.Array, size: int, dtype: Any) -> jax.Array:
  """Draws ε `[..., size]` for rows `[..., K + 1]` of the carry."""

  # Threefry whatever made the key: other generators draw a mapped batch from
  # the first key alone, and a row's noise would depend on its neighbours.
  def draw(words):
    key = jax.random.wrap_key_data(words[:2], impl='threefry2x32')
    for word in words[2:]:
      key = jax.random.fold_in(key, word)
    return jax.random.normal(key, (size,), dtype)

  flat = jax.vmap(draw)(rows.reshape(-1, rows.shape[-1]))
  return flat.reshape(*rows.shape[:-1], size)


def _each_step(rows: jax.Array, steps: int) -> jax.Array:
  """Returns the rows `[T, B, K + 1]` before each of `steps` steps."""
  counts = jnp.arange(steps, dtype=rows.dtype)[:, None]
  repeated = jnp.broadcast_to(rows, (steps, *rows.shape))
  return repeated.at[..., -1].add(counts)


def _checked_size(kind: str, size: Any) -> int:
  """Returns `size` as an int; raises unless it is a positive one."""
  if not isinstance(size, numbers.Integral) or isinstance(size, bool):
    raise TypeError(
      f'{kind} needs an int as latent_size, the number of latents; got'
      f' {size!r}, a {type(size).__name__}.'
    )
  if size < 1:
    raise ValueError(f'{kind} needs a latent_size of at least 1; got {size}.')
  return int(size)


def _checked_nonnegative(kind: str, name: str, value: Any) -> float:
  """Returns `value` as a float; raises if it is negative or not a number."""
  if not value >= 0:
    raise ValueError(f'{kind} needs {name} >= 0; got {value}.')
  return float(value)


class VariationalBottleneck(StatefulModule):
  """A normal latent with a penalty for what it tells.

      mean, s = split(x),   std = softplus(s) + min_std
      z = mean + std ε
      KL(N(mean, std²) || N(0, 1)) = ½ Σ (mean² + std² - log std² - 1)

  Input `[B, 2 L]`, output z `[B, L]`, `regularization_loss` kl_weight KL `[B]`,
  carry as described above. There are no extras. With `deterministic` set (by
  `network.eval()`) z is the mean, and the count goes on.

  References:
    Kingma and Welling, Auto-encoding variational Bayes, 2014, appendix B.
    Alemi et al., Deep variational information bottleneck, 2017.
  """

  def __init__(
    self,
    latent_size: int,
    rngs: nnx.Rngs | nnx.RngStream,
    kl_weight: float = 1.0,
    min_std: float = 1e-6,
  ):
    """Initializes the layer.

    Args:
      latent_size: L, half the size of the input.
      rngs: source of the key that carries descend from; called once.
      kl_weight: weight of the KL in `regularization_loss`.
      min_std: added to the softplus; the smallest standard deviation.

    Raises:
      TypeError: if `latent_size` is not an int.
      ValueError: if it is not positive, or another number is negative.
    """
    kind = type(self).__name__
    self.deterministic = False
    self.latent_size = _checked_size(kind, latent_size)
    self.kl_weight = _checked_nonnegative(kind, 'kl_weight', kl_weight)
    self.min_std = _checked_nonnegative(kind, 'min_std', min_std)
    self.key = CarryKey(rngs(), tag='carry')

  def _check(self, rows: jax.Array, x: jax.Array) -> None:
    """Raises unless the input fits the layer and the carry."""
    kind = f'{type(self).__name__}(latent_size={self.latent_size})'
    if x.shape[-1] != 2 * self.latent_size:
      raise ValueError(
        f'{kind} needs a mean and a spread per latent,'
        f' {2 * self.latent_size} inputs; got {x.shape[-1]}. Give the layer'
        ' before it 2 * latent_size outputs.'
      )
    if x.shape[:-1] != rows.shape[:-1]:
      raise ValueError(
        f'{kind} got an input of shape {x.shape} with a carry of'
        f' {rows.shape[-2]} rows. Each row needs noise of its own: make the'
        ' carry with initialize_state(batch_size).'
      )

  def _sample(self, rows: jax.Array, x: jax.Array) -> StatefulModuleOutput:
    """Samples a latent per row, for one step or for all steps at once.

    Args:
      rows: keys and counts, `[..., K + 1]`.
      x: the input, `[..., 2 L]`.

    Returns:
      A `StatefulModuleOutput` whose `next_state` is `rows` one draw later.
    """
    self._check(rows, x)
    mean, spread = jnp.split(x, 2, axis=-1)
    std = jax.nn.softplus(spread) + self.min_std
    z = mean
    if not self.deterministic:
      z = mean + std * _noise(rows, self.latent_size, x.dtype)
    terms = jnp.square(mean) + jnp.square(std) - 2 * jnp.log(std) - 1
    kl = 0.5 * jnp.sum(terms, axis=-1)
    metrics = {'mu': mean, 'sigma': std, 'kl_divergence': kl}
    next_rows = rows.at[..., -1].add(1)
    return StatefulModuleOutput(next_rows, z, self.kl_weight * kl, metrics)

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    return self._sample(state, x)

  def unroll(self, state, x, is_first, rollout_extras=None):
    """Samples all steps at once; a reset changes nothing here."""
    out = self._sample(_each_step(state, len(is_first)), x)
    return dataclasses.replace(out, next_state=out.next_state[-1])

  def initialize_state(self, batch_size: int) -> Any:
    """Returns rows with new keys; each call gives others."""
    keys = jax.random.split(self.key.get_value(), batch_size + 1)
    self.key.set_value(keys[0])
    words = jax.random.key_data(keys[1:])
    return jnp.pad(words, ((0, 0), (0, 1)))

  def reset_state(self, prev_state: Any) -> Any:
    """Returns `prev_state`: a count that is rewound would repeat its noise."""
    return prev_state


class AR1VariationalBottleneck(VariationalBottleneck):
  """A variational bottleneck that also penalises jumps of the latent.

      loss = kl_weight KL + ar1_weight mean((z[t] - z[t - 1])²)

  The second term is absent in the first step of an episode. Carry: a dict of
  `keys` (the rows of a `VariationalBottleneck`), `last_z` `[B, L]`, and `valid`
  `[B]`, whether `last_z` belongs to this episode.

  References:
    Merel et al., Neural probabilistic motor primitives for humanoid control,
    2019, has an autoregressive prior on such a latent.
  """

  def __init__(
    self,
    latent_size: int,
    rngs: nnx.Rngs | nnx.RngStream,
    kl_weight: float = 1.0,
    min_std: float = 1e-6,
    ar1_weight: float = 1.0,
    backprop_through_time: bool = True,
  ):
    """Initializes the layer.

    Args:
      latent_size: L, half the size of the input.
      rngs: source of the key that carries descend from; called once.
      kl_weight: weight of the KL in `regularization_loss`.
      min_std: added to the softplus; the smallest standard deviation.
      ar1_weight: weight of the squared difference.
      backprop_through_time: whether the difference also pulls on the earlier
        latent, by a gradient into the step before.

    Raises:
      TypeError: if `latent_size` is not an int.
      ValueError: if it is not positive, or another number is negative.
    """
    super().__init__(latent_size, rngs, kl_weight, min_std)
    kind = type(self).__name__
    self.ar1_weight = _checked_nonnegative(kind, 'ar1_weight', ar1_weight)
    self.backprop_through_time = backprop_through_time

  def _penalise(
    self, sample: StatefulModuleOutput, last_z: jax.Array, valid: jax.Array
  ) -> StatefulModuleOutput:
    """Adds the difference to `last_z` `[..., L]` in the rows that have one."""
    z = sample.output
    if not self.backprop_through_time:
      last_z = jax.lax.stop_gradient(last_z)
    # Selected before the difference, so that nothing can leak from a row that
    # has no last latent, whatever is stored there.
    reference = jnp.where(valid[..., None], last_z, z)
    difference = jnp.mean(jnp.square(z - reference), axis=-1)
    loss = sample.regularization_loss + self.ar1_weight * difference
    return StatefulModuleOutput(
      next_state={
        'keys': sample.next_state,
        'last_z': z.astype(last_z.dtype),
        'valid': jnp.ones_like(valid),
      },
      output=z,
      regularization_loss=loss,
      metrics=sample.metrics | {'l2_diff': difference},
    )

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    sample = self._sample(state['keys'], x)
    return self._penalise(sample, state['last_z'], state['valid'])

  def unroll(self, state, x, is_first, rollout_extras=None):
    """Samples all steps at once; the last latents are z one step later."""
    first = jnp.asarray(is_first).astype(bool)
    sample = self._sample(_each_step(state['keys'], len(first)), x)
    last_z, valid = state['last_z'][None], state['valid'][None]
    earlier = sample.output[:-1].astype(last_z.dtype)
    last_z = jnp.concatenate([last_z, earlier])
    valid = jnp.concatenate([valid, jnp.ones_like(first[1:])]) & ~first
    out = self._penalise(sample, last_z, valid)
    end = jax.tree.map(lambda leaf: leaf[-1], out.next_state)
    return dataclasses.replace(out, next_state=end)

  def initialize_state(self, batch_size: int) -> dict[str, jax.Array]:
    """Returns rows with new keys and without a last latent."""
    return {
      'keys': super().initialize_state(batch_size),
      'last_z': jnp.zeros((batch_size, self.latent_size)),
      'valid': jnp.zeros(batch_size, bool),
    }

  def reset_state(self, prev_state: Any) -> dict[str, jax.Array]:
    """Forgets the last latents; the keys stay as they are."""
    return {
      'keys': prev_state['keys'],
      'last_z': jnp.zeros_like(prev_state['last_z']),
      'valid': jnp.zeros_like(prev_state['valid']),
    }
