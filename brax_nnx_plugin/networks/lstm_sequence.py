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

  c: jax.Array  # before the step, after a reset
  h: jax.Array
  i: jax.Array
  f: jax.Array
  g: jax.Array
  o: jax.Array
  tanh_c: jax.Array  # after the step


def _select(mask: jax.Array, on_true: Any, on_false: Any) -> Any:
  return jax.tree.map(
    lambda a, b: jnp.where(mask[:, None], a, b), on_true, on_false
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
    tanh_c = jnp.tanh(new_c)
    new_h = o * tanh_c
    return (new_c, new_h), (new_h, _Steps(c, h, i, f, g, o, tanh_c))

  carry, (output, steps) = jax.lax.scan(step, carry, (x, is_first))
  return (carry, output), (weights, x, is_first, steps)


def _backward(residuals, cotangents):
  weights, x, is_first, steps = residuals
  d_carry, d_output = cotangents

  def step(carry, inputs):
    (d_c, d_h), d_initial = carry
    s, is_first, d_output = inputs
    d_h = d_h + d_output
    d_c = d_c + d_h * s.o * (1 - s.tanh_c * s.tanh_c)
    d_gates = jnp.concatenate(
      [
        d_c * s.g * s.i * (1 - s.i),
        d_c * s.c * s.f * (1 - s.f),
        d_c * s.i * (1 - s.g * s.g),
        d_h * s.tanh_c * s.o * (1 - s.o),
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
    step, (d_carry, zeros), (steps, is_first, d_output), reverse=True
  )
  d_weights = Weights(
    jnp.einsum('tbi,tbg->ig', x, d_gates),
    jnp.einsum('tbh,tbg->hg', steps.h, d_gates),
    jnp.sum(d_gates, axis=(0, 1)),
  )
  return d_weights, d_carry, d_initial, d_gates @ weights.input.T, None


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
