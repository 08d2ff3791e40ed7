"""Variational bottlenecks: formulas, noise, replay, gradients through time."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.variational import AR1VariationalBottleneck
from brax_nnx_plugin.networks.variational import VariationalBottleneck
from tests.networks import cases

SIZE, ROWS, STEPS = 2, 3, 5
KINDS = (VariationalBottleneck, AR1VariationalBottleneck)
# softplus(UNIT) is 1.
UNIT = np.log(np.e - 1)

each_kind = pytest.mark.parametrize('kind', KINDS)


def _keys(state: Any) -> jax.Array:
  """Returns the rows of keys and counts of a carry of either kind."""
  return state['keys'] if isinstance(state, dict) else state


def _eps(rows: Any, size: int = SIZE) -> np.ndarray:
  """Draws the noise of a step from the rows of the carry, one by one."""
  draws = []
  for row in np.asarray(rows):
    key = jax.random.wrap_key_data(jnp.asarray(row[:-1]))
    draws.append(jax.random.normal(jax.random.fold_in(key, row[-1]), (size,)))
  return np.stack(draws)


def _moments(x: Any, min_std: float = 1e-6) -> tuple[np.ndarray, np.ndarray]:
  mean, spread = np.split(np.asarray(x, np.float64), 2, axis=-1)
  return mean, np.log1p(np.exp(spread)) + min_std


def _kl(x: Any, **kwargs: Any) -> np.ndarray:
  mean, std = _moments(x, **kwargs)
  return 0.5 * np.sum(mean**2 + std**2 - np.log(std**2) - 1, axis=-1)


def _run(kind: Any, **kwargs: Any) -> tuple[Any, Any, jax.Array, jax.Array]:
  """Returns a layer, a carry from within an episode, inputs and resets."""
  layer = kind(SIZE, nnx.Rngs(0), **kwargs)
  state = layer.initialize_state(ROWS)
  state = layer(state, cases.draw(2 * SIZE, ROWS, seed=7)).next_state
  x = cases.draw(2 * SIZE, STEPS, ROWS)
  is_first = jnp.zeros((STEPS, ROWS)).at[2, 0].set(1.0).at[0, 1].set(1.0)
  return layer, state, x, is_first


@each_kind
def test_a_step_is_the_formula(kind):
  layer = kind(SIZE, nnx.Rngs(0), kl_weight=0.5, min_std=0.1)
  state, x = layer.initialize_state(ROWS), cases.draw(2 * SIZE, ROWS)
  out = layer(state, x)
  mean, std = _moments(x, min_std=0.1)
  kl = _kl(x, min_std=0.1)
  z = mean + std * _eps(_keys(state))
  np.testing.assert_allclose(out.output, z, atol=1e-6)
  np.testing.assert_allclose(out.regularization_loss, 0.5 * kl, rtol=1e-5)
  np.testing.assert_allclose(out.metrics['kl_divergence'], kl, rtol=1e-5)
  np.testing.assert_allclose(out.metrics['mu'], mean, atol=1e-6)
  np.testing.assert_allclose(out.metrics['sigma'], std, atol=1e-6)
  assert out.rollout_extras is None


def test_the_kl_is_the_mean_log_ratio_of_the_densities():
  # KL = E[log N(z; mean, std) - log N(z; 0, 1)], from 20000 latents.
  layer = VariationalBottleneck(SIZE, nnx.Rngs(0))
  x = jnp.tile(jnp.array([[0.5, -1.0, 0.3, -0.8]]), (20000, 1))
  out = layer(layer.initialize_state(len(x)), x)
  z, (mean, std) = np.asarray(out.output), _moments(x)
  ratio = -0.5 * ((z - mean) / std) ** 2 - np.log(std) + 0.5 * z**2
  np.testing.assert_allclose(
    np.mean(np.sum(ratio, axis=-1)), out.regularization_loss[0], atol=0.05
  )


@pytest.mark.parametrize('rows', [2000, 1])
def test_noise_is_standard_normal_over_rows_and_over_steps(rows):
  layer = VariationalBottleneck(1, nnx.Rngs(0))
  steps = 2000 // rows
  x = jnp.tile(jnp.array([0.0, UNIT]), (steps, rows, 1))
  z = layer.unroll(
    layer.initialize_state(rows), x, jnp.zeros((steps, rows))
  ).output
  # The standard errors are 0.022 and 0.016.
  np.testing.assert_allclose(np.mean(z), 0.0, atol=0.08)
  np.testing.assert_allclose(np.std(z), 1.0, atol=0.06)


@each_kind
def test_replay_has_the_noise_of_acting_in_any_order_of_rows(kind):
  layer, state, x, is_first = _run(kind)
  acted = cases.loop(layer, state, x, is_first)
  replayed = layer.unroll(state, x, is_first)
  np.testing.assert_allclose(replayed.output, acted.output, atol=1e-6)
  order = jnp.array([2, 0, 1])
  moved = jax.tree.map(lambda leaf: leaf[order], state)
  shuffled = layer.unroll(moved, x[:, order], is_first[:, order])
  np.testing.assert_array_equal(shuffled.output, replayed.output[:, order])
  # Under other weights mean and std are others, the noise is the same.
  mean, std = _moments(x)
  other_mean, other_std = _moments(2 * x + 0.3)
  other = layer.unroll(state, 2 * x + 0.3, is_first).output
  np.testing.assert_allclose(
    (other - other_mean) / other_std, (acted.output - mean) / std, atol=1e-5
  )
  assert len(np.unique((acted.output - mean) / std)) == STEPS * ROWS * SIZE


@each_kind
def test_mean_and_std_are_differentiable_through_the_latent(kind):
  layer, state, x, _ = _run(kind)
  gradient = jax.grad(lambda x: jnp.sum(layer(state, x).output))(x[0])
  spread = np.asarray(x[0, :, SIZE:], np.float64)
  # dz/dmean = 1, dz/ds = ε sigmoid(s).
  by_spread = _eps(_keys(state)) / (1 + np.exp(-spread))
  np.testing.assert_allclose(gradient[:, :SIZE], 1.0, atol=1e-6)
  np.testing.assert_allclose(gradient[:, SIZE:], by_spread, atol=1e-5)


@each_kind
def test_the_carry_goes_through_the_shuffle_of_brax(kind):
  layer, state, x, _ = _run(kind)
  shuffle = lambda leaf: jax.random.permutation(jax.random.key(3), leaf)
  shuffled = jax.jit(lambda tree: jax.tree.map(shuffle, tree))(state)
  z, again = layer(state, x[0]).output, layer(shuffled, shuffle(x[0])).output
  np.testing.assert_array_equal(again, shuffle(z))
  assert _keys(state).dtype == jnp.uint32
  assert _keys(state).shape == (ROWS, 3)


@each_kind
def test_nothing_is_nan_from_a_fresh_carry(kind):
  layer = kind(SIZE, nnx.Rngs(0))
  state, x = layer.initialize_state(ROWS), cases.draw(2 * SIZE, ROWS)

  def loss(x):
    out = layer(state, x)
    return jnp.sum(out.output) + jnp.sum(out.regularization_loss)

  with jax.debug_nans(True):
    gradient = jax.jit(jax.grad(loss))(x)
    jax.tree.map(lambda leaf: leaf + 0, layer(state, x).next_state)
  assert np.all(np.isfinite(gradient))


@each_kind
def test_no_key_is_used_twice(kind):
  layer = kind(SIZE, nnx.Rngs(0))
  words = lambda: (*np.asarray(jax.random.key_data(layer.key[...])).tolist(),)
  own = {words()}
  used = []
  for _ in range(2):
    state = layer.initialize_state(ROWS)
    own.add(words())
    for t in range(4):
      state = layer.reset_state(state) if t == 2 else state
      used += [(*row,) for row in np.asarray(_keys(state)).tolist()]
      state = layer(state, jnp.zeros((ROWS, 2 * SIZE))).next_state
  assert len(set(used)) == len(used) == 2 * 4 * ROWS
  assert len(own) == 3
  assert not own & {row[:-1] for row in used}
  assert {row[-1] for row in used} == {0, 1, 2, 3}


def test_layers_of_one_source_differ_and_a_seed_repeats():
  rngs = nnx.Rngs(0)
  a, b, c, d = (
    VariationalBottleneck(SIZE, r).initialize_state(ROWS)
    for r in (rngs, rngs, nnx.Rngs(0), nnx.Rngs(0).default)
  )
  assert np.all(a[:, :2] != b[:, :2])
  np.testing.assert_array_equal(a, c)
  np.testing.assert_array_equal(a, d)


@pytest.mark.parametrize('impl', ['rbg', 'unsafe_rbg'])
def test_noise_of_a_row_is_its_own_with_other_generators(impl):
  layer = VariationalBottleneck(SIZE, nnx.Rngs(jax.random.key(0, impl=impl)))
  state = layer.initialize_state(ROWS)
  x = jnp.tile(jnp.array([0.0, 0.0, UNIT, UNIT]), (STEPS, ROWS, 1))
  is_first = jnp.zeros((STEPS, ROWS))
  z = layer.unroll(state, x, is_first).output
  assert state.shape == (ROWS, 5)
  assert len(np.unique(z)) == STEPS * ROWS * SIZE
  np.testing.assert_array_equal(z, cases.loop(layer, state, x, is_first).output)
  alone = layer.unroll(state[1:2], x[:, 1:2], is_first[:, 1:2]).output
  np.testing.assert_array_equal(alone, z[:, 1:2])
  for word in range(5):  # every word counts
    other = layer(state.at[1, word].add(7), x[0]).output
    changed = np.any(other != z[0], axis=-1)
    np.testing.assert_array_equal(changed, [False, True, False])


@each_kind
def test_eval_passes_the_mean_on_and_the_count_goes_on(kind):
  layer, state, x, is_first = _run(kind)
  layer.eval()
  out = layer.unroll(state, x, is_first)
  np.testing.assert_array_equal(out.output, x[..., :SIZE])
  np.testing.assert_allclose(out.metrics['kl_divergence'], _kl(x), rtol=1e-5)
  np.testing.assert_array_equal(
    _keys(out.next_state), _keys(state).at[:, -1].add(STEPS)
  )
  layer.train()
  assert np.all(layer(state, x[0]).output != x[0, :, :SIZE])


@each_kind
@pytest.mark.parametrize('shape', [(STEPS, ROWS), (1, ROWS), (STEPS, 1)])
def test_unroll_equals_the_loop(kind, shape):
  layer, state, x, is_first = _run(kind)
  x, is_first = (leaf[: shape[0], : shape[1]] for leaf in (x, is_first))
  state = jax.tree.map(lambda leaf: leaf[: shape[1]], state)
  out = layer.unroll(state, x, is_first)
  expected = cases.loop(layer, state, x, is_first)
  assert np.array_equal(_keys(out.next_state), _keys(expected.next_state))
  cases.assert_same(out, expected, 1e-6)


@each_kind
def test_gradients_through_unroll_are_those_through_the_loop(kind):
  layer, state, x, is_first = _run(kind, kl_weight=0.3)

  def loss(run):
    def f(x, state):
      out = run(layer, state, x, is_first)
      numbers = out.output, out.regularization_loss, out.metrics
      return sum(jnp.sum(jnp.sin(n)) for n in jax.tree.leaves(numbers))

    return jax.grad(f, (0, 1), allow_int=True)

  unroll = lambda m, *args: m.unroll(*args)
  both = jax.jit(lambda *a: (loss(unroll)(*a), loss(cases.loop)(*a)))
  (dx, dstate), (expected_dx, expected_dstate) = both(x, state)
  np.testing.assert_allclose(dx, expected_dx, atol=1e-5)
  if kind is AR1VariationalBottleneck:
    by_z = dstate['last_z'], expected_dstate['last_z']
    np.testing.assert_allclose(*by_z, atol=1e-5)
    assert np.any(by_z[0] != 0)


@each_kind
def test_a_sequence_is_sampled_without_a_scan(kind):
  layer, *args = _run(kind)

  def program(run):
    variables, f = cases.pure(layer, run)
    return str(jax.make_jaxpr(f)(variables, *args))

  unrolled = program(lambda m, *a: m.unroll(*a))
  assert 'scan[' not in unrolled
  assert 'while[' not in unrolled
  scan = lambda m, state, x, first: stepping.scan_steps(
    m, state, x, first, None
  )
  assert 'scan[' in program(scan)
