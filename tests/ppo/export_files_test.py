"""Folders of exported policies: what they say, and faults that are named."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import export
from brax_nnx_plugin.ppo import numpy_policy
from tests import exports

LOADERS = (export.load_exported, numpy_policy.load)


def _export(case: Any, out: Any, **kwargs: Any) -> Any:
  """Exports a network with its parameters."""
  networks, params = case
  return export.export_networks(networks, params, out, **kwargs)


@pytest.fixture(scope='module')
def case() -> tuple[Any, Any]:
  """A network that reads a dict, with parameters."""
  return exports.saved('GRU with statistics of dict observations')


@pytest.fixture(scope='module')
def folder(case, tmp_path_factory):
  """A policy that is exported with all that can be said of it."""
  out = tmp_path_factory.mktemp('exported') / 'policy'
  return _export(
    case,
    out,
    control_dt=0.02,
    observation_names={'state': ['x', 'y', 'z']},
    action_names=['hip', 'knee'],
    extra={'action_scale': 0.5},
  )


@pytest.fixture
def copy(folder, tmp_path):
  """A copy to be damaged."""
  for file in folder.iterdir():
    file.copy(tmp_path / file.name)
  return tmp_path


def test_the_sidecar_says_what_a_robot_must_know(folder):
  sidecar = json.loads((folder / 'policy.json').read_text())

  vector = lambda name, n: {'name': name, 'shape': [n], 'dtype': 'float32'}
  # The critic's entry is not asked for, and its memory is not there.
  assert sidecar['observation'] == [
    {**vector('state', 3), 'features': ['x', 'y', 'z']}
  ]
  assert sidecar['action'] == [
    {**vector('action', 2), 'features': ['hip', 'knee']}
  ]
  assert sidecar['state'] == [{**vector('1/action/2', 3), 'reset': 'initial'}]
  assert sidecar['control_period_s'] == 0.02
  assert sidecar['extra'] == {'action_scale': 0.5}
  assert 'policy.npz' in sidecar['reset_rule']
  assert sidecar['jax_version'] == jax.__version__
  assert sidecar['numpy'] == {'available': True}
  names = {file.name for file in folder.iterdir()}
  assert names == {'policy.json', *sidecar['files']}
  assert names == {
    'policy.json',
    'policy.npz',
    'policy.stablehlo',
    'program.json',
  }
  policy = numpy_policy.load(folder)
  assert policy.control_period == 0.02


def test_the_program_is_for_all_platforms(folder):
  data = (folder / 'policy.stablehlo').read_bytes()
  program = jax.export.deserialize(bytearray(data))
  assert program.platforms == ('cpu', 'cuda', 'rocm', 'tpu')


@pytest.mark.parametrize('load', LOADERS)
def test_what_is_no_observation_is_refused(folder, load):
  policy = load(folder)
  state = policy.initial_state()
  x = np.ones(3, np.float32)

  action, _ = policy.step({'state': x, 'not asked for': x}, state)
  again, _ = policy.step({'state': [1.0, 1.0, 1.0]}, state)
  np.testing.assert_array_equal(action, again)
  for observation, message in (
    ({'privileged_state': x}, r"lacks \['state'\]"),
    (x, 'must be a dict'),
    ({'state': x[:2]}, r"'state' must have shape \[3\].*got \[2\]"),
    ({'state': x[None]}, r'got \[1, 3\]'),
    ({'state': x.astype(np.uint8)}, 'float32; got .* uint8'),
  ):
    with pytest.raises(ValueError, match=message):
      policy.step(observation, state)
  with pytest.raises(ValueError, match="state lacks .*'1/action/2'"):
    policy.step({'state': x}, {})


def test_a_state_is_the_callers_own(folder):
  policy = numpy_policy.load(folder)
  state = policy.initial_state()
  assert np.all(state['1/action/2'] == 0)
  x = {'state': np.ones(3)}
  first, after = policy.step(x, state)
  state['1/action/2'][:] = 9.0
  after['1/action/2'][:] = 9.0

  np.testing.assert_array_equal(policy.step(x, policy.reset(after))[0], first)
  assert not np.allclose(policy.step(x, after)[0], first)


@pytest.mark.parametrize('load', LOADERS)
@pytest.mark.parametrize('cut', [0, 0.5, 0.99])
def test_a_truncated_file_is_named(copy, load, cut):
  for name in ('policy.json', 'policy.npz', 'policy.stablehlo', 'program.json'):
    data = (copy / name).read_bytes()
    reads_it = name != {
      export.load_exported: 'program.json',
      numpy_policy.load: 'policy.stablehlo',
    }.get(load)
    (copy / name).write_bytes(data[: int(cut * len(data))])
    if reads_it:
      with pytest.raises(ValueError, match=f'{name} is damaged'):
        load(copy)
    (copy / name).write_bytes(data)
  load(copy)


def test_a_changed_byte_is_noticed(copy):
  for name in ('policy.json', 'policy.npz', 'program.json'):
    data = bytearray((copy / name).read_bytes())
    for at in (len(data) // 3, len(data) // 2):
      changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
      (copy / name).write_bytes(changed)
      with pytest.raises(ValueError, match='damaged|no exported policy|format'):
        numpy_policy.load(copy)
    (copy / name).write_bytes(data)


@pytest.mark.parametrize('load', LOADERS)
def test_what_is_no_exported_policy_is_refused(tmp_path, load):
  with pytest.raises(ValueError, match='no exported policy.*No such file'):
    load(tmp_path / 'nowhere')
  (tmp_path / 'policy.json').write_text('{"format": "another"}')
  with pytest.raises(ValueError, match='does not describe'):
    load(tmp_path)
  head = {'format': numpy_policy.FORMAT, 'format_version': 2}
  (tmp_path / 'policy.json').write_text(json.dumps(head))
  with pytest.raises(ValueError, match='format_version 2; this reader knows 1'):
    load(tmp_path)


def test_a_pickle_is_not_read(copy):
  sidecar = json.loads((copy / 'policy.json').read_text())
  with (copy / 'policy.npz').open('wb') as file:
    arrays: Any = {'state/1/action/2': np.array([object()])}
    np.savez(file, **arrays)
  data = (copy / 'policy.npz').read_bytes()
  sidecar['files']['policy.npz'] = numpy_policy.sha256(data)
  del sidecar['checksum']
  (copy / 'policy.json').write_bytes(numpy_policy.seal(sidecar))

  with pytest.raises(ValueError, match='allow_pickle=False'):
    numpy_policy.load(copy)


def test_an_operation_that_is_not_known_is_refused():
  program = {'instructions': [['system', [], {}]], 'outputs': []}
  with pytest.raises(ValueError, match=r"\['system'\].*does not know"):
    numpy_policy.runner(program, {})


def test_nothing_is_overwritten_unasked(case, tmp_path):
  out = tmp_path / 'policy'
  _export(case, out, control_dt=0.1)

  with pytest.raises(ValueError, match='overwrite=True'):
    _export(case, out)
  assert numpy_policy.load(out).control_period == 0.1
  _export(case, out, control_dt=0.2, overwrite=True)
  assert numpy_policy.load(out).control_period == 0.2
  assert [p.name for p in tmp_path.iterdir()] == ['policy']
  other = tmp_path / 'thesis'
  other.mkdir()
  with pytest.raises(ValueError, match='is no exported policy'):
    _export(case, other, overwrite=True)


def test_a_failed_export_leaves_nothing_under_the_name(
  case, tmp_path, monkeypatch
):
  out = tmp_path / 'policy'
  _export(case, out, control_dt=0.1)
  write = type(out).write_bytes

  def full(self, data):
    if self.name == 'policy.npz':
      raise OSError('No space left on device')
    return write(self, data)

  monkeypatch.setattr(type(export.epath.Path(out)), 'write_bytes', full)
  for target in (out, tmp_path / 'new'):
    with pytest.raises(OSError, match='No space left'):
      _export(case, target, overwrite=True)
  monkeypatch.undo()
  assert numpy_policy.load(out).control_period == 0.1
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'control_dt': 0}, 'above 0; got 0'),
    ({'control_dt': float('nan')}, 'above 0'),
    ({'action_names': ['hip']}, "1 names for 'action', which has 2 numbers"),
    ({'observation_names': ['x']}, r"\['observation'\].*entries \['state'\]"),
    (
      {'observation_names': {'privileged_state': list('abcd')}},
      'privileged_state',
    ),
    ({'extra': {'f': jnp.tanh}}, 'must fit JSON'),
  ],
)
def test_impossible_descriptions_are_refused(
  case, tmp_path, arguments, message
):
  with pytest.raises(ValueError, match=message):
    _export(case, tmp_path / 'policy', **arguments)
  assert not list(tmp_path.iterdir())


def test_a_program_that_computes_something_else_is_not_kept(
  case, tmp_path, monkeypatch
):
  operations = dict(numpy_policy.OPERATIONS, tanh=np.sin)
  monkeypatch.setattr(numpy_policy, 'OPERATIONS', operations)
  out = _export(case, tmp_path / 'policy')
  monkeypatch.undo()
  with pytest.raises(ValueError, match='something else than JAX'):
    numpy_policy.load(out)
