"""Tests of the training step: whole segments, start carries, counting."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import losses
from brax_nnx_plugin.ppo.networks import make_network_factory
from tests import fakes
from tests import learners
from tests import segments
from tests import toy_envs


def test_start_carries_stay_those_of_the_rollout_over_all_epochs():
  rig = learners.drift_rig(
    learners.small_factory('lstm'), num_updates_per_batch=3, num_envs=2
  )
  before = rig.variables.params
  key = jax.random.split(rig.keys[0], 3)[1]  # the training step's own split
  row = lambda tree: jax.tree.map(lambda x: x[0], tree)
  _, data = jax.jit(rig.learner.collect)(row(rig.state), row(rig.actors), key)
  metrics = rig.step()
  rows = np.asarray(metrics['rows'][0]).reshape((3, -1))
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    row(metrics['start_carry'])
  ):
    carries = np.asarray(leaf).reshape((3, 8, -1))
    by_segment = [carries[i][np.argsort(rows[i])] for i in range(3)]
    np.testing.assert_array_equal(by_segment[1], by_segment[0])
    np.testing.assert_array_equal(by_segment[2], by_segment[0])
    expected = functools.reduce(
      lambda node, k: node[getattr(k, 'key', getattr(k, 'idx', None))],
      path,
      data.start_carry,
    )
    np.testing.assert_allclose(by_segment[0], expected, atol=1e-6)
    assert np.any(by_segment[0][2:] != 0)  # some begin within an episode
  # Meanwhile the weights did move, so refreshed carries would be others.
  for a, b in zip(
    jax.tree.leaves(before), jax.tree.leaves(rig.variables.params), strict=True
  ):
    assert not np.array_equal(a, b)


def test_all_consecutive_segments_replay_exactly_after_the_shuffle():
  rig = learners.make_rig(
    fakes.ScriptEnv([[], []]),
    make_network_factory(fakes.count_network),
    learner_class=learners.ProbeLearner,
    num_envs=2,
    batch_size=2,
    num_minibatches=4,
    unroll_length=3,
    learning_rate=0.0,
  )
  metrics = rig.step()
  # The action of CountNet is its count, and the most likely one only if the
  # replay counts alike, in each minibatch of each epoch.
  assert metrics['ratio_error'].shape == (1, 2, 4)
  np.testing.assert_array_equal(metrics['ratio_error'], 0.0)
  for epoch in range(2):
    order = np.asarray(metrics['rows'][0, epoch]).ravel()
    starts = np.asarray(metrics['start_carry']['action'][0][0, epoch]).ravel()
    # Segments are numbered unroll by unroll, 2 rows each.
    np.testing.assert_array_equal(starts, order // 2 * 3)


@pytest.fixture
def spied_minibatches(monkeypatch):
  """Lets the loss report its data instead of computing anything."""

  def spy(params, variables, normalizer_params, data, *args, **kwargs):
    del variables, normalizer_params, args, kwargs
    zero = 0.0 * sum(jnp.sum(p) for p in jax.tree.leaves(params))
    return zero, {'kl_mean': zero, 'data': data}

  monkeypatch.setattr(losses, 'ppo_loss', spy)


def test_shuffle_keeps_every_segment_whole(spied_minibatches):
  del spied_minibatches
  rig = learners.make_rig(
    fakes.ScriptEnv([[1], [], [4]]),
    learners.small_factory('lstm', normalize_inputs=True),
    num_envs=3,
    batch_size=3,
    num_minibatches=4,
    unroll_length=5,
    clipping_epsilon_value=0.2,
    bootstrap_on_timeout=True,
  )
  learner = rig.learner
  row = lambda tree: jax.tree.map(lambda x: x[0], tree)
  shapes = jax.eval_shape(
    learner.collect, row(rig.state), row(rig.actors), rig.keys[0]
  )[1]

  def tag(leaf):  # the segment's number everywhere
    index = jnp.arange(12.0).reshape((12,) + (1,) * (leaf.ndim - 1))
    return jnp.broadcast_to(index, leaf.shape)

  data = jax.tree.map(tag, shapes)
  assert len(jax.tree.leaves(data)) > 15
  # Rewards say the time of the step, too: 100 times t.
  data = dataclasses.replace(data, reward=data.reward + 100 * jnp.arange(5.0))
  state = row(rig.state)

  def epochs(key):
    carry = (state.optimizer_state, state.variables.params, key)
    return jax.lax.scan(
      functools.partial(learner.sgd_epoch, state=state, data=data),
      carry,
      (),
      length=2,
    )[1]

  metrics = rig.devices.pmap(epochs)(rig.keys)
  seen = jax.tree.map(np.asarray, metrics['data'])
  reward = seen.reward
  assert reward.shape == (1, 2, 4, 3, 5)
  ids = reward[..., 0]
  np.testing.assert_array_equal(
    reward, ids[..., None] + 100 * np.arange(5), 'times are out of order'
  )
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    dataclasses.replace(seen, reward=None)
  ):
    expected = ids.reshape(ids.shape + (1,) * (leaf.ndim - ids.ndim))
    np.testing.assert_array_equal(
      leaf, np.broadcast_to(expected, leaf.shape), jax.tree_util.keystr(path)
    )
  orders = ids.reshape((2, 12))
  for order in orders:  # each segment once in an epoch
    np.testing.assert_array_equal(np.sort(order), np.arange(12))
  assert not np.array_equal(orders[0], orders[1])


def test_env_steps_count_all_rows_segments_and_repeats():
  env = segments.wrapped(toy_envs.TickEnv(), 9, action_repeat=3)
  rig = learners.make_rig(
    env,
    make_network_factory(fakes.count_network),
    num_envs=2,
    batch_size=2,
    num_minibatches=2,
    unroll_length=4,
    action_repeat=3,
    episode_length=9,
  )
  for step in (1, 2):
    rig.step()
    # 4 segments of 4 network steps of 3 repeats.
    assert int(jax.tree.map(lambda x: x[0], rig.state.env_steps)) == 48 * step
  # 8 segments of 4 steps over 2 rows: 16 network steps each, in episodes of 3;
  # the next count is 16 mod 3, before a reset if there is one.
  counts = np.asarray(rig.actors.carry['action'][0][0])
  np.testing.assert_array_equal(counts, [16 % 3] * 2)
