"""The runs of a comparison, and what is found before they begin."""

import json
import pathlib
from typing import Any

import pytest

from launchers import compare_plan
from launchers import configs
from launchers import description
from launchers import options
from launchers.compare_options import Request
from launchers.errors import UserError

_VARIANTS = ('a b: --hide_observations=', 'c: --hide_observations=3:5')


def test_all_networks_of_a_seed_come_together():
  runs = compare_plan.runs(Request(('mlp', 'lstm'), (0, 5), _VARIANTS))
  assert [run.folder for run in runs] == [
    'a_b-mlp-seed0',
    'a_b-lstm-seed0',
    'c-mlp-seed0',
    'c-lstm-seed0',
    'a_b-mlp-seed5',
    'a_b-lstm-seed5',
    'c-mlp-seed5',
    'c-lstm-seed5',
  ]
  assert runs[0].name == 'a b, mlp, seed 0'
  alone = compare_plan.runs(Request(('my.networks:build',), (3,)))
  assert [run.folder for run in alone] == ['my.networks_build-seed3']


def test_flags_of_a_variant_come_after_those_of_all():
  request = Request(('gru',), (4,), ('v: --num_envs=8',), ('--num_envs=4',))
  (run,) = compare_plan.runs(request)
  given = options.parse(run.flags)
  assert given == {'num_envs': 8, 'network': 'gru', 'seed': 4}


@pytest.mark.parametrize('flag', [['--memory_size=8'], ['--memory_size', '8']])
def test_the_size_of_memories_is_for_networks_that_have_one(flag):
  flags = (*flag, '--num_envs', '4')
  request = Request(('mlp', 'gru'), (0,), ('v: --memory_size=9',), flags)
  mlp, gru = [options.parse(run.flags) for run in compare_plan.runs(request)]
  assert mlp == {'num_envs': 4, 'network': 'mlp', 'seed': 0}
  assert gru == mlp | {'network': 'gru', 'memory_size': 9}


def test_the_size_of_memories_needs_a_network_that_has_one(check):
  with pytest.raises(UserError, match='mlp, seed 0: --memory_size has no mean'):
    check(networks=('mlp', 'vae_mlp'), seeds=(0,), flags=('--memory_size=8',))


def test_two_runs_have_two_folders():
  request = Request(('mlp',), (0,), ('a b:', 'a_b:'))
  with pytest.raises(UserError, match='would share the folder a_b-mlp-seed0'):
    compare_plan.runs(request)


@pytest.fixture
def check(fake_train):
  """Checks with environments that are made once."""
  fake_train(lambda **kwargs: pytest.fail('training began'))

  def check(parent=None, **request):
    return compare_plan.check(Request(**request), parent, has_gpu=False)

  return check


def test_a_run_is_what_the_flags_alone_would_make_it(check):
  checked = check(networks=('mlp', 'gru'), seeds=(2,), variants=_VARIANTS)
  for run, text in checked:
    config = configs.resolve(options.parse(run.flags), has_gpu=False)
    assert text == description.describe(config)
    assert run.env_name == 'CartpoleBalance'
    # See configs_test: the preset.
    assert run.env_steps == 8 * 10 * 2 * 64 * 8 * 32
  hidden = [text['environment']['hidden_observations'] for _, text in checked]
  assert hidden == [[], [], [3, 4], [3, 4]]


@pytest.mark.parametrize(
  ('request_', 'words'),
  [
    ({'networks': ('lstm', 'ltsm')}, 'ltsm, seed 0: --network=ltsm'),
    ({'networks': ('mlp',), 'flags': ('--memory_size=8',)}, 'mlp, seed 0: '),
    ({'variants': ('a:', 'b: --num_envs=127')}, 'b, mlp, seed 0: '),
    ({'flags': ('--delay_observations=1000',)}, 'an episode of 1000 env steps'),
    ({'config': 'nowhere'}, '--config=nowhere'),
    ({'flags': ('--env_name=Walker',)}, "no environment 'Walker'"),
  ],
)
def test_a_mistake_in_any_run_is_found(check, request_, words):
  with pytest.raises(UserError) as error:
    check(**request_)
  assert words in str(error.value)


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (('--num_timesteps=9000000',), None),
    (('--learning_rate=1',), r'another ppo \(learning_rate\)'),
    (('--hide_observations=3',), 'another environment'),
    (('--memory_size=8',), 'another network'),
  ],
)
def test_a_run_that_is_there_is_the_one_asked_for(
  check, tmp_path, flags, words
):
  ((run, text),) = check(networks=('lstm',), seeds=(0,))
  folder: pathlib.Path = tmp_path / run.folder
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(text))
  request = {'networks': ('lstm',), 'seeds': (0,), 'flags': flags}
  if words is None:
    check(tmp_path, **request)
  else:
    with pytest.raises(UserError, match=words):
      check(tmp_path, **request)


def test_a_run_is_finished_with_its_last_checkpoint(tmp_path):
  run = compare_plan.Run('', 'mlp', 0, 'folder', (), 'X', env_steps=40)
  assert not run.is_finished(tmp_path)
  for steps, finished in ((20, False), (40, True)):
    folder = tmp_path / 'folder' / 'checkpoints' / f'{steps:012d}'
    folder.mkdir(parents=True)
    (folder / 'network.json').write_text('{}')
    assert run.is_finished(tmp_path) == finished


def test_more_steps_are_rounds_of_the_length_there_was(check, tmp_path):
  flags = (
    '--num_envs=4',
    '--batch_size=4',
    '--num_minibatches=1',
    '--unroll_length=5',
    '--num_evals=4',
    '--num_resets_per_eval=0',
  )
  request: dict[str, Any] = {'networks': ('lstm',), 'seeds': (0, 1)}
  before = check(**request, flags=(*flags, '--num_timesteps=300'))
  # Three rounds of five training steps of 20 env steps.
  assert [run.env_steps for run, _ in before] == [300, 300]

  run, text = before[0]
  step = tmp_path / run.folder / 'checkpoints' / '000000000300'
  step.mkdir(parents=True)
  (tmp_path / run.folder / 'config.json').write_text(json.dumps(text))
  (step / 'network.json').write_text('{}')
  progress = {'epochs': 3, 'env_steps': 300}
  description = {'arguments': {}, 'key_types': {}, 'progress': progress}
  description['env_steps_per_epoch'] = 100
  (step / 'run.json').write_text(json.dumps(description))
  after = check(tmp_path, **request, flags=(*flags, '--num_timesteps=320'))
  # One round more of those that were; the new run has three of 6 * 20.
  assert [run.env_steps for run, _ in after] == [400, 360]
  assert [text['ppo']['num_evals'] for _, text in after] == [5, 4]
