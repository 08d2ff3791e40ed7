"""What variational bottlenecks refuse, and what they say."""

from typing import Any

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.variational import AR1VariationalBottleneck
from brax_nnx_plugin.networks.variational import VariationalBottleneck

KINDS = (VariationalBottleneck, AR1VariationalBottleneck)

each_kind = pytest.mark.parametrize('kind', KINDS)


@each_kind
@pytest.mark.parametrize('size', [7, 6, 4, 1])
def test_an_input_of_another_size(kind, size):
  layer = kind(4, nnx.Rngs(0))
  state = layer.initialize_state(2)
  message = (
    rf'{kind.__name__}\(latent_size=4\) .* 8 inputs; got {size}\. Give the'
    r' layer before it 2 \* latent_size outputs'
  )
  with pytest.raises(ValueError, match=message):
    layer(state, jnp.zeros((2, size)))
  with pytest.raises(ValueError, match=message):
    layer.unroll(state, jnp.zeros((3, 2, size)), jnp.zeros((3, 2)))


@each_kind
def test_a_carry_of_another_number_of_rows(kind):
  layer = kind(2, nnx.Rngs(0))
  state = layer.initialize_state(1)
  with pytest.raises(ValueError, match='carry of 1 rows'):
    layer(state, jnp.zeros((3, 4)))
  with pytest.raises(ValueError, match='carry of 1 rows'):
    layer.unroll(state, jnp.zeros((5, 3, 4)), jnp.zeros((5, 3)))


@each_kind
@pytest.mark.parametrize('size', [0, -3])
def test_a_latent_size_that_is_not_positive(kind, size):
  with pytest.raises(ValueError, match=f'at least 1; got {size}'):
    kind(size, nnx.Rngs(0))


@each_kind
@pytest.mark.parametrize('size', [2.0, '2', True, None, (2,)])
def test_a_latent_size_that_is_not_an_int(kind, size):
  with pytest.raises(TypeError, match=f'{kind.__name__} needs an int'):
    kind(size, nnx.Rngs(0))


@each_kind
@pytest.mark.parametrize('name', ['kl_weight', 'min_std'])
@pytest.mark.parametrize('value', [-0.1, np.nan])
def test_a_negative_number(kind, name, value):
  kwargs: Any = {name: value}
  with pytest.raises(ValueError, match=f'needs {name} >= 0; got {value}'):
    kind(2, nnx.Rngs(0), **kwargs)


def test_a_negative_weight_of_the_difference():
  with pytest.raises(ValueError, match='needs ar1_weight >= 0; got -1'):
    AR1VariationalBottleneck(2, nnx.Rngs(0), ar1_weight=-1)


@each_kind
def test_numbers_of_numpy_are_numbers(kind):
  layer = kind(np.int64(2), nnx.Rngs(0), kl_weight=np.float32(0.5), min_std=0)
  state = layer.initialize_state(1)
  assert layer(state, jnp.ones((1, 4))).output.shape == (1, 2)
  assert hash(nnx.graphdef(layer)) == hash(nnx.graphdef(nnx.clone(layer)))
