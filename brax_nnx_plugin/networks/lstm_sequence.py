"""An LSTM over a whole sequence, with a backward pass of its own.

Differentiated step by step, a scan adds each step's share to the gradients of
the weights, and keeps the slopes of all gates. Here the loop back in time only
finds the gradients of the gates, from their values; those of weights and inputs
are one product each over all `T * B` rows after it.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Cell and hidden state, `[B, H]` each.
Carry = tuple[jax.Array, jax.Array]


class Weights(NamedTuple):
  """`[in, 4H]`, `[H, 4H]` and `[4H]`, gates in the order i, f, g, o."""

  input: jax.Array
  memory: jax.Array
  bias: jax.Array


class _Steps(NamedTuple):
  """What the backward pass needs of every step, `[T, B, H]` each."""

  c: jax.Array  # after the step
  i: jax.Array
  f: jax.Array
  g: jax.Array
  o: jax.Array


def _select(mask: jax.Array, on_true: Any, on_false: Any) -> Any:
  return jax.tree.map(
    lambda a, b: jnp.where(mask[..., None], a, b), on_true, on_false
  )


def _forward(weights, carry, initial, x, is_first):
  """Returns the result of `run`, and what the backward pass needs."""

  def step(carry, inputs):
    x, is_first = inputs
    c, h = _select(is_first, initial, carry)
    # Summed as `flax.nnx.OptimizedLSTMCell` does.
    gates = x @ weights.input + (h @ weights.memory + weights.bias)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jax.nn.sigmoid(o)
    g = jnp.tanh(g)
    new_c = f * c + i * g
    new_h = o * jnp.tanh(new_c)
    return (new_c, new_h), (new_h, _Steps(new_c, i, f, g, o))

  last, (output, steps) = jax.lax.scan(step, carry, (x, is_first))
  residuals = (weights, carry, initial, x, is_first, output, steps)
  return (last, output), residuals


def _backward(residuals, cotangents):
  weights, carry, initial, x, is_first, output, steps = residuals
  d_carry, d_output = cotangents
  # The state that each step began with. What a loop need not store, and can be
  # found from all steps at once, is cheaper to find than to store.
  c, h = _select(
    is_first,
    initial,
    jax.tree.map(
      lambda start, after: jnp.concatenate([start[None], after[:-1]]),
      carry,
      (steps.c, output),
    ),
  )
  tanh_c = jnp.tanh(steps.c)

  def step(carry, inputs):
    (d_c, d_h), d_initial = carry
    s, c, tanh_c, is_first, d_output = inputs
    d_h = d_h + d_output
    d_c = d_c + d_h * s.o * (1 - tanh_c * tanh_c)
    d_gates = jnp.concatenate(
      [
        d_c * s.g * s.i * (1 - s.i),
        d_c * c * s.f * (1 - s.f),
        d_c * s.i * (1 - s.g * s.g),
        d_h * tanh_c * s.o * (1 - s.o),
      ],
      axis=-1,
    )
    d_start = (d_c * s.f, d_gates @ weights.memory.T)
    zeros = jax.tree.map(jnp.zeros_like, d_start)
    d_initial = jax.tree.map(
      jnp.add, d_initial, _select(is_first, d_start, zeros)
    )
    return (_select(is_first, zeros, d_start), d_initial), d_gates

  zeros = jax.tree.map(jnp.zeros_like, d_carry)
  (d_carry, d_initial), d_gates = jax.lax.scan(
    step,
    (d_carry, zeros),
    (steps, c, tanh_c, is_first, d_output),
    reverse=True,
  )
  # One contracted axis: of two, XLA would rather copy the arrays about.
  rows_x, rows_h, rows = (a.reshape(-1, a.shape[-1]) for a in (x, h, d_gates))
  d_weights = Weights(rows_x.T @ rows, rows_h.T @ rows, rows.sum(0))
  d_x = (rows @ weights.input.T).reshape(x.shape)
  return d_weights, d_carry, d_initial, d_x, None


@jax.custom_vjp
def run(
  weights: Weights,
  carry: Carry,
  initial: Carry,
  x: jax.Array,
  is_first: jax.Array,
) -> tuple[Carry, jax.Array]:
  """Runs an LSTM over a sequence; equals a loop of reset and step.

      i, f, g, o = x W_i + h W_h + b        (split in four)
      c' = σ(f) c + σ(i) tanh(g)
      h' = σ(o) tanh(c')

  Can be differentiated in reverse mode only.

  Args:
    weights: of the layer.
    carry: before the first reset.
    initial: carry of rows that begin an episode.
    x: `[T, B, in]`.
    is_first: `[T, B]` of bool, set where `x` is the first input of an episode.

  Returns:
    The carry after the last step, and `h'` of all steps, `[T, B, H]`.

  References:
    Hochreiter and Schmidhuber, Long short-term memory, 1997. One product for
    the gradient of each weight over all steps: Appleyard et al., Optimizing
    performance of recurrent neural networks on GPUs, 2016, section 3.3.
  """
  return _forward(weights, carry, initial, x, is_first)[0]


run.defvjp(_forward, _backward)
