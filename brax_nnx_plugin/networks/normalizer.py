"""An input normalizer that may stand anywhere in a network."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import pytrees
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput

# Standard deviation assumed before the first update, and the smallest variance.
_INITIAL_STD = 10.0
_EPSILON = 1e-6


class Statistic(nnx.Variable):
  """A variable that is measured, not trained: it never gets a gradient."""


class Normalizer(StatefulModule):
  """Standardises its input with running statistics.

      y = (x - mean) / std,    std² = max(M2 / counter, 1e-6)

  The statistics are those of the inputs this layer saw in the rollouts, raw
  observations or the activations of any depth. They stay as they are from the
  first action of a training step to its last epoch, and are then folded in at
  once, so a replay sees exactly what the rollout saw. Before the first update
  the mean is 0 and the standard deviation 10.

  Input and output: a pytree of `[B, *shape]`. Extras: the raw input.

  Args of the constructor:
    shape: an int or a tuple, or a pytree of those for structured inputs; an
      array stands for its shape.

  References:
    Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for
    computing sample variances, 1979, equation 2.1.
  """

  def __init__(self, shape: Any):
    zeros = jax.tree.map(
      lambda s: jnp.zeros(s.shape), pytrees.specs('Normalizer', shape)
    )
    self.mean = Statistic(zeros)
    self.M2 = Statistic(jax.tree.map(jnp.zeros_like, zeros))
    self.counter = Statistic(jnp.zeros((), jnp.float32))

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    x = pytrees.plain(x)
    mean = self.mean.get_value()
    given, expected = jax.tree.structure(x), jax.tree.structure(mean)
    if given != expected:
      raise ValueError(
        f'Normalizer was made for an input {expected}, but got {given}.'
      )
    counter = self.counter.get_value()

    def standardise(x, mean, m2):
      if x.shape[x.ndim - mean.ndim :] != mean.shape:
        raise ValueError(
          f'Normalizer was made for features of shape {mean.shape}, but got'
          f' an input of shape {x.shape}.'
        )
      variance = jnp.maximum(m2 / jnp.maximum(counter, 1.0), _EPSILON)
      std = jnp.where(counter > 0, jnp.sqrt(variance), _INITIAL_STD)
      return (x.astype(mean.dtype) - mean) / std

    output = jax.tree.map(standardise, x, mean, self.M2.get_value())
    return StatefulModuleOutput(state, output, jnp.array(0.0), {}, x)

  def update_statistics(self, rollout_extras, *, axis_name=None) -> None:
    """Merges a rollout `[T, B, *shape]` into the statistics.

        n = n_a + n_b,   d = mean_b - mean_a
        mean = mean_a + d n_b / n
        M2 = M2_a + M2_b + d² n_a n_b / n

    Args:
      rollout_extras: the raw inputs of the rollout.
      axis_name: the device axis; the batch is then that of all devices.
    """
    total = (
      (lambda v: v)
      if axis_name is None
      else (lambda v: jax.lax.psum(v, axis_name))
    )
    steps, batch = jax.tree.leaves(rollout_extras)[0].shape[:2]
    count = total(jnp.float32(steps * batch))
    counter = self.counter.get_value()
    new_counter = counter + count

    def merge(x, mean, m2):
      x = x.astype(mean.dtype)
      batch_mean = total(jnp.sum(x, axis=(0, 1))) / count
      batch_m2 = total(jnp.sum(jnp.square(x - batch_mean), axis=(0, 1)))
      delta = batch_mean - mean
      return (
        mean + delta * count / new_counter,
        m2 + batch_m2 + jnp.square(delta) * counter * count / new_counter,
      )

    mean, m2 = self.mean.get_value(), self.M2.get_value()
    treedef = jax.tree.structure(mean)
    merged = jax.tree.map(merge, rollout_extras, mean, m2)
    mean, m2 = jax.tree.transpose(treedef, jax.tree.structure((0, 0)), merged)
    self.mean.set_value(mean)
    self.M2.set_value(m2)
    self.counter.set_value(new_counter)
