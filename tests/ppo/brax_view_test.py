"""Our networks in the hands of stock Brax."""

import functools
from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import checkpoint as brax_checkpoint
from brax.training.agents.ppo import networks as brax_networks
from brax.training.agents.ppo import train as brax_train
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import Dense
from brax_nnx_plugin.networks import NormalTanhSampler
from brax_nnx_plugin.networks import Parallel
from brax_nnx_plugin.networks import PPOAdapter
from brax_nnx_plugin.networks import Sequential
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import fakes
from tests import small_runs


def _policy(in_features: int, rngs: nnx.Rngs, **sampler: Any) -> Sequential:
  return Sequential(
    [Dense(in_features, 2, rngs), NormalTanhSampler(rngs, **sampler)]
  )


def _shared_trunk(observation_size, action_size, rngs):
  adapter = PPOAdapter(_policy(4, rngs), Dense(4, 1, rngs))
  return Sequential([Dense(2, 4, rngs), adapter])


def _two_samplers(observation_size, action_size, rngs):
  arms = Parallel(left=_policy(2, rngs), right=_policy(2, rngs))
  return PPOAdapter(arms, Dense(2, 1, rngs))


def _own_loss(observation_size, action_size, rngs):
  return PPOAdapter(_policy(2, rngs, entropy_weight=0.5), Dense(2, 1, rngs))


def _normalized(*args: Any, **kwargs: Any) -> Any:
  return small_runs.small_mlp(*args, normalize_inputs=True, **kwargs)


_factory = ppo_networks.make_network_factory
_REFUSED: dict[str, tuple[Any, int, str]] = {
  'memory': (small_runs.small_lstm, 1, 'carries memory'),
  'statistics': (_normalized, 1, 'embedded statistics'),
  'a shared trunk': (_factory(_shared_trunk), 1, 'trunk shared'),
  'two samplers': (_factory(_two_samplers), 2, '2 action samplers'),
  'a sampler of its own': (_factory(fakes.echo_network), 1, 'memory'),
  'a loss of its own': (_factory(_own_loss), 1, 'loss'),
}


def _assert_names_our_functions(error: Any, reason: str) -> None:
  message = str(error.value)
  assert reason in message
  for name in (
    'train.train',
    'networks.make_inference_fn',
    'checkpoint.load_policy',
  ):
    assert f'brax_nnx_plugin.ppo.{name}' in message


@pytest.mark.parametrize('case', _REFUSED)
def test_stock_inference_says_what_to_call_instead(case):
  factory, actions, reason = _REFUSED[case]
  networks: Any = factory((2,), actions)
  params = (None, {}, {})

  assert not networks.brax_compatible
  with pytest.raises(ValueError, match='brax_nnx_plugin') as error:
    policy: Any = brax_networks.make_inference_fn(networks)(params)
    policy(jnp.zeros((3, 2)), jax.random.PRNGKey(0))
  _assert_names_our_functions(error, reason)


@pytest.mark.parametrize('case', ['memory', 'statistics', 'a shared trunk'])
def test_stock_training_says_what_to_call_instead(stock_jax, case):
  factory, _, reason = _REFUSED[case]

  with pytest.raises(ValueError, match='brax_nnx_plugin') as error:
    brax_train.train(**small_runs.arguments(network_factory=factory))
  _assert_names_our_functions(error, reason)


def test_what_is_refused_by_stock_brax_acts_with_ours():
  for factory, actions, _ in _REFUSED.values():
    networks = factory((2,), actions)
    keys = jax.random.split(jax.random.PRNGKey(0))
    params = (None, *networks.functions.init(*keys).inference_params())
    policy = ppo_networks.make_inference_fn(networks)(params)
    state = ()
    if networks.functions.stateful:
      state = (policy.initial_state(3),)
    action, _ = policy(jnp.ones((3, 2)), jax.random.PRNGKey(0), *state)
    assert all(x.shape[0] == 3 for x in jax.tree.leaves(action))


@pytest.fixture(scope='module')
def mlp():
  """A memoryless network with Brax's normalizer, and parameters for it."""
  networks: Any = small_runs.small_mlp(
    {'state': (2,), 'privileged_state': (3,)},
    1,
    preprocess_observations_fn=running_statistics.normalize,
    value_obs_key='privileged_state',
  )
  observation = {
    'state': 5 + jax.random.normal(jax.random.PRNGKey(0), (4, 2)),
    'privileged_state': jax.random.normal(jax.random.PRNGKey(1), (4, 3)),
  }
  statistics = running_statistics.update(
    running_statistics.init_state(
      jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], jnp.float32), observation
      )
    ),
    observation,
  )
  params = (
    statistics,
    networks.policy_network.init(jax.random.PRNGKey(2)),
    networks.value_network.init(jax.random.PRNGKey(3)),
  )
  return networks, params, observation


def _dense(tree: Any) -> list[tuple[Any, Any]]:
  """Returns (kernel, bias) of the layers of one side, first to last."""
  leaves = jax.tree.leaves(tree)
  return list(zip(leaves[1::2], leaves[::2], strict=True))


