"""Step arithmetic: what is planned is what Brax would plan."""

import itertools
import re

import numpy as np
import pytest

from brax_nnx_plugin.ppo.schedule import Schedule
from tests import small_runs

_GRID = list(
  itertools.product((1, 32, 33, 64, 1000), (0, 1, 2, 5), (0, 1, 3), (1, 2))
)


@pytest.mark.parametrize(
  ('num_timesteps', 'num_evals', 'num_resets', 'action_repeat'), _GRID
)
def test_a_plan_takes_at_least_what_was_asked_for(
  num_timesteps, num_evals, num_resets, action_repeat
):
  config = small_runs.config(
    num_timesteps=num_timesteps,
    num_evals=num_evals,
    num_resets_per_eval=num_resets,
    action_repeat=action_repeat,
  )

  schedule = Schedule.of(config, 2)

  # As Brax does it: 4 * 2 segments of 4 network steps, rounds of epochs.
  step = 4 * 2 * 4 * action_repeat
  rounds, epochs = max(num_evals - 1, 1), max(num_resets, 1)
  steps = int(np.ceil(num_timesteps / (rounds * step * epochs)))
  assert schedule.env_steps_per_training_step == step
  assert (schedule.num_rounds, schedule.epochs_per_round) == (rounds, epochs)
  assert schedule.steps_per_epoch == steps
  assert schedule.env_steps_per_epoch == steps * step
  assert schedule.total_env_steps == rounds * epochs * steps * step
  assert schedule.total_env_steps >= num_timesteps
  # One training step less an epoch would be too few.
  assert rounds * epochs * (steps - 1) * step < num_timesteps


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_evals', 'num_resets', 'action_repeat'), [(0, 1, 2), (3, 2, 1)]
)
def test_the_plan_is_carried_out(num_evals, num_resets, action_repeat):
  overrides = {
    'num_timesteps': 70,
    'num_evals': num_evals,
    'num_resets_per_eval': num_resets,
    'action_repeat': action_repeat,
  }
  steps = []

  small_runs.small_train(
    policy_params_fn=lambda step, *_: steps.append(step), **overrides
  )

  schedule = Schedule.of(small_runs.config(**overrides), 1)
  per_round = schedule.epochs_per_round * schedule.env_steps_per_epoch
  expected = [i * per_round for i in range(schedule.num_rounds + 1)]
  assert steps == expected
  assert steps[-1] == schedule.total_env_steps >= 70


def test_large_step_numbers_are_exact():
  # 2^53 + 1 is no float: planning in floats would lose the last step.
  num_timesteps = 2**53 + 1
  config = small_runs.config(
    num_timesteps=num_timesteps,
    num_envs=1,
    batch_size=1,
    num_minibatches=1,
    unroll_length=num_timesteps // 3,
  )

  assert Schedule.of(config, 1).steps_per_epoch == 3
  assert Schedule.of(config, 1).total_env_steps == num_timesteps


def test_an_epoch_is_no_longer_than_jax_can_count():
  config = small_runs.config(
    num_timesteps=2**31,
    num_envs=1,
    batch_size=1,
    num_minibatches=1,
    unroll_length=1,
  )
  with pytest.raises(ValueError, match='Choose fewer env steps or more num_ev'):
    Schedule.of(config, 1)


def test_time_steps_may_be_a_float_as_in_brax():
  config = small_runs.config(num_timesteps=1e3)

  # 1000 / 32 = 31.25
  steps = Schedule.of(config, 1).steps_per_epoch
  assert steps == 32
  assert isinstance(steps, int)


def test_environments_and_segments_are_shared_out():
  config = small_runs.config(num_envs=4, batch_size=6, num_minibatches=4)

  schedule = Schedule.of(config, 2)

  # 24 segments of 4 environments; each device has 2 of them.
  assert schedule.envs_per_device == 2
  assert schedule.unrolls_per_step == 6


@pytest.mark.parametrize(
  ('num_envs', 'batch_size', 'valid'),
  [(6, 3, 'batch_size = (2|4)'), (3, 6, 'num_envs = (2|4)')],
)
def test_what_does_not_divide_over_devices_is_explained(
  num_envs, batch_size, valid
):
  config = small_runs.config(
    num_envs=num_envs, batch_size=batch_size, num_minibatches=4
  )

  with pytest.raises(ValueError, match='2 devices') as error:
    Schedule.of(config, 2)

  message = str(error.value)
  assert f'num_envs = {num_envs}' in message
  assert f'batch_size = {batch_size}' in message
  assert re.search(valid, message), 'names the nearest valid choice'


def test_a_suggested_batch_size_also_divides_over_the_devices():
  """Following one error's advice must not lead to the next error."""
  with pytest.raises(ValueError, match='choose') as error:
    small_runs.small_train(
      num_envs=6, batch_size=4, num_minibatches=2, max_devices_per_host=2
    )

  suggested = re.search(r'choose batch_size = (\d+)', str(error.value))
  assert suggested is not None
  config = small_runs.config(
    num_envs=6, batch_size=int(suggested[1]), num_minibatches=2
  )
  Schedule.of(config, 2)
