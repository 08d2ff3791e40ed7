"""Mistakes that would cost a run are told before it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo.training_run import TrainingRun
from tests import fakes
from tests import small_runs


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('batch_size', 2.0),
    ('unroll_length', 2.5),
    ('seed', 2**40),
    ('learning_rate', float('nan')),
  ],
)
def test_a_number_of_the_wrong_kind_is_named(name, value):
  with pytest.raises(ValueError, match=name):
    small_runs.config(**{name: value})


def test_numpy_integers_are_whole_numbers():
  config = small_runs.config(batch_size=np.int64(4), num_envs=np.int32(4))
  assert (config.budget.batch_size, config.environment.num_envs) == (4, 4)


def test_a_file_in_the_way_of_checkpoints_is_found_before_training(tmp_path):
  file = tmp_path / 'file'
  file.write_text('')
  with pytest.raises(ValueError, match='save_checkpoint_path'):
    small_runs.small_train(
      network_factory=small_runs.small_mlp,
      environment=fakes.ScriptEnv([[]] * 4),
      wrap_env=False,
      save_checkpoint_path=str(file),
    )


def test_parameters_that_are_gone_are_an_error_that_names_them(tmp_path):
  (tmp_path / '000000000001').mkdir()
  config = checkpoint.network_config(
    small_runs.small_mlp, (3,), 1, False, std_eps=0.0, mode='welford'
  )
  networks = small_runs.small_mlp((3,), 1)
  variables = networks.functions.init(jax.random.key(0), jax.random.key(1))
  params = ({}, *variables.inference_params())
  folder = checkpoint.save(tmp_path, 2, params, config)
  (folder / 'params').rmtree()
  (folder / 'params').mkdir()
  with pytest.raises(ValueError, match='params is damaged'):
    checkpoint.load(folder)


@pytest.fixture(scope='module')
def policy():
  networks = ppo_networks.make_network_factory(fakes.count_network)((2,), 1)
  variables = networks.functions.init(jax.random.key(0), jax.random.key(1))
  make_policy = ppo_networks.make_inference_fn(networks)
  return make_policy((None, *variables.inference_params()))


@pytest.mark.parametrize('rows', [1, 2])
def test_a_state_of_other_rows_than_the_observation_is_refused(policy, rows):
  state = policy.initial_state(rows)
  with pytest.raises(ValueError, match='observation has rows'):
    policy(jnp.zeros((3, 2)), jax.random.key(0), state)


@pytest.mark.parametrize('shape', [(1,), (2,), (1, 3), (3, 3)])
def test_done_of_other_rows_than_the_state_is_refused(policy, shape):
  with pytest.raises(ValueError, match='done has shape'):
    policy.reset(policy.initial_state(3), jnp.ones(shape))


class _Seeing(small_runs.PointEnv):
  """Observes what it is told to, of its position."""

  def __init__(self, observe: Any, action_size: int = 1):
    super().__init__()
    self._observe_position = observe
    self.action_size = action_size

  def _observe(self, body):
    return self._observe_position(body['position'])


_POINT = _Seeing(lambda x: x[None])


def _build(observation_size, action_size, rngs):
  """Would make a module, if it were asked in the right way."""
  raise AssertionError((observation_size, action_size, rngs))


@pytest.mark.parametrize(
  ('factory', 'message'),
  [
    (None, 'got a NoneType'),
    (fakes.Count(), 'got a Count'),
    (_build, r"missing a required argument: 'rngs'\. If it is"),
    (fakes.count_network, "'preprocess_observations_fn'. If it is"),
    (lambda *args, **kwargs: None, 'it returned a NoneType'),
    (lambda *args, **kwargs: fakes.Count(), 'it returned a Count'),
  ],
)
def test_what_makes_no_networks_is_shown_the_way_out(factory, message):
  with pytest.raises(TypeError, match=message) as error:
    TrainingRun(small_runs.config(network_factory=factory))
  assert 'ppo.networks.make_network_factory' in str(error.value)


@pytest.mark.parametrize(
  ('environment', 'message'),
  [
    (_Seeing(lambda x: x), r'^observation: a single number.*x\[None\]'),
    (
      _Seeing(lambda x: {'state': x[None], 'clock': x}),
      r"^observation\['clock'\]: a single number",
    ),
    (
      _Seeing(lambda x: {'state': x[None], 'eye': jnp.zeros((4, 4, 3))}),
      r"begin with 'pixels/'.*'eye'\]\": 3, .*'state'\]\": 1",
    ),
    (_Seeing(lambda x: x[None], action_size=0), 'action_size = 0'),
  ],
)
def test_what_an_environment_says_of_itself_is_checked(environment, message):
  with pytest.raises(ValueError, match=message):
    TrainingRun(small_runs.config(environment=environment))


class _Alone(fakes.ScriptEnv):
  """Is no batch, whatever keys it is given."""

  def reset(self, rng):
    return jax.tree.map(lambda x: x[0], super().reset(rng))


def test_an_environment_that_is_no_batch_needs_wrapping():
  config = small_runs.config(environment=_Alone([[]] * 4), wrap_env=False)
  with pytest.raises(
    ValueError, match=r'shape \(\) for 4 keys.*wrap_env=False'
  ):
    TrainingRun(config)


@pytest.mark.parametrize(
  ('eval_env', 'message'),
  [
    (_Seeing(lambda x: x * jnp.ones(3)), r'\(1,\) and 1, in eval_env \(3,\)'),
    (_Seeing(lambda x: x[None], action_size=2), r'in eval_env \(1,\) and 2'),
    (_Seeing(lambda x: {'state': x[None]}), "{'state': "),
  ],
)
def test_an_environment_that_the_policy_cannot_act_in_is_told_at_once(
  eval_env, message
):
  settings = {'environment': _POINT, 'eval_env': eval_env}
  with pytest.raises(ValueError, match=message):
    TrainingRun(small_runs.config(**settings, run_evals=True))
  # Nobody asks for it.
  TrainingRun(small_runs.config(**settings, run_evals=False))


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('wrap_env_fn', lambda env, **kwargs: env),
    ('randomization_fn', small_runs.random_gains),
  ],
)
def test_a_wrapper_that_is_not_used_is_warned_of(name, value):
  env = fakes.ScriptEnv([[]] * 4)
  config = small_runs.config(environment=env, wrap_env=False, **{name: value})
  with pytest.warns(UserWarning, match=f'{name} has no effect'):
    TrainingRun(config)
