"""Builders: which layers, in which order, and what they refuse."""

from typing import Any

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import factories
from tests.networks import cases


def _mlp(layers, x, activation, last):
  """Runs dense layers in NumPy."""
  x = np.asarray(x, np.float64)
  for i, layer in enumerate(layers):
    x = x @ np.asarray(layer.linear.kernel[...])
    x = x + np.asarray(layer.linear.bias[...])
    if last or i < len(layers) - 1:
      x = activation(x)
  return x


@pytest.mark.parametrize('last', [True, False])
def test_make_mlp_is_dense_layers_with_activations_between(last):
  mlp = networks.make_mlp([3, 4, 5, 2], nnx.Rngs(0), 'tanh', last)
  x = cases.draw(3, 2)
  out = mlp(mlp.initialize_state(2), x).output
  layers = [mlp[i] for i in range(3)]
  np.testing.assert_allclose(out, _mlp(layers, x, np.tanh, last), atol=1e-6)


def test_make_mlp_uses_relu_everywhere_by_default():
  mlp = networks.make_mlp([3, 4, 2], nnx.Rngs(0))
  x = cases.draw(3, 5)
  out = mlp(mlp.initialize_state(5), x).output
  relu = lambda v: np.maximum(v, 0)
  layers = [mlp[0], mlp[1]]
  np.testing.assert_allclose(out, _mlp(layers, x, relu, True), atol=1e-6)


def test_make_mlp_layers_passes_keywords_to_the_linear_maps():
  layers = networks.make_mlp_layers([3, 4, 2], nnx.Rngs(0), use_bias=False)
  assert [layer.linear.bias for layer in layers] == [None, None]
  assert networks.make_mlp_layers([3], nnx.Rngs(0)) == []


_sigmoid = lambda x: 1 / (1 + np.exp(-x))
_elu = lambda x: np.where(x > 0, x, np.expm1(x))
_hard_sigmoid = lambda x: np.clip(x + 3, 0, 6) / 6
_softmax = lambda x: np.exp(x) / np.sum(np.exp(x))
_standardize = lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5)
ACTIVATIONS = {
  'celu': _elu,
  'elu': _elu,
  # The usual approximation of the normal distribution function by tanh.
  'gelu': lambda x: (
    0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
  ),
  'hard_sigmoid': _hard_sigmoid,
  'hard_silu': lambda x: x * _hard_sigmoid(x),
  'hard_swish': lambda x: x * _hard_sigmoid(x),
  'hard_tanh': lambda x: np.clip(x, -1, 1),
  'leaky_relu': lambda x: np.where(x > 0, x, 0.01 * x),
  'linear': lambda x: x,
  'log_sigmoid': lambda x: np.log(_sigmoid(x)),
  'log_softmax': lambda x: np.log(_softmax(x)),
  'mish': lambda x: x * np.tanh(np.log1p(np.exp(x))),
  'normalize': _standardize,
  'relu': lambda x: np.maximum(x, 0),
  'relu6': lambda x: np.clip(x, 0, 6),
  'selu': lambda x: (
    1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))
  ),
  'sigmoid': _sigmoid,
  'silu': lambda x: x * _sigmoid(x),
  'soft_sign': lambda x: x / (1 + np.abs(x)),
  'softmax': _softmax,
  'softplus': lambda x: np.log1p(np.exp(x)),
  'standardize': _standardize,
  'swish': lambda x: x * _sigmoid(x),
  'tanh': np.tanh,
}


def test_every_activation_has_a_formula_here():
  assert set(ACTIVATIONS) == set(factories.ACTIVATIONS)


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_an_activation_goes_by_its_name(name):
  named = factories.activation_fn(name)
  x = np.linspace(-4.0, 7.0, 12)
  np.testing.assert_allclose(
    named(jnp.asarray(x, jnp.float32)), ACTIVATIONS[name](x), atol=1e-6
  )
  assert factories.activation_fn(named) is named


