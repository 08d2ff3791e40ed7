"""Action heads: which layers, what numbers, what they refuse."""

from typing import Any

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import Dense
from brax_nnx_plugin.networks import NormalSampler
from brax_nnx_plugin.networks import NormalTanhSampler
from brax_nnx_plugin.networks import Sequential
from brax_nnx_plugin.networks import heads
from tests.networks import cases


def _head(**kwargs: Any) -> list[Any]:
  return heads.make_action_head(3, 2, nnx.Rngs(0), **kwargs)


def _affine(dense: Any, x: Any) -> Any:
  kernel, bias = dense.linear.kernel[...], dense.linear.bias[...]
  return np.asarray(x) @ np.asarray(kernel) + np.asarray(bias)


@pytest.mark.parametrize(
  ('kwargs', 'kinds', 'outputs'),
  [
    ({}, (Dense, NormalTanhSampler), 4),
    ({'distribution_type': 'normal'}, (Dense, NormalSampler), 2),
    (
      {'distribution_type': 'normal', 'state_dependent_std': True},
      (heads.MeanAndScale, NormalSampler),
      4,
    ),
  ],
)
def test_a_head_is_a_layer_and_its_sampler(kwargs, kinds, outputs):
  layers = _head(**kwargs)
  assert tuple(map(type, layers)) == kinds
  x = cases.draw(3, 5)
  first = layers[0]
  assert first(first.initialize_state(5), x).output.shape == (5, outputs)
  net = Sequential(layers)
  assert net(net.initialize_state(5), x).output['action'].shape == (5, 2)


def test_mean_and_scale_are_two_layers_of_the_same_input():
  both, sampler = _head(
    distribution_type='normal', state_dependent_std=True, noise_std_type='log'
  )
  net, x = Sequential([both, sampler]), cases.draw(3, 5)
  out = net(net.initialize_state(5), x).output
  np.testing.assert_allclose(
    out['loc'], _affine(both['mean'], x), rtol=1e-5, atol=1e-6
  )
  np.testing.assert_allclose(
    out['scale'], np.exp(_affine(both['scale'], x)), rtol=1e-5
  )


def test_the_mean_alone_is_clipped():
  both, _ = _head(
    distribution_type='normal', state_dependent_std=True, mean_clip_scale=0.5
  )
  x = 100 * cases.draw(3, 5)
  out = np.asarray(both(both.initialize_state(5), x).output)
  mean, scale = (_affine(both[name], x) for name in ('mean', 'scale'))
  np.testing.assert_allclose(
    out[:, :2], 0.5 * mean / (1 + np.abs(mean)), rtol=1e-4
  )
  np.testing.assert_allclose(out[:, 2:], scale, rtol=1e-4)


def test_soft_clips_of_one_scale_are_equal():
  assert heads.SoftClip(2.0) == heads.SoftClip(2.0) != heads.SoftClip(1.0)
  # 2 * 3 / (1 + 3)
  np.testing.assert_allclose(heads.SoftClip(2.0)(jnp.array([-3.0])), [-1.5])


def test_initializers_reach_their_own_kernel():
  constant = nnx.initializers.constant
  inits: Any = {
    'kernel_init': constant(1.0),
    'mean_kernel_init': constant(2.0),
    'output_kernel_init': constant(3.0),
  }
  both, _ = _head(distribution_type='normal', state_dependent_std=True, **inits)
  assert np.all(both['mean'].linear.kernel[...] == 2)
  assert np.all(both['scale'].linear.kernel[...] == 1)
  assert np.all(_head(**inits)[0].linear.kernel[...] == 3)


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'distribution_type': 'tanh'}, "'tanh'.*tanh_normal, normal"),
    ({'noise_std_type': 'exp'}, "'exp'.*scalar, log"),
  ],
)
def test_an_unknown_kind_is_an_error_that_lists_the_known(kwargs, message):
  with pytest.raises(ValueError, match=message):
    _head(**kwargs)
