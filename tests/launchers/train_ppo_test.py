"""The program as users meet it, with training replaced."""

import json

from brax.envs.base import State
import jax.numpy as jnp
import pytest

from brax_nnx_plugin.ppo import guards
from brax_nnx_plugin.ppo.types import TrainingDiverged
from launchers import configs
from launchers import planning
from launchers import train_ppo
from launchers.errors import UserError


def _main(*arguments):
  return train_ppo.main(['brax-nnx-train', *arguments])


def test_a_full_disk_does_not_end_training(tmp_path, capsys, fake_train):
  def train(*args, **kwargs):
    (folder,) = tmp_path.iterdir()
    for name in ('config.json', 'report.html', 'reward.png'):
      (folder / f'{name}.partial').mkdir()
    kwargs['progress_fn'](100, {'eval/episode_reward': 12.5})
    kwargs['progress_fn'](200, {'eval/episode_reward': 13.5})
    return 'make_policy', 'params', {}

  fake_train(train)
  assert _main(f'--logdir={tmp_path}') == 0
  captured = capsys.readouterr()
  assert captured.err.count('WARNING') == 3
  assert 'Done, evaluation reward 13.5' in captured.out


@pytest.mark.parametrize('what', ['write_json', 'Reporter'])
def test_a_run_that_cannot_begin_leaves_nothing(
  tmp_path, capsys, fake_train, monkeypatch, what
):
  fake_train(lambda *args, **kwargs: pytest.fail('training began'))

  def refuse(*args):
    if what == 'Reporter':
      raise UserError('There is no login.')
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(train_ppo.reporting, what, refuse)
  assert _main(f'--logdir={tmp_path}') == 2
  *_, line = capsys.readouterr().err.splitlines()
  assert 'login' in line or f'--logdir={tmp_path}' in line and 'space' in line
  assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('logdir', ['file', 'file/below'])
def test_a_log_folder_that_cannot_be_made_is_told(
  tmp_path, capsys, fake_train, logdir
):
  fake_train(lambda *args, **kwargs: pytest.fail('training began'))
  (tmp_path / 'file').write_text('kept')
  assert _main(f'--logdir={tmp_path / logdir}') == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert '--logdir=' in line
  assert 'cannot be made' in line
  assert (tmp_path / 'file').read_text() == 'kept'


class _DictEnvironment:
  action_size = 1

  def reset(self, rng):
    del rng
    obs = {'state': jnp.zeros(3), 'privileged_state': jnp.zeros(5)}
    return State(None, obs, jnp.zeros(()), jnp.zeros(()))

  def step(self, state, action):
    return state.replace(reward=state.reward + action[0])


class _Old(_DictEnvironment):
  """Written for a JAX that had other functions."""

  def step(self, state, action):
    return state.replace(reward=jnp.clip(action[0], a_max=1.0))


def test_an_environment_that_cannot_be_stepped_is_told():
  arguments = {'environment': _Old(), 'num_timesteps': 1, 'episode_length': 10}
  with pytest.raises(UserError, match=r'its own step\(\), with JAX .*a_max'):
    planning.plan(arguments)


@pytest.mark.parametrize('name', ['policy_obs_key', 'value_obs_key'])
@pytest.mark.parametrize('network', ['mlp', 'lstm'])
def test_an_observation_key_that_is_missing_is_told(name, network):
  arguments = {
    'environment': _DictEnvironment(),
    'num_timesteps': 1,
    'episode_length': 10,
    'num_envs': 2,
  }

  def plan(key):
    config = configs.resolve({'network': network, name: key}, False)
    factory = configs.network_factory(config)
    return planning.plan(arguments | {'network_factory': factory})

  plan('privileged_state')
  with pytest.raises(UserError, match="no observation 'privileged'"):
    plan('privileged')


def test_an_interrupt_is_one_line_and_keeps_the_folder(
  tmp_path, capsys, fake_train
):
  def train(*args, **kwargs):
    raise KeyboardInterrupt

  fake_train(train)
  assert _main(f'--logdir={tmp_path}') == 130
  lines = capsys.readouterr().err.splitlines()
  assert lines[-1].startswith('brax-nnx-train: interrupted')
  assert 'Traceback' not in '\n'.join(lines)
  (folder,) = tmp_path.iterdir()
  assert (folder / 'config.json').exists()


