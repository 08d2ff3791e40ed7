"""Layers with one fault each, for tests of the laws that find it."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


def result(state, output, **kwargs: Any) -> StatefulModuleOutput:
  """Returns an output without loss, metrics and extras unless given."""
  fields: dict[str, Any] = {
    'regularization_loss': jnp.array(0.0),
    'metrics': {},
  }
  return StatefulModuleOutput(state, output, **(fields | kwargs))


class Leaf(StatefulModule):
  """A faultless memoryless layer; faulty ones override what they spoil."""

  def __call__(self, state, x, rollout_extras=None):
    return result(state, x)


class NumberAsLoss(Leaf):
  """Returns a Python number as its loss, which is no fault."""

  def __call__(self, state, x, rollout_extras=None):
    return StatefulModuleOutput(state, x, 0.0, {})  # pyright: ignore[reportArgumentType]


class Memory(StatefulModule):
  """A faultless layer that adds up its input `[B, n]`."""

  def __init__(self, size: int = 2):
    self.size = size

  def __call__(self, state, x, rollout_extras=None):
    return result(state + x, state + x)

  def initialize_state(self, batch_size) -> Any:
    return jnp.zeros((batch_size, self.size))

  def reset_state(self, prev_state) -> Any:
    return jnp.zeros_like(prev_state)


# carry


class ChangesType(Memory):
  def __call__(self, state, x, rollout_extras=None):
    return result((state + x).astype(jnp.float16), x)


class ChangesStructure(Memory):
  def __call__(self, state, x, rollout_extras=None):
    return result((state + x,), x)


class WeakStart(Memory):
  def initialize_state(self, batch_size):
    return jnp.full((batch_size, self.size), 0.0)


class OneClock(Memory):
  def __call__(self, state, x, rollout_extras=None):
    return result({'clock': state['clock'] + 1}, x)

  def initialize_state(self, batch_size):
    return {'clock': jnp.zeros((), jnp.int32)}

  def reset_state(self, prev_state):
    return {'clock': jnp.zeros((), jnp.int32)}


class FixedRows(Memory):
  def initialize_state(self, batch_size):
    return jnp.zeros((3, self.size))


class PlainNumber(Memory):
  def initialize_state(self, batch_size):
    return [0.0]


class TypedKeys(Memory):
  def __call__(self, state, x, rollout_extras=None):
    return result(state, x)

  def initialize_state(self, batch_size):
    return jax.random.split(jax.random.key(0), batch_size)

  def reset_state(self, prev_state):
    return prev_state


class ResetsToInt(Memory):
  def reset_state(self, prev_state):
    return jnp.zeros(prev_state.shape, jnp.int32)


# writes


class WritesVariable(Leaf):
  def __init__(self):
    self.seen = nnx.BatchStat(jnp.zeros(2))

  def __call__(self, state, x, rollout_extras=None):
    self.seen.set_value(self.seen.get_value() + x[0])
    return result(state, x)


class WritesAttribute(Leaf):
  def __init__(self):
    self.calls = 0

  def __call__(self, state, x, rollout_extras=None):
    self.calls = self.calls + 1
    return result(state, x)


# finite


class NanSentinel(Memory):
  def __call__(self, state, x, rollout_extras=None):
    return result(x, jnp.where(jnp.isnan(state), x, state))

  def initialize_state(self, batch_size):
    return jnp.full((batch_size, self.size), jnp.nan, jnp.float32)

  def reset_state(self, prev_state):
    return jnp.full_like(prev_state, jnp.nan)


class NanGradient(Leaf):
  """The square root has no slope at 0, and `where` does not hide that."""

  def __init__(self):
    self.weight = nnx.Param(jnp.zeros(2))

  def __call__(self, state, x, rollout_extras=None):
    w = self.weight[...]
    return result(state, x + jnp.where(w > 0, jnp.sqrt(w), 0.0))


class InfiniteOutput(Leaf):
  def __call__(self, state, x, rollout_extras=None):
    return result(state, {'y': x, 'log': jnp.log(0 * x)})


# split


class ByDictOrder(Leaf):
  """Its order is that of construction, until NNX sorts the keys."""

  def __init__(self):
    self.weights = nnx.Dict(
      z=nnx.Param(jnp.array(1.0)), a=nnx.Param(jnp.array(2.0))
    )

  def __call__(self, state, x, rollout_extras=None):
    parts = [w[...] * x for w in self.weights.values()]
    return result(state, jnp.concatenate(parts, axis=-1))


class BareArray(Leaf):
  def __init__(self):
    self.offset = jnp.ones(2)


class ListOfSizes(Leaf):
  def __init__(self):
    self.sizes = [1, 2]


# reset


class ResetsHalf(Memory):
  def __call__(self, state, x, rollout_extras=None):
    return result((state[0] + x, state[1] + x), state[0])

  def initialize_state(self, batch_size):
    zeros = jnp.zeros((batch_size, self.size))
    return (zeros, zeros)

  def reset_state(self, prev_state):
    return (jnp.zeros_like(prev_state[0]), prev_state[1])


class ResetsAllRows(Memory):
  def reset_rows(self, is_first, state):
    return self.reset_state(state)


class ResetsNoRows(Memory):
  def reset_rows(self, is_first, state):
    return state


# replay


class Redraws(networks.NormalTanhSampler):
  """Draws anew when it should score what it drew."""

  def __call__(self, state, x, rollout_extras=None):
    return super().__call__(state, x, None)


class Drops(Leaf):
  """Noise from a stream: gone when the loss asks for it."""

  def __init__(self, rngs: nnx.Rngs):
    self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def __call__(self, state, x, rollout_extras=None):
    return result(state, self.dropout(x))


# rows and regularization


class Centres(Leaf):
  def __call__(self, state, x, rollout_extras=None):
    return result(state, x - jnp.mean(x, axis=0))


class CountsRows(Leaf):
  def __call__(self, state, x, rollout_extras=None):
    return result(state, x * (1.0 + jnp.arange(x.shape[0])[:, None]))


class OneOutput(Leaf):
  def __call__(self, state, x, rollout_extras=None):
    return result(state, {'y': x, 'step': jnp.zeros(1)})


class SumsLoss(Leaf):
  def __call__(self, state, x, rollout_extras=None):
    return result(state, x, regularization_loss=jnp.sum(jnp.square(x)))


class LossByFeature(Leaf):
  def __call__(self, state, x, rollout_extras=None):
    return result(state, x, regularization_loss=jnp.square(x))
