"""Tests of the replay: it is the rollout again."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.recurrent import GRU
from brax_nnx_plugin.networks.recurrent import LSTM
from brax_nnx_plugin.networks.stepping import unroll_module
from tests import fakes
from tests import segments
from tests import toy_envs


def _traced(cell: Any) -> Any:
  """A cell class that also reports the carry after each step."""

  class Traced(cell):
    def __call__(self, state, x, rollout_extras=None):
      out = super().__call__(state, x, rollout_extras)
      return dataclasses.replace(out, metrics={'carry': out.next_state})

  return Traced


def _observations(steps, rows, seed=0):
  return np.random.default_rng(seed).normal(size=(steps, rows, 3))


MASKS = 50
STEPS = 8


@functools.cache
def _random_masks():
  done = np.random.default_rng(3).random((STEPS, MASKS)) < 0.3
  return toy_envs.TableEnv(_observations(STEPS, MASKS), done), done


def _carry_traces(network):
  """Carries after each step of 50 rows, each with its own done mask.

  Segments of one step store the carry before every step of the rollout; the
  replay reports the one after.
  """
  env, done = _random_masks()
  functions, variables, single = segments.recorded(
    network, env, MASKS, 1, STEPS
  )
  before = jax.tree.map(
    lambda x: x.reshape((STEPS, MASKS, *x.shape[1:])), single.start_carry
  )
  data = segments.record(env, functions, variables, MASKS, STEPS)
  out, _ = segments.replay(functions, variables, data)
  return before, out, done


@pytest.mark.parametrize('cell', [LSTM, GRU])
def test_random_resets_leave_equal_carries_in_rollout_and_replay(cell):
  before, out, _ = _carry_traces(segments.cell_functions(_traced(cell)))
  for side in ('action', 'value'):
    rollout_leaves = jax.tree.leaves(before[side][0])
    replay_leaves = jax.tree.leaves(out.metrics[side][0]['carry'])
    for a, b in zip(rollout_leaves, replay_leaves, strict=True):
      assert np.abs(a[1:]).max() > 0.1
      np.testing.assert_array_equal(a[1:], b[:-1])


@pytest.mark.parametrize('memory', [fakes.Count, fakes.Echo])
def test_random_resets_leave_the_carries_that_a_loop_finds(memory):
  before, out, done = _carry_traces(
    lambda *unused: fakes.plain_network(memory(), memory())
  )
  obs = np.asarray(_random_masks()[0].observations[..., 0])
  expected = np.zeros((STEPS, MASKS))  # what the memory says at each step
  for row in range(MASKS):
    held: Any = None
    for t in range(STEPS):
      if t == 0 or done[t - 1, row]:
        held = 0 if memory is fakes.Count else -1
      expected[t, row] = held
      held = held + 1 if memory is fakes.Count else obs[t, row]
  np.testing.assert_array_equal(out.loc[..., 0], expected)
  # The stored carry is the one before the reset that is_first asks for.
  stored = np.asarray(before['value'][0]).reshape((STEPS, MASKS))
  inside = ~done[:-1]
  np.testing.assert_array_equal(stored[1:][inside], expected[1:][inside])


@pytest.mark.parametrize(
  ('ends', 'truncated', 'expected'),
  [
    ([[], []], False, [5, 5]),
    ([[2], [3]], False, [2, 1]),
    ([[4], []], False, [0, 5]),  # an end with the last step: not used
    ([[4], []], True, [0, 5]),
  ],
)
def test_bootstrap_value_uses_the_carry_after_the_last_step(
  ends, truncated, expected
):
  env = fakes.ScriptEnv(ends, truncated)
  functions, variables, data = segments.recorded(fakes.count_network, env, 2, 5)
  out, bootstrap = segments.replay(functions, variables, data)
  np.testing.assert_array_equal(bootstrap, expected)
  # It is a peek: the carry that comes out counts the steps, not the peek.
  steps = [5 - (e[0] + 1) if e and e[0] < 4 else 5 for e in ends]
  np.testing.assert_array_equal(out.state['value'][0], steps)


@pytest.mark.parametrize(('rows', 'steps'), [(3, 5), (4, 4)])
def test_permuting_rows_permutes_outputs_and_permuting_steps_changes_them(
  rows, steps
):
  env = toy_envs.TableEnv(_observations(steps, rows))
  functions, variables, data = segments.recorded(
    fakes.echo_network, env, rows, steps
  )
  out, _ = segments.replay(functions, variables, data)
  assert out.loc is not None
  # Memory runs along time: each output is the observation one step before.
  np.testing.assert_array_equal(
    out.loc[1:, :, 0].T, data.observation[:, :-1, 0]
  )
  np.testing.assert_array_equal(out.loc[0, :, 0], [-1] * rows)

  order = np.roll(np.arange(rows), 1)
  permuted = jax.tree.map(lambda x: x[order], data)
  again, _ = segments.replay(functions, variables, permuted)
  np.testing.assert_array_equal(again.loc, out.loc[:, order])

  flipped = dataclasses.replace(data, observation=data.observation[:, ::-1])
  again, _ = segments.replay(functions, variables, flipped)
  np.testing.assert_array_equal(
    again.loc[1:, :, 0].T, data.observation[:, :0:-1, 0]
  )


def test_replay_equals_unrolling_the_module_itself():
  env = toy_envs.TableEnv(_observations(4, 2), np.eye(4)[:, :2])
  functions, variables, data = segments.recorded(
    segments.cell_functions(GRU), env, 2, 4
  )
  out, _ = segments.replay(functions, variables, data)
  first = segments.time_first(data)
  module = functions.template.module(
    (variables.params.policy, variables.params.value), ({}, {})
  )
  is_first = jnp.concatenate([jnp.ones((1, 2)), first.done[:-1]])
  expected = unroll_module(
    module, first.start_carry, first.observation, is_first, first.extras
  )
  np.testing.assert_array_equal(out.value, expected.output.value_estimates)
