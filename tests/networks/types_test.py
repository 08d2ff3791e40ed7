"""The contract: unroll, resets, class creation and statistics."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks import types
from tests import fakes
from tests.networks import cases
from tests.networks import table

DTYPES = (jnp.bool_, jnp.int32, jnp.float32, jnp.uint8)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize(
  'done', [[0, 0, 1, 0], [0], [1], [1, 1, 1, 1], [0, 0, 0, 0]], ids=str
)
def test_done_is_a_mask_of_rows_whatever_its_type(dtype, done):
  lstm = table.build('lstm_trained')
  rows = len(done)
  state = cases.draw((4,), rows), cases.draw((4,), rows, seed=3)
  result = stepping.reset_rows(lstm, jnp.asarray(done, dtype), state)
  fresh = lstm.initialize_state(rows)
  for old, new, initial in zip(state, result, fresh, strict=True):
    for row, flag in enumerate(done):
      expected = initial[row] if flag else old[row]
      np.testing.assert_array_equal(new[row], expected)
    assert new.dtype == old.dtype


def test_any_nonzero_number_means_done():
  state = jnp.array([4, 5, 6], jnp.int32)
  done = jnp.array([0.25, 0.0, -1.0])
  result = stepping.reset_rows(fakes.Count(), done, state)
  np.testing.assert_array_equal(result, [0, 5, 0])
  assert result.dtype == jnp.int32


def test_select_rows_takes_rows_of_every_rank():
  on = {'a': jnp.ones((2,)), 'b': jnp.ones((2, 3, 2))}
  off = jax.tree.map(jnp.zeros_like, on)
  result = stepping.select_rows(jnp.array([0, 1]), on, off)
  np.testing.assert_array_equal(result['a'], [0, 1])
  np.testing.assert_array_equal(result['b'].sum((1, 2)), [0, 6])


def test_what_select_rows_leaves_out_may_be_nan():
  mask = jnp.array([True, False])
  bad, good = jnp.array([1.0, jnp.nan]), jnp.array([jnp.nan, 2.0])
  np.testing.assert_array_equal(
    stepping.select_rows(mask, bad, good), [1.0, 2.0]
  )


def test_select_rows_takes_typed_keys():
  keys = jax.random.split(jax.random.key(0), 4)
  result = stepping.select_rows(jnp.array([0, 1]), keys[:2], keys[2:])
  expected = jax.random.key_data(keys[jnp.array([2, 1])])
  np.testing.assert_array_equal(jax.random.key_data(result), expected)


def test_a_module_without_memory_is_not_reset():
  class Untouched(fakes.Gain):
    def reset_state(self, prev_state):
      raise AssertionError('there is nothing to reset')

  state = ([(), ()], {'a': ()})
  assert stepping.reset_rows(Untouched(), jnp.ones(2), state) == state


def test_initialize_state_without_reset_state_is_a_fault_of_the_class():
  with pytest.raises(TypeError, match='Sticky .* reset_state'):

    class Sticky(types.StatefulModule):
      def __call__(self, state, x, rollout_extras=None):
        return types.StatefulModuleOutput(state, x, jnp.array(0.0), {})

      def initialize_state(self, batch_size):
        return jnp.zeros(batch_size)

    del Sticky


def test_a_subclass_may_inherit_reset_state():
  class Twice(fakes.Count):
    def initialize_state(self, batch_size):
      return jnp.full(batch_size, 2)

  assert Twice().initialize_state(1) == 2


def test_a_module_must_say_what_a_step_is():
  class Nothing(types.StatefulModule):
    pass

  with pytest.raises(TypeError, match='__call__'):
    Nothing()  # pyright: ignore[reportAbstractUsage]


def test_the_defaults_are_those_of_a_memoryless_module():
  gain = fakes.Gain()
  assert gain.initialize_state(3) == ()
  assert gain.reset_state(()) == ()
  gain.update_statistics(None)
  gain.update_statistics(None, axis_name='devices')


def test_a_count_restarts_where_an_episode_begins():
  # Row 0 begins an episode at t=2, row 1 at t=0: the reset comes before the
  # step that sees the first observation.
  is_first = jnp.array([[0, 1], [0, 0], [1, 0], [0, 0]], jnp.float32)
  state = jnp.array([5, 7], jnp.int32)
  out = fakes.Count().unroll(state, jnp.zeros((4, 2, 1)), is_first)
  expected = [[5, 0], [6, 1], [0, 2], [1, 3]]
  np.testing.assert_array_equal(out.output[..., 0], expected)
  np.testing.assert_array_equal(out.next_state, [2, 4])


def test_a_reset_takes_the_first_observation_and_not_the_last():
  # EchoNet says the last observation, or -1 in the first step of an episode.
  x = jnp.arange(5.0).reshape(5, 1, 1)
  is_first = jnp.array([1, 0, 0, 1, 0]).reshape(5, 1)
  out = fakes.Echo().unroll(jnp.full((1, 1), 9.0), x, is_first)
  np.testing.assert_array_equal(out.output.ravel(), [-1, 0, 1, -1, 3])


@pytest.mark.parametrize('size', [3, 4])
def test_time_and_rows_are_not_mixed_up(size):
  # With as many rows as steps no shape can tell them apart.
  order = jnp.array([2, 0, 3, 1][:size] if size == 4 else [2, 0, 1])
  x = cases.draw(1, 4, size)
  is_first = cases.masks(4, size)
  state = jnp.arange(size, dtype=jnp.int32)
  run = fakes.Count().unroll
  out, moved = run(state, x, is_first), run(state[order], x, is_first[:, order])
  np.testing.assert_array_equal(moved.output, out.output[:, order])
  other = run(state, x, is_first[jnp.array([1, 2, 3, 0])])
  assert np.any(other.output != out.output)


def test_a_scanned_number_per_step_keeps_an_axis_to_add_rows_to():
  class Constant(fakes.Count):
    def __call__(self, state, x, rollout_extras=None):
      out: Any = super().__call__(state, x)
      return out.replace(regularization_loss=jnp.max(x))

  x = jnp.arange(4.0).reshape(4, 1, 1) * jnp.ones((4, 2, 1))
  run = (jnp.zeros(2, jnp.int32), x, jnp.zeros((4, 2)))
  loss = Constant().unroll(*run).regularization_loss
  np.testing.assert_array_equal(loss, np.arange(4.0)[:, None])
  both = networks.Parallel(a=Constant(), b=cases.Penalty())
  out = both.unroll({'a': run[0], 'b': ()}, *run[1:])
  # max x + x² in every row: 0, 2, 6, 12.
  expected = np.array([0, 2, 6, 12.0])[:, None] * np.ones((4, 2))
  np.testing.assert_array_equal(out.regularization_loss, expected)


@pytest.mark.parametrize('field', ['regularization_loss', 'metrics'])
def test_a_python_number_is_as_good_as_an_array(field):
  class Plain(types.StatefulModule):
    def __call__(self, state, x, rollout_extras=None):
      out: Any = types.StatefulModuleOutput(state, x, jnp.array(0.0), {})
      value = 2.0 if field == 'regularization_loss' else {'two': 2.0}
      return out.replace(**{field: value})

  out = Plain().unroll((), jnp.ones((3, 2, 1)), jnp.zeros((3, 2)))
  leaves = jax.tree.leaves((out.regularization_loss, out.metrics))
  assert 2.0 in [float(np.mean(leaf)) for leaf in leaves]


def test_unroll_draws_new_noise_at_every_step_of_a_scanned_module():
  class Noise(fakes.Count):
    def __init__(self):
      self.rngs = nnx.Rngs(0)

    def __call__(self, state, x, rollout_extras=None):
      out: Any = super().__call__(state, x)
      noise = jax.random.normal(self.rngs(), state.shape)
      return out.replace(output=noise)

  module = Noise()
  run = (jnp.zeros(2, jnp.int32), jnp.zeros((3, 2, 1)), jnp.zeros((3, 2)))
  first, second = module.unroll(*run).output, module.unroll(*run).output
  assert len(np.unique(np.stack([first, second]))) == 12


def test_a_memoryless_module_sees_all_rows_of_all_steps_at_once():
  shapes = []

  class Spy(fakes.Gain):
    def __call__(self, state, x, rollout_extras=None):
      extras: Any = rollout_extras
      shapes.append((x.shape, extras.shape))
      return super().__call__(state, x)

  x = jnp.ones((4, 3, 2))
  out = Spy().unroll((), x, jnp.zeros((4, 3)), jnp.ones((4, 3, 5)))
  assert shapes == [((12, 2), (12, 5))]
  np.testing.assert_array_equal(out.output, x)


class _OldStyle:
  """A module whose `update_statistics` knows nothing of devices."""

  def __init__(self):
    self.seen: Any = []

  def update_statistics(self, rollout_extras):
    self.seen.append(rollout_extras)


class _Anything(_OldStyle):
  def update_statistics(self, rollout_extras, **kwargs):
    self.seen.append((rollout_extras, kwargs))


def test_statistics_without_axis_name_work_on_one_device():
  module = _OldStyle()
  stepping.update_module_statistics(module, 'history', None)
  assert module.seen == ['history']


def test_statistics_without_axis_name_are_refused_on_several_devices():
  module = _OldStyle()
  with pytest.raises(TypeError, match='_OldStyle.*axis_name'):
    stepping.update_module_statistics(module, 'history', 'devices')
  assert not module.seen


def test_statistics_with_open_keywords_get_the_axis_name():
  module = _Anything()
  stepping.update_module_statistics(module, 'history', 'devices')
  assert module.seen == [('history', {'axis_name': 'devices'})]


def test_containers_hand_the_axis_name_down():
  class Recorder(fakes.Gain):
    def update_statistics(self, rollout_extras, *, axis_name=None):
      self.seen = (rollout_extras, axis_name)

  recorder = Recorder()
  outer = networks.Parallel(a=networks.Sequential([recorder]), b=fakes.Gain())
  outer.update_statistics({'a': ['history'], 'b': None}, axis_name='devices')
  assert recorder.seen == ('history', 'devices')
