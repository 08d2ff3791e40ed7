"""`train` as a whole: its signature, its callbacks, its errors."""

import inspect
from typing import Any

from brax import envs
from brax.training.agents.ppo import networks as brax_networks
from brax.training.agents.ppo import train as brax_train
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import train as ppo_train
from tests import fakes
from tests import small_runs

_CALLBACKS = ('progress_fn', 'policy_params_fn')


def test_the_signature_is_that_of_brax():
  ours, stock = (
    inspect.signature(module.train).parameters
    for module in (ppo_train, brax_train)
  )

  assert [(p.name, p.kind) for p in ours.values()] == [
    (p.name, p.kind) for p in stock.values()
  ]
  for name in stock.keys() - {'network_factory', *_CALLBACKS}:
    assert ours[name].default == stock[name].default, name
    assert type(ours[name].default) is type(stock[name].default), name


def test_the_default_network_is_the_twin_of_the_default_of_brax():
  ours, stock = (
    inspect.signature(module.train).parameters['network_factory'].default
    for module in (ppo_train, brax_train)
  )

  assert stock is brax_networks.make_ppo_networks
  assert ours is ppo_networks.make_ppo_networks


@pytest.mark.parametrize('name', _CALLBACKS)
def test_a_default_callback_takes_anything_and_does_nothing(name):
  callback = inspect.signature(ppo_train.train).parameters[name].default

  assert callback(1, {}) is None
  assert callback(1, None, ()) is None


class _NeverRun(envs.Env):
  """An environment that must not be traced, let alone compiled."""

  action_size: Any = 1
  observation_size: Any = 2
  backend: Any = 'none'

  def reset(self, rng):
    raise AssertionError('reset was traced')

  def step(self, state, action):
    raise AssertionError('step was traced')


@pytest.mark.parametrize(
  ('overrides', 'numbers'),
  [
    ({'num_envs': 6}, '4 .* 2 .* 8 .* 6'),
    ({'num_envs': 1, 'max_devices_per_host': 2}, '1 .* 4 .* 2 devices'),
    ({'batch_size': 5, 'num_envs': 2, 'max_devices_per_host': 2}, '5.* 2 dev'),
    ({'vision': True, 'action_repeat': 2}, 'vision.* 1.* 2'),
    ({'use_distributional_critic': True}, 'clipping_epsilon_value'),
    ({'learning_rate_schedule': 'LINEAR'}, 'LINEAR'),
    ({'max_devices_per_host': 0}, 'max_devices_per_host'),
  ],
)
def test_mistakes_are_reported_before_anything_is_traced(
  compilation_count, overrides, numbers
):
  before = compilation_count[0]

  with pytest.raises(ValueError, match=numbers):
    small_runs.small_train(environment=_NeverRun(), **overrides)

  assert compilation_count[0] == before


class _Resettable(small_runs.PointEnv):
  """May be reset, but must not be stepped."""

  def step(self, state, action):
    raise AssertionError('step was traced')


def _wrong_action_size(observation_size, action_size, rngs):
  del observation_size, action_size
  return PPOAdapter(fakes.PlainSampler(), Dense(2, 1, rngs))


@pytest.mark.parametrize(
  ('overrides', 'message'),
  [
    (
      {
        'network_factory': ppo_networks.make_network_factory(_wrong_action_size)
      },
      'actions of size 2, but the environment takes 1',
    ),
    ({'network_factory': lambda *args, **kwargs: None}, 'make_network_factory'),
    (
      {'wrap_env': False, 'episode_length': None, 'run_evals': True},
      'episode_length must be given to evaluate',
    ),
  ],
)
def test_networks_and_evaluations_that_do_not_fit_are_reported_before_a_step(
  overrides, message
):
  env = envs.training.wrap(_Resettable(), episode_length=8)
  if overrides.get('wrap_env', True):
    env = _Resettable()

  with pytest.raises((ValueError, TypeError), match=message):
    small_runs.small_train(environment=env, **overrides)


@pytest.mark.slow
@pytest.mark.parametrize('device_count', [1, 2])
def test_jax_is_not_patched_and_parameters_have_no_device_axis(device_count):
  had_it = hasattr(jax, 'device_put_replicated')

  _, params, _ = small_runs.small_train(
    num_timesteps=small_runs.STEP, max_devices_per_host=device_count
  )

  assert hasattr(jax, 'device_put_replicated') == had_it
  networks = small_runs.small_mlp((2,), 1)
  fresh = jax.eval_shape(
    networks.functions.init, jax.random.key(0), jax.random.key(0)
  )
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  assert shapes(params[1:]) == shapes(fresh.inference_params())


