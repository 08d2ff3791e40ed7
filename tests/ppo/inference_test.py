"""Policies that act outside the training step."""

from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import Dense
from brax_nnx_plugin.networks import Normalizer
from brax_nnx_plugin.networks import NormalTanhSampler
from brax_nnx_plugin.networks import PPOAdapter
from brax_nnx_plugin.networks import Sequential
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import fakes
from tests import small_runs


def _params(networks: Any, seed: int = 0) -> Any:
  """Initial parameters, with statistics of Brax's normalizer."""
  functions = networks.functions
  variables = functions.init(*jax.random.split(jax.random.PRNGKey(seed)))
  statistics = running_statistics.init_state(
    jax.ShapeDtypeStruct((3,), jnp.float32)
  )
  return (statistics, *variables.inference_params())


@pytest.fixture(scope='module')
def lstm():
  """A function that makes policies of one LSTM network."""
  networks = small_runs.small_lstm((3,), 2)
  make_policy = ppo_networks.make_inference_fn(networks)
  params = _params(networks)
  return lambda **kwargs: make_policy(params, **kwargs)


@pytest.fixture(scope='module')
def observations():
  return jax.random.normal(jax.random.PRNGKey(1), (6, 4, 3))


def _loop(policy: Any, observations: Any, keys: Any, state: Any) -> Any:
  """Acts step by step; returns the actions and the last carry."""
  actions = []
  for observation, key in zip(observations, keys, strict=True):
    action, extras = policy(observation, key, state)
    state = extras['state']
    actions.append(action)
  return jnp.stack(actions), state


def test_a_call_without_a_state_says_how_to_get_one(lstm, observations):
  message = r'initial_state\(batch_size\)(.|\n)*policy\.reset'
  with pytest.raises(ValueError, match=message):
    lstm()(observations[0], jax.random.PRNGKey(0))


def test_an_unbatched_observation_is_a_row_of_a_batch(lstm, observations):
  policy = lstm(deterministic=True)
  keys = jax.random.split(jax.random.PRNGKey(2), 6)
  batched, last = _loop(policy, observations, keys, policy.initial_state(4))

  for row in range(4):
    single, state = _loop(
      policy, observations[:, row], keys, policy.initial_state()
    )
    assert single.shape == (6, 2)
    np.testing.assert_allclose(single, batched[:, row], atol=1e-6)
    expected = jax.tree.map(lambda x, row=row: x[row], last)
    assert small_runs.largest_difference(state, expected) <= 1e-6
  # The memory matters: the same observation twice gives other actions.
  twice = jnp.stack([observations[0]] * 2)
  again, _ = _loop(policy, twice, keys[:2], policy.initial_state(4))
  assert not np.allclose(again[0], again[1], atol=1e-4)


@pytest.mark.parametrize('rows', [1, 3, 128])
def test_a_policy_acts_for_any_number_of_rows(lstm, observations, rows):
  policy = lstm(deterministic=True)
  state = policy.initial_state(rows)
  observation = jnp.broadcast_to(observations[0, 0], (rows, 3))

  action, extras = policy(observation, jax.random.PRNGKey(0), state)

  assert action.shape == (rows, 2)
  assert jax.tree.map(jnp.shape, extras['state']) == jax.tree.map(
    jnp.shape, state
  )
  np.testing.assert_allclose(action, action[:1].repeat(rows, 0), atol=1e-6)


def test_jit_vmap_and_scan_act_alike(lstm, observations):
  policy = lstm()
  keys = jax.random.split(jax.random.PRNGKey(2), 6)
  initial = policy.initial_state(4)
  expected, last = _loop(policy, observations, keys, initial)

  jitted, _ = _loop(jax.jit(policy), observations, keys, initial)

  def step(state, inputs):
    action, extras = policy(*inputs, state)
    return extras['state'], action

  final, scanned = jax.lax.scan(step, initial, (observations, keys))
  np.testing.assert_allclose(jitted, expected, atol=1e-5)
  np.testing.assert_allclose(scanned, expected, atol=1e-5)
  assert small_runs.largest_difference(final, last) <= 1e-5
  # Rows mapped one by one, with a key each.
  row_keys = jax.random.split(jax.random.PRNGKey(3), 4)
  mapped, _ = jax.vmap(policy)(observations[0], row_keys, initial)
  for row in range(4):
    alone, _ = policy(
      observations[0, row], row_keys[row], policy.initial_state()
    )
    np.testing.assert_allclose(mapped[row], alone, atol=1e-5)


def test_a_deterministic_policy_ignores_its_key(lstm, observations):
  acts = lambda policy, seed: policy(
    observations[0], jax.random.PRNGKey(seed), policy.initial_state(4)
  )[0]

  mode, noisy = lstm(deterministic=True), lstm()
  np.testing.assert_array_equal(acts(mode, 0), acts(mode, 1))
  np.testing.assert_array_equal(acts(noisy, 0), acts(noisy, 0))
  assert not np.allclose(acts(noisy, 0), acts(noisy, 1), atol=1e-3)


