"""Recurrent layers against NumPy."""

from typing import Any

from flax import linen
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.recurrent import SimpleRNN
from tests.networks import cases

LAYERS = [networks.LSTM, networks.GRU, SimpleRNN]


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _kernel(linear):
  return np.asarray(linear.kernel[...], np.float64)


def _bias(linear):
  return np.asarray(linear.bias[...], np.float64)


def _gru(cell, x, h):
  """flax's GRU: one bias per gate, on the input; none on the candidate's h."""
  xr, xz, xn = np.split(x @ _kernel(cell.dense_i) + _bias(cell.dense_i), 3, -1)
  hr, hz, hn = np.split(h @ _kernel(cell.dense_h), 3, -1)
  r, z = _sigmoid(xr + hr), _sigmoid(xz + hz)
  n = np.tanh(xn + r * hn)
  return (1 - z) * n + z * h


def _lstm_weights(cell):
  """Returns input kernels, hidden kernels and biases of gates i, f, g, o."""
  if hasattr(cell, 'dense_h'):
    return tuple(
      np.split(w, 4, -1)
      for w in (
        _kernel(cell.dense_i),
        _kernel(cell.dense_h),
        _bias(cell.dense_h),
      )
    )
  inputs = [cell.ii, cell.if_, cell.ig, cell.io]
  hidden = [cell.hi, cell.hf, cell.hg, cell.ho]
  return (
    [_kernel(gate) for gate in inputs],
    [_kernel(gate) for gate in hidden],
    [_bias(gate) for gate in hidden],
  )


def _lstm(weights, x, state, forget_bias=0.0):
  c, h = state
  gates = [x @ wi + h @ wh + b for wi, wh, b in zip(*weights, strict=True)]
  i, f, g, o = gates
  c = _sigmoid(f + forget_bias) * c + _sigmoid(i) * np.tanh(g)
  return c, _sigmoid(o) * np.tanh(c)


def _randomize_biases(module):
  """Draws biases; a fresh cell has none, and hides a mistake about them."""
  rng = np.random.default_rng(4)
  for path, param in nnx.to_flat_state(nnx.state(module, nnx.Param)):
    if path[-1] == 'bias':
      noise = rng.normal(size=param.shape)
      param.set_value(jnp.asarray(noise, jnp.float32))
      nnx.update(module, nnx.from_flat_state([(path, param)]))
  return module


def _sequence():
  x, is_first = cases.draw(3, 6, 2), cases.masks(6, 2)
  assert 0 < is_first.sum() < is_first.size
  return x, is_first


@pytest.mark.parametrize('trained', [False, True])
def test_gru_is_what_flax_computes(trained):
  gru = (cases.trained_gru if trained else _gru_layer)(nnx.Rngs(0))
  gru = _randomize_biases(gru)
  x, is_first = _sequence()
  out = gru.unroll(gru.initialize_state(2), x, is_first)
  initial = np.linspace(-0.5, 0.7, 4) if trained else np.zeros(4)
  h = np.tile(initial, (2, 1))
  for t in range(6):
    h = np.where(is_first[t][:, None] > 0, initial, h)
    h = _gru(gru.cell, np.asarray(x[t]), h)
    np.testing.assert_allclose(out.output[t], h, atol=1e-6)
  np.testing.assert_allclose(out.next_state, h, atol=1e-6)


def _gru_layer(rngs):
  return networks.GRU(3, 4, rngs)


def test_gru_has_no_hidden_bias():
  # What users of other libraries must know: a b_hn cannot be carried over.
  assert networks.GRU(3, 4, nnx.Rngs(0)).cell.dense_h.bias is None


def _with_hidden_bias(gru, bias):
  """Returns the variables of `gru` with a `b_hn` in the place flax has."""
  state = nnx.to_pure_dict(nnx.state(gru))
  hidden_bias = np.concatenate([np.zeros(8), bias])
  state['cell']['dense_h']['bias'] = jnp.asarray(hidden_bias, jnp.float32)
  return nnx.State(jax.tree.map(nnx.Param, state))


def test_gru_refuses_weights_with_a_hidden_bias():
  gru = networks.GRU(3, 4, nnx.Rngs(0))
  with pytest.raises(ValueError, match='bias'):
    nnx.update(gru, _with_hidden_bias(gru, np.ones(4)))


def _linen_weights(gru, hidden_bias):
  """Writes the weights of `gru` as those of `flax.linen.GRUCell`."""
  names = [
    (f'{side}{gate}', kernel, bias)
    for side, kernels, biases in (
      ('i', gru.cell.dense_i.kernel[...], gru.cell.dense_i.bias[...]),
      ('h', gru.cell.dense_h.kernel[...], jnp.zeros(12)),
    )
    for gate, kernel, bias in zip(
      'rzn', jnp.split(kernels, 3, -1), jnp.split(biases, 3), strict=True
    )
  ]
  params = {name: {'kernel': k, 'bias': b} for name, k, b in names}
  params['hn']['bias'] = jnp.asarray(hidden_bias)
  for name in ('hr', 'hz'):  # Linen has one bias per gate there
    del params[name]['bias']
  return {'params': params}


def test_gru_is_that_of_linen_only_without_a_hidden_bias():
  gru = _randomize_biases(networks.GRU(3, 4, nnx.Rngs(0)))
  h, x = cases.draw(4, 2, seed=5), cases.draw(3, 2)

  def theirs(bias) -> Any:
    return linen.GRUCell(4).apply(_linen_weights(gru, bias), h, x)[1]

  out = gru(h, x).output
  np.testing.assert_allclose(out, theirs(np.zeros(4)), atol=1e-6)
  assert np.abs(out - theirs(np.ones(4))).max() > 0.01


