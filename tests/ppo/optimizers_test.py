"""Adam with the choices of Brax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brax_nnx_plugin.ppo import optimizers
from tests import fakes
from tests import learners
from tests import small_runs

_PARAMS: Any = {'a': jnp.array([3.0, -4.0]), 'b': jnp.array(0.0)}
_GRADS: Any = {'a': jnp.array([30.0, -40.0]), 'b': jnp.array(0.0)}


def _adam(gradients, learning_rate):
  """Textbook Adam (0.9, 0.999, 1e-8): the update after each gradient."""
  m = v = 0.0
  for t, g in enumerate(gradients, start=1):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g**2
    m_hat, v_hat = m / (1 - 0.9**t), v / (1 - 0.999**t)
    yield -learning_rate * m_hat / (np.sqrt(v_hat) + 1e-8)


@pytest.mark.parametrize('schedule', [None, 'ADAPTIVE_KL'])
def test_updates_are_those_of_adam(schedule):
  config = small_runs.config(learning_rate=0.1, learning_rate_schedule=schedule)
  optimizer = optimizers.make_optimizer(config.optimizer)
  state = optimizer.init(_PARAMS)

  gradients = np.array([[30.0, -40.0], [1.0, 2.0], [0.1, 0.0]], np.float32)
  for gradient, expected in zip(gradients, _adam(gradients, 0.1), strict=True):
    grads = {'a': jnp.array(gradient), 'b': jnp.array(0.0)}
    updates: Any
    updates, state = optimizer.update(grads, state)
    np.testing.assert_allclose(updates['a'], expected, rtol=1e-4)
    assert updates['b'] == 0


def test_long_gradients_are_scaled_down_to_the_limit():
  # Adam forgets the scale of its first gradient, so look at its first moment:
  # 0.1 g, with g = (30, -40) of norm 50 scaled down to norm 5.
  config = small_runs.config(max_grad_norm=5.0)
  optimizer = optimizers.make_optimizer(config.optimizer)

  _, state = optimizer.update(_GRADS, optimizer.init(_PARAMS))

  moments = [x for x in jax.tree.leaves(state) if x.shape == (2,)]
  np.testing.assert_allclose(moments[0], [0.3, -0.4], rtol=1e-5)


@pytest.mark.parametrize('max_grad_norm', [None, 5.0])
@pytest.mark.parametrize(
  ('kl', 'expected'),
  [
    (0.021, 0.02 / 1.5),  # above twice what is desired: slower
    (0.015, 0.02),
    (0.004, 0.02 * 1.5),  # below half of it: faster
    (0.0, 0.02),  # nothing was measured
  ],
)
def test_the_learning_rate_follows_the_divergence(kl, expected, max_grad_norm):
  config = small_runs.config(
    learning_rate=0.02,
    learning_rate_schedule='ADAPTIVE_KL',
    learning_rate_schedule_max_lr=1.0,
    desired_kl=0.01,
    max_grad_norm=max_grad_norm,
  ).optimizer
  optimizer = optimizers.make_optimizer(config)
  before = optimizer.init(_PARAMS)
  untouched = jax.tree.map(np.array, before)

  state, rate = optimizers.adapt_learning_rate(before, jnp.array(kl), config)

  np.testing.assert_allclose(rate, expected, rtol=1e-6)
  # The first update of Adam is the learning rate, by the sign of the gradient.
  updates: Any
  updates, _ = optimizer.update(_GRADS, state)
  np.testing.assert_allclose(updates['a'], [-expected, expected], rtol=1e-4)
  jax.tree.map(np.testing.assert_array_equal, before, untouched)


@pytest.mark.parametrize(
  ('kl', 'expected'), [(1.0, 0.019), (1e-6, 0.021)], ids=['min', 'max']
)
def test_the_learning_rate_stays_within_its_bounds(kl, expected):
  config = small_runs.config(
    learning_rate=0.02,
    learning_rate_schedule='ADAPTIVE_KL',
    learning_rate_schedule_min_lr=0.019,
    learning_rate_schedule_max_lr=0.021,
  ).optimizer
  state = optimizers.make_optimizer(config).init(_PARAMS)

  _, rate = optimizers.adapt_learning_rate(state, jnp.array(kl), config)

  np.testing.assert_allclose(rate, expected, rtol=1e-6)


@pytest.mark.parametrize('max_grad_norm', [None, 1e3])
def test_a_schedule_of_optax_is_followed_and_told(max_grad_norm):
  schedule = optax.linear_schedule(0.1, 0.0, transition_steps=4)
  config = small_runs.config(
    learning_rate=schedule, max_grad_norm=max_grad_norm
  ).optimizer
  optimizer = optimizers.make_optimizer(config)
  state = optimizer.init(_PARAMS)
  rates = []

  gradient = np.array([30.0, -40.0], np.float32)
  for rate, expected in zip(
    (0.1, 0.075, 0.05, 0.025, 0.0), _adam([gradient] * 5, 1.0), strict=True
  ):
    state, told = optimizers.adapt_learning_rate(state, jnp.array(9.0), config)
    rates.append(float(told))
    updates: Any
    updates, state = optimizer.update(_GRADS, state)
    np.testing.assert_allclose(updates['a'], rate * expected, rtol=1e-4)

  # The state knows where it is: what goes on from it goes on there.
  np.testing.assert_allclose(rates, (0.1, 0.075, 0.05, 0.025, 0.0), rtol=1e-6)


def test_schedules_are_followed_in_training():
  rig = learners.make_rig(
    fakes.ScriptEnv([[], []]),
    learners.small_factory('mlp'),
    learning_rate=optax.linear_schedule(0.1, 0.0, transition_steps=8),
    entropy_cost=optax.linear_schedule(8.0, 0.0, transition_steps=4),
  )

  metrics = [rig.step() for _ in range(2)]

  # Two training steps of two minibatches, each learned from twice.
  count = np.arange(8).reshape((2, 1, 2, 2))
  rates = [m['learning_rate'] for m in metrics]
  np.testing.assert_allclose(rates, 0.1 * (1 - count / 8), rtol=1e-6)
  costs = np.array([m['entropy_cost'] for m in metrics])
  np.testing.assert_allclose(costs, np.maximum(8.0 - 2.0 * count, 0.0))
  # And it is the loss that follows.
  losses = np.array([m['entropy_loss'] for m in metrics])
  np.testing.assert_array_equal(losses == 0, costs == 0)
  entropy = losses[costs > 0] / -costs[costs > 0]
  assert np.ptp(entropy) < 0.5 < np.ptp(losses)


def test_a_fixed_learning_rate_stays():
  config = small_runs.config(learning_rate=0.02).optimizer
  state = optimizers.make_optimizer(config).init(_PARAMS)

  same, rate = optimizers.adapt_learning_rate(state, jnp.array(9.0), config)

  assert same is state
  assert rate == np.float32(0.02)