def _normalized_build(observation_size, action_size, rngs):
  """A memoryless network that stock Brax cannot run."""
  return Sequential(
    [
      Normalizer(observation_size),
      PPOAdapter(
        action=Sequential(
          [Dense(3, 2 * action_size, rngs), NormalTanhSampler(rngs)]
        ),
        value=Dense(3, 1, rngs),
      ),
    ]
  )


@pytest.mark.parametrize(
  ('networks', 'stateful'),
  [
    (small_runs.small_lstm((3,), 2), True),
    (ppo_networks.make_network_factory(_normalized_build)((3,), 2), False),
  ],
  ids=['with memory', 'with statistics'],
)
def test_extras_have_what_those_of_brax_have(networks, stateful, observations):
  size: Any = (3,)
  stock: Any = brax_networks.make_ppo_networks(size, 2)
  stock_params = (
    _params(networks)[0],
    stock.policy_network.init(jax.random.PRNGKey(0)),
    stock.value_network.init(jax.random.PRNGKey(0)),
  )
  key = jax.random.PRNGKey(0)
  make_stock: Any = brax_networks.make_inference_fn(stock, compute_value=True)
  _, expected = make_stock(stock_params)(observations[0], key)

  policy = ppo_networks.make_inference_fn(networks)(_params(networks))
  state = (policy.initial_state(4),) if stateful else ()
  _, extras = policy(observations[0], key, *state)

  assert ('state' in extras) == stateful
  for name, value in expected.items():
    assert name in extras
    assert extras[name].shape == value.shape


@pytest.mark.parametrize('deterministic', [False, True])
def test_a_plain_network_acts_as_stock_brax_lets_it(
  observations, deterministic
):
  networks: Any = small_runs.small_mlp((3,), 2)
  params, key = _params(networks), jax.random.PRNGKey(5)
  ours, stock = (
    module.make_inference_fn(networks)(params, deterministic)
    for module in (ppo_networks, brax_networks)
  )

  # Leading axes are free, as in Brax.
  for observation in (observations, observations[0], observations[0, 0]):
    (action, extras), (expected, expected_extras) = (
      policy(observation, key) for policy in (ours, stock)
    )
    np.testing.assert_array_equal(action, expected)
    assert extras.keys() == expected_extras.keys()
  # And as our own step does, which acts in training.
  functions = networks.functions
  variables = functions.variables(*params[1:])
  out = functions.step(
    variables,
    params[0],
    functions.initial_state(variables, 4),
    observations[0],
    key,
    deterministic=deterministic,
  )
  np.testing.assert_allclose(
    out.action, stock(observations[0], key)[0], atol=1e-6
  )


@pytest.fixture(scope='module')
def normalized():
  """A network that has seen observations around 1000, with its parameters."""
  networks = ppo_networks.make_network_factory(_normalized_build)((3,), 2)
  params = _params(networks)
  functions: Any = networks.functions
  variables = functions.variables(*params[1:])
  seen = 1e3 + jax.random.normal(jax.random.PRNGKey(7), (50, 4, 3))
  out = jax.vmap(
    lambda x: functions.step(
      variables,
      None,
      functions.initial_state(variables, 4),
      x,
      jax.random.PRNGKey(0),
    )
  )(seen)
  variables = functions.update_statistics(variables, out.extras, None)
  return networks, (params[0], *variables.inference_params()), params, seen


@pytest.mark.parametrize('leading', [(), (4,), (2, 4)])
def test_a_policy_applies_embedded_statistics(normalized, leading):
  networks, params, initial, seen = normalized
  make_policy = ppo_networks.make_inference_fn(networks)
  observation = {0: seen[0, 0], 1: seen[0], 2: seen[:2]}[len(leading)]
  key = jax.random.PRNGKey(0)

  action, _ = make_policy(params, deterministic=True)(observation, key)

  # tanh of the location, a linear map of the standardized observation.
  data = np.asarray(seen, np.float64).reshape((-1, 3))
  x = (np.asarray(observation, np.float64) - data.mean(axis=0)) / data.std(
    axis=0
  )
  leaves = jax.tree.leaves(params[1]['params'])
  bias, kernel = sorted(leaves, key=lambda leaf: leaf.ndim)
  expected = np.tanh((x @ kernel + bias)[..., :2])
  assert action.shape == (*leading, 2)
  np.testing.assert_allclose(action, expected, atol=1e-3)
  other, _ = make_policy(initial, deterministic=True)(observation, key)
  assert not np.allclose(other, expected, atol=1e-1)


def test_a_count_is_the_number_of_steps_since_the_reset():
  networks = ppo_networks.make_network_factory(fakes.count_network)((2,), 1)
  policy = ppo_networks.make_inference_fn(networks)(_params(networks))
  state, counts = policy.initial_state(2), []

  for done in ([0, 0], [0, 1], [0, 0], [1, 0]):
    action, extras = policy(jnp.zeros((2, 2)), jax.random.PRNGKey(0), state)
    counts.append(action[:, 0].tolist())
    state = policy.reset(extras['state'], jnp.array(done))
  assert counts == [[0, 0], [1, 1], [2, 0], [3, 1]]
