"""Convolutions against NumPy, and what does not fit."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import vision

_SIZE = {'pixels/b': (6, 5, 2), 'state': (3,), 'pixels/a': (7, 6, 1)}
_SMALL: dict[str, Any] = {
  'channels': (2, 3),
  'kernel_sizes': (3, 2),
  'strides': (2, 1),
}


def _draw(*shape: int) -> Any:
  return np.random.default_rng(len(shape)).normal(size=shape).astype('f')


def _convolve(x: Any, kernel: Any, bias: Any, stride: int, same: bool) -> Any:
  """A convolution of `[B, H, W, C]`, window by window."""
  size = kernel.shape[0]
  if same:
    pads = [
      max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[1:3]
    ]
    x = np.pad(x, [(0, 0), *((p // 2, p - p // 2) for p in pads), (0, 0)])
  rows, columns = ((n - size) // stride + 1 for n in x.shape[1:3])
  out = np.zeros((len(x), rows, columns, kernel.shape[-1]))
  for i in range(rows):
    for j in range(columns):
      window = x[:, i * stride :, j * stride :][:, :size, :size]
      out[:, i, j] = np.tensordot(window, kernel, 3) + bias
  return out


@pytest.mark.parametrize('padding', ['SAME', 'VALID'])
def test_convolutions_are_those_of_the_definition(padding):
  cnn = vision.CNN(
    (8, 7, 2),
    nnx.Rngs(0),
    padding=padding,
    activation='tanh',
    global_pool='none',
    **_SMALL,
  )
  convs: Any = cnn.convs
  for conv in convs:
    conv.bias.set_value(jnp.arange(conv.bias[...].size) + 0.5)
  x = _draw(3, 8, 7, 2)

  found = cnn((), jnp.asarray(x)).output

  for conv, stride in zip(convs, _SMALL['strides'], strict=True):
    kernel, bias = np.asarray(conv.kernel[...]), np.asarray(conv.bias[...])
    x = np.tanh(_convolve(x, kernel, bias, stride, padding == 'SAME'))
  assert found.shape == (3, cnn.out_features)
  np.testing.assert_allclose(found, x.reshape(3, -1), atol=1e-5)


def test_a_max_pool_halves_the_image():
  kwargs: dict[str, Any] = {
    'channels': (2,),
    'kernel_sizes': (3,),
    'strides': (1,),
    'global_pool': 'none',
  }
  cnn, pooled = (
    vision.CNN((4, 6, 1), nnx.Rngs(0), max_pool=pool, **kwargs)
    for pool in (False, True)
  )
  x = jnp.asarray(_draw(3, 4, 6, 1))

  maps = np.asarray(cnn((), x).output).reshape(3, 2, 2, 3, 2, 2)

  np.testing.assert_allclose(
    pooled((), x).output, maps.max(axis=(2, 4)).reshape(3, -1), atol=1e-6
  )


def test_global_pools():
  maps = _draw(2, 3, 4, 5)
  np.testing.assert_allclose(
    vision.POOLS['avg'](maps), maps.mean(axis=(1, 2)), atol=1e-6
  )
  np.testing.assert_allclose(vision.POOLS['max'](maps), maps.max(axis=(1, 2)))
  # One pixel far above the others: the softmax is at its place.
  spot = np.zeros((1, 3, 5, 1), 'f')
  spot[0, 2, 1, 0] = 50
  np.testing.assert_allclose(
    vision.POOLS['spatial_softmax'](jnp.asarray(spot)), [[1.0, -0.5]], atol=1e-6
  )


def test_channels_are_standardised_one_by_one():
  x = 100 + 20 * _draw(2, 6, 5, 3) * np.array([1, 2, 3])
  found = vision.standardise_channels(jnp.asarray(x))
  mean = x.mean(axis=(1, 2), keepdims=True)
  std = x.std(axis=(1, 2), keepdims=True)
  np.testing.assert_allclose(found, (x - mean) / std, atol=1e-3)


def test_an_image_of_one_colour_stays_finite():
  grey = jnp.full((1, 4, 4, 1), 200, jnp.uint8)
  assert np.all(np.abs(vision.standardise_channels(grey)) < 1)
  gradient = jax.grad(lambda x: vision.standardise_channels(x).sum())
  assert np.all(np.isfinite(gradient(grey.astype(jnp.float32))))


def _encoder(**kwargs: Any) -> vision.VisionEncoder:
  return vision.VisionEncoder(_SIZE, nnx.Rngs(0), **_SMALL, **kwargs)


def _observation(rows: int) -> dict[str, Any]:
  return {k: jnp.asarray(_draw(rows, *shape)) for k, shape in _SIZE.items()}


def test_an_encoder_joins_its_images_by_name_and_the_state():
  encoder, x = _encoder(state_obs_key='state'), _observation(3)

  found = encoder(encoder.initialize_state(3), x).output

  parts = [
    encoder['view_0']((), x['pixels/a']).output,
    encoder['view_1']((), x['pixels/b']).output,
    x['state'],
  ]
  np.testing.assert_allclose(found, np.concatenate(parts, -1), atol=1e-6)
  assert found.shape[-1] == encoder.out_features == 3 + 3 + 3


def test_an_unroll_is_a_loop_of_steps():
  encoder = _encoder(state_obs_key='state')
  xs = {k: jnp.asarray(_draw(4, 2, *shape)) for k, shape in _SIZE.items()}
  state = encoder.initialize_state(2)

  found = encoder.unroll(state, xs, jnp.zeros((4, 2))).output

  for t in range(4):
    x = {k: v[t] for k, v in xs.items()}
    np.testing.assert_allclose(found[t], encoder(state, x).output, atol=1e-5)


@pytest.mark.parametrize(
  ('shape', 'kwargs', 'message'),
  [
    ((8, 8), {}, r'images \(H, W, C\).*\(8, 8\)'),
    ((8, 8, 1), {'channels': (2,)}, r'as many channels.*\(2,\)'),
    (
      (8, 8, 1),
      {'channels': (), 'kernel_sizes': (), 'strides': ()},
      'at least one',
    ),
    ((8, 8, 1), {'global_pool': 'sum'}, "pool 'sum'.*avg, max"),
    ((8, 8, 1), {'activation': 'rleu'}, "no activation 'rleu'"),
    ((4, 4, 1), {'padding': 'VALID'}, r"nothing of an.*\(4, 4, 1\).*'SAME'"),
  ],
)
def test_a_cnn_that_cannot_be_is_refused(shape, kwargs, message):
  with pytest.raises(ValueError, match=message):
    vision.CNN(shape, nnx.Rngs(0), **kwargs)


def test_an_image_of_another_size_is_refused():
  cnn = vision.CNN((8, 8, 1), nnx.Rngs(0), **_SMALL)
  with pytest.raises(ValueError, match=r'\(8, 8, 1\).*\(2, 9, 8, 1\)'):
    cnn((), jnp.zeros((2, 9, 8, 1)))


def test_a_missing_image_is_named():
  encoder = _encoder()
  with pytest.raises(ValueError, match="no 'pixels/b'"):
    encoder(encoder.initialize_state(2), {'pixels/a': jnp.zeros((2, 7, 6, 1))})
