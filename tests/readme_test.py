"""What the README shows works."""

import inspect
import json
import re
import shlex
import sys
import types
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from mujoco_playground import registry
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import numpy_policy
from brax_nnx_plugin.ppo import playing
from brax_nnx_plugin.ppo import train as ppo
import launchers
from launchers import benchmark
from launchers import compare_options
from launchers import compare_plan
from launchers import configs
from launchers import description
from launchers import options
from launchers import play_options
from launchers import scenes
from tests import readme_text
from tests import saved_policies
from tests import small_runs


def _python_block(text: str) -> str:
  (block,) = [b for b in readme_text.blocks('python') if text in b]
  return block


@pytest.mark.parametrize('command', readme_text.commands('brax-nnx-train'))
def test_training_commands_are_understood(command, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'runs' / 'NAME').mkdir(parents=True)
  described = description.describe(configs.resolve({}, has_gpu=False))
  (tmp_path / 'runs' / 'NAME' / 'config.json').write_text(json.dumps(described))
  parsed = options.parse(shlex.split(command)[1:])
  if not parsed.get('help'):
    config = configs.resolve(parsed, has_gpu=False)
    assert config.network == parsed.get('network', config.network)


@pytest.mark.parametrize('command', readme_text.commands('brax-nnx-play'))
def test_playing_commands_are_understood(command):
  parsed = play_options.parse(shlex.split(command)[1:])
  assert parsed['load_checkpoint_path'] == 'runs/NAME'


@pytest.mark.parametrize('command', readme_text.commands('brax-nnx-compare'))
def test_comparisons_are_understood(command):
  request, _ = compare_options.parse(shlex.split(command)[1:])
  assert request is not None
  for run in compare_plan.runs(request):
    configs.resolve(options.parse(run.flags), has_gpu=False)


@pytest.mark.parametrize('command', readme_text.commands('brax-nnx-benchmark'))
def test_benchmark_commands_are_understood(command):
  names = re.findall(r'--(\w+)=', command)
  assert all(f"'{name}'" in inspect.getsource(benchmark) for name in names)


def test_there_are_commands_to_test():
  assert readme_text.commands('brax-nnx-train')
  assert readme_text.commands('brax-nnx-play')
  assert readme_text.commands('brax-nnx-benchmark')
  assert readme_text.commands('brax-nnx-compare')


def test_own_network_can_be_built_and_acts():
  scope: dict[str, Any] = {'ppo_networks': ppo_networks}
  exec(_python_block('def build('), scope)  # noqa: S102
  networks = scope['network_factory']((3,), 2)
  variables = networks.functions.init(jax.random.key(0), jax.random.key(1))
  make_policy = ppo_networks.make_inference_fn(networks)
  policy = make_policy((None, *variables.inference_params()))
  scope = {
    'make_policy': lambda params, deterministic: policy,
    'params': None,
    'observation': jnp.ones((8, 3)),
    'key': jax.random.key(0),
    'done': jnp.zeros(8),
  }
  exec(_python_block('policy.initial_state(batch'), scope)  # noqa: S102
  assert scope['action'].shape == (8, 2)


def test_a_network_of_nnx_ppo_is_built_by_its_names():
  scope: dict[str, Any] = {'ppo_networks': ppo_networks}
  exec(_python_block('def build_actor_critic('), scope)  # noqa: S102
  networks = scope['network_factory']((3,), 2)
  variables = networks.functions.init(jax.random.key(0), jax.random.key(1))
  make_policy = ppo_networks.make_inference_fn(networks)
  policy = make_policy((None, *variables.inference_params()))
  action, _ = policy(jnp.ones((8, 3)), jax.random.key(2))
  assert action.shape == (8, 2)


def test_a_policy_is_played_and_exported(tmp_path, monkeypatch):
  size, factory = (2,), small_runs.small_lstm
  networks = factory(size, 1)
  params = saved_policies.measured_params(networks, size)
  config = checkpoint.network_config(
    factory, size, 1, False, std_eps=0.0, mode='welford'
  )
  checkpoint.save(tmp_path / 'runs' / 'NAME' / 'checkpoints', 7, params, config)
  monkeypatch.chdir(tmp_path)
  env: Any = small_runs.PointEnv()
  env.render, env.dt = len, 0.05
  step = checkpoint.find('runs/NAME')
  networks, params = checkpoint.load(step)
  scene = scenes.Scene(
    env=env,
    env_name='point',
    suite='brax',
    hidden=(),
    episode_length=500,
    action_repeat=2,
    path=step,
    network='lstm',
    networks=networks,
    params=params,
  )
  monkeypatch.setattr(scenes, 'load', lambda path: scene)
  rollout, repeats = playing.rollout, []

  def spied(*args, **options):
    repeats.append(options['action_repeat'])
    return rollout(*args, **options)

  monkeypatch.setattr(playing, 'rollout', spied)
  # As it is called where it is installed.
  monkeypatch.setitem(sys.modules, 'brax_nnx_launchers', launchers)
  scope: dict[str, Any] = {}
  exec(_python_block('playing.rollout'), scope)  # noqa: S102
  assert scope['frames'] == 500
  assert repeats == [2]
  robot = numpy_policy.load('exported')
  assert robot.control_period == 2 * 0.05
  observation = np.asarray(scope['observation'], np.float32)
  action, _ = robot.step(observation, robot.initial_state())
  # The block has taken the same step, by JAX.
  np.testing.assert_allclose(action, scope['action'], atol=1e-6)


def test_a_layer_of_ones_own_keeps_the_laws():
  scope: dict[str, Any] = {}
  exec(_python_block('class LeakyIntegrator'), scope)  # noqa: S102
  with pytest.raises(AssertionError, match='reset'):
    scope['LeakyIntegrator'].reset_state = lambda self, state: state
    scope['check_module'](lambda rngs: scope['LeakyIntegrator'](3, rngs), 3)


def test_a_graph_is_drawn_and_looked_into(capsys):
  scope: dict[str, Any] = {'nnx': nnx, 'jnp': jnp, 'LSTM': networks.LSTM}
  exec(_python_block('def make_graph('), scope)  # noqa: S102
  assert 'digraph' in capsys.readouterr().out
  exec(_python_block('extract_activations'), scope)  # noqa: S102
  assert scope['activations']['cortex'].shape == (1, 32)


def test_the_call_of_train_has_arguments_that_train_takes(monkeypatch):
  calls = []
  monkeypatch.setattr(
    ppo, 'train', lambda **kwargs: calls.append(kwargs) or (None,) * 3
  )
  monkeypatch.setattr(registry, 'load', lambda name: types.SimpleNamespace())
  exec(_python_block('make_recurrent_ppo_networks'), {})  # noqa: S102
  monkeypatch.undo()
  bound = inspect.signature(ppo.train).bind(**calls[0])
  assert 'network_factory' in bound.arguments
