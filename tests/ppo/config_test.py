"""The parameters of `train`, sorted and checked."""

import collections
import dataclasses
import inspect
import itertools
import typing

from brax.training.agents.ppo import optimizer as brax_optimizer
from brax.training.agents.ppo import train as brax_train
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo.config import TrainConfig
from tests import small_runs


def test_every_parameter_of_brax_is_in_exactly_one_group():
  groups = typing.get_type_hints(TrainConfig).values()
  names = collections.Counter(
    field.name for group in groups for field in dataclasses.fields(group)
  )

  assert set(names) == set(inspect.signature(brax_train.train).parameters)
  assert set(names.values()) == {1}


def test_each_group_holds_what_was_given():
  arguments = small_runs.arguments(seed=7, gae_lambda=0.5, desired_kl=0.2)

  config = TrainConfig.from_arguments(arguments)

  for group in dataclasses.fields(config):
    for name, value in vars(getattr(config, group.name)).items():
      assert value is arguments[name], name


@pytest.mark.parametrize(
  'name',
  [
    'num_envs',
    'action_repeat',
    'batch_size',
    'unroll_length',
    'num_minibatches',
    'num_updates_per_batch',
  ],
)
@pytest.mark.parametrize('value', [0, -3])
def test_a_count_must_be_positive(name, value):
  with pytest.raises(ValueError, match=rf'{name} .*at least 1.* {value}\b'):
    small_runs.config(**{name: value})


@pytest.mark.parametrize(
  'name', ['num_timesteps', 'num_resets_per_eval', 'num_evals']
)
def test_a_budget_may_be_zero_but_not_negative(name):
  small_runs.config(**{name: 0})
  with pytest.raises(ValueError, match=rf'{name} must be .*at least 0; got -1'):
    small_runs.config(**{name: -1})


def test_evaluation_environments_are_needed_only_to_evaluate():
  small_runs.config(num_eval_envs=0, run_evals=False)
  with pytest.raises(
    ValueError, match='num_eval_envs must be a whole number of at least 1'
  ):
    small_runs.config(num_eval_envs=0, run_evals=True)


@pytest.mark.parametrize('name', ['discounting', 'gae_lambda'])
@pytest.mark.parametrize('value', [-0.1, 1.1])
def test_a_discount_is_between_0_and_1(name, value):
  small_runs.config(**{name: 0.0})
  small_runs.config(**{name: 1.0})
  with pytest.raises(ValueError, match=rf'{name} .*between 0 and 1.*{value}'):
    small_runs.config(**{name: value})


def test_wrapping_needs_an_episode_length():
  small_runs.config(episode_length=None, wrap_env=False)
  with pytest.raises(ValueError, match='episode_length must be given'):
    small_runs.config(episode_length=None, wrap_env=True)


def test_images_are_not_rendered_for_repeated_actions():
  small_runs.config(vision=True, augment_pixels=True)
  with pytest.raises(ValueError, match='vision=True needs .* = 1,.* got 2'):
    small_runs.config(vision=True, action_repeat=2)


def test_a_distributional_critic_needs_the_threshold_of_its_loss():
  on = {'use_distributional_critic': True}
  small_runs.config(**on, clipping_epsilon_value=1.0)
  with pytest.raises(ValueError, match='needs clipping_epsilon_value'):
    small_runs.config(**on)


def test_an_episode_is_whole_network_steps():
  small_runs.config(episode_length=9, action_repeat=3)
  with pytest.raises(ValueError, match=r'8 must be a multiple .* 3,'):
    small_runs.config(episode_length=8, action_repeat=3)


def test_the_nearest_whole_episode_is_suggested():
  # 13 / 5 = 2.6 and 2 / 5 = 0.4: 15 is nearer than 10, and 0 is no length.
  for length, choice in ((13, 15), (2, 5)):
    with pytest.raises(ValueError, match=f'choose episode_length = {choice}'):
      small_runs.config(episode_length=length, action_repeat=5)
    small_runs.config(episode_length=choice, action_repeat=5)


_NAN, _INF = float('nan'), float('inf')


@pytest.mark.parametrize(
  ('name', 'values'),
  [
    ('episode_length', (0, -1, 8.0)),
    ('seed', (0.5, 2**32)),
    ('num_timesteps', (_NAN, _INF, None)),
    ('num_evals', (1.5,)),
    ('num_resets_per_eval', (0.5,)),
    ('entropy_cost', (_NAN, None)),
    ('reward_scaling', (_INF, 'much')),
    ('vf_loss_coefficient', (-1, _NAN)),
    ('clipping_epsilon', (-0.1, _NAN, None)),
    ('clipping_epsilon_value', (-0.1,)),
    ('learning_rate', (-1e-3, _INF)),
    ('max_grad_norm', (0, -1.0, _NAN)),
    ('normalize_observations_std_eps', (-1e-3,)),
    ('normalize_until_count', (-1,)),
    ('training_metrics_steps', (-1,)),
  ],
)
def test_a_number_out_of_its_range_is_named(name, values):
  for value in values:
    with pytest.raises(ValueError, match=rf'{name}\b.*{value}'):
      small_runs.config(**{name: value})


