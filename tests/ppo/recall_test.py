"""A task that only memory solves: an LSTM learns it, an MLP cannot."""

import jax
import pytest

from brax_nnx_plugin.ppo import devices as device_lib
from brax_nnx_plugin.ppo.evaluation import Evaluator
from tests import learners
from tests import toy_envs

NUM_ENVS = 32
NUM_STEPS = 60


def _learned_return(kind):
  env = toy_envs.RecallEnv()
  rig = learners.make_rig(
    env,
    learners.small_factory(kind),
    num_envs=NUM_ENVS,
    batch_size=NUM_ENVS,
    num_minibatches=2,
    num_updates_per_batch=4,
    unroll_length=4,
    learning_rate=2e-2,
    entropy_cost=1e-3,
    discounting=0.97,
    num_timesteps=NUM_STEPS * NUM_ENVS * 2 * 4,
  )
  assert rig.learner.schedule.steps_per_epoch == NUM_STEPS
  epoch = rig.devices.pmap(rig.learner.run_epoch)
  state, _, _ = epoch(rig.state, rig.actors, rig.keys)
  evaluator = Evaluator(
    env,
    rig.learner.networks,
    num_eval_envs=NUM_ENVS,
    episode_length=4,
    action_repeat=1,
    key=jax.random.PRNGKey(0),
    deterministic=True,
  )
  return evaluator.run(device_lib.first(state), {})['eval/episode_reward']


@pytest.mark.slow
def test_lstm_learns_to_repeat_a_cue_of_three_steps_ago():
  assert _learned_return('lstm') > 0.9


@pytest.mark.slow
def test_mlp_stays_at_chance_without_memory():
  assert abs(_learned_return('mlp')) < 0.2
