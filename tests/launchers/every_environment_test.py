"""Every environment of every suite, by the program that users call."""

import json
from typing import Any

from brax import envs
import jax
import mujoco_playground
import pytest

from launchers import environments
from launchers import train_ppo
from tests.launchers import stand_in_models

_TINY = [
  '--num_envs=2',
  '--batch_size=2',
  '--num_minibatches=1',
  '--num_updates_per_batch=1',
  '--unroll_length=2',
  '--num_timesteps=8',
  '--num_evals=1',
  '--norun_evals',
  '--num_resets_per_eval=0',
  '--episode_length=4',
  '--action_repeat=1',
  '--network=lstm',
  '--set=network.hidden=4',
]
# They call functions as older versions of JAX had them.
_CANNOT_BE_STEPPED = ('LeapCubeReorient', 'PandaRobotiqPushCube', 'swimmer')
_DOWNLOADED = (
  *mujoco_playground.locomotion.ALL_ENVS,
  *mujoco_playground.manipulation.ALL_ENVS,
)


def _main(*arguments: str) -> int:
  return train_ppo.main(['brax-nnx-train', *arguments])


@pytest.fixture
def models(monkeypatch, tmp_path_factory):
  """Lets environments be made whose models would have to be downloaded."""
  stand_in_models.install(monkeypatch, tmp_path_factory.mktemp('models'))


@pytest.fixture
def traced_once(monkeypatch):
  """Traces a reset once where it is asked for its shapes twice."""
  load = environments.load

  def load_jitted(*args):
    env = load(*args)
    env.reset = jax.jit(env.reset)
    return env

  monkeypatch.setattr(environments, 'load', load_jitted)


def _check_dry_run(
  capsys: Any, tmp_path: Any, env_name: str, *arguments: str
) -> None:
  arguments = (f'--env_name={env_name}', *arguments)
  code = _main('--dry_run', f'--logdir={tmp_path}/runs', *arguments)
  out, err = capsys.readouterr()
  steps = env_name not in _CANNOT_BE_STEPPED
  assert ('fails in its own step()' in err) is not steps
  assert code == (0 if steps else 2)
  shown, end = json.JSONDecoder().raw_decode(out)
  assert f'--env_name={shown["environment"]["name"]}' in arguments
  assert 'NormalTanhSampler' in out[end:] or 'NormalSampler' in out[end:]
  assert 'env steps' in out[end:]
  assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
  'env_name', mujoco_playground.dm_control_suite.ALL_ENVS
)
def test_dry_run_of_dm_control(env_name, capsys, tmp_path, traced_once):
  _check_dry_run(capsys, tmp_path, env_name)


@pytest.mark.slow
@pytest.mark.parametrize('env_name', sorted(envs._envs))
def test_dry_run_of_brax(env_name, capsys, tmp_path, traced_once):
  _check_dry_run(capsys, tmp_path, env_name, '--suite=brax')


@pytest.mark.slow
@pytest.mark.parametrize('env_name', _DOWNLOADED)
def test_dry_run_with_stand_ins_for_meshes(
  env_name, capsys, tmp_path, models, traced_once
):
  _check_dry_run(capsys, tmp_path, env_name)


@pytest.mark.slow
@pytest.mark.parametrize(
  'arguments',
  [
    ['--env_name=CartpoleBalance'],
    ['--env_name=H1InplaceGaitTracking'],
    ['--env_name=AeroCubeRotateZAxis'],
    [
      '--suite=brax',
      '--env_name=inverted_pendulum',
      '--set=env.backend=spring',
    ],
  ],
)
def test_an_lstm_trains_in_each_suite(arguments, tmp_path, models):
  assert _main(f'--logdir={tmp_path}', *arguments, *_TINY) == 0
  (folder,) = tmp_path.iterdir()
  # Two training steps of two segments of two steps.
  steps = [path.name for path in (folder / 'checkpoints').iterdir()]
  assert steps == ['000000000008']
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  metrics = json.loads(lines[-1])
  assert metrics['env_steps'] == 8
  assert metrics['training/total_loss'] is not None
  config = json.loads((folder / 'config.json').read_text())
  assert f'--env_name={config["environment"]["name"]}' in arguments
  assert config['network']['arguments']['cell'] == 'lstm'