def test_a_run_that_diverges_is_one_line_and_keeps_its_folder(
  tmp_path, capsys, fake_train
):
  def train(*args, **kwargs):
    kwargs['progress_fn'](100, {'eval/episode_reward': 1.0})
    raise TrainingDiverged('training/v_loss', 160, ())

  fake_train(train)
  assert _main(f'--logdir={tmp_path}') == 1
  captured = capsys.readouterr()
  last = captured.err.splitlines()[-1]
  assert last.startswith('brax-nnx-train: training/v_loss is not finite')
  assert '160 env steps' in last
  assert 'Traceback' not in captured.err
  assert 'Done' not in captured.out
  (folder,) = tmp_path.iterdir()
  assert (folder / 'reward.png').exists()
  assert (folder / 'metrics.jsonl').read_text().count('\n') == 1


@pytest.mark.parametrize(
  ('arguments', 'stops'),
  [((), True), (('--stop_on_nan',), True), (('--nostop_on_nan',), False)],
)
def test_numbers_that_are_not_finite_may_be_allowed(
  tmp_path, fake_train, arguments, stops
):
  seen = []

  def train(*args, **kwargs):
    seen.append(guards.active())
    return 'make_policy', 'params', {}

  fake_train(train)
  assert _main(f'--logdir={tmp_path}', *arguments) == 0
  assert seen == [stops]
  assert guards.active()
  (folder,) = tmp_path.iterdir()
  config = json.loads((folder / 'config.json').read_text())
  assert config['stop_on_nan'] is stops


def test_a_fault_of_the_program_keeps_its_traceback(tmp_path, fake_train):
  def train(*args, **kwargs):
    raise ValueError('shapes do not match')

  fake_train(train)
  with pytest.raises(ValueError, match='shapes do not match'):
    _main(f'--logdir={tmp_path}')


def test_help_is_shown_and_is_no_mistake(capsys):
  assert _main('--help') == 0
  assert '--num_envs' in capsys.readouterr().out


@pytest.mark.parametrize('reward', [None, 12.5])
def test_results_are_named_at_the_end(tmp_path, capsys, fake_train, reward):
  calls = []

  def train(*args, **kwargs):
    calls.append(kwargs)
    metrics = {} if reward is None else {'eval/episode_reward': reward}
    kwargs['progress_fn'](100, metrics)
    return 'make_policy', 'params', metrics

  fake_train(train)
  assert _main(f'--logdir={tmp_path}', '--suffix=mine', '--seed=4') == 0
  (folder,) = tmp_path.iterdir()
  assert folder.name.endswith('-mine')
  captured = capsys.readouterr()
  assert 'Compiling' in captured.err.splitlines()[0]
  assert '100 of ' in captured.err
  for name in ('config.json', 'metrics.jsonl', 'report.html', 'checkpoints'):
    assert str(folder / name) in captured.out
  assert (str(folder / 'reward.png') in captured.out) == (reward is not None)
  assert ('12.5' in captured.out) == (reward is not None)
  assert f'load_policy({str(folder)!r})' in captured.out

  (arguments,) = calls
  assert arguments['seed'] == 4
  assert arguments['save_checkpoint_path'] == str(folder / 'checkpoints')
  assert arguments['environment'].observation_size == 3
  assert arguments['eval_env'].observation_size == 3
  assert arguments['num_envs'] == 128
  assert json.loads((folder / 'config.json').read_text())['seed'] == 4


def test_without_a_picture_the_run_is_done_all_the_same(
  tmp_path, capsys, fake_train
):
  def train(*args, **kwargs):
    (tmp_path / 'saved').write_text('a checkpoint')

    def make_policy(params, deterministic):
      raise ImportError('no OpenGL')

    return make_policy, (), {}

  fake_train(train)
  arguments = ('--num_videos=3', '--video_every=2', f'--logdir={tmp_path}/runs')
  assert _main(*arguments) == 0
  captured = capsys.readouterr()
  last = captured.err.splitlines()[-1]
  assert last == 'There is no video: ImportError: no OpenGL'
  assert 'Done' in captured.out
  assert (tmp_path / 'saved').exists()


@pytest.mark.parametrize('every', [None, 2])
def test_videos_of_training_are_made_at_evaluations(
  tmp_path, fake_train, every
):
  given = []

  def train(*args, **kwargs):
    given.append(kwargs.get('policy_params_fn'))
    return 'make_policy', 'params', {}

  fake_train(train)
  flags = [f'--video_every={every}'] if every else []
  assert _main(f'--logdir={tmp_path}', *flags) == 0
  assert callable(given[0]) == (every is not None)
