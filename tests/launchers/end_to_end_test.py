"""The program as a process of its own, and the policy it leaves."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import numpy_policy
from launchers import configs
from launchers import episodes
from launchers import options
from launchers import scenes
from launchers import train_ppo
from tests import played_runs

_ROOT = pathlib.Path(train_ppo.__file__).parents[1]

_TINY = [
  '--num_envs=4',
  '--batch_size=4',
  '--num_minibatches=1',
  '--unroll_length=5',
  '--num_timesteps=40',
  '--num_evals=2',
  '--num_resets_per_eval=0',
  '--num_eval_envs=2',
  '--episode_length=20',
  '--policy_hidden_layer_sizes=8,8',
  '--value_hidden_layer_sizes=8,8',
  '--memory_size=8',
]


def _python(*arguments, **kwargs):
  return subprocess.run(
    [sys.executable, *arguments],
    env=os.environ | {'PYTHONPATH': str(_ROOT)} | kwargs.pop('env', {}),
    capture_output=True,
    text=True,
    check=False,
    **kwargs,
  )


@pytest.mark.slow
def test_import_under_the_installed_name_has_no_side_effects(tmp_path):
  (tmp_path / 'brax_nnx_launchers').symlink_to(_ROOT / 'launchers')
  code = """
import os, sys
from absl import flags
import matplotlib
before = dict(os.environ), {*flags.FLAGS}, dict(matplotlib.rcParams)
from brax_nnx_launchers import train_ppo
import mujoco_playground
assert dict(os.environ) == before[0]
assert 'num_envs' not in flags.FLAGS
assert dict(matplotlib.rcParams) == before[2]
sys.argv = ['brax-nnx-train', '--num_enfs=3']
train_ppo.run()
"""
  path = os.pathsep.join([str(tmp_path), str(_ROOT)])
  done = _python('-c', code, env={'PYTHONPATH': path}, cwd=tmp_path)
  assert done.returncode == 2
  assert done.stdout == ''
  (line,) = done.stderr.splitlines()
  assert 'num_envs' in line


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """Returns what the program said, and the folder it left."""
  logdir = tmp_path_factory.mktemp('runs')
  arguments = [f'--logdir={logdir}', '--export', *_TINY]
  done = _python('-m', 'launchers.train_ppo', *arguments, cwd=logdir)
  assert done.returncode == 0, done.stderr
  (folder,) = logdir.iterdir()
  return done, folder


@pytest.mark.slow
def test_run_leaves_everything_behind(finished):
  done, folder = finished
  assert 'Traceback' not in done.stderr
  assert 'Warning' not in done.stderr
  assert str(folder) in done.stdout
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['env_steps'] for line in lines] == [0, 40]
  reward = json.loads(lines[-1])['eval/episode_reward']
  assert f'{reward:.4g}' in done.stdout
  assert (folder / 'reward.png').read_bytes().startswith(b'\x89PNG')
  steps = [path.name for path in (folder / 'checkpoints').iterdir()]
  assert steps == ['000000000040']
  config = json.loads((folder / 'config.json').read_text())
  assert config['ppo']['num_envs'] == 4
  assert config['network']['arguments']['policy_memory_size'] == 8


@pytest.fixture(scope='module')
def trained_here(tmp_path_factory):
  """Returns what the trainer returns.

  A run is a function of its seed: trained again here, it is the same.
  """
  config = configs.resolve(options.parse(_TINY), has_gpu=False)
  session = train_ppo.Session(str(tmp_path_factory.mktemp('again')))
  make_policy, params, _ = train_ppo.train(config, session)
  return make_policy, params


@pytest.mark.slow
def test_policy_of_the_run_acts_as_the_trainers(finished, trained_here):
  make_policy, params = trained_here
  trained = make_policy(params, deterministic=True)
  loaded = checkpoint.load_policy(finished[1])
  robot = numpy_policy.load(finished[1] / 'exported')
  memory = robot.initial_state()
  zeros = jax.tree.map(jnp.zeros_like, params)
  states = [trained.initial_state(3), loaded.initial_state(3)]
  untrained = make_policy(zeros, deterministic=True)
  for t in range(4):
    key = jax.random.PRNGKey(t)
    observation = jax.random.normal(key, (3, 3))
    action, extras = trained(observation, key, states[0])
    other, other_extras = loaded(observation, key, states[1])
    np.testing.assert_allclose(other, action, rtol=0, atol=1e-6)
    numbers, memory = robot.step(np.asarray(observation[1]), memory)
    np.testing.assert_allclose(numbers, action[1], rtol=0, atol=1e-5)
    memory = robot.reset(memory) if t == 1 else memory
    zero, _ = untrained(observation, key, untrained.initial_state(3))
    assert np.abs(np.asarray(action - zero)).max() > 1e-3
    done = jnp.array([0.0, t == 1, 0.0])
    states = [
      trained.reset(extras['state'], done),
      loaded.reset(other_extras['state'], done),
    ]


@pytest.mark.slow
def test_what_is_played_acts_as_the_trainers(finished, trained_here, capsys):
  make_policy, params = trained_here
  flags = ['--play_only', f'--load_checkpoint_path={finished[1]}']

  assert train_ppo.main(['brax-nnx-train', *flags, '--num_eval_envs=2']) == 0

  scene = scenes.load(finished[1])
  played = episodes.play(scene, 2, keep_states=True)
  assert episodes.table(played) in capsys.readouterr().out
  assert played.lengths.tolist() == [20, 20]
  expected = played_runs.actions_along(
    make_policy(params, deterministic=True), played.states[:5]
  )
  np.testing.assert_allclose(played.actions[:5, 0], expected, atol=1e-5)
  assert np.abs(expected).max() > 1e-3
