"""The command line of a comparison."""

import dataclasses
import json

import pytest

from launchers import compare_flags
from launchers import compare_options
from launchers.compare_options import Request
from launchers.compare_options import Variant
from launchers.errors import UserError


def _parse(*arguments):
  return compare_options.parse(arguments)


def test_without_flags_an_mlp_meets_an_lstm():
  assert _parse() == (Request(('mlp', 'lstm'), (0, 1, 2)), {})


def test_flags_of_training_pass_through_in_their_order():
  request, place = _parse(
    '--num_envs=4',
    '--networks=gru, my_networks:build',
    '--set',
    'ppo.learning_rate=1e-3',
    '--seeds=7,0:3,1',
    '--nonormalize_inputs',
    '--logdir=here',
    '--config=there',
    '--threshold=900',
    '--variant=a: --hide_observations=',
    '--set=env.ctrl_dt=0.02',
    '--variant',
    "b 2: --set 'ppo.entropy_cost=0.1' --num_envs=8",
    '--suffix=x',
  )
  assert place == {'logdir': 'here', 'suffix': 'x'}
  assert request is not None
  assert request.networks == ('gru', 'my_networks:build')
  assert request.seeds == (7, 0, 1, 2)
  assert request.config == 'there'
  assert request.threshold == 900
  assert request.flags == (
    '--num_envs=4',
    '--set',
    'ppo.learning_rate=1e-3',
    '--nonormalize_inputs',
    '--set=env.ctrl_dt=0.02',
  )
  assert request.parsed_variants() == [
    Variant('a', ('--hide_observations=',)),
    Variant('b 2', ('--set', 'ppo.entropy_cost=0.1', '--num_envs=8')),
  ]


_MISTAKES = [
  ('--num_env=4', 'num_env'),
  ('--num_envs=four', 'four'),
  ('extra', "'extra' is not a flag"),
  ('--network=mlp', 'Name networks by --networks'),
  ('--seed=3', 'Name seeds by --seeds'),
  ('--load_checkpoint_path=x', 'parameters of its own'),
  ('--distributed=auto', 'one process each'),
  ('--norun_evals', 'nothing to compare'),
  ('--networks=', 'must name networks'),
  ('--networks=mlp,mlp', "'mlp' is there twice"),
  ('--seeds=', 'names none'),
  ('--seeds=a', "'a' is neither a number"),
  ('--seeds=3:3', "'3:3' is neither a number"),
  ('--seeds=-1', "'-1' is neither a number"),
  ('--threshold=high', 'high'),
  ('--threshold=nan', 'must be a number'),
  ('--variant=hidden', "'label: flags'"),
  ('--variant=--num_envs=4', "'label: flags'"),
  ('--variant=a/b: --num_envs=4', "'label: flags'"),
  ('--variant=a: --num_env=4', 'num_env'),
  ('--variant=a: --set "x', 'quotation'),
  ('--variant=a: --network=mlp', 'Name networks by --networks'),
  ('--variant=a: --seeds=1', '--seeds holds for all variants'),
  ('--resume=nowhere', 'there is no comparison'),
  ('--resume', 'Missing value'),
]


@pytest.mark.parametrize(('argument', 'words'), _MISTAKES)
def test_a_mistake_is_told(argument, words):
  with pytest.raises(UserError) as error:
    _parse(argument)
  assert words in str(error.value)
  assert '\n' not in str(error.value)


def test_two_variants_have_two_labels():
  with pytest.raises(UserError, match="--variant: 'a' is there twice"):
    _parse('--variant=a:', '--variant=a: --num_envs=4')


@pytest.fixture
def before(tmp_path):
  """What a comparison was asked for, and the flag that goes on with it."""
  request, _ = _parse(
    '--seeds=0', '--num_timesteps=100', '--num_envs=4', '--variant=a:'
  )
  assert request is not None
  text = json.dumps({'request': dataclasses.asdict(request)})
  (tmp_path / 'comparison.json').write_text(text)
  return request, f'--resume={tmp_path}'


def test_a_comparison_goes_on_as_it_was(before):
  request, resume = before
  place = {'resume': resume.partition('=')[2]}
  assert _parse(resume) == (request, place)
  again = ('--seeds=0', '--num_timesteps=100', '--num_envs=4', '--variant=a:')
  assert _parse(*again, resume, '--logdir=runs') == (request, place)


def test_more_seeds_networks_and_env_steps_may_be_asked_for(before):
  request, resume = before
  changed, _ = _parse(
    resume, '--seeds=0:2', '--networks=gru', '--num_timesteps=200'
  )
  assert changed is not None
  assert changed.seeds == (0, 1)
  assert changed.networks == ('gru',)
  assert changed.flags == (*request.flags, '--num_timesteps=200')
  assert changed.variants == request.variants


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('--num_envs=8', '--num_envs was not 8'),
    ('--learning_rate=1', '--learning_rate was not 1.0'),
    ('--config=x', '--config was not given'),
  ],
)
def test_a_comparison_that_goes_on_is_the_same(before, flag, words):
  with pytest.raises(UserError, match=words):
    _parse(before[1], flag)


@pytest.mark.parametrize(
  'text',
  [
    '',
    '[]',
    '{}',
    '{"request": {"x": 1}}',
    '{"request": {"networks": "mlp"}}',
    '{"request": {"networks": [1]}}',
    '{"request": {"seeds": ["a"]}}',
    '{"request": {"variants": [3]}}',
    '{"request": {"config": 5}}',
    '{"request": {"threshold": "a"}}',
  ],
)
def test_a_file_that_is_not_of_a_comparison_is_named(tmp_path, text):
  (tmp_path / 'comparison.json').write_text(text)
  with pytest.raises(UserError, match='comparison.json is not of a comparison'):
    _parse(f'--resume={tmp_path}')


def test_help_shows_both_kinds_of_flags():
  assert _parse('--help') == (None, {})
  text = compare_flags.help_text()
  assert '--threshold' in text
  assert '--num_timesteps' in text
