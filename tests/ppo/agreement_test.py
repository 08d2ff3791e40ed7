"""Arguments of a run that goes on, against those it was saved with."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from brax_nnx_plugin.ppo import agreement
from tests import small_runs

_FOLDER: Any = pathlib.Path('run/000000000032')


def _arguments(devices: int = 1, **overrides: Any) -> dict[str, Any]:
  """As they come back from a file."""
  named = agreement.arguments(small_runs.config(**overrides), devices)
  return json.loads(json.dumps(named))


def _check(now: Any, **saved: Any) -> None:
  agreement.check_arguments(_FOLDER, _arguments(**saved), now)


@pytest.mark.parametrize(
  ('name', 'saved', 'now'),
  [
    ('seed', 0, 1),
    ('num_envs', 4, 8),
    ('devices', 2, 1),
    ('batch_size', 4, 2),
    ('unroll_length', 4, 2),
    ('num_updates_per_batch', 2, 1),
    ('num_resets_per_eval', 0, 1),
    ('action_repeat', 1, 2),
    ('normalize_observations', True, False),
    ('normalize_observations_mode', 'ema', 'welford'),
    ('learning_rate_schedule', 'NONE', 'ADAPTIVE_KL'),
  ],
)
def test_what_makes_another_run_is_refused(name, saved, now):
  words = f'{name} = {now!r}, saved with {saved!r}.*params_only'
  with pytest.raises(ValueError, match=words):
    _check(_arguments(**{name: now}), **{name: saved})


@pytest.mark.parametrize(
  ('name', 'saved', 'now'),
  [
    ('learning_rate', 1e-2, 1e-3),
    ('entropy_cost', 1e-2, 0.0),
    ('episode_length', 8, 16),
    ('randomization_fn', None, small_runs.random_gains),
  ],
)
def test_coefficients_may_change_with_a_warning(name, saved, now):
  with pytest.warns(UserWarning, match=f'{name} = .*saved with {saved}'):
    _check(_arguments(**{name: now}), **{name: saved})


@pytest.mark.parametrize(
  ('saved', 'now'),
  [
    ({}, {}),
    ({'num_timesteps': 32}, {'num_timesteps': 64, 'num_evals': 3}),
    ({'num_envs': 4}, {'num_envs': np.int64(4)}),
    ({'learning_rate_schedule': None}, {'learning_rate_schedule': 'NONE'}),
    ({'progress_fn': print}, {'use_pmap_on_reset': False}),
  ],
)
@pytest.mark.filterwarnings('error')
def test_what_is_no_difference(saved, now):
  _check(_arguments(**now), **saved)


def test_a_name_that_was_not_saved_yet_is_no_difference():
  saved = _arguments()
  del saved['seed']
  agreement.check_arguments(_FOLDER, saved, _arguments(seed=5))


def test_another_network_is_refused_and_a_moved_builder_is_not():
  saved = {'network_factory': 'a:build', 'action_size': 2}
  with pytest.raises(ValueError, match='action_size = 3, saved with 2'):
    agreement.check_network(_FOLDER, saved, saved | {'action_size': 3})
  with pytest.warns(UserWarning, match="'b:build', saved with 'a:build'"):
    agreement.check_network(
      _FOLDER, saved, saved | {'network_factory': 'b:build'}
    )