def test_gru_takes_a_gate_function():
  gru = networks.GRU(3, 4, nnx.Rngs(0), gate_fn=jnp.zeros_like)
  # With r = z = 0 the output is the candidate of the input alone.
  x = cases.draw(3, 2)
  out = gru(cases.draw(4, 2), x).output
  expected = np.tanh(np.asarray(x) @ _kernel(gru.cell.dense_i)[:, 8:])
  np.testing.assert_allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize('optimized', [True, False])
@pytest.mark.parametrize('trained', [True, False])
def test_lstm_is_what_flax_computes(optimized, trained):
  kwargs = {'use_optimized': optimized}
  lstm = (
    cases.trained_lstm(nnx.Rngs(0), **kwargs)
    if trained
    else networks.LSTM(3, 4, nnx.Rngs(0), **kwargs)
  )
  lstm = _randomize_biases(lstm)
  x, is_first = _sequence()
  out = lstm.unroll(lstm.initialize_state(2), x, is_first)
  c0 = np.linspace(-0.5, 0.7, 4) * trained
  h0 = (np.linspace(-0.5, 0.7, 4) + 0.1) * trained
  c, h = np.tile(c0, (2, 1)), np.tile(h0, (2, 1))
  weights = _lstm_weights(lstm.cell)
  for t in range(6):
    first = is_first[t][:, None] > 0
    state = np.where(first, c0, c), np.where(first, h0, h)
    c, h = _lstm(weights, np.asarray(x[t]), state)
    np.testing.assert_allclose(out.output[t], h, atol=1e-6)
  # The cell comes first, as in flax.
  np.testing.assert_allclose(out.next_state[0], c, atol=1e-6)
  np.testing.assert_allclose(out.next_state[1], h, atol=1e-6)


@pytest.mark.parametrize('optimized', [True, False])
def test_forget_bias_is_added_to_the_forget_gate(optimized):
  make = lambda **kwargs: networks.LSTM(
    3, 4, nnx.Rngs(0), use_optimized=optimized, **kwargs
  )
  weights = _lstm_weights(make().cell)
  x, state = cases.draw(3, 2), (cases.draw(4, 2, seed=5), cases.draw(4, 2))
  out = make(forget_bias=1.5)(state, x)
  plain = _lstm(weights, np.asarray(x), map(np.asarray, state))
  biased = _lstm(weights, np.asarray(x), map(np.asarray, state), 1.5)
  np.testing.assert_allclose(out.next_state[0], biased[0], atol=1e-6)
  np.testing.assert_allclose(out.output, biased[1], atol=1e-6)
  assert np.abs(biased[0] - plain[0]).max() > 0.1


def test_forget_bias_adds_to_the_initializer_of_the_biases():
  ones = nnx.initializers.ones_init()
  lstm: Any = networks.LSTM(3, 2, nnx.Rngs(0), forget_bias=1.0, bias_init=ones)
  expected = [1, 1, 2, 2, 1, 1, 1, 1]
  np.testing.assert_array_equal(lstm.cell.dense_h.bias[...], expected)


@pytest.mark.parametrize('cls', LAYERS)
def test_cell_keywords_reach_the_cell(cls):
  zeros = nnx.initializers.zeros_init()
  layer = cls(3, 4, nnx.Rngs(0), kernel_init=zeros)
  assert not _kernel(layer.cell.dense_i).any()
  assert _kernel(layer.cell.dense_h).any()


@pytest.mark.parametrize('cls', LAYERS)
def test_the_initial_state_is_trained_only_on_demand(cls):
  count = lambda m: len(jax.tree.leaves(nnx.state(m, nnx.Param)))
  plain = cls(3, 4, nnx.Rngs(0))
  trained = cls(3, 4, nnx.Rngs(0), trainable_initial_state=True)
  halves = len(jax.tree.leaves(plain.initialize_state(1)))
  assert count(trained) == count(plain) + halves
  # It starts at zero, so that turning it on changes nothing at first.
  cases.assert_same(trained.initialize_state(2), plain.initialize_state(2))


def test_the_initial_state_of_an_lstm_goes_where_its_name_says():
  lstm: Any = cases.trained_lstm(nnx.Rngs(0))
  for c, h in (
    lstm.initialize_state(2),
    lstm.reset_state((jnp.ones((2, 4)), jnp.ones((2, 4)))),
  ):
    for row in range(2):
      np.testing.assert_array_equal(c[row], lstm.initial_c[...])
      np.testing.assert_array_equal(h[row], lstm.initial_h[...])


@pytest.mark.parametrize('cls', LAYERS)
def test_the_carry_is_not_tied_to_a_batch_size(cls):
  layer = cls(3, 4, nnx.Rngs(0))
  for rows in (1, 2, 5):
    out = layer(layer.initialize_state(rows), cases.draw(3, rows))
    assert out.output.shape == (rows, 4)


@pytest.mark.parametrize('cls', [networks.LSTM, networks.GRU, networks.MinGRU])
def test_a_carry_with_other_rows_than_the_input_is_refused(cls):
  layer = cls(3, 4, nnx.Rngs(0))
  with pytest.raises(ValueError, match='need the same rows'):
    layer(layer.initialize_state(1), jnp.ones((5, 3)))