def test_stock_networks_compute_the_mlp(mlp):
  networks, params, observation = mlp

  for side, key in (('policy', 'state'), ('value', 'privileged_state')):
    x = np.asarray(observation[key])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    (w1, b1), (w2, b2) = _dense(params[1 if side == 'policy' else 2])
    hidden = x @ w1 + b1
    hidden = hidden / (1 + np.exp(-hidden))  # swish
    expected = hidden @ w2 + b2
    network = getattr(networks, f'{side}_network')
    found = network.apply(
      params[0], params[1 if side == 'policy' else 2], observation
    )
    np.testing.assert_allclose(
      found, expected if side == 'policy' else expected[:, 0], atol=1e-5
    )


def test_the_critic_alone_sees_its_entry(mlp):
  networks, params, observation = mlp
  changed = observation | {
    'privileged_state': 9 * observation['privileged_state']
  }

  apply = lambda side, index, x: getattr(networks, side).apply(
    params[0], params[index], x
  )
  np.testing.assert_array_equal(
    apply('policy_network', 1, observation), apply('policy_network', 1, changed)
  )
  assert not np.allclose(
    apply('value_network', 2, observation), apply('value_network', 2, changed)
  )


def test_stock_inference_acts_with_a_memoryless_network(mlp):
  networks, params, observation = mlp
  key = jax.random.PRNGKey(4)
  make_policy: Any = brax_networks.make_inference_fn(networks, True)

  action, extras = make_policy(params)(observation, key)

  dist = networks.parametric_action_distribution
  logits = networks.policy_network.apply(params[0], params[1], observation)
  np.testing.assert_array_equal(action, dist.sample(logits, key))
  assert extras['value'].shape == (4,)
  assert networks.brax_compatible


def test_the_distribution_is_that_of_the_sampler():
  def build(observation_size, action_size, rngs):
    return PPOAdapter(
      _policy(2, rngs, min_std=0.3, std_scale=2.0), Dense(2, 1, rngs)
    )

  networks: Any = _factory(build)((2,), 1)

  # scale = (softplus(0) + min_std) std_scale = (log 2 + 0.3) 2
  dist = networks.parametric_action_distribution.create_dist(jnp.zeros((1, 2)))
  np.testing.assert_allclose(dist.scale, 2 * (np.log(2) + 0.3), rtol=1e-6)


def _loadable(factory: Any, **kwargs: Any) -> Any:
  """Stock Brax cannot load what it saves of an initializer that is None."""
  return functools.partial(
    factory,
    mean_kernel_init_fn=jax.nn.initializers.lecun_uniform,
    **kwargs,
  )


def test_stock_checkpoints_take_a_memoryless_network(tmp_path):
  factory = _loadable(small_runs.small_mlp)
  networks = factory((2,), 1)
  params = (
    running_statistics.init_state(jax.ShapeDtypeStruct((2,), jnp.float32)),
    networks.policy_network.init(jax.random.PRNGKey(2)),
    networks.value_network.init(jax.random.PRNGKey(3)),
  )
  size: Any = (2,)
  config = brax_checkpoint.network_config(size, 1, False, factory)
  brax_checkpoint.save(tmp_path, 7, params, config)

  policy = brax_checkpoint.load_policy(
    tmp_path / '000000000007', ppo_networks.make_ppo_networks
  )

  observation, key = jnp.ones((3, 2)), jax.random.PRNGKey(0)
  expected, _ = ppo_networks.make_inference_fn(networks)(params, True)(
    observation, key
  )
  np.testing.assert_array_equal(policy(observation, key)[0], expected)


@pytest.mark.parametrize('case', ['memory', 'statistics'])
def test_stock_loading_says_what_to_call_instead(tmp_path, case):
  factory, _, reason = _REFUSED[case]
  networks = factory((2,), 1)
  keys = jax.random.split(jax.random.PRNGKey(0))
  spec = jax.ShapeDtypeStruct((2,), jnp.float32)
  params = (
    running_statistics.init_state(spec),
    *networks.functions.init(*keys).inference_params(),
  )
  size: Any = (2,)
  plain: Any = _loadable(small_runs.small_mlp)
  config = brax_checkpoint.network_config(size, 1, False, plain)
  brax_checkpoint.save(tmp_path, 7, params, config)

  anything = lambda *args, **kwargs: networks
  policy = brax_checkpoint.load_policy(tmp_path / f'{7:012d}', anything)
  with pytest.raises(ValueError, match='brax_nnx_plugin') as error:
    policy(jnp.ones((3, 2)), jax.random.PRNGKey(0))
  _assert_names_our_functions(error, reason)


@pytest.mark.slow
def test_stock_training_saves_what_stock_loads(stock_jax, tmp_path):
  # Stock Brax saves sizes in a form that it can read again only for dicts.
  env = small_runs.PointEnv(dict_observations=True)
  make_policy, params, _ = brax_train.train(
    **small_runs.arguments(
      environment=env,
      network_factory=_loadable(
        small_runs.small_mlp, value_obs_key='privileged_state'
      ),
      num_timesteps=small_runs.STEP,
      normalize_observations=True,
      save_checkpoint_path=tmp_path,
    )
  )

  policy = brax_checkpoint.load_policy(
    tmp_path / f'{small_runs.STEP:012d}', ppo_networks.make_ppo_networks
  )

  observation, key = {'state': jnp.ones((3, 2))}, jax.random.PRNGKey(0)
  expected, _ = make_policy(params, deterministic=True)(observation, key)
  np.testing.assert_array_equal(policy(observation, key)[0], expected)
