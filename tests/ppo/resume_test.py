"""Runs that go on: as if nothing had happened, or they say why they cannot."""

import functools
import json
import pathlib
import shutil
import signal
from typing import Any
import warnings

import jax
import numpy as np
import pytest

from brax_nnx_plugin.ppo import arrays
from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo.training_run import TrainingRun
from tests import small_runs

_STEP = small_runs.STEP
# Three rounds of two epochs.
_ARGUMENTS: dict[str, Any] = {
  'num_timesteps': 6 * _STEP,
  'num_evals': 4,
  'num_resets_per_eval': 2,
  'run_evals': True,
  'action_repeat': 1,
  'log_training_metrics': True,
  'normalize_observations_mode': 'ema',
  'max_grad_norm': 1.0,
  'network_factory': functools.partial(
    small_runs.small_lstm, normalize_inputs=True
  ),
}


def _train(**overrides: Any) -> Any:
  """Returns parameters, and what was reported: by `progress_fn`, by the other.

  Without what a clock says.
  """
  progress, policies = [], []

  def report(step, metrics):
    clock = ('sps', 'time', 'walltime')
    numbers = {
      name: float(np.asarray(value))
      for name, value in metrics.items()
      if not name.endswith(clock)
    }
    progress.append((step, numbers))

  _, params, metrics = small_runs.small_train(
    **_ARGUMENTS
    | {
      'progress_fn': report,
      'policy_params_fn': lambda step, *_: policies.append(step),
    }
    | overrides
  )
  jax.effects_barrier()
  return params, progress, policies, metrics


def _contents(folder: Any) -> dict[str, np.ndarray]:
  """All arrays of a checkpoint."""
  return {
    f'{group}.{name}': array
    for group in ('params', 'state')
    for name, array in arrays.read(folder, group).items()
  }


