"""TensorBoard and Weights & Biases."""

import json
import struct
import sys
import types
from typing import Any

import pytest
from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2

from launchers import back_ends
from launchers.back_ends import Past
from launchers.back_ends import Wanted
from launchers.errors import UserError

_CONFIG = {
  'ppo': {'learning_rate': 3e-4},
  'network': {'kind': 'lstm', 'arguments': {'hidden': 8}},
}
_TB = Wanted(use_tb=True)
_WB = Wanted(use_wandb=True)


def _line(steps, **metrics):
  return {'env_steps': steps, 'seconds': 1.0, **metrics}


class _Run:
  """A run that keeps to the rules of Weights & Biases about steps."""

  def __init__(self, number, arguments):
    self.arguments = arguments
    self.id = arguments['id'] or f'id-{number}'
    self.logged = []
    self.axes = {}
    self.exit_code = None

  def define_metric(self, name, step_metric=None):
    self.axes[name] = step_metric

  def log(self, data, step=None):
    last = len(self.logged) - 1
    step = last + 1 if step is None else step
    assert step > last, 'what goes back is dropped'
    assert all(isinstance(value, int | float) for value in data.values())
    self.logged.append(data)

  def finish(self, exit_code):
    self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch):
  """The runs that were begun."""
  runs: list[Any] = []

  def init(**arguments):
    runs.append(_Run(len(runs), arguments))
    return runs[-1]

  monkeypatch.setitem(sys.modules, 'wandb', types.SimpleNamespace(init=init))
  monkeypatch.delenv('WANDB_PROJECT', raising=False)
  return runs


def _events(file):
  """Reads a file of events, record by record."""
  data = file.read_bytes()
  events = []
  while data:
    (length,) = struct.unpack('<Q', data[:8])
    event: Any = event_pb2.Event()  # pyright: ignore
    event.ParseFromString(data[12 : 12 + length])
    events.append(event)
    data = data[16 + length :]
  return events


def _shown(folder):
  """Returns (env steps, tag, value) as TensorBoard shows them.

  The start of a session makes everything void from its step on.
  """
  shown: list[tuple[int, str, float]] = []
  for file in sorted(folder.glob('events.out.tfevents.*')):
    for event in _events(file):
      if event.HasField('session_log'):
        shown = [x for x in shown if x[0] < event.step]
      for value in event.summary.value:
        if value.HasField('simple_value'):
          shown.append((event.step, value.tag, value.simple_value))
  return shown


def _texts(folder):
  return [
    value.tensor.string_val[0].decode()
    for file in folder.glob('events.out.tfevents.*')
    for event in _events(file)
    for value in event.summary.value
    if value.HasField('tensor')
  ]


@pytest.mark.parametrize(
  ('flag', 'module'), [('use_tb', 'tensorboardX'), ('use_wandb', 'wandb')]
)
def test_a_missing_package_is_told_at_the_start(flag, module, monkeypatch):
  monkeypatch.setitem(sys.modules, module, None)
  Wanted().check()
  message = f'--{flag} needs the package {module}.*pip install'
  with pytest.raises(UserError, match=message):
    Wanted.of({flag: True, 'seed': 3}).check()


@pytest.mark.parametrize('flag', ['wandb_project', 'wandb_entity'])
def test_a_flag_without_meaning_is_told(flag):
  with pytest.raises(UserError, match=f'--{flag} has no meaning'):
    Wanted.of({flag: 'x'}).check()


def test_nothing_is_started_that_nobody_asked_for(tmp_path):
  assert back_ends.start(Wanted(), tmp_path, _CONFIG, Past()) == []
  assert not list(tmp_path.iterdir())


def test_tensorboard_gets_scalars_and_the_configuration(tmp_path):
  (writer,) = back_ends.start(_TB, tmp_path, _CONFIG, Past())
  writer.write(_line(0, a=1.0, b=None))
  writer.write(_line(20, a=2.0))
  # At once: TensorBoard can be looked at during the run.
  expected = [(0, 'a', 1.0), (20, 'a', 2.0)]
  assert _shown(tmp_path) == expected
  writer.close(True)
  assert _shown(tmp_path) == expected
  (text,) = _texts(tmp_path)
  assert json.loads(text.strip('`')) == _CONFIG


def test_tensorboard_forgets_what_comes_again(tmp_path):
  (first,) = back_ends.start(_TB, tmp_path, _CONFIG, Past())
  lines = [_line(steps, a=float(steps)) for steps in (0, 20, 40, 60)]
  for line in lines:
    first.write(line)
  first.close(False)
  past = Past(lines[:2], lines[2:], begin=40)
  (second,) = back_ends.start(_TB, tmp_path, _CONFIG, past)
  # Only with a report is it sure that the run goes on.
  assert len(_shown(tmp_path)) == 4
  second.write(_line(40, a=41.0))
  second.close(True)
  assert _shown(tmp_path) == [(0, 'a', 0.0), (20, 'a', 20.0), (40, 'a', 41.0)]


