"""Composites, and layers with methods for sequences, with one fault each."""

import dataclasses
from typing import Any

from flax import nnx
import jax.numpy as jnp

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.types import StatefulModule
from tests.broken_modules import Leaf
from tests.broken_modules import Memory
from tests.broken_modules import result

# metrics and extras


class Wrapper(StatefulModule):
  """A faultless composite of one child."""

  def __init__(self, child: Any):
    self.child = child

  def __call__(self, state, x, rollout_extras=None):
    out = self.child(state['child'], x, self._given(rollout_extras))
    return dataclasses.replace(
      out,
      next_state={'child': out.next_state},
      metrics={'child': out.metrics},
      rollout_extras={'child': out.rollout_extras},
    )

  def _given(self, rollout_extras):
    return None if rollout_extras is None else rollout_extras['child']

  def initialize_state(self, batch_size):
    return {'child': self.child.initialize_state(batch_size)}

  def reset_state(self, prev_state):
    return {'child': self.child.reset_state(prev_state['child'])}

  def update_statistics(self, rollout_extras, *, axis_name=None):
    self.child.update_statistics(rollout_extras['child'], axis_name=axis_name)


class DropsMetrics(Wrapper):
  def __call__(self, state, x, rollout_extras=None):
    return dataclasses.replace(
      super().__call__(state, x, rollout_extras), metrics={}
    )


class DropsLoss(Wrapper):
  def __call__(self, state, x, rollout_extras=None):
    return dataclasses.replace(
      super().__call__(state, x, rollout_extras),
      regularization_loss=jnp.array(0.0),
    )


class NeverCalls(Wrapper):
  def __call__(self, state, x, rollout_extras=None):
    return result(state, x)


class RenamesExtras(Wrapper):
  def __call__(self, state, x, rollout_extras=None):
    out = super().__call__(state, x, rollout_extras)
    extras = out.rollout_extras or {}
    return dataclasses.replace(out, rollout_extras={'kid': extras['child']})

  def _given(self, rollout_extras):
    return None if rollout_extras is None else rollout_extras['kid']


class DropsExtras(Wrapper):
  def __call__(self, state, x, rollout_extras=None):
    return dataclasses.replace(
      super().__call__(state, x, rollout_extras), rollout_extras=None
    )


class KeepsExtras(Wrapper):
  def _given(self, rollout_extras):
    return None


class FlatExtras(networks.Parallel):
  """A container whose extras are not those of its children."""

  def _run(self, call, state, x, rollout_extras):
    out = super()._run(call, state, x, rollout_extras)
    return dataclasses.replace(out, rollout_extras=None)


# unroll


class Unrolls(Memory):
  """Unrolls itself and lets a subclass spoil the result."""

  def unroll(self, state, x, is_first, rollout_extras=None):
    args = (state, x, is_first, rollout_extras)
    return self.spoil(stepping.scan_steps(self, *args))

  def spoil(self, out):
    return out


class ForgetsResets(Unrolls):
  def unroll(self, state, x, is_first, rollout_extras=None):
    return super().unroll(state, x, 0 * is_first, rollout_extras)


class LateError(Unrolls):
  def spoil(self, out):
    return out.replace(output=out.output.at[3:].add(1.0))


class KeepsCarry(Unrolls):
  def spoil(self, out):
    return out.replace(next_state=out.next_state + 1.0)


class MoreMetrics(Unrolls):
  def spoil(self, out):
    return out.replace(metrics={'norm': jnp.zeros(())})


class WritesInUnroll(Unrolls):
  def __init__(self):
    super().__init__()
    self.last = nnx.Variable(jnp.zeros(2))

  def spoil(self, out):
    self.last.set_value(out.output[-1, 0])
    return out


class SumsLossOverTime(Unrolls):
  def __call__(self, state, x, rollout_extras=None):
    loss = jnp.sum(jnp.square(x), axis=-1)
    return result(state + x, state + x, regularization_loss=loss)

  def spoil(self, out):
    loss = jnp.sum(out.regularization_loss, axis=0)
    return out.replace(regularization_loss=loss)


class RaisesInUnroll(Unrolls):
  def spoil(self, out):
    raise NotImplementedError('not for sequences')


# statistics


class Mean(Leaf):
  """A faultless layer that keeps the mean of its input."""

  def __init__(self):
    self.mean: Any = networks.Normalizer(2).mean

  def __call__(self, state, x, rollout_extras=None):
    return result(state, x - self.mean[...], rollout_extras=x)

  def update_statistics(self, rollout_extras, *, axis_name=None):
    self.mean.set_value(jnp.mean(rollout_extras, axis=(0, 1)))


class TrainedMean(Mean):
  def __init__(self):
    self.mean = nnx.Param(jnp.zeros(2))


class OneDevice(Mean):
  def update_statistics(self, rollout_extras):  # pyright: ignore
    super().update_statistics(rollout_extras)


class ScalarMean(Mean):
  def update_statistics(self, rollout_extras, *, axis_name=None):
    self.mean.set_value(jnp.mean(rollout_extras))


class MakesVariable(Mean):
  def update_statistics(self, rollout_extras, *, axis_name=None):
    self.count = nnx.Variable(jnp.zeros(()))


class RaisesInUpdate(Mean):
  def update_statistics(self, rollout_extras, *, axis_name=None):
    raise KeyError('history')


class NoUpdate(Wrapper):
  def update_statistics(self, rollout_extras, *, axis_name=None):
    pass
