"""How parameters are joined for inference."""

import jax
import numpy as np

from brax_nnx_plugin.ppo import networks
from brax_nnx_plugin.ppo import types
from tests import small_runs


def test_statistics_are_folded_into_the_parameters_of_their_side():
  variables = types.NetworkVariables(
    params=types.PPONetworkParams({'params': 1}, {'params': 2}),
    statistics=types.PPONetworkParams({'statistics': 3}, {}),
  )

  assert variables.inference_params() == (
    {'params': 1, 'statistics': 3},
    {'params': 2},
  )


def test_joined_variables_can_be_taken_apart():
  made: networks.StatefulPPONetworks = small_runs.small_lstm(
    (3,), 2, normalize_inputs=True
  )
  variables = made.functions.init(jax.random.key(0), jax.random.key(1))

  again = made.functions.variables(*variables.inference_params())

  jax.tree.map(np.testing.assert_array_equal, variables, again)
  assert len(jax.tree.leaves(again.statistics)) == 3


def test_a_training_state_gives_brax_its_triple():
  variables = types.NetworkVariables(
    types.PPONetworkParams({'params': 1}, {'params': 2}),
    types.PPONetworkParams({}, {}),
  )
  state = types.TrainingState(
    optimizer_state=(),
    variables=variables,
    normalizer_params='statistics',  # pyright: ignore[reportArgumentType]
    env_steps=0,  # pyright: ignore[reportArgumentType]
  )

  assert state.inference_params() == (
    'statistics',
    {'params': 1},
    {'params': 2},
  )
