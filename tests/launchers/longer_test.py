"""More env steps for a run that goes on."""

import json

import pytest

from launchers import longer
from launchers.errors import UserError

_RUN = {
  'env_steps_per_epoch': 40,
  'progress': {'epochs': 4, 'env_steps': 160},
  'arguments': {},
  'key_types': {},
}


@pytest.fixture
def run(tmp_path):
  """A run of 4 rounds of 2 epochs of 40 env steps, half of it done."""
  step = tmp_path / 'checkpoints' / '000000000160'
  step.mkdir(parents=True)
  (step / 'network.json').write_text('{}')
  (step / 'run.json').write_text(json.dumps(_RUN))
  (tmp_path / 'config.json').write_text(
    json.dumps(
      {
        'environment': {
          'name': 'CartpoleBalance',
          'config': {},
          'hidden_observations': [],
          'domain_randomization': False,
          'randomize_eval': True,
        },
        'network': {'kind': 'lstm', 'arguments': {}},
        'ppo': {'num_timesteps': 300, 'num_evals': 5, 'num_resets_per_eval': 2},
      }
    )
  )
  return tmp_path


@pytest.mark.parametrize(
  ('asked', 'total', 'evaluations'), [(321, 400, 6), (800, 800, 11)]
)
def test_epochs_stay_as_they_were(run, asked, total, evaluations):
  given = {'resume': str(run), 'num_timesteps': asked}
  options, note = longer.fitted(given)
  assert options == given | {'num_timesteps': total, 'num_evals': evaluations}
  assert f'{total} env steps with an evaluation every 80' in note


@pytest.mark.parametrize(
  'options',
  [
    {'num_timesteps': 320},  # makes the four rounds that there were
    {'num_timesteps': 300},
    {'num_timesteps': 800, 'num_evals': 3},
    {'num_timesteps': 800, 'num_resets_per_eval': 0},
    {'num_timesteps': 800, 'set': ['ppo.num_evals=3']},
    {'seed': 3},
  ],
)
def test_all_else_is_left_alone(run, options):
  given = {'resume': str(run)} | options
  assert longer.fitted(given) == (given, '')


def test_what_stays_as_it_was_decides_nothing(run):
  given = {'resume': str(run), 'num_timesteps': 800}
  same = {'num_evals': 5, 'num_resets_per_eval': 2, 'set': ['env.x=1']}
  options, _ = longer.fitted(given | same)
  assert options == given | same | {'num_evals': 11}


def test_a_new_run_is_left_alone():
  assert longer.fitted({'num_timesteps': 7}) == ({'num_timesteps': 7}, '')


def test_a_damaged_checkpoint_is_told(run):
  (run / 'checkpoints' / '000000000160' / 'run.json').write_text('{}')
  with pytest.raises(UserError, match='--resume: .* is damaged'):
    longer.fitted({'resume': str(run), 'num_timesteps': 800})