def test_an_unknown_activation_is_an_error_that_lists_the_known():
  with pytest.raises(ValueError, match="no activation 'rleu'.*relu"):
    networks.make_mlp([3, 2], nnx.Rngs(0), 'rleu')


@pytest.mark.parametrize('size', [5, (5,), [5], {'state': 5}, {'state': (5,)}])
def test_the_size_of_a_flat_observation_is_read(size):
  assert factories.observation_features(size, 'state') == 5


def test_a_missing_observation_is_an_error_that_lists_what_there_is():
  with pytest.raises(ValueError, match="no observation 'vision'.*'a', 'state'"):
    factories.observation_features({'state': 5, 'a': 2}, 'vision')


@pytest.mark.parametrize('size', [(8, 8, 3), {'state': (8, 8)}], ids=str)
def test_an_observation_that_is_not_flat_is_an_error(size):
  with pytest.raises(ValueError, match='needs a flat observation'):
    factories.observation_features(size, 'state')


def _shapes(module):
  return [layer.linear.kernel.shape for layer in module]


def test_make_mlp_actor_critic_has_the_sizes_it_is_given():
  net: Any = networks.make_mlp_actor_critic(3, 2, [4, 5], [6], nnx.Rngs(0))
  normalizer, adapter = net[0], net[1]
  assert isinstance(normalizer, networks.Normalizer)
  actor = [adapter.action[i] for i in range(3)]
  assert _shapes(actor) == [(3, 4), (4, 5), (5, 4)]
  assert _shapes([adapter.value[i] for i in range(2)]) == [(3, 6), (6, 1)]
  assert isinstance(adapter.action[3], networks.NormalTanhSampler)


def test_make_mlp_actor_critic_is_the_composition_of_its_parts():
  net: Any = networks.make_mlp_actor_critic(
    3, 2, [4], [5], nnx.Rngs(0), 'tanh', min_std=0.2, std_scale=0.5
  )
  x = cases.draw(3, 2)
  out = net(net.initialize_state(2), x).output
  seen = np.asarray(x) / 10  # a normalizer without statistics
  adapter = net[1]
  parameters = _mlp([adapter.action[i] for i in (0, 1)], seen, np.tanh, False)
  values = _mlp([adapter.value[i] for i in (0, 1)], seen, np.tanh, False)
  loc, s = np.split(parameters, 2, axis=-1)
  scale = (np.log1p(np.exp(s)) + 0.2) * 0.5
  np.testing.assert_allclose(out.value_estimates, values[:, 0], atol=1e-6)
  np.testing.assert_allclose(out.distributions['loc'], loc, atol=1e-6)
  np.testing.assert_allclose(out.distributions['scale'], scale, atol=1e-6)


def test_make_mlp_actor_critic_takes_its_options():
  net: Any = networks.make_mlp_actor_critic(
    3,
    2,
    [4],
    [4],
    nnx.Rngs(0),
    normalize_obs=False,
    initializer_scale=1e-8,
    entropy_weight=0.5,
  )
  assert isinstance(net, networks.PPOAdapter)
  assert np.abs(net.value[0].linear.kernel[...]).max() < 1e-3
  assert np.abs(net.action[1].linear.kernel[...]).max() < 1e-3
  out = net(net.initialize_state(2), cases.draw(3, 2))
  np.testing.assert_allclose(
    out.regularization_loss,
    -0.5 * out.output.distributions['entropy'],
    rtol=1e-6,
  )


def _kinds(layers):
  return [type(layer).__name__ for layer in layers]


