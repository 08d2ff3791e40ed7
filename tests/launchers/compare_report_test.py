"""Table and results of a comparison."""

import json

import pytest

from launchers import compare_report
from launchers.compare_options import Request
from launchers.compare_plan import Run
from launchers.compare_report import Result
from launchers.compare_statistics import Curve


def _run(network='mlp', seed=0, variant=''):
  folder = f'{variant}{network}{seed}'
  return Run(variant, network, seed, folder, (), 'CartpoleBalance', 100)


def _result(final, seed=0, state='finished', seconds=10.0, **run):
  rewards = (1.0, final)
  curve = Curve((0, 100), rewards, seconds=seconds, last=100)
  return Result(_run(seed=seed, **run), curve, state)


def _rows(text):
  lines = [line for line in text.splitlines() if line.startswith('|')]
  return [[c.strip() for c in line.strip('|').split('|')] for line in lines]


def test_a_row_is_worked_out_over_the_seeds():
  results = [
    _result(990.0, 0),
    _result(996.0, 1, seconds=20.0),
    _result(999.0, 2, seconds=30.0),
  ]
  header, _, row = _rows(compare_report.table(results, None))
  assert header == [
    'Network',
    'Seeds',
    'Final reward',
    'Best evaluation',
    'Wall time [s]',
    'Env steps/s',
  ]
  # Mean 995; 25 + 1 + 16 = 42 over 2, and its root 4.58. Speeds 10, 5, 3.33.
  assert row == ['`mlp`', '3', '995.0 ± 4.6', '999', '20 ± 10', '6']


def test_what_is_missing_is_told():
  unfinished = Curve((0, 50), (1.0, 950.0), missing=(25,), seconds=7, last=60)
  results = [
    _result(990.0, 0),
    Result(_run(seed=1), unfinished, 'failed, exit code 1'),
    Result(_run(seed=2), Curve(), 'not begun'),
  ]
  text = compare_report.table(results, 900.0)
  header, _, row = _rows(text)
  assert header[4] == 'Env steps to 900'
  assert row == [
    '`mlp`',
    '3',
    '990 (1 of 3 seeds)',
    '990',
    '50 to 100 (2 of 3 seeds)',
    '10 (1 of 3 seeds)',
    '10',
  ]
  assert (
    'mlp, seed 1: failed, exit code 1, reported up to 60 of 100 env steps.'
    in text
  )
  assert (
    'mlp, seed 1: the reward is not finite, and left out, at 25 env' in text
  )
  assert 'mlp, seed 2: not begun, reported up to 0 of 100 env steps.' in text
  assert 'seed 0' not in text


def test_variants_are_told_apart():
  results = [_result(9.0, variant='seen'), _result(5.0, variant='hidden')]
  header, _, *rows = _rows(compare_report.table(results, 100.0))
  assert header[0] == 'Task'
  assert [row[:2] for row in rows] == [['seen', '`mlp`'], ['hidden', '`mlp`']]
  assert [row[5] for row in rows] == ['never', 'never']


def test_nothing_at_all_can_be_written_down():
  results = [Result(_run(), Curve(), 'not begun')]
  row = _rows(compare_report.table(results, 1.0))[-1]
  assert row == ['`mlp`', '1', '-', '-', '-', '-', '-']


@pytest.fixture
def parent(tmp_path):
  folder = tmp_path / 'mlp0'
  step = folder / 'checkpoints' / f'{100:012d}'
  step.mkdir(parents=True)
  (step / 'network.json').write_text('{}')
  lines = [
    {'env_steps': n, 'seconds': n / 10, 'eval/episode_reward': float(n)}
    for n in (0, 50, 100)
  ]
  text = '\n'.join(map(json.dumps, lines))
  (folder / 'metrics.jsonl').write_text(text + '\n{"env_steps": 1')  # killed
  return tmp_path


def test_runs_are_read_from_their_folders(parent):
  runs = [_run(seed=seed) for seed in range(3)]
  (parent / 'mlp1').mkdir()
  results = compare_report.collect(parent, runs, {'mlp2': 'killed'})
  assert [r.state for r in results] == ['finished', 'not begun', 'killed']
  assert results[0].curve == Curve(
    (0, 50, 100), (0.0, 50.0, 100.0), seconds=10.0, last=100
  )


def test_results_are_kept_as_json(parent):
  results = compare_report.collect(parent, [_run()], {})
  request = Request(('mlp',), (0,), threshold=40.0)
  compare_report.write(parent, request, results)
  tree = json.loads((parent / 'comparison.json').read_text())
  assert tree['request']['networks'] == ['mlp']
  (run,) = tree['runs']
  assert run['state'] == 'finished'
  assert run['final_reward'] == 100.0
  assert run['env_steps_to_threshold'] == 50
  assert run['evaluations']['rewards'] == [0.0, 50.0, 100.0]
  table = (parent / 'comparison.md').read_text()
  assert table == compare_report.table(results, 40.0)
