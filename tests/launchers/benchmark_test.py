"""Tests of the benchmark: turns, sums, and contenders at their smallest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launchers import benchmark
from launchers import benchmark_children
from launchers import benchmark_contenders
from launchers import benchmark_report
from launchers.benchmark_children import Facts
from launchers.benchmark_gate import Gate
from launchers.benchmark_gate import Lap
from launchers.benchmark_gate import Stop
from launchers.benchmark_report import Result
from launchers.benchmark_tasks import Task
from launchers.errors import UserError

_TINY = Task(
  size=4,
  unroll_length=2,
  training_steps=1,
  num_envs=4,
  batch_size=2,
  num_minibatches=2,
  num_updates_per_batch=1,
  episode_length=4,
  num_eval_envs=2,
)


class _Process:
  """A contender that keeps a diary."""

  def __init__(self, name: str, diary: list[str], stages: int = 3):
    self._name, self._diary, self._stages = name, diary, stages

  def ready(self) -> Lap | Facts:
    self._stages -= 1
    if self._stages < 0:
      return Facts(1, 2, 'abacus')
    self._diary.append(f'{self._name} is ready')
    return Lap(3.0, 3.0, 1.0)

  def run(self) -> Lap:
    self._diary.append(self._name)
    return Lap(2.0, 2.0, 0.5)

  def end_stage(self) -> Facts:
    return Facts(buffer_bytes=5, peak_bytes=7, device='abacus')

  def close(self) -> None:
    self._diary.append(f'{self._name} is closed')


def _measure(processes: dict[str, Any], results: dict[str, Result]) -> None:
  """Runs all stages, with two measurements of each."""
  for stage in benchmark.STAGES:
    benchmark.measure(stage, processes, results, 2)


def test_contenders_take_turns():
  diary: list[str] = []
  make = lambda name, _: _Process(name, diary)
  processes, results = benchmark.start(['a', 'b'], _TINY, make)
  # One after the other: nobody compiles while another does.
  assert diary == ['a is ready', 'a', 'a', 'b is ready', 'b', 'b']
  diary.clear()
  _measure(processes, results)
  once = ['a is ready', 'a', 'b is ready', 'b']
  assert diary == ['a', 'b'] * 2 + (once + ['a', 'b'] * 2) * 2
  for result in results.values():
    assert [len(getattr(result, s)) for s in benchmark.STAGES] == [2, 2, 2]
    assert (result.buffer_bytes, result.peak_bytes) == (5, 7)
    assert 'On abacus:' in benchmark_report.report(_TINY, results)


def test_a_stage_that_a_contender_lacks_is_left_out():
  diary: list[str] = []
  make = lambda name, _: _Process(name, diary, stages=2)
  processes, results = benchmark.start(['a'], _TINY, make)
  _measure(processes, results)
  assert results['a'].evaluate == []
  row = benchmark_report.columns(_TINY, results['a'])
  assert row['evaluate ms'] == '-' and row['act ms'] == '2,000.0'


def test_a_missing_library_is_a_sentence_and_the_others_run(
  capsys, monkeypatch
):
  diary: list[str] = []

  def make(name, task):
    process = _Process(name, diary)
    if name == 'nnx-ppo-mlp':
      monkeypatch.setitem(
        __import__('sys').modules, 'launchers.benchmark_nnx_ppo', None
      )
      error = pytest.raises(
        ImportError, benchmark_children.CONTENDERS[name], task
      ).value
      monkeypatch.setattr(process, 'ready', lambda: _raise(error))
    return process

  processes, results = benchmark.start(['nnx-ppo-mlp', 'mlp'], _TINY, make)
  assert list(processes) == list(results) == ['mlp']
  assert benchmark_report.report(_TINY, {}) == 'Nobody took part.'
  assert 'nnx-ppo-mlp is left out' in capsys.readouterr().out
  assert 'nnx-ppo-mlp is closed' in diary


def _raise(error: Exception) -> None:
  raise error


def test_an_unknown_contender_is_a_sentence_with_the_nearest():
  with pytest.raises(UserError, match="no contender 'lstn'.*lstm"):
    benchmark.check(['mlp', 'lstn'])


def test_a_gate_reports_laps_until_it_is_told_to_stop():
  laps: list[Lap] = []
  answers = iter([True, True, False])
  clock: Any = type('Clock', (), {'seconds': 0.0})()
  gate = Gate(laps.append, lambda: next(answers), clock)
  gate()
  clock.seconds += 4.0
  gate('what', 'a callback', 'is given')
  with pytest.raises(Stop):
    gate()
  assert [lap.xla_seconds for lap in laps] == [0.0, 4.0, 0.0]
  assert all(0.0 <= lap.seconds < 1.0 for lap in laps)


def _result(*seconds: float) -> Result:
  laps = [Lap(s, 2 * s, 0.0) for s in seconds]
  first, second = Lap(6.0, 6.0, 2.0), Lap(3.0, 3.0, 0.5)
  return Result(Lap(1.0, 1.0, 0.5), first, second, laps, laps[:1])


def test_the_table_does_its_sums():
  task = Task(training_steps=2)  # 10,240 env steps
  result = _result(1.0, 2.0, 9.0)
  result.buffer_bytes, result.peak_bytes = 2048, 3 << 20
  assert benchmark_report.columns(task, result) == {
    'env steps/s': '5,120',
    'start s': '1.0',
    'trace s': '2.5',  # 6 + 3 - 2.5 of the compiler - 2 epochs of 2
    'compile s': '2.5',
    'peak MiB': '3',
    'buffer KiB': '2',
    'act ms': '1,000.0',
    'learn ms': '0.0',  # an epoch of 2 s is two training steps
    'evaluate ms': '-',
  }


def test_ratios_are_taken_pair_by_pair():
  slow, fast = _result(2.0, 8.0, 3.0), _result(1.0, 4.0, 1.0)
  text = benchmark_report.ratio(fast.train, slow.train)
  assert text == 'median 2.00, from 2.00 to 3.00; by CPU time 2.00'
  results = {'brax-mlp': slow, 'mlp': fast, 'gru': slow}
  lines = benchmark_report.report(_TINY, results).splitlines()
  assert len(lines) == 5
  assert len({len(line) for line in lines[1:]}) == 1  # columns are aligned
  line = f'mlp / brax-mlp, pair by pair: {text}'
  assert benchmark_report.ratios(results) == line
  assert benchmark_report.comparisons(['gru', 'x', 'y']) == [
    ('x', 'gru'),
    ('y', 'gru'),
  ]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['mlp', 'nnx-ppo-mlp'])
def test_a_contender_goes_through_all_stages(name):
  heard: list[Any] = []
  answers = iter([True, True, False] * 3)
  benchmark_children.serve(name, _TINY, heard.append, lambda: next(answers))
  kinds = [type(message).__name__ for message in heard]
  stage = ['Lap', 'Lap', 'Lap', 'Facts']
  assert kinds == stage * 3
  start, first, second = (lap.seconds for lap in heard[:3])
  assert start > 0 and first > second > 0
  assert heard[-1].peak_bytes > 0
  # 4 segments of 2 steps: two observations, an action and the like in each.
  assert 8 * 4 * 4 < heard[-1].buffer_bytes < 8 * 4 * 40


def test_what_stock_brax_is_lent_is_taken_back():
  before = getattr(jax, 'device_put_replicated', None)
  with benchmark_contenders.stock_jax():
    tree = {'a': jnp.arange(3.0)}
    lent = jax.device_put_replicated(tree, jax.devices()[:1])  # pyright: ignore
    np.testing.assert_array_equal(lent['a'], [[0, 1, 2]])
  assert getattr(jax, 'device_put_replicated', None) is before


@pytest.mark.slow
def test_the_rollout_by_hand_keeps_what_the_library_keeps():
  kept = {}
  for name in ('by-hand-lstm', 'lstm'):
    fn, args = benchmark_children.CONTENDERS[name](_TINY).acting()
    sizes = [x.shape for x in jax.tree.leaves(jax.eval_shape(fn, *args)[0])]
    kept[name] = sorted(s for s in sizes if s in ((4, 2, 2), (4, 4)))
  assert kept['lstm'] == kept['by-hand-lstm'] == [(4, 2, 2)] + [(4, 4)] * 4


def _loops(jaxpr: Any) -> int:
  """The number of scans, also in functions with derivatives of their own."""
  return sum(
    (equation.primitive.name == 'scan')
    + sum(
      _loops(inner.jaxpr)
      for inner in equation.params.values()
      if equation.primitive.name.startswith('custom_vjp')
      and hasattr(inner, 'jaxpr')
    )
    for equation in jaxpr.eqns
  )


def _loops_of_a_replay(contender: Any) -> int:
  """The number of scans over time in a replay of a contender's network."""
  functions = contender._factory(3, 1).functions

  def replay(key):
    variables = functions.init(key, key)
    state = functions.initial_state(variables, 2)
    x, is_first = jnp.ones((5, 2, 3)), jnp.zeros((5, 2))
    out = functions.step(variables, None, state, x[0], key)
    extras = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), out.extras)
    return functions.unroll(
      variables, None, state, x, key, is_first=is_first, extras=extras
    ).value

  return _loops(jax.make_jaxpr(replay)(jax.random.PRNGKey(0)).jaxpr)