def test_tensorboard_gets_the_past_of_a_run_that_had_none(tmp_path):
  past = Past([_line(0, a=1.0), _line(20, a=2.0)], [], begin=40)
  (writer,) = back_ends.start(_TB, tmp_path, _CONFIG, past)
  writer.write(_line(40, a=3.0))
  assert [step for step, *_ in _shown(tmp_path)] == [0, 20, 40]
  writer.close(True)


def test_tensorboard_goes_on_behind_half_an_event(tmp_path, monkeypatch):
  writer = back_ends.TensorBoard(tmp_path, _CONFIG, Past())
  writer.write(_line(0, a=1.0))

  def fail():
    raise OSError('No space left on device')

  monkeypatch.setattr(writer._writer, 'flush', fail)
  with pytest.raises(OSError, match='No space left'):
    writer.write(_line(20, a=2.0))
  writer.write(_line(40, a=3.0))
  writer.close(True)
  files = sorted(tmp_path.iterdir())
  assert len(files) == 2
  assert [e.step for e in _events(files[1])][-1] == 40


def test_tensorboard_leaves_no_files_that_say_nothing(tmp_path, monkeypatch):
  writer = back_ends.TensorBoard(tmp_path, _CONFIG, Past())
  real = event_file_writer.EventsWriter.flush

  def fail(self):
    raise OSError('No space left on device')

  monkeypatch.setattr(event_file_writer.EventsWriter, 'flush', fail)
  for steps in (0, 20):
    with pytest.raises(OSError, match='No space left'):
      writer.write(_line(steps, a=1.0))
    assert not list(tmp_path.iterdir())
  monkeypatch.setattr(event_file_writer.EventsWriter, 'flush', real)
  writer.write(_line(40, a=3.0))
  writer.close(True)
  assert _shown(tmp_path) == [(40, 'a', 3.0)]
  assert len(_texts(tmp_path)) == 1


def test_weights_and_biases_gets_every_report(tmp_path, wandb):
  folder = tmp_path / 'Env-1'
  folder.mkdir()
  (writer,) = back_ends.start(_WB, folder, _CONFIG, Past())
  # Training metrics of an earlier step come late.
  steps = [0, 500, 400, 1000]
  for step in steps:
    writer.write(_line(step, a=1.0, b=None))
  writer.close(True)
  (run,) = wandb
  assert [data['env_steps'] for data in run.logged] == steps
  assert all(data.keys() == {'env_steps', 'a'} for data in run.logged)
  assert run.axes == {'env_steps': None, '*': 'env_steps'}
  assert run.exit_code == 0
  arguments = run.arguments
  assert arguments['config'] == _CONFIG
  assert arguments['name'] == 'Env-1'
  assert arguments['dir'] == str(folder)
  assert arguments['project'] == 'brax-nnx-plugin'
  assert arguments['resume'] is None


def test_weights_and_biases_goes_on_with_its_run(tmp_path, wandb):
  lines = [_line(steps, a=float(steps)) for steps in (0, 20, 40, 60)]
  (first,) = back_ends.start(_WB, tmp_path, _CONFIG, Past())
  for line in lines:
    first.write(line)
  first.close(False)
  past = Past(lines[:2], lines[2:], begin=40)
  (second,) = back_ends.start(_WB, tmp_path, _CONFIG, past)
  for steps in (40, 60, 80):
    second.write(_line(steps, a=1.0))
  assert wandb[0].exit_code == 1
  assert (wandb[1].id, wandb[1].arguments['resume']) == (wandb[0].id, 'allow')
  assert [data['env_steps'] for data in wandb[1].logged] == [80]


def test_weights_and_biases_gets_the_past_of_a_run_that_it_had_not(
  tmp_path, wandb
):
  past = Past([_line(0, a=1.0), _line(20, a=2.0)], [_line(40, a=3.0)], 40)
  (writer,) = back_ends.start(_WB, tmp_path, _CONFIG, past)
  writer.write(_line(40, a=3.0))
  assert [data['env_steps'] for data in wandb[0].logged] == [0, 20, 40]


def test_project_and_entity_are_those_of_the_flags(
  tmp_path, wandb, monkeypatch
):
  monkeypatch.setenv('WANDB_PROJECT', 'of the shell')
  back_ends.start(_WB, tmp_path / '..', _CONFIG, Past())
  wanted = Wanted.of(
    {'use_wandb': True, 'wandb_project': 'mine', 'wandb_entity': 'us'}
  )
  back_ends.start(wanted, tmp_path, _CONFIG, Past())
  assert [run.arguments['project'] for run in wandb] == ['of the shell', 'mine']
  assert [run.arguments['entity'] for run in wandb] == [None, 'us']


def test_a_login_that_is_missing_is_told(tmp_path, monkeypatch):
  def init(**arguments):
    raise RuntimeError('api_key not configured')

  monkeypatch.setitem(sys.modules, 'wandb', types.SimpleNamespace(init=init))
  with pytest.raises(UserError, match='api_key not configured.*wandb login'):
    back_ends.start(_WB, tmp_path, _CONFIG, Past())
