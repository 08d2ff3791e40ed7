"""Tests of gradients through the replay: where they flow and where not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.recurrent import GRU
from brax_nnx_plugin.networks.recurrent import LSTM
from tests import fakes
from tests import segments
from tests import toy_envs
from tests import toy_modules


def _observations(steps, rows, seed=0):
  return np.random.default_rng(seed).normal(size=(steps, rows, 3))


def _lin_network(a, w):
  def build(*unused_args):
    memory = lambda: Sequential([toy_modules.Feature(0), fakes.LinCell(a, w)])
    return fakes.plain_network(memory(), memory())

  return build


@pytest.mark.parametrize('reset', [False, True])
def test_gradient_runs_through_the_segment_and_stops_at_resets(reset):
  a, w = 0.5, 2.0
  done = np.zeros((3, 1))
  done[0] = reset
  observations = _observations(3, 1)
  env = toy_envs.TableEnv(observations, done)
  functions, variables, data = segments.recorded(_lin_network(a, w), env, 1, 3)

  def last_value(params):
    replaced = dataclasses.replace(variables, params=params)
    return segments.replay(functions, replaced, data)[0].value[2, 0]

  grads = jax.jit(jax.grad(last_value))(variables.params).value
  found = {
    jax.tree_util.keystr(path).split("'")[-2]: leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
  }
  # h₃ = w (x₂ + a x₁ + a² x₀), and w (x₂ + a x₁) after a reset before x₁.
  x = observations[:, 0, 0]
  keep = 0.0 if reset else 1.0
  np.testing.assert_allclose(
    found['w'], x[2] + a * x[1] + keep * a**2 * x[0], rtol=1e-5
  )
  np.testing.assert_allclose(
    found['a'], w * (x[1] + keep * 2 * a * x[0]), rtol=1e-5
  )


def test_stored_start_carry_is_used_but_has_no_gradient():
  env = toy_envs.TableEnv(_observations(7, 2))
  functions, variables, data = segments.recorded(
    segments.cell_functions(LSTM), env, 2, 3, 2
  )
  second = jax.tree.map(lambda x: x[2:], data)  # begins within an episode

  def value_sum(carry):
    replaced = dataclasses.replace(second, start_carry=carry)
    out, bootstrap = segments.replay(functions, variables, replaced)
    return jnp.sum(out.value) + jnp.sum(out.log_likelihood) + bootstrap.sum()

  grads = jax.jit(jax.grad(value_sum))(second.start_carry)
  for leaf in jax.tree.leaves(grads):
    np.testing.assert_array_equal(leaf, 0)
  moved = jax.tree.map(lambda x: x + 1, second.start_carry)
  assert abs(value_sum(moved) - value_sum(second.start_carry)) > 1e-2


@pytest.mark.parametrize('cell', [LSTM, GRU])
def test_nothing_from_before_a_reset_reaches_what_comes_after(cell):
  done = np.zeros((5, 2))
  done[1] = 1
  env = toy_envs.TableEnv(_observations(5, 2), done)
  functions, variables, data = segments.recorded(
    segments.cell_functions(cell), env, 2, 5
  )
  out, bootstrap = segments.replay(functions, variables, data)
  moved = dataclasses.replace(
    data,
    observation=data.observation.at[:, :2].add(1e3),
    start_carry=jax.tree.map(lambda x: x + 1e3, data.start_carry),
    start_is_first=jnp.zeros(2),
  )
  other, other_bootstrap = segments.replay(functions, variables, moved)
  assert np.all(other.value[:2] != out.value[:2])
  for name in ('value', 'log_likelihood', 'loc', 'scale', 'entropy'):
    np.testing.assert_array_equal(
      getattr(other, name)[2:], getattr(out, name)[2:], err_msg=name
    )
  np.testing.assert_array_equal(other_bootstrap, bootstrap)
  leaves = jax.tree.leaves(out.state)
  assert len(leaves) == (4 if cell is LSTM else 2)
  for a, b in zip(leaves, jax.tree.leaves(other.state), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('cell', [LSTM, GRU])
@pytest.mark.parametrize(
  ('start', 'end', 'learns'),
  [(0.0, None, False), (1.0, None, True), (0.0, 1, True), (0.0, 3, False)],
)
def test_initial_state_learns_where_an_episode_begins_and_only_there(
  cell, start, end, learns
):
  done = np.zeros((5, 2))
  if end is not None:  # an end with the last step begins no replayed episode
    done[end] = 1
  env = toy_envs.TableEnv(_observations(5, 2), done)
  network = segments.cell_functions(cell, trainable_initial_state=True)
  functions, variables, data = segments.recorded(network, env, 2, 4)
  data = dataclasses.replace(data, start_is_first=jnp.full(2, start))

  def total(params):
    replaced = dataclasses.replace(variables, params=params)
    out, bootstrap = segments.replay(functions, replaced, data)
    return out.value.sum() + out.log_likelihood.sum() + bootstrap.sum()

  grads = jax.jit(jax.grad(total))(variables.params)
  initial = [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
    if 'initial_' in jax.tree_util.keystr(path)
  ]
  assert len(initial) == (4 if cell is LSTM else 2)
  for leaf in initial:
    assert np.all(np.asarray(leaf) != 0) == learns
    assert learns or not np.any(leaf)


def test_bootstrap_value_has_no_gradient():
  env = toy_envs.TableEnv(_observations(5, 2))
  functions, variables, data = segments.recorded(
    segments.cell_functions(LSTM), env, 2, 4
  )

  def bootstrap_sum(params):
    replaced = dataclasses.replace(variables, params=params)
    return jnp.sum(segments.replay(functions, replaced, data)[1])

  assert bootstrap_sum(variables.params) != 0
  for leaf in jax.tree.leaves(
    jax.jit(jax.grad(bootstrap_sum))(variables.params)
  ):
    np.testing.assert_array_equal(leaf, 0)
