"""A delay line over a sequence: unrolled, differentiated, transformed."""

import functools
import re
from typing import Any

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.delay import Delay
from tests.networks import cases
from tests.networks import graphs
from tests.networks import queues


@functools.cache
def _compiled(k: int) -> tuple[Delay, Any, Any]:
  """Returns a delay of numbers, a compiled step and a compiled unroll."""
  layer = Delay((), k, -1.0)

  def step(state, x, is_first):
    return layer(layer.reset_rows(is_first, state), x)

  return layer, jax.jit(step), jax.jit(layer.unroll)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
  k=st.integers(1, 5),
  steps=st.integers(1, 7),
  warm=st.integers(0, 8),
  bits=st.lists(st.integers(0, 1), min_size=30, max_size=30),
)
def test_unroll_is_a_loop_of_reset_and_call_to_the_last_bit(
  k, steps, warm, bits
):
  layer, step, unroll = _compiled(k)
  end = warm + steps
  flags = np.array(bits, np.float32).reshape(15, 2)[:end]
  x = np.asarray(queues.draw('float32', 15, 2))[:end]
  states, outputs = [layer.initialize_state(2)], []
  for t in range(end):
    out = step(states[-1], x[t], flags[t])
    states.append(out.next_state)
    outputs.append(out.output)
  unrolled = unroll(states[warm], x[warm:], flags[warm:])
  cases.assert_same(unrolled.next_state, states[-1])
  np.testing.assert_array_equal(unrolled.output, outputs[warm:])
  np.testing.assert_array_equal(outputs, queues.delayed(x, flags, k, -1.0))


@pytest.mark.parametrize('rows', [1, 3])
def test_rows_may_be_at_different_slots(rows):
  layer = Delay((), k_steps=3)
  state = queues.warm(layer, 4, rows)
  state['index'] = jnp.arange(rows, dtype=jnp.int32)
  x, is_first = queues.draw('float32', 5, rows), cases.masks(5, rows)
  looped = cases.loop(layer, state, x, is_first)
  unrolled = layer.unroll(state, x, is_first)
  cases.assert_same(unrolled.output, looped.output)
  cases.assert_same(unrolled.next_state, looped.next_state)


def test_a_step_reads_and_writes_one_slot_and_a_sequence_is_not_scanned():
  layer = Delay(4, k_steps=100)
  state, x = layer.initialize_state(2), jnp.zeros((2, 4))

  def step(state, x):
    return layer(layer.reset_rows(jnp.ones(2), state), x).next_state

  jaxpr = str(jax.make_jaxpr(step)(state, x))
  assert re.findall(r'f32\[2,100,4\] = (\w+)', jaxpr) == ['scatter']
  assert jaxpr.count(' gather[') == 1
  unroll = jax.make_jaxpr(layer.unroll)(state, x[None], jnp.zeros((1, 2)))
  assert 'scan' not in str(unroll)
  assert 'gather' in str(unroll)


def test_a_compiled_step_writes_the_buffer_in_place():
  chain = graphs.chain(2, 50, 100, size=4)
  for module, x in (
    (Delay(4, k_steps=100), jnp.zeros((2, 4))),
    (chain, {'x': jnp.zeros((2, 4))}),
  ):
    variables, f = cases.pure(module, lambda m, *args: m(*args))
    step = jax.jit(lambda s, v, x, f=f: f(v, s, x)[0], donate_argnums=0)
    state = module.initialize_state(2)
    text = str(step.lower(state, variables, x).compile().as_text())
    made = re.findall(r'f32\[2,100,4\]\S* (\w+)\(', text)
    assert 'scatter' in made
    assert 'copy' not in made


def test_no_gradient_of_a_row_passes_a_reset():
  layer = Delay((), 2)
  steps, rows = 6, 2
  x, weights = queues.draw('float32', steps, rows), cases.draw((), steps, rows)
  state = queues.warm(layer, 3, rows)  # counts: 1 and 2
  is_first = jnp.zeros((steps, rows)).at[3, 1].set(1)

  def loss(run, x, buffer):
    out = run(layer, {**state, 'buffer': buffer}, x, is_first)
    return jnp.sum(weights * out.output)

  # dL/dx[t] is the weight of step t + 2, if that is in the same episode.
  expected = np.zeros((steps, rows))
  expected[:4, 0] = weights[2:, 0]
  expected[0, 1], expected[3, 1] = weights[2, 1], weights[5, 1]
  for run in (cases.loop, Delay.unroll):
    grads = jax.grad(loss, (1, 2))(run, x, state['buffer'])
    np.testing.assert_array_equal(grads[0], expected)
    # Row 0 was reset a step ago: only its last input is read, at step 1.
    # Slots: index is 1, so input -2 is in slot 1 and input -1 in slot 0.
    np.testing.assert_array_equal(
      grads[1], [[weights[1, 0], 0], [weights[1, 1], weights[0, 1]]]
    )


@pytest.mark.parametrize('run', [cases.loop, Delay.unroll])
def test_a_stale_nan_is_never_read(run):
  layer = Delay((), 3)
  state = queues.warm(layer, 4, 2)
  state['buffer'] = state['buffer'].at[0].set(jnp.nan)
  x = queues.draw('float32', 5, 2)
  is_first = jnp.zeros((5, 2)).at[0, 0].set(1)

  def loss(x, buffer):
    out = run(layer, {**state, 'buffer': buffer}, x, is_first)
    return jnp.sum(jnp.square(out.output)), out.output

  grad = jax.value_and_grad(loss, (0, 1), has_aux=True)
  (_, output), grads = grad(x, state['buffer'])
  np.testing.assert_array_equal(output[:, 0], [0, 0, 0, x[0, 0], x[1, 0]])
  np.testing.assert_array_equal(grads[0][:, 0], [*(2 * x[:2, 0]), 0, 0, 0])
  np.testing.assert_array_equal(grads[1][0], np.zeros(3))


def test_a_delay_runs_under_jit_vmap_and_a_scan_in_a_scan():
  layer = Delay((), 2)
  x, is_first = queues.draw('float32', 2, 3, 4, 2), cases.masks(2, 3, 4, 2)
  start = layer.initialize_state(2)

  def inner(state, inputs):
    out = layer.unroll(state, *inputs)
    return out.next_state, out.output

  def steps(state, inputs):
    def step(state, inputs):
      out = layer(layer.reset_rows(inputs[1], state), inputs[0])
      return out.next_state, out.output

    return jax.lax.scan(step, state, inputs)

  expected = [
    queues.delayed(x[i].reshape(12, 2), is_first[i].reshape(12, 2), 2)
    for i in range(2)
  ]
  for chunk in (inner, steps):
    run = lambda *args, chunk=chunk: jax.lax.scan(chunk, start, args)
    state, output = jax.jit(jax.vmap(run))(x, is_first)
    np.testing.assert_array_equal(output.reshape(2, 12, 2), expected)
    assert state['buffer'].shape == (2, 2, 2)