@pytest.mark.parametrize(
  ('kwargs', 'kinds', 'sizes'),
  [
    ({}, ['Dense'] * 3, [(3, 4), (4, 5), (5, 2)]),
    (
      {'cell': 'lstm', 'memory_size': 6},
      ['Dense', 'LSTM', 'Dense', 'Dense'],
      [(3, 4), (6, 5), (5, 2)],
    ),
    (
      {'cell': 'gru', 'memory_size': 6, 'hidden_sizes': []},
      ['GRU', 'Dense'],
      [(6, 2)],
    ),
    (
      {'cell': 'gru', 'memory_size': 6, 'hidden_sizes': [4]},
      ['Dense', 'GRU', 'Dense'],
      [(3, 4), (6, 2)],
    ),
    (
      {'observation_size': {'a': 9, 'state': (3,)}},
      ['Filter', 'Dense', 'Dense', 'Dense'],
      [(3, 4), (4, 5), (5, 2)],
    ),
    (
      {'observation_size': {'a': 9, 'state': (3,)}, 'obs_key': 'a'},
      ['Filter', 'Dense', 'Dense', 'Dense'],
      [(9, 4), (4, 5), (5, 2)],
    ),
  ],
)
def test_a_port_has_memory_after_its_first_dense_layer(kwargs, kinds, sizes):
  args = {'observation_size': 3, 'hidden_sizes': [4, 5]} | kwargs
  layers = factories.make_port_layers(output_size=2, rngs=nnx.Rngs(0), **args)
  assert _kinds(layers) == kinds
  dense = [layer for layer in layers if isinstance(layer, networks.Dense)]
  assert _shapes(dense) == sizes
  net = networks.Sequential(layers)
  size: Any = args['observation_size']
  x = cases.draw(size, 2)
  assert net(net.initialize_state(2), x).output.shape == (2, 2)


def test_a_port_activates_all_layers_but_the_last():
  layers: Any = factories.make_port_layers(
    3, 2, [4, 5], nnx.Rngs(0), activation='tanh'
  )
  net = networks.Sequential(layers)
  x = cases.draw(3, 2) * 10
  out = net(net.initialize_state(2), x).output
  np.testing.assert_allclose(out, _mlp(layers, x, np.tanh, False), atol=1e-5)


def test_a_port_reads_its_own_observation():
  port = factories.make_port_layers(
    {'a': 2, 'state': 3}, 1, [4], nnx.Rngs(0), obs_key='a'
  )
  net = networks.Sequential(port)
  x = cases.draw({'a': 2, 'state': 3}, 2)
  out = net(net.initialize_state(2), x).output
  other = net(net.initialize_state(2), {**x, 'state': x['state'] + 1}).output
  np.testing.assert_array_equal(out, other)
  changed = net(net.initialize_state(2), {**x, 'a': x['a'] + 1}).output
  assert np.any(out != changed)


def test_the_initializers_of_a_port():
  constant = nnx.initializers.constant
  make = lambda **kwargs: factories.make_port_layers(
    300, 2, [400], nnx.Rngs(0), **kwargs
  )
  kernels = lambda layers: [layer.linear.kernel[...] for layer in layers]
  # LeCun uniform: variance 1 / fan_in, so within ±sqrt(3 / fan_in).
  first = np.asarray(kernels(make())[0])
  np.testing.assert_allclose(np.abs(first).max(), (3 / 300) ** 0.5, rtol=1e-3)
  np.testing.assert_allclose(first.var(), 1 / 300, rtol=0.02)
  hidden, last = kernels(make(kernel_init=constant(2.0)))
  assert np.all(hidden == 2) and np.all(last == 2)
  hidden, last = kernels(make(output_kernel_init=constant(2.0)))
  assert np.all(hidden != 2) and np.all(last == 2)


def test_cell_keywords_reach_the_memory():
  layers: Any = factories.make_port_layers(
    3, 2, [4], nnx.Rngs(0), cell='gru', trainable_initial_state=True
  )
  assert layers[1].initial_h is not None
  assert layers[1].hidden_features == 64


def test_an_unknown_cell_is_an_error_that_lists_the_known():
  with pytest.raises(ValueError, match="no cell 'elman'.*lstm, gru"):
    factories.make_port_layers(3, 2, [4], nnx.Rngs(0), cell='elman')
