"""Recurrent layers over the cells of `flax.nnx`.

The carry is the cell's: `(c, h)` for an LSTM (cell first, as in flax), `h` for
a GRU and a simple RNN, each `[B, hidden_features]`. It starts at zero, or at a
learned vector with `trainable_initial_state=True`.
"""

import abc
from collections.abc import Callable
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import lstm_sequence
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


def _rows(vector: Any, zeros: jax.Array) -> jax.Array:
  """Broadcasts an initial state vector to the rows of `zeros` `[B, H]`."""
  if vector is None:
    return zeros
  return jnp.broadcast_to(vector[...], zeros.shape).astype(zeros.dtype)


def _check_rows(layer: Any, h: jax.Array, x: jax.Array) -> None:
  """Raises unless carry and input have the same rows."""
  if h.shape[:-1] != x.shape[:-1]:
    raise ValueError(
      f'{type(layer).__name__}: the carry has shape {h.shape}, the input'
      f' {x.shape}. Both need the same rows: make the carry with'
      ' initialize_state(batch_size).'
    )


@functools.cache
def _plain_cell(in_features: int, hidden_features: int) -> Any:
  """Returns the structure of a cell that nobody has changed."""
  return nnx.graphdef(
    nnx.eval_shape(
      lambda: nnx.OptimizedLSTMCell(
        in_features, hidden_features, rngs=nnx.Rngs(0)
      )
    )
  )


class LSTM(StatefulModule):
  r"""A long short-term memory layer.

      i, f, g, o = x W_i + h W_h + b        (split in four)
      c' = σ(f) c + σ(i) tanh(g)
      h' = σ(o) tanh(c')

  Input `[B, in_features]`, output `h'` `[B, hidden_features]`, carry `(c, h)`.

  References:
    Hochreiter and Schmidhuber, Long short-term memory, 1997; the arithmetic is
    that of `flax.nnx.OptimizedLSTMCell`. `forget_bias` follows Jozefowicz et
    al., An empirical exploration of recurrent network architectures, 2015.
  """

  def __init__(
    self,
    in_features: int,
    hidden_features: int,
    rngs: nnx.Rngs,
    *,
    trainable_initial_state: bool = False,
    forget_bias: float = 0.0,
    use_optimized: bool = True,
    **cell_kwargs: Any,
  ):
    """Initializes the layer.

    Args:
      in_features: size of the input.
      hidden_features: size of the output and of both halves of the carry.
      rngs: source of the initial weights.
      trainable_initial_state: learn the carry an episode starts with.
      forget_bias: initial bias of the forget gate; 1.0 makes the layer
        remember from the start.
      use_optimized: one matrix product for all gates (the same function; the
        faster one up to about 2048 units).
      **cell_kwargs: passed on to the flax cell (`gate_fn`, `kernel_init`, ...).
    """
    self.in_features = in_features
    self.hidden_features = hidden_features
    cell = nnx.OptimizedLSTMCell if use_optimized else nnx.LSTMCell
    self.cell = cell(in_features, hidden_features, rngs=rngs, **cell_kwargs)
    if forget_bias:
      self._add_forget_bias(forget_bias)
    zeros = jnp.zeros(hidden_features)
    self.initial_c = nnx.Param(zeros) if trainable_initial_state else None
    self.initial_h = nnx.Param(zeros) if trainable_initial_state else None

  def _add_forget_bias(self, forget_bias: float) -> None:
    cell: Any = self.cell
    if hasattr(cell, 'dense_h'):
      gate = slice(self.hidden_features, 2 * self.hidden_features)
      bias = cell.dense_h.bias
      bias[...] = bias[...].at[gate].add(forget_bias)
    else:
      bias = cell.hf.bias
      bias[...] = bias[...] + forget_bias

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    _check_rows(self, state[1], x)
    next_state, output = self.cell(state, x)
    return StatefulModuleOutput(next_state, output, jnp.array(0.0), {}, None)

  def _weights(self, *arrays: jax.Array) -> lstm_sequence.Weights | None:
    """Returns the weights if a step is the plain one, in one precision.

    Args:
      *arrays: of the carry, `[B, H]`, and the input.
    """
    own = type(self)  # which may step or reset in a way of its own
    if (
      own.__call__ is not LSTM.__call__
      or own.reset_rows is not StatefulModule.reset_rows
      or arrays[0].ndim != 2
    ):
      return None
    plain = _plain_cell(self.in_features, self.hidden_features)
    if nnx.graphdef(self.cell) != plain:  # another gate, say, or bias
      return None
    cell: Any = self.cell
    parameters = cell.dense_i.kernel, cell.dense_h.kernel, cell.dense_h.bias
    weights = lstm_sequence.Weights(*(p[...] for p in parameters))
    dtypes = {a.dtype for a in (*weights, *arrays)}
    return weights if len(dtypes) == 1 else None

  def unroll(self, state, x, is_first, rollout_extras=None):
    """Runs a sequence; the plain cell with a backward pass of its own."""
    _check_rows(self, state[1], x[0])
    weights = self._weights(*state, x)
    if weights is None:
      return super().unroll(state, x, is_first, rollout_extras)
    state, output = lstm_sequence.run(
      weights, state, self.reset_state(state), x, is_first.astype(bool)
    )
    return StatefulModuleOutput(state, output, jnp.array(0.0), {}, None)

  def initialize_state(self, batch_size: int) -> tuple[jax.Array, jax.Array]:
    zeros = jnp.zeros((batch_size, self.hidden_features))
    return self.reset_state((zeros, zeros))

  def reset_state(self, prev_state) -> tuple[jax.Array, jax.Array]:
    c, h = prev_state
    return (
      _rows(self.initial_c, jnp.zeros_like(c)),
      _rows(self.initial_h, jnp.zeros_like(h)),
    )


