"""The penalty for acting differently in a mirror."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.symmetry import MirrorLoss
from tests.networks import cases

# A walker seen from behind: [height, left, right], and an action for each leg.
OBSERVATION = np.array([[1, 0, 0], [0, 0, 1], [0, 1, 0]], np.float32)
ACTION = np.array([[0, 1], [1, 0]], np.float32)


def mirror_observation(x):
  return x @ OBSERVATION


def mirror_action(a):
  return a @ ACTION


def _policy(rngs, *layers, size=3) -> Any:
  head = [networks.Dense(size, 4, rngs), networks.NormalTanhSampler(rngs)]
  return networks.PPOAdapter(
    action=networks.Sequential([*layers, *head]),
    value=networks.Dense(3, 1, rngs),
  )


def _with_loss(policy, weight=0.5, **kwargs):
  return MirrorLoss(policy, mirror_observation, mirror_action, weight, **kwargs)


def test_the_penalty_is_the_squared_difference_to_the_mirror_image():
  module = _with_loss(_policy(nnx.Rngs(0)))
  linear = module.network['action'][0].linear
  x = cases.draw(3, 4)
  out = module(module.initialize_state(4), x)

  kernel, bias = (np.asarray(v[...])[..., :2] for v in linear_of(linear))
  loc = np.asarray(x) @ kernel + bias
  image = (np.asarray(x) @ OBSERVATION @ kernel + bias) @ ACTION
  expected = np.sum((loc - image) ** 2, axis=-1)
  assert expected.min() > 1e-3
  np.testing.assert_allclose(out.regularization_loss, 0.5 * expected, rtol=1e-5)
  np.testing.assert_allclose(out.metrics['mirror_loss'], expected, rtol=1e-5)


def linear_of(linear):
  """Returns kernel and bias of a linear layer."""
  return linear.kernel, linear.bias


def test_a_symmetric_policy_has_no_penalty():
  module = _with_loss(_policy(nnx.Rngs(0)))
  linear = module.network['action'][0].linear
  both = np.zeros((4, 4), np.float32)
  both[:2, :2] = both[2:, 2:] = ACTION
  kernel = linear.kernel[...]
  linear.kernel[...] = kernel + OBSERVATION @ kernel @ both
  out = module(module.initialize_state(4), cases.draw(3, 4))
  np.testing.assert_allclose(out.regularization_loss, 0, atol=1e-10)


def test_it_changes_nothing_else():
  bare, rngs = _policy(nnx.Rngs(0)), nnx.Rngs(0)
  module = _with_loss(_policy(rngs))
  x = cases.draw(3, 4)
  expected = bare(bare.initialize_state(4), x)
  out = module(module.initialize_state(4), x)
  for name in ('output', 'next_state', 'rollout_extras'):
    cases.assert_same(getattr(out, name), getattr(expected, name))


def test_the_penalty_has_a_gradient():
  module = _with_loss(_policy(nnx.Rngs(0)))
  graphdef, params, rest = nnx.split(module, nnx.Param, ...)

  def loss(params):
    copy = nnx.merge(graphdef, params, jax.tree.map(lambda a: a, rest))
    out = copy(copy.initialize_state(4), cases.draw(3, 4))
    return jnp.mean(out.regularization_loss)

  gradient = jax.grad(loss)(params)
  kernel = gradient['network']['components']['action']['components'][0]
  assert np.abs(kernel['linear']['kernel'][...]).max() > 1e-3


def test_memory_without_a_mirror_is_refused_by_name():
  rngs = nnx.Rngs(0)
  policy = _policy(rngs, networks.LSTM(3, 4, rngs), size=4)
  with pytest.raises(ValueError, match=r"LSTM at '.*action/.*0'.*mirror_state"):
    _with_loss(policy)


def test_a_delay_has_a_mirror_and_is_mirrored_step_by_step():
  rngs = nnx.Rngs(0)
  policy = _policy(rngs, networks.Delay(3, k_steps=2))

  def mirror_state(state):
    ring = state['action'][0]
    ring = {**ring, 'buffer': mirror_observation(ring['buffer'])}
    return {**state, 'action': [ring, *state['action'][1:]]}

  module = _with_loss(policy, mirror_state=mirror_state)
  x, is_first = cases.draw(3, 6, 2), cases.masks(6, 2)
  out = module.unroll(module.initialize_state(2), x, is_first)
  image = module.unroll(
    module.initialize_state(2), mirror_observation(x), is_first
  )
  # The mirrored past, run from its start, gives the same penalty.
  np.testing.assert_allclose(
    out.regularization_loss, image.regularization_loss, rtol=1e-4, atol=1e-6
  )
  looped = cases.loop(module, module.initialize_state(2), x, is_first)
  cases.assert_same(out.next_state, looped.next_state, 1e-6)
  np.testing.assert_allclose(
    out.regularization_loss, looped.regularization_loss, rtol=1e-5, atol=1e-6
  )


def test_a_network_that_does_not_end_in_samplers_is_refused():
  module = _with_loss(networks.Dense(3, 2, nnx.Rngs(0)))
  with pytest.raises(ValueError, match='ends in a PPOAdapter'):
    module((), cases.draw(3, 2))