def _assert_same(folder: Any, other: Any) -> None:
  found, expected = _contents(folder), _contents(other)
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    assert found[name].tobytes() == array.tobytes(), name


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The folder of a run that was left alone, and what it reported."""
  path = tmp_path_factory.mktemp('whole')
  folder = checkpoint.Folder(path, keep_states=9)
  return path, *_train(save_checkpoint_path=folder)


def _at(path: Any, epochs: int) -> pathlib.Path:
  return pathlib.Path(path) / f'{epochs * _STEP:012d}'


def _round_reports(progress: Any, first: int) -> Any:
  return [
    (step, metrics)
    for step, metrics in progress
    if step >= first and 'eval/episode_reward' in metrics
  ]


@pytest.fixture(scope='module')
def pieces(whole, tmp_path_factory):
  """The same run in three pieces, and what the last two reported.

  The second one, which was to be shorter, is stopped by a signal within a
  round, after epoch 3.
  """
  path, reports = tmp_path_factory.mktemp('pieces'), []

  def interrupt(step, metrics):
    reports.append((step, metrics))
    signal.raise_signal(signal.SIGTERM)

  with (
    checkpoint.save_on(signal.SIGTERM),
    pytest.raises(checkpoint.Preempted) as stopped,
  ):
    _train(
      restore_checkpoint_path=_at(whole[0], 2),
      save_checkpoint_path=path,
      num_timesteps=4 * _STEP,
      num_evals=3,
      log_training_metrics=False,
      progress_fn=interrupt,
    )
  rest = _train(
    restore_checkpoint_path=checkpoint.latest(path), save_checkpoint_path=path
  )
  return path, reports, stopped.value, *rest


@pytest.mark.slow
def test_a_run_in_pieces_ends_bit_for_bit_as_one(whole, pieces):
  assert small_runs.largest_difference(pieces[3], whole[1]) == 0
  _assert_same(_at(pieces[0], 6), _at(whole[0], 6))
  assert 'eval/episode_reward' in pieces[-1]


@pytest.mark.slow
def test_a_signal_stops_a_run_within_a_round(pieces):
  stopped = pieces[2]
  assert stopped.env_steps == 3 * _STEP
  assert pathlib.Path(stopped.checkpoint) == _at(pieces[0], 3)
  assert stopped.signal == signal.SIGTERM


@pytest.mark.slow
def test_reports_go_on_where_they_were(whole, pieces):
  expected = _round_reports(whole[2], 2 * _STEP)
  assert [step for step, _ in expected] == [n * _STEP for n in (2, 4, 6)]
  _, first, _, _, progress, policies, _ = pieces
  # The report of the checkpoint was due.
  assert [step for step, _ in first] == [2 * _STEP]
  for name, value in expected[0][1].items():
    assert float(first[0][1][name]) == value, name
  assert _round_reports(progress, 0) == expected[1:]
  assert policies == [4 * _STEP, 6 * _STEP]
  episodes = [step for step, m in progress if 'episode/length' in m]
  assert episodes == [n * _STEP for n in (4, 5, 6)]


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The run in')
def test_epochs_of_another_size_are_refused_with_a_choice(whole):
  with pytest.raises(ValueError, match='num_evals = 9 and num_timesteps = 512'):
    _run(restore_checkpoint_path=whole[0], num_timesteps=8 * _STEP + 200)


@pytest.mark.slow
def test_a_finished_run_returns_its_parameters_and_says_so(whole):
  path, params, progress, _, _ = whole
  with pytest.warns(UserWarning, match='nothing left to train'):
    again, reports, policies, metrics = _train(restore_checkpoint_path=path)
  assert small_runs.largest_difference(again, params) == 0
  assert reports == _round_reports(progress, 6 * _STEP)
  assert policies == []
  assert metrics['eval/episode_reward'] == reports[0][1]['eval/episode_reward']


def _run(**overrides: Any) -> TrainingRun:
  return TrainingRun(small_runs.config(**_ARGUMENTS | overrides))


@pytest.mark.slow
def test_parameters_only_start_a_new_run(whole):
  path, params, *_ = whole
  run = _run(restore_checkpoint_path=checkpoint.params_only(path), seed=3)
  assert small_runs.largest_difference(run.params(), params) == 0
  assert (run.env_steps, run.resumed) == (0, False)
  counts = [
    leaf
    for leaf in jax.tree.leaves(run.state.optimizer_state)
    if leaf.dtype == np.int32
  ]
  assert counts and not any(map(np.any, counts))


@pytest.mark.slow
def test_a_checkpoint_without_its_state_starts_a_new_run(whole, tmp_path):
  folder = shutil.copytree(_at(whole[0], 4), tmp_path / '000000000128')
  (folder / 'run.json').unlink()
  shutil.rmtree(folder / 'state')
  with pytest.warns(UserWarning, match='keeps parameters only'):
    run = _run(restore_checkpoint_path=folder, seed=3)
  assert (run.env_steps, run.resumed) == (0, False)
  # Nobody promised more of this one.
  (folder / 'leaves.json').unlink()
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    _run(restore_checkpoint_path=folder, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('overrides', 'message'),
  [
    ({'seed': 1}, 'seed = 1, saved with 0'),
    ({'max_devices_per_host': 2}, 'devices = 2, saved with 1'),
    ({'restore_params': ({}, {}, {})}, 'restore_params has no meaning'),
    ({'restore_value_fn': False}, 'restore_value_fn has no meaning'),
    (
      {'network_factory': functools.partial(small_runs.small_lstm, cell='gru')},
      "network_factory_kwargs = .*'gru'.*saved with .*normalize_inputs",
    ),
    (
      {'max_grad_norm': None},
      r'training\.optimizer_state.*not needed|not saved',
    ),
  ],
)
@pytest.mark.filterwarnings('ignore:The run in')
def test_another_run_cannot_go_on(whole, overrides, message):
  with pytest.raises(ValueError, match=message) as error:
    _run(restore_checkpoint_path=whole[0], **overrides)
  assert 'params_only' in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
  'change',
  [
    lambda run: run.pop('progress'),
    lambda run: run['progress'].update(epochs='4'),
    lambda run: run['progress'].update(more=1),
    lambda run: run.update(arguments=[1]),
    lambda run: run.update(env_steps_per_epoch=0),
  ],
)
def test_a_damaged_description_is_named(whole, tmp_path, change):
  folder = shutil.copytree(_at(whole[0], 4), tmp_path / '000000000128')
  run = json.loads((folder / 'run.json').read_text())
  change(run)
  (folder / 'run.json').write_text(json.dumps(run))
  with pytest.raises(ValueError, match=r'run\.json is damaged'):
    _run(restore_checkpoint_path=folder)


@pytest.mark.slow
def test_later_checkpoints_of_another_run_are_noticed(whole, tmp_path):
  shutil.copytree(_at(whole[0], 4), tmp_path / '000000000128')
  with pytest.warns(UserWarning, match='another run, up to env step 128'):
    _run(save_checkpoint_path=tmp_path)


@pytest.mark.slow
def test_a_save_that_fails_stops_training(tmp_path, monkeypatch):
  steps = []

  def fill_the_disk(step, *_):
    steps.append(step)
    if step == 2 * _STEP:
      monkeypatch.setattr(arrays, 'write', fail)

  def fail(*_):
    raise OSError(28, 'No space left on device')

  with pytest.raises(checkpoint.SaveError, match='step 64 .*No space left'):
    small_runs.small_train(
      num_timesteps=4 * _STEP,
      num_evals=5,
      policy_params_fn=fill_the_disk,
      save_checkpoint_path=tmp_path,
    )
  assert steps == [0, _STEP, 2 * _STEP, 3 * _STEP]
  assert [p.name for p in tmp_path.iterdir()] == ['000000000032']
  assert (tmp_path / '000000000032' / 'run.json').exists()