class HiddenStateLayer(StatefulModule):
  """A layer whose carry is its output `h`; subclasses implement `advance`."""

  def __init__(
    self,
    in_features: int,
    hidden_features: int,
    trainable_initial_state: bool,
  ):
    """Sets the sizes and the carry an episode starts with.

    Args:
      in_features: size of the input.
      hidden_features: size of the output and of the carry.
      trainable_initial_state: learn the carry an episode starts with.
    """
    self.in_features = in_features
    self.hidden_features = hidden_features
    self.initial_h = (
      nnx.Param(jnp.zeros(hidden_features)) if trainable_initial_state else None
    )

  @abc.abstractmethod
  def advance(self, h: jax.Array, x: jax.Array) -> jax.Array:
    """Returns `h'` `[B, hidden_features]` from `h` and the input."""

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    _check_rows(self, state, x)
    # A cell that computes in half precision leaves the carry in full.
    h = self.advance(state, x).astype(state.dtype)
    return StatefulModuleOutput(h, h, jnp.array(0.0), {}, None)

  def initialize_state(self, batch_size: int) -> jax.Array:
    return self.reset_state(jnp.zeros((batch_size, self.hidden_features)))

  def reset_state(self, prev_state) -> jax.Array:
    return _rows(self.initial_h, jnp.zeros_like(prev_state))


class SimpleRNN(HiddenStateLayer):
  r"""A plain recurrent layer.

      h' = act(x W_i + b + h W_h)

  Input `[B, in_features]`, output and carry `h'` `[B, hidden_features]`.

  References:
    Elman, Finding structure in time, 1990. The arithmetic is that of
    `flax.nnx.SimpleCell`.
  """

  def __init__(
    self,
    in_features: int,
    hidden_features: int,
    rngs: nnx.Rngs,
    *,
    trainable_initial_state: bool = False,
    activation: Callable[..., Any] = nnx.tanh,
    **cell_kwargs: Any,
  ):
    """Initializes the layer.

    Args:
      in_features: size of the input.
      hidden_features: size of the output and of the carry.
      rngs: source of the initial weights.
      trainable_initial_state: learn the carry an episode starts with.
      activation: applied to the sum; one without bounds can make `h` grow.
      **cell_kwargs: passed on to `nnx.SimpleCell` (`residual`, ...).
    """
    super().__init__(in_features, hidden_features, trainable_initial_state)
    self.cell = nnx.SimpleCell(
      in_features,
      hidden_features,
      rngs=rngs,
      activation_fn=activation,
      **cell_kwargs,
    )

  def advance(self, h, x):
    return self.cell(h, x)[1]


class GRU(HiddenStateLayer):
  r"""A gated recurrent unit layer.

      r = σ(x W_ir + b_r + h W_hr),  z = σ(x W_iz + b_z + h W_hz)
      n = tanh(x W_in + b_n + r (h W_hn))
      h' = (1 - z) n + z h

  Input `[B, in_features]`, output and carry `h'` `[B, hidden_features]`.

  References:
    Cho et al., Learning phrase representations using RNN encoder-decoder,
    2014. As `flax.nnx.GRUCell`, whose candidate has no hidden bias `b_hn`;
    weights of libraries that have one carry over only where it is zero.
  """

  def __init__(
    self,
    in_features: int,
    hidden_features: int,
    rngs: nnx.Rngs,
    *,
    trainable_initial_state: bool = False,
    gate_fn: Callable[..., Any] = nnx.sigmoid,
    **cell_kwargs: Any,
  ):
    """Initializes the layer.

    Args:
      in_features: size of the input.
      hidden_features: size of the output and of the carry.
      rngs: source of the initial weights.
      trainable_initial_state: learn the carry an episode starts with.
      gate_fn: activation of the two gates.
      **cell_kwargs: passed on to `nnx.GRUCell`.
    """
    super().__init__(in_features, hidden_features, trainable_initial_state)
    self.cell = nnx.GRUCell(
      in_features, hidden_features, rngs=rngs, gate_fn=gate_fn, **cell_kwargs
    )

  def advance(self, h, x):
    return self.cell(h, x)[1]
