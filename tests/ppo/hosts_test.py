"""Two processes with a device each, against one process with two devices."""

import json
import pathlib

import jax
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from tests import host_program
from tests import hosts
from tests import small_runs

# Other processes, which are compared with, compile as in real use.
pytestmark = [pytest.mark.slow, pytest.mark.optimized]


@pytest.fixture(scope='module')
def two_processes(tmp_path_factory):
  """What each of two processes left: what it saw, and its parameters."""
  folder = tmp_path_factory.mktemp('hosts')
  program = pathlib.Path(host_program.__file__)
  port = hosts.free_port()
  results = hosts.finish(
    *(hosts.start(program, i, 2, port, folder) for i in range(2))
  )
  for code, _, errors in results:
    assert code == 0, errors
  return [
    (
      folder / str(i),
      json.loads((folder / str(i) / 'seen.json').read_text()),
      list(np.load(folder / str(i) / 'params.npz').values()),
    )
    for i in range(2)
  ]


@pytest.fixture(scope='module')
def one_process(tmp_path_factory):
  """What `train` returns and reports here, on two devices."""
  reports = []
  arguments = host_program.arguments(reports, tmp_path_factory.mktemp('one'))
  result = small_runs.small_train(**{**arguments, 'max_devices_per_host': 2})
  jax.effects_barrier()
  return result, host_program.scalars(reports)


def _of_kind(reports, prefix):
  """The reports with metrics of one kind; without what a clock says."""
  clock = ('sps', 'walltime', 'eval_time')
  selected = [
    (
      step,
      {
        k: v
        for k, v in metrics.items()
        if k.startswith(prefix) and not k.endswith(clock)
      },
    )
    for step, metrics in reports
  ]
  return [(step, metrics) for step, metrics in selected if metrics]


def test_each_process_has_one_of_two_devices(two_processes):
  assert [seen['devices'] for _, seen, _ in two_processes] == 2 * [[2, 1]]


def test_parameters_are_those_of_one_process_bit_for_bit(
  two_processes, one_process
):
  expected = [np.asarray(x) for x in jax.tree.leaves(one_process[0][1])]
  assert len(expected) > 10
  for _, _, leaves in two_processes:
    for leaf, other in zip(leaves, expected, strict=True):
      assert leaf.dtype == other.dtype
      np.testing.assert_array_equal(leaf, other)


def test_training_moved_the_parameters(one_process, tmp_path):
  arguments = host_program.arguments([], tmp_path)
  _, params, _ = small_runs.small_train(**{**arguments, 'num_timesteps': 0})
  assert small_runs.largest_difference(one_process[0][1], params) > 1e-2


@pytest.mark.parametrize('prefix', ['eval/', 'training/'])
def test_the_first_process_reports_what_one_alone_does(
  two_processes, one_process, prefix
):
  (_, seen, _), _ = two_processes
  expected = _of_kind(one_process[1], prefix)
  reported = _of_kind(seen['reports'], prefix)
  assert len(expected) >= 2
  assert [step for step, _ in reported] == [step for step, _ in expected]
  for (_, mine), (_, others) in zip(reported, expected, strict=True):
    assert mine.keys() == others.keys()
    for name, value in others.items():
      np.testing.assert_allclose(mine[name], value, rtol=1e-6, err_msg=name)


def test_episodes_are_reported_in_env_steps_of_all_processes(two_processes):
  (_, seen, _), _ = two_processes
  episodes = _of_kind(seen['reports'], 'episode/')
  assert [step for step, _ in episodes] == [
    n * small_runs.STEP for n in (1, 2, 3, 4)
  ]
  assert all('episode/sum_reward' in metrics for _, metrics in episodes)


def test_only_the_first_process_evaluates_reports_and_saves(two_processes):
  (first, seen, _), (second, other, _) = two_processes
  assert other['reports'] == []
  assert other['metrics'] == []
  assert 'eval/episode_reward' in seen['metrics']
  assert {p.name for p in second.iterdir()} == {
    'params.npz',
    'resumed.npz',
    'seen.json',
  }
  assert {p.name for p in (first / 'checkpoints').iterdir()} == {
    f'{2 * small_runs.STEP:012d}',
    f'{4 * small_runs.STEP:012d}',
  }


def test_the_checkpoint_is_that_of_one_process(two_processes, one_process):
  _, params = checkpoint.load(two_processes[0][0] / 'checkpoints')
  assert small_runs.largest_difference(params, one_process[0][1]) == 0


def test_a_run_goes_on_with_the_rows_of_all_processes(two_processes):
  for path, _, leaves in two_processes:
    resumed = np.load(path / 'resumed.npz').values()
    for leaf, other in zip(resumed, leaves, strict=True):
      np.testing.assert_array_equal(leaf, other)


def test_copies_of_a_state_share_a_program_before_and_after_training(
  two_processes,
):
  assert [seen['programs'] for _, seen, _ in two_processes] == [1, 1]


@pytest.mark.parametrize(
  ('case', 'words'),
  [
    ('seed', ['different seed;', 'seed = {}', 'the same arguments']),
    ('run', ['different seed;']),
    ('numbers', ["different numbers in ['b']"]),
    ('shapes', ['different parameters']),
    ('drift', ["['b']"]),
  ],
)
def test_what_differs_between_processes_is_named_in_all(
  two_processes, case, words
):
  for i, (_, seen, _) in enumerate(two_processes):
    for word in words:
      assert word.format(i) in seen['refusals'][case]
  assert "['a']" not in two_processes[0][1]['refusals']['drift']


def test_equal_arguments_are_no_difference(two_processes):
  assert [seen['refusals']['nothing'] for _, seen, _ in two_processes] == [
    '',
    '',
  ]