@pytest.mark.slow
@pytest.mark.parametrize(
  ('device_count', 'num_resets'), [(1, 0), (2, 0), (2, 1)]
)
def test_nothing_compiles_after_the_first_epoch(
  compilation_count, device_count, num_resets
):
  counts = []

  small_runs.small_train(
    num_timesteps=4 * small_runs.STEP,
    num_evals=5,
    num_resets_per_eval=num_resets,
    run_evals=True,
    max_devices_per_host=device_count,
    network_factory=small_runs.small_lstm,
    progress_fn=lambda *_: counts.append(compilation_count[0]),
  )

  assert len(counts) == 5
  # The first report comes before training, the second after one epoch.
  assert counts[1] > counts[0]
  assert counts[1:] == [counts[1]] * 4


def test_the_policy_callback_gets_what_it_needs_to_act():
  calls = []
  small_runs.small_train(
    num_timesteps=small_runs.STEP,
    network_factory=small_runs.small_lstm,
    max_devices_per_host=2,
    policy_params_fn=lambda *args: calls.append(args),
  )

  assert [step for step, _, _ in calls] == [0, small_runs.STEP]
  for _, make_policy, params in calls:
    assert len(params) == 3
    for leaf in jax.tree.leaves(params):
      assert np.isfinite(np.asarray(leaf)).all()
    policy = make_policy(params, deterministic=True)
    state = policy.initial_state(3)
    _, extras = policy(jnp.ones((3, 2)), jax.random.PRNGKey(0), state)
    fresh = policy.reset(extras['state'], jnp.ones(3))
    assert small_runs.largest_difference(extras['state'], state) > 0
    assert small_runs.largest_difference(fresh, state) == 0
  assert small_runs.largest_difference(calls[0][2][1], calls[1][2][1]) > 0


def test_the_parameters_returned_are_those_of_the_last_callback(lstm_result):
  seen = []
  _, params, _ = small_runs.small_train(
    num_timesteps=small_runs.STEP,
    network_factory=small_runs.small_lstm,
    policy_params_fn=lambda step, make_policy, p: seen.append(p),
  )

  assert small_runs.largest_difference(seen[-1], params) == 0
  # A run is a function of its seed.
  assert small_runs.largest_difference(lstm_result[1], params) == 0


@pytest.mark.slow
def test_a_batched_environment_is_trained_as_it_is():
  reports = []
  _, params, _ = small_runs.small_train(
    environment=fakes.ScriptEnv([[1, 3], [], [2], [0]]),
    wrap_env=False,
    episode_length=None,
    num_timesteps=small_runs.STEP,
    log_training_metrics=True,
    progress_fn=lambda step, metrics: reports.append((step, metrics)),
  )
  jax.effects_barrier()

  episodes = [m for _, m in reports if 'episode/length' in m]
  # Two segments of 4 steps of the script: rows 0, 2 and 3 end episodes, of
  # lengths 2 and 2, 3, and 1. The reward is 1 a step.
  assert episodes[0]['episode/length'] == 2
  assert episodes[0]['episode/sum_reward'] == 2
  assert 'episode/policy_loss' in episodes[0]
  initial = small_runs.small_train(num_timesteps=0)[1]
  assert small_runs.largest_difference(initial[1:], params[1:]) > 0


def test_two_normalizers_are_warned_of():
  with pytest.warns(UserWarning, match='normalized twice'):
    small_runs.small_train(
      num_timesteps=0,
      normalize_observations=True,
      network_factory=lambda *args, **kwargs: small_runs.small_mlp(
        *args, normalize_inputs=True, **kwargs
      ),
    )


def test_no_evaluations_report_nothing_but_train():
  reports = []
  _, params, metrics = small_runs.small_train(
    num_evals=0,
    run_evals=True,
    num_timesteps=small_runs.STEP,
    progress_fn=lambda *args: reports.append(args),
  )

  assert reports == []
  assert metrics == {}
  initial = small_runs.small_train(num_timesteps=0)[1]
  assert small_runs.largest_difference(initial[1:], params[1:]) > 0


@pytest.mark.slow
def test_a_late_check_that_fails_costs_nothing(monkeypatch, tmp_path):
  # Training starts from equal replicas; that is another check.
  answers = iter([[], ['.variables']])
  monkeypatch.setattr(
    ppo_train.devices, 'drifted_leaves', lambda tree: next(answers)
  )
  logged = []
  monkeypatch.setattr(
    ppo_train.logging, 'error', lambda text, *args: logged.append(text % args)
  )

  _, params, _ = small_runs.small_train(
    num_timesteps=small_runs.STEP, save_checkpoint_path=tmp_path
  )

  assert logged == ['The devices disagree about .variables.']
  assert (
    small_runs.largest_difference(checkpoint.load(tmp_path)[1], params) == 0
  )
