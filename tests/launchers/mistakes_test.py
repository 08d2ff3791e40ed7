"""Mistakes on the command line: one sentence each, before anything compiles."""

import sys

import pytest

from launchers import train_ppo


def _main(*arguments):
  return train_ppo.main(['brax-nnx-train', *arguments])


_MISTAKES = [
  ('--env_name=walkerwalk', ["'walkerwalk'", 'WalkerWalk']),
  ('--env_name=CartPole', ["'CartPole'", 'Cartpole']),
  ('--network=ltsm', ['ltsm', 'lstm']),
  ('--network=nowhere:build', ['--network=', 'nowhere', 'cannot be imported']),
  ('--network=json:dumps', ['cannot be made', 'dumps() takes']),
  ('--impl=wrap', ['wrap', 'warp']),
  ('--num_env=4', ['num_env', 'num_envs']),
  ('--num_envs=four', ['four', 'int']),
  ('--num_envs=0', ['num_envs=0', 'positive']),
  ('--num_timesteps=0', ['num_timesteps=0', 'positive']),
  ('--policy_hidden_layer_sizes=a', ['policy_hidden_layer_sizes=a']),
  ('extra', ["'extra'", 'not a flag']),
  ('--playground_config_overrides={ctrl_dt: 1}', ['is not JSON']),
  ('--playground_config_overrides=[1]', ['JSON object', '[1]']),
  (
    '--playground_config_overrides={"control_dt": 1}',
    ["'control_dt'", 'ctrl_dt'],
  ),
  (
    '--playground_config_overrides={"vision_config": {"world": 1}}',
    ["'vision_config.world'", 'vision_config.nworld'],
  ),
  (
    '--playground_config_overrides={"ctrl_dt": "fast"}',
    ["'ctrl_dt'", 'float', "'fast'"],
  ),
  ('--playground_config_overrides={"ctrl_dt": null}', ['cannot be made']),
  ('--playground_config_overrides={"ctrl_dt": 0.001}', ['Nothing would move']),
  (
    '--impl=warp --playground_config_overrides={"impl":"jax"}',
    ['--impl=warp', 'contradicts'],
  ),
  ('--hide_observations=x', ["'x'", '3:5']),
  ('--hide_observations=7', ['Observation 7', 'from 0 to 4']),
  ('--hide_observations=0:5', ['All 5 observations']),
  ('--network=mlp --memory_size=8', ['--memory_size', '--network=mlp']),
  ('--domain_randomization', ['hide_observations', 'domain_randomization']),
  (
    '--domain_randomization --hide_observations=',
    ['CartpoleBalance has no domain randomizer'],
  ),
  ('--batch_size=65', ['batch_size = 64', 'num_envs = 128']),
  ('--num_envs=127 --batch_size=127', ['num_envs = 127', 'devices']),
  ('--episode_length=10 --action_repeat=3', ['multiple of action_repeat']),
  ('--discounting=1.5', ['discounting', '1.5']),
  ('--suffix=a/b', ['--suffix=a/b']),
  ('--set=ppo.lambda=0.9', ['ppo.lambda', 'gae_lambda']),
  ('--wandb_project=x', ['--wandb_project', 'without --use_wandb']),
  ('--config=nowhere', ['--config=nowhere', 'No such file']),
  ('--flagfile=nowhere', ['nowhere']),
  ('--seed=-1', ['seed=-1', 'non-negative']),
  ('--dry_run=perhaps', ['dry_run', 'perhaps']),
  ('--set=ppo.seed', ['--set ppo.seed', 'ppo.learning_rate=3e-4']),
  ('--set=physics.dt=1', ['physics.dt=1', 'env.ctrl_dt=0.02']),
  ('--set=env.impl=wrap', ['CartpoleBalance cannot be made', 'wrap']),
  ('--set=network.activation=swich', ['network cannot be made', 'swich']),
  ('--network=package_that_is_missing.nets:build', ['cannot be imported']),
  ('--suite=gym', ['--suite=gym', 'playground|brax']),
  ('--suite=brax', ['needs --env_name', 'halfcheetah']),
  ('--env_name=ant', ['--suite=brax']),
  ('--suite=brax --env_name=Ant', ["'Ant'", 'nearest are ant']),
  ('--suite=brax --env_name=WalkerWalk', ['WalkerWalk', '--suite=playground']),
  ('--suite=brax --env_name=ant --impl=jax', ['--impl', 'env.backend']),
  (
    '--suite=brax --env_name=ant --playground_config_overrides={"a":1}',
    ['--playground_config_overrides', '--set env.'],
  ),
  ('--suite=brax --env_name=ant --domain_randomization', ['no domain random']),
  ('--suite=brax --env_name=ant --set=env.backend=x', ['spring', 'mjx']),
  ('--suite=brax --env_name=fast --hide_observations=2', ['Observation 2']),
  ('--hide_observations=0:9999999999', ["'0:9999999999'", 'too long']),
  (f'--set=ppo.num_timesteps=1{"0" * 400}', ['num_timesteps']),
  (f'--num_timesteps=1{"0" * 18}', ['num_timesteps', 'num_evals']),
  ('--set=ppo.max_devices_per_host=0', ['max_devices_per_host', 'got 0']),
  (
    '--set=network.policy_hidden_layer_sizes=[64.5]',
    ['network.policy_hidden_layer_sizes', '64.5'],
  ),
  ('--set=network.value_hidden_layer_sizes=[0]', ['at least 1 unit']),
  ('--set=network.policy_memory_size=0', ['at least 1 unit']),
  (
    '--network=tests.launchers.faulty_networks:raises',
    ['KeyError', 'faulty_networks.py', 'line'],
  ),
  ('--network=tests.launchers.faulty_networks:fails', ['RuntimeError', 'off']),
  ('--network=tests.launchers.faulty_networks:nothing', ['returned a NoneT']),
  ('--network=tests.launchers.faulty_exit:build', ['SystemExit']),
]


@pytest.mark.parametrize(('arguments', 'words'), _MISTAKES)
def test_a_mistake_is_one_line_before_anything_compiles(
  tmp_path, capsys, fake_train, arguments, words
):
  def train(*args, **kwargs):
    raise AssertionError('training began')

  fake_train(train)
  arguments = (
    [arguments]
    if arguments.startswith('--playground')
    else arguments.split(' ')
  )
  assert _main(f'--logdir={tmp_path}/runs', *arguments) == 2
  captured = capsys.readouterr()
  (line,) = captured.err.splitlines()
  assert line.startswith('brax-nnx-train: ')
  for word in words:
    assert word in line
  assert captured.out == ''
  assert not (tmp_path / 'runs').exists()


def test_a_package_that_is_missing_is_told(
  tmp_path, capsys, fake_train, monkeypatch
):
  fake_train(lambda *args, **kwargs: pytest.fail('training began'))
  monkeypatch.setitem(sys.modules, 'wandb', None)
  assert _main(f'--logdir={tmp_path}/runs', '--use_wandb') == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert '--use_wandb needs the package wandb' in line
  assert 'pip install wandb' in line
  assert not (tmp_path / 'runs').exists()