def test_a_scanned_network_is_one_loop_over_time():
  contenders = benchmark_children.CONTENDERS
  assert _loops_of_a_replay(contenders['lstm'](_TINY)) == 2
  assert _loops_of_a_replay(contenders['scanned-lstm'](_TINY)) == 1


@pytest.mark.slow
def test_a_process_runs_when_it_is_told_to():
  process = benchmark_children.Process('brax-mlp', _TINY)
  try:
    assert isinstance(process.ready(), Lap)
    assert isinstance(process.run(), Lap)
    assert isinstance(process.end_stage(), Facts)
  finally:
    process.close()


def test_a_wrong_environment_is_a_sentence():
  with pytest.raises(UserError, match="no environment 'CartpoleBalanc'"):
    Task('CartpoleBalanc').environment()


def test_help_names_every_flag_and_nothing_runs(capsys):
  assert benchmark.main(['brax-nnx-benchmark', '--help']) == 0
  out = capsys.readouterr().out
  for flag in ('env', 'size', 'unroll', 'pairs', 'training_steps'):
    assert f'--{flag}' in out


@pytest.mark.parametrize(
  'argument', ['--pairs=0', '--contenders=mlb', '--env=Cartpol', '--x', 'x']
)
def test_a_mistake_is_told_in_a_line(argument, capsys):
  assert benchmark.main(['brax-nnx-benchmark', argument]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('brax-nnx-benchmark: ')
