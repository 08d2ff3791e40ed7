"""--dry_run, against the arrays and files of a run that is really made."""

import json
from typing import Any

from brax.training.agents.ppo import networks as brax_networks
import jax
import pytest

from brax_nnx_plugin.ppo import devices
from brax_nnx_plugin.ppo import networks_extra
from brax_nnx_plugin.ppo.training_run import TrainingRun
from launchers import configs
from launchers import description
from launchers import dry_run
from launchers import train_ppo
from tests import small_runs

_NETWORKS: dict[str, Any] = {
  'lstm': {'network_factory': small_runs.small_lstm},
  'vae': {'network_factory': networks_extra.make_variational_ppo_networks},
  'stock': {'network_factory': brax_networks.make_ppo_networks},
  'options': {
    'clipping_epsilon_value': 0.2,
    'max_grad_norm': 1.0,
    'learning_rate_schedule': 'ADAPTIVE_KL',
    'normalize_observations': True,
  },
}


def _bytes(tree: Any) -> int:
  return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize('name', _NETWORKS)
def test_memory_is_that_of_the_arrays_of_a_run(name):
  arguments = small_runs.arguments(**_NETWORKS[name])
  learner, env_state = dry_run.make_learner(arguments)
  memory = dry_run.measure(learner, env_state)

  run = TrainingRun(small_runs.config(**_NETWORKS[name]))
  state, actors = devices.first(run.state), devices.first(run.actors)
  collect = jax.jit(run._learner.collect)
  _, data = collect(state, actors, jax.random.PRNGKey(0))

  assert memory == dry_run.Memory(
    parameters=_bytes(state.variables),
    optimizer=_bytes(state.optimizer_state),
    normalizer=_bytes(state.normalizer_params),
    environments=_bytes(actors.env_state),
    carries=_bytes(actors.carry),
    rollout=_bytes(data),
  )


def test_the_formulas_hold():
  learner, env_state = dry_run.make_learner(
    small_runs.arguments(network_factory=small_runs.small_lstm)
  )
  memory = dry_run.measure(learner, env_state)
  # Two moments of 4 bytes per parameter, and one count.
  assert memory.optimizer == 2 * memory.parameters + 4
  # 4 environments; cells and hidden activations of 3 numbers on both sides.
  assert memory.carries == 4 * (2 * 2 * 3) * 4
  longer, _ = dry_run.make_learner(
    small_runs.arguments(network_factory=small_runs.small_lstm, unroll_length=8)
  )
  # 8 segments; what does not depend on their length is a carry, the last
  # observation and a flag.
  size = env_state.obs.shape[-1]
  fixed = 8 * (memory.carries // 4 + size * 4 + 4)
  double = dry_run.measure(longer, env_state).rollout
  assert double - fixed == 2 * (memory.rollout - fixed)


_OWN = """
from brax_nnx_plugin.networks import Dense, NormalTanhSampler, PPOAdapter
from brax_nnx_plugin.networks import GRU, Sequential

def build(observation_size, action_size, rngs, units=4):
  n = observation_size[0]
  head = Dense(units, 2 * action_size, rngs)
  action = [GRU(n, units, rngs), head, NormalTanhSampler(rngs)]
  return PPOAdapter(action=Sequential(action), value=Dense(n, 1, rngs))
"""
_FAST = ['--suite=brax', '--env_name=fast', '--dry_run']


def _main(*arguments: str) -> int:
  return train_ppo.main(['brax-nnx-train', *arguments])


@pytest.fixture(autouse=True)
def no_training(fake_train, tmp_path, monkeypatch):
  """No training, and a folder that nothing should be written to."""
  fake_train(lambda *args, **kwargs: pytest.fail('training began'))
  monkeypatch.chdir(tmp_path)


def test_a_dry_run_says_what_a_run_would_write(tmp_path, capsys, fake_train):
  arguments = ['--network=lstm', '--num_timesteps=100', '--seed=7']
  assert _main(*_FAST, *arguments) == 0
  out = capsys.readouterr().out
  shown, end = json.JSONDecoder().raw_decode(out)
  rest = ' '.join(out[end:].split())
  assert not any(tmp_path.iterdir())

  fake_train(lambda *args, **kwargs: ('make_policy', 'params', {}))
  assert _main(*_FAST[:2], *arguments, f'--logdir={tmp_path}') == 0
  (folder,) = tmp_path.iterdir()
  assert shown == json.loads((folder / 'config.json').read_text())
  capsys.readouterr()

  # A training step is 64 * 8 segments of 5 steps; two rounds of one each.
  assert '5,120 env steps (100 asked for)' in rest
  # 4 passes over 8 minibatches in each of two training steps.
  assert '64 gradient steps' in rest
  assert 'action/1' in rest
  assert 'LSTM' in rest


@pytest.mark.parametrize(
  'network',
  ['mlp', 'gru', 'rnn', 'mingru', 'delay_mlp', 'vae_mlp', 'own', 'stock'],
)
def test_every_kind_of_network_is_shown(
  network, capsys, tmp_path_factory, monkeypatch
):
  folder = tmp_path_factory.mktemp('own')
  (folder / 'own_network_of_a_dry_run.py').write_text(_OWN)
  monkeypatch.syspath_prepend(folder)
  named = {
    'own': 'own_network_of_a_dry_run:build',
    'stock': 'brax.training.agents.ppo.networks:make_ppo_networks',
  }.get(network, network)
  assert _main(*_FAST, f'--network={named}') == 0
  out = capsys.readouterr().out
  assert f'Network: {named}' in out
  assert 'total' in out


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--num_envs=63'], 'num_envs = 63'),
    (['--network=json:dumps'], 'cannot be made'),
    (['--load_checkpoint_path=nowhere'], 'no checkpoint'),
    (['--hide_observations=5'], 'Observation 5'),
  ],
)
def test_a_dry_run_finds_the_mistakes_of_a_run(arguments, message, capsys):
  assert _main(*_FAST, *arguments) == 2
  captured = capsys.readouterr()
  (line,) = captured.err.splitlines()
  assert message in line
  assert captured.out == ''


def test_a_dry_run_of_a_run_that_goes_on_requires_the_same(tmp_path, capsys):
  named = {'suite': 'brax', 'env_name': 'fast'}
  config = configs.resolve(named, has_gpu=False)
  text = json.dumps(description.describe(config))
  (tmp_path / 'config.json').write_text(text)
  assert _main(f'--resume={tmp_path}', '--dry_run') == 0
  assert _main(f'--resume={tmp_path}', '--dry_run', '--network=gru') == 2
  assert 'change its network' in capsys.readouterr().err
  assert (tmp_path / 'config.json').read_text() == text


def test_nothing_is_compiled():
  arguments = small_runs.arguments(network_factory=small_runs.small_lstm)
  compiled = []

  def listen(event, duration_secs, **kwargs):
    del duration_secs
    if 'backend_compile' in event:
      compiled.append(kwargs)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    jax.jit(lambda x: x * 3.5 + 1)(1.0)
    assert compiled  # the listener hears
    compiled.clear()
    learner, env_state = dry_run.make_learner(arguments)
    dry_run.measure(learner, env_state)
    dry_run.network_table.rows(learner.networks)
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  assert compiled == []
