"""Checkpoints that are damaged, half-written, or not there."""

import json
import pathlib
import shutil
from typing import Any

import numpy as np
from orbax import checkpoint as ocp
import pytest

from brax_nnx_plugin.ppo import checkpoint
from tests import saved_policies


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """The folder of one checkpoint of an MLP, to be copied and damaged."""
  path = tmp_path_factory.mktemp('saved')
  return pathlib.Path(
    saved_policies.save(path, *saved_policies.CASES['MLP'])[0]
  )


@pytest.fixture
def damaged(saved, tmp_path):
  return pathlib.Path(shutil.copytree(saved, tmp_path / saved.name))


@pytest.mark.parametrize('text', ['{"network_factory": "brax', '', '[1]', '{}'])
def test_a_damaged_description_is_named(damaged, text):
  (damaged / checkpoint.CONFIG_NAME).write_text(text)

  with pytest.raises(ValueError, match=r'000000000007.*network\.json'):
    checkpoint.load(damaged)


def _rewrite(folder: pathlib.Path, change: Any) -> None:
  """Changes the flat dict of saved arrays."""
  with ocp.PyTreeCheckpointer() as checkpointer:
    leaves = dict(checkpointer.restore(folder / 'params'))
    change(leaves)
    checkpointer.save(folder / 'params', leaves, force=True)


def _reshape(leaves: Any, name: str) -> None:
  leaves[name] = np.zeros((1, *np.shape(leaves[name])))


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda leaves, name: leaves.pop(name), 'NAME: not saved'),
    (
      lambda leaves, name: leaves.update({f'{name}.more': np.ones(2)}),
      'NAME.more: not needed',
    ),
    (_reshape, r'NAME: saved \(1, 3, 5\), needed \(3, 5\)'),
  ],
  ids=['missing', 'extra', 'reshaped'],
)
def test_arrays_that_do_not_fit_are_named(damaged, change, message):
  names = []

  def apply(leaves):
    name = next(
      n
      for n, x in leaves.items()
      if n.startswith('policy') and np.shape(x) == (3, 5)
    )
    names.append(name)
    change(leaves, name)

  _rewrite(damaged, apply)

  message = message.replace('NAME', names[0])
  with pytest.raises(ValueError, match=message) as error:
    checkpoint.load(damaged)
  # That one and no other.
  assert str(error.value).count('policy.') == 1
  assert 'value.' not in str(error.value)


def test_sizes_of_another_network_are_named(damaged):
  path = damaged / checkpoint.CONFIG_NAME
  config = json.loads(path.read_text())
  config['network_factory_kwargs']['policy_hidden_layer_sizes'] = [8]
  path.write_text(json.dumps(config))

  with pytest.raises(ValueError, match=r'saved \(3, 5\), needed \(3, 8\)'):
    checkpoint.load(damaged)


def test_the_newest_checkpoint_is_found_from_any_folder(saved, tmp_path):
  run = tmp_path / 'run'
  for step in (5, 40, 1000000000000):
    shutil.copytree(saved, run / 'checkpoints' / f'{step:012d}')
  newest = run / 'checkpoints' / '1000000000000'
  (run / 'checkpoints' / 'notes').mkdir()
  (run / 'checkpoints' / '9999999999999').mkdir()  # without a description

  for path in (run, str(run), run / 'checkpoints', newest):
    assert pathlib.Path(checkpoint.find(path)) == newest
  older = run / 'checkpoints' / '000000000040'
  assert pathlib.Path(checkpoint.find(older)) == older


@pytest.mark.parametrize('name', ['', 'nowhere'])
def test_a_folder_without_a_checkpoint_is_named(tmp_path, name):
  with pytest.raises(ValueError, match='no checkpoint in') as error:
    checkpoint.load_policy(tmp_path / name)
  assert str(tmp_path / name) in str(error.value)


def test_a_half_written_checkpoint_is_never_chosen(saved, tmp_path):
  partial = tmp_path / '000000000090.partial-123'
  shutil.copytree(saved, partial)

  for path in (tmp_path, partial):
    with pytest.raises(ValueError, match='no checkpoint'):
      checkpoint.find(path)
  complete = shutil.copytree(saved, tmp_path / '000000000040')
  assert pathlib.Path(checkpoint.find(tmp_path)) == complete


def test_a_save_that_fails_leaves_nothing_to_choose(tmp_path, monkeypatch):
  folder, params, _ = saved_policies.save(
    tmp_path, *saved_policies.CASES['MLP']
  )
  config = checkpoint.load_config(folder)

  def fail(*unused_args, **unused_kwargs):
    raise OSError('disk full')

  with monkeypatch.context() as broken:
    broken.setattr(ocp.Checkpointer, 'save', fail)
    with pytest.raises(OSError, match='disk full'):
      checkpoint.save(tmp_path, 8, params, config)
  assert checkpoint.find(tmp_path) == folder
  assert checkpoint.save(tmp_path, 8, params, config).name == '000000000008'
  assert checkpoint.find(tmp_path).name == '000000000008'
