"""Distributional critics: quantiles of the return instead of its mean."""

import functools
from typing import Any

from brax.training.agents.ppo import networks as brax_networks
from brax.training.agents.ppo import train as brax_train
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import Dense
from brax_nnx_plugin.networks import NormalTanhSampler
from brax_nnx_plugin.networks import PPOAdapter
from brax_nnx_plugin.networks import Quantiles
from brax_nnx_plugin.networks import Sequential
from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import linen
from brax_nnx_plugin.ppo import losses
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import train as ppo_train
from tests import learners
from tests import parity_envs
from tests import small_runs

_ON: dict[str, Any] = {
  'use_distributional_critic': True,
  'clipping_epsilon_value': 0.5,
}


_mlp = functools.partial(
  small_runs.small_mlp, use_distributional_critic=True, num_quantiles=5
)
_lstm = functools.partial(
  small_runs.small_lstm, use_distributional_critic=True, num_quantiles=5
)


@pytest.mark.parametrize(
  ('network_factory', 'distributional'),
  [
    (parity_envs.stock_mlp, False),
    (parity_envs.stock_quantiles, True),
    (small_runs.small_mlp, False),
    (_mlp, True),
    (_lstm, True),
  ],
)
def test_a_network_says_what_its_critic_is(network_factory, distributional):
  networks = network_factory((2,), 1)

  assert linen.as_functions(networks, (2,)).distributional is distributional


def test_a_stock_network_of_unknown_inputs_does_not_say():
  stock: Any = parity_envs.stock_quantiles((2,), 1)  # pyright: ignore[reportArgumentType]

  assert linen.LinenFunctions(stock).distributional is None


@pytest.mark.parametrize(
  ('network_factory', 'options', 'message'),
  [
    (parity_envs.stock_mlp, _ON, 'estimates a single number'),
    (small_runs.small_mlp, _ON, 'estimates a single number'),
    (parity_envs.stock_quantiles, {}, 'Set use_distributional_critic=True'),
    (_mlp, {}, 'Set use_distributional_critic=True'),
  ],
)
def test_a_critic_of_the_other_kind_is_refused_before_a_step(
  network_factory, options, message
):
  with pytest.raises(ValueError, match=message):
    small_runs.small_train(
      network_factory=network_factory, num_timesteps=0, **options
    )


def test_the_loss_is_the_huber_loss_of_every_quantile():
  # Quantiles at 1/4 and 3/4, threshold 0.5. Errors of the return 1.0 are
  #   1.0 - 0.8 = 0.2: small, 1/4 * 0.5 * 0.2² = 0.005
  #   1.0 - 3.0 = -2.0: large, |3/4 - 1| * 0.5 * (2 - 0.25) = 0.21875
  # and their mean times the coefficient 2 is 0.22375.
  quantiles = jnp.array([[[0.8, 3.0]]])
  out: Any = type('Out', (), {'quantiles': quantiles})
  config = learners.loss_config(**_ON, vf_loss_coefficient=2.0)

  loss = losses._quantile_loss(out, jnp.ones((1, 1)), config)

  np.testing.assert_allclose(loss, 0.22375, rtol=1e-6)


@pytest.mark.slow
def test_a_module_with_quantiles_ends_with_the_parameters_of_stock(stock_jax):
  arguments = small_runs.arguments(
    network_factory=_mlp, normalize_observations=True, **_ON
  )

  ours, stock = (
    module.train(**arguments)[1] for module in (ppo_train, brax_train)
  )

  assert small_runs.largest_difference(ours[1:], stock[1:]) <= 1e-5


def test_stock_inference_hands_on_the_quantiles_of_a_module():
  networks = _mlp((2,), 1)
  key = jax.random.PRNGKey(0)
  params: Any = (
    None,
    networks.policy_network.init(key),
    networks.value_network.init(key),
  )
  make_policy: Any = brax_networks.make_inference_fn(networks, True, True)

  _, extras = make_policy(params)(jnp.ones((3, 2)), key)

  assert extras['quantiles'].shape == (3, 5)
  np.testing.assert_allclose(
    extras['value'], np.mean(extras['quantiles'], axis=-1), rtol=1e-6
  )


def test_an_estimate_is_the_mean_of_its_quantiles():
  x = np.array([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]], np.float32)

  out = Quantiles()((), jnp.asarray(x))

  np.testing.assert_allclose(out.output['value'], [[3.0], [1.0]], rtol=1e-6)
  np.testing.assert_array_equal(out.output['quantiles'], x)


@pytest.mark.parametrize('given', [jnp.ones(3), 1.0])
def test_quantiles_need_a_row_per_environment(given):
  with pytest.raises(ValueError, match=r'\[B, Q\]'):
    Quantiles()((), given)


@pytest.mark.parametrize('count', [0, 2.5])
def test_a_number_of_quantiles_that_is_none_is_refused(count):
  with pytest.raises(ValueError, match=f'num_quantiles .* got {count}'):
    _mlp((2,), 1, num_quantiles=count)


def test_a_wide_value_port_is_told_how_to_say_quantiles():
  def build(observation_size, action_size, rngs):
    return PPOAdapter(
      action=Sequential([Dense(2, 2, rngs), NormalTanhSampler(rngs)]),
      value=Dense(2, 5, rngs),
    )

  with pytest.raises(ValueError, match=r'put Quantiles\(\) at its end'):
    ppo_networks.make_network_factory(build)((2,), 1)


@pytest.mark.slow
def test_a_critic_with_memory_learns_and_is_loaded_again(tmp_path):
  options = {'network_factory': _lstm, 'save_checkpoint_path': tmp_path, **_ON}

  _, start, _ = small_runs.small_train(**options | {'num_timesteps': 0})
  _, params, metrics = small_runs.small_train(**options)

  assert small_runs.largest_difference(start[2], params[2]) > 1e-3
  assert np.isfinite(metrics['training/v_loss'])
  networks, loaded = checkpoint.load(tmp_path)
  assert networks.functions.distributional
  assert small_runs.largest_difference(loaded, params) == 0
