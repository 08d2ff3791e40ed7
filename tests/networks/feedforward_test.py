"""Memoryless layers against NumPy."""

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from tests.networks import cases


def _dense(layer, x):
  kernel, bias = layer.linear.kernel[...], layer.linear.bias[...]
  return np.asarray(x, np.float64) @ np.asarray(kernel) + np.asarray(bias)


@pytest.mark.parametrize('lead', [(2,), (4, 2)], ids=str)
def test_dense_is_a_linear_map_and_an_activation(lead):
  ones = nnx.initializers.ones_init()
  layer = networks.Dense(3, 4, nnx.Rngs(0), jnp.tanh, bias_init=ones)
  x = cases.draw(3, *lead)
  out = layer((), x)
  np.testing.assert_allclose(out.output, np.tanh(_dense(layer, x)), atol=1e-6)
  assert out.next_state == ()
  assert out.metrics == {}
  assert out.rollout_extras is None
  assert out.regularization_loss == 0.0


def test_dense_has_no_activation_by_default():
  layer = networks.Dense(3, 4, nnx.Rngs(0))
  x = cases.draw(3, 2)
  expected = _dense(layer, x)
  assert expected.min() < 0 < expected.max()
  np.testing.assert_allclose(layer((), x).output, expected, atol=1e-6)


def test_linear_keywords_reach_the_linear_map():
  zeros = nnx.initializers.zeros_init()
  layer = networks.Dense(3, 4, nnx.Rngs(0), use_bias=False, kernel_init=zeros)
  assert layer.linear.bias is None
  assert not np.any(layer((), cases.draw(3, 2)).output)


def test_layers_of_one_rngs_have_different_weights():
  rngs = nnx.Rngs(0)
  first, second = networks.Dense(3, 4, rngs), networks.Dense(3, 4, rngs)
  assert np.all(first.linear.kernel[...] != second.linear.kernel[...])
