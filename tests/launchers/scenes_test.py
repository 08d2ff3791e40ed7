"""What is played is what was trained."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from brax_nnx_plugin.networks import LSTM
from brax_nnx_plugin.networks import Dense
from brax_nnx_plugin.networks import NormalTanhSampler
from brax_nnx_plugin.networks import PPOAdapter
from brax_nnx_plugin.networks import Sequential
from brax_nnx_plugin.ppo import networks as ppo_networks
from launchers import environments
from launchers import episodes
from launchers import scenes
from launchers.errors import UserError
from tests import played_runs
from tests import small_runs


def build(observation_size: Any, action_size: int, rngs: Any) -> PPOAdapter:
  """A network that only its user can name."""
  (size,) = observation_size
  layers = [
    LSTM(size, 3, rngs),
    Dense(3, 2 * action_size, rngs),
    NormalTanhSampler(rngs),
  ]
  return PPOAdapter(action=Sequential(layers), value=Dense(size, 1, rngs))


_OWN = f'{__name__}:build'


def test_any_folder_of_a_run_names_it(tmp_path):
  played_runs.save_run(tmp_path)
  step = tmp_path / 'checkpoints' / '000000000007'

  found = [scenes.load(p) for p in (tmp_path, tmp_path / 'checkpoints', step)]

  assert {str(scene.path) for scene in found} == {str(step)}
  assert {scene.env_name for scene in found} == {played_runs.NAME}
  assert {scene.episode_length for scene in found} == {4}
  assert found[0].control_dt == 0.05


@pytest.mark.parametrize(
  ('arguments', 'normalize'),
  [({}, True), ({'normalize_inputs': True}, False)],
  ids=["Brax's statistics", 'embedded statistics'],
)
def test_the_statistics_come_along_and_stand_still(
  tmp_path, arguments, normalize
):
  factory = functools.partial(small_runs.small_lstm, **arguments)
  make_policy, params = played_runs.save_run(
    tmp_path, factory, normalize=normalize, offset=1e3
  )

  scene = scenes.load(tmp_path)
  played = episodes.play(scene, 2, keep_states=True)

  policy = make_policy(params, deterministic=True)
  expected = played_runs.actions_along(policy, played.states)
  actions = played.actions[: len(expected), 0]
  np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)
  assert np.ptp(actions) > 1e-3
  assert small_runs.largest_difference(scene.params[1:], params[1:]) == 0
  bare = ppo_networks.make_inference_fn(small_runs.small_lstm((2,), 1))
  if normalize:
    plain = played_runs.actions_along(bare(params, True), played.states)
    assert np.abs(plain - expected).max() > 1e-3


def test_the_network_has_the_sizes_it_was_saved_with(tmp_path):
  _, params = played_runs.save_run(tmp_path)
  options = {'memory_size': 8, 'policy_memory_size': 3}

  scene = scenes.load(tmp_path, options)

  shapes = lambda tree: jax.tree.map(np.shape, tree)
  assert shapes(scene.params[1:]) == shapes(params[1:])
  (note,) = scene.notes
  assert '--memory_size=8' in note and 'saved with 3' in note


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    ({'network': 'gru'}, ['--network=gru', 'lstm']),
    ({'network': 'ltsm'}, ['no such network', 'lstm']),
    ({'network': _OWN}, ['contradicts', 'lstm']),
    ({'env_name': 'ant'}, ['--env_name=ant', played_runs.NAME]),
  ],
)
def test_what_contradicts_is_named_on_both_sides(tmp_path, options, words):
  played_runs.save_run(tmp_path)

  with pytest.raises(UserError) as told:
    scenes.load(tmp_path, options)
  for word in words:
    assert word in str(told.value)


def test_changes_of_the_environment_are_made_and_told(tmp_path):
  played_runs.save_run(tmp_path)

  scene = scenes.load(tmp_path, {'episode_length': 3}, {'offset': 2.0})

  first, second = scene.notes
  assert '2.0 here and was 0.0' in first
  assert '3 here and was 4' in second
  assert scene.episode_length == 3
  assert scene.env.reset(jax.random.PRNGKey(0)).obs[1] == 2.0
  with pytest.raises(UserError, match='no entry .ofset'):
    scenes.load(tmp_path, {}, {'ofset': 2.0})


def test_a_network_of_ones_own_is_named_by_its_user_alone(tmp_path):
  factory = ppo_networks.make_network_factory(build)
  played_runs.save_run(tmp_path, factory, kind=_OWN)

  with pytest.raises(UserError, match='nothing that only a file names'):
    scenes.load(tmp_path)
  with pytest.raises(UserError, match='--network=lstm contradicts'):
    scenes.load(tmp_path, {'network': 'lstm'})
  scene = scenes.load(tmp_path, {'network': _OWN})
  assert episodes.play(scene, 2).actions.shape == (4, 2, 1)


def test_a_checkpoint_without_a_run_needs_an_environment(tmp_path):
  played_runs.save_run(tmp_path)
  (tmp_path / 'config.json').unlink()

  with pytest.raises(UserError, match='Name it with --env_name'):
    scenes.load(tmp_path)
  with pytest.raises(UserError, match="no environment 'Cartpole'"):
    scenes.load(tmp_path, {'env_name': 'Cartpole'})


def test_where_there_is_no_checkpoint_it_is_told(tmp_path):
  with pytest.raises(UserError, match='There is no checkpoint in'):
    scenes.load(tmp_path / 'nowhere')


def _playground(folder: Any) -> None:
  environment = {
    'name': 'CartpoleBalance',
    'config': {'impl': 'warp', 'ctrl_dt': 0.02},
    'hidden_observations': [3, 4],
    'domain_randomization': False,
    'randomize_eval': True,
  }
  played_runs.save_run(folder, environment=environment)


def test_playground_is_played_with_the_physics_that_runs_here(
  tmp_path, monkeypatch
):
  _playground(tmp_path)
  made = []

  def load(name, config, hidden, suite, delay):
    assert (suite, delay) == ('playground', 0)
    made.append((name, config.impl, config.ctrl_dt, hidden))
    return played_runs.FilmedPoint()

  monkeypatch.setattr(scenes.environments, 'load', load)

  scene = scenes.load(tmp_path, {}, {'ctrl_dt': 0.05})
  scenes.load(tmp_path, {'impl': 'warp'})

  assert made == [
    ('CartpoleBalance', 'jax', 0.05, (3, 4)),
    ('CartpoleBalance', 'warp', 0.02, (3, 4)),
  ]
  assert "'jax' here and was 'warp'" in ' '.join(scene.notes)
  assert '0.05 here and was 0.02' in ' '.join(scene.notes)


def test_another_size_of_the_world_is_told(tmp_path):
  _playground(tmp_path)

  with pytest.raises(UserError, match=r'observations of \(2,\).*has \(3,\)'):
    scenes.load(tmp_path)


def test_without_physics_there_is_no_pace():
  config = environments.default_config('fast', environments.BRAX)
  scene = scenes.Scene(
    env=environments.load('fast', config, suite=environments.BRAX),
    env_name='fast',
    suite=environments.BRAX,
    hidden=(),
    episode_length=4,
    action_repeat=2,
    path=None,
    network='mlp',
    networks=None,
    params=None,
  )
  assert scene.control_dt is None
  assert scene.step_in_words == 'steps of 2 env steps'