def test_numbers_at_the_edge_of_their_range_are_taken():
  config = small_runs.config(
    clipping_epsilon=0,
    clipping_epsilon_value=None,
    learning_rate=jnp.float32(0),
    max_grad_norm=None,
    entropy_cost=-1,
    normalize_until_count=0,
    training_metrics_steps=0,
    episode_length=np.int64(1),
  )
  assert config.loss.clipping_epsilon == config.optimizer.learning_rate == 0
  assert config.environment.episode_length == 1


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('desired_kl', -1),
    ('learning_rate_schedule_min_lr', 0.1),
    ('learning_rate_schedule_max_lr', 1e-6),
  ],
)
def test_the_adaptive_learning_rate_needs_room(name, value):
  small_runs.config(**{name: value})
  with pytest.raises(ValueError, match=name):
    small_runs.config(**{name: value}, learning_rate_schedule='ADAPTIVE_KL')


def test_a_learning_rate_has_one_schedule():
  schedule = lambda count: 1e-3 / (1 + count)
  small_runs.config(learning_rate=schedule, entropy_cost=schedule)
  with pytest.raises(ValueError, match='learning_rate must be a finite number'):
    small_runs.config(
      learning_rate=schedule, learning_rate_schedule='ADAPTIVE_KL'
    )


@pytest.mark.parametrize('name', ['learning_rate', 'entropy_cost'])
@pytest.mark.parametrize(
  ('schedule', 'message'),
  [
    (lambda: 1.0, 'cannot be traced'),
    (lambda count: 1.0 if count < 5 else 0.0, 'cannot be traced'),
    (lambda count: jnp.ones(2), 'one number'),
    (lambda count: None, 'one number'),
  ],
)
def test_a_schedule_that_is_none_is_refused(name, schedule, message):
  with pytest.raises(ValueError, match=f'{name} .*{message}'):
    small_runs.config(**{name: schedule})


def test_an_unknown_normalizer_mode_is_named():
  with pytest.raises(ValueError, match="'welford' or 'ema'; got 'median'"):
    small_runs.config(normalize_observations_mode='median')


def test_an_unknown_schedule_is_named_with_the_known_ones():
  with pytest.raises(ValueError, match=r"'LINEAR'.*NONE, ADAPTIVE_KL"):
    small_runs.config(learning_rate_schedule='LINEAR')


@pytest.mark.parametrize(
  ('schedule', 'adaptive'),
  [
    (None, False),
    ('NONE', False),
    (brax_optimizer.LRSchedule.NONE, False),
    ('ADAPTIVE_KL', True),
    (brax_optimizer.LRSchedule.ADAPTIVE_KL, True),
  ],
)
def test_a_schedule_is_given_by_name_or_member(schedule, adaptive):
  config = small_runs.config(learning_rate_schedule=schedule)

  assert config.optimizer.adaptive_kl is adaptive


@pytest.mark.parametrize(
  ('overrides', 'needed'),
  [
    ({}, False),
    ({'bootstrap_on_timeout': True}, True),
    ({'clipping_epsilon_value': 0.2}, True),
  ],
)
def test_old_values_are_kept_only_for_a_loss_that_reads_them(overrides, needed):
  assert small_runs.config(**overrides).loss.needs_old_value is needed


def test_segments_that_do_not_fit_are_explained():
  # 4 * 2 = 8 segments for 6 environments. 3 * 2 = 6 and 6 * 2 = 12 would do,
  # and 3 is nearer to 4; 8 segments do for 4 environments or 8, both as near.
  with pytest.raises(ValueError, match='multiple of num_envs') as error:
    small_runs.config(num_envs=6, batch_size=4, num_minibatches=2)

  message = str(error.value)
  assert '= 4 * 2 = 8' in message
  assert 'num_envs = 6.' in message
  assert 'batch_size = 3, or num_envs = 4.' in message


def test_suggested_numbers_fit_and_no_nearer_ones_do():
  sizes = itertools.product((1, 5, 6, 12, 100), (1, 4, 7, 32), (1, 2, 3, 16))
  for num_envs, batch_size, num_minibatches in sizes:
    given = {'num_envs': num_envs, 'num_minibatches': num_minibatches}
    if batch_size * num_minibatches % num_envs == 0:
      small_runs.config(batch_size=batch_size, **given)
      continue
    with pytest.raises(ValueError, match='choose') as error:
      small_runs.config(batch_size=batch_size, **given)
    _, _, choice = str(error.value).rpartition('choose batch_size = ')
    better_batch, _, better_envs = choice.rstrip('.').partition(
      ', or num_envs = '
    )
    distance = abs(int(better_batch) - batch_size)
    fits = lambda b, n, m=num_minibatches: b > 0 and n > 0 and b * m % n == 0
    assert fits(int(better_batch), num_envs)
    assert not any(
      fits(batch_size + step, num_envs)
      for step in range(1 - distance, distance)
    )
    distance = abs(int(better_envs) - num_envs)
    assert fits(batch_size, int(better_envs))
    assert not any(
      fits(batch_size, num_envs + step)
      for step in range(1 - distance, distance)
    )
