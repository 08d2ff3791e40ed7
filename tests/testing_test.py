"""`check_module` lets good modules be, and refuses what it cannot check."""

import re

from flax import nnx
import jax
import jax.numpy as jnp
from nnx_ppo.networks.recurrent import LSTM as TheirLSTM
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import types
from brax_nnx_plugin.testing import check_module
from brax_nnx_plugin.testing.subject import Subject
from tests import broken_composites as composites
from tests import broken_modules as broken
from tests.networks import table

GOOD: dict[str, table.Case] = {
  'leaf': table.Case(lambda _: broken.Leaf(), 2),
  'memory': table.Case(lambda _: broken.Memory(), 2),
  'wrapper': table.Case(lambda _: composites.Wrapper(broken.Memory()), 2),
  'wrapped sampler': table.Case(
    lambda r: composites.Wrapper(networks.NormalTanhSampler(r)), 4
  ),
  'wrapped statistics': table.Case(
    lambda _: composites.Wrapper(composites.Wrapper(composites.Mean())), 2
  ),
  'own unroll': table.Case(lambda _: composites.Unrolls(), 2),
  'half precision': table.Case(
    lambda r: networks.LSTM(2, 3, r, dtype=jnp.bfloat16), 2
  ),
  'number as loss': table.Case(lambda _: broken.NumberAsLoss(), 2),
  'other library': table.Case(lambda r: TheirLSTM(2, 3, r), 2),
  'entropy in the loss': table.Case(
    lambda r: networks.NormalTanhSampler(r, entropy_weight=0.5), 4
  ),
}
GOOD |= table.CASES
FAST = (
  ['dense', 'lstm', 'gru', 'normalizer', 'sampler', 'nested']
  + ['recurrent_policy', 'foreign_child', 'wrapped sampler', 'other library']
  + ['wrapped statistics', 'own unroll', 'memory', 'entropy in the loss']
  + ['number as loss']
)  # fmt: skip


@pytest.mark.parametrize(
  'name',
  [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in GOOD
  ],
)
def test_a_good_module_keeps_every_law(name):
  check_module(GOOD[name].build, GOOD[name].shape)


class NumpyStart(broken.Memory):
  """Begins with a NumPy array, which JAX takes as well."""

  def initialize_state(self, batch_size):
    return np.zeros((batch_size, self.size), np.float32)


def test_a_carry_may_begin_in_numpy():
  check_module(lambda _: NumpyStart(), 2)


class OnlyOutput(broken.Leaf):
  """Returns its output without the rest."""

  def __call__(self, state, x, rollout_extras=None):
    return x


@pytest.mark.parametrize(
  ('build', 'message'),
  [
    (lambda r: nnx.Linear(2, 2, rngs=r), 'Linear, which has no initialize_sta'),
    (lambda r: lambda x: x, 'returned a function, which has no initialize'),
    (
      lambda _: OnlyOutput(),
      'OnlyOutput.__call__ must return a StatefulModuleOutput',
    ),
  ],
)
def test_what_is_no_stateful_module_is_refused(build, message):
  with pytest.raises(TypeError, match=message):
    check_module(build, 2)


def test_errors_of_a_wrong_input_are_the_modules_own():
  with pytest.raises(ValueError, match='Normalizer was made for features'):
    check_module(lambda _: networks.Normalizer(3), 4)
  with pytest.raises(TypeError, match='check_module needs an int, a tuple'):
    check_module(lambda _: networks.Normalizer(3), 'state')


@pytest.mark.parametrize('size', [{'batch_size': 1}, {'steps': 1}])
def test_too_little_to_compare_is_refused(size):
  with pytest.raises(ValueError, match='at least 2 rows and 2 steps'):
    check_module(lambda _: broken.Leaf(), 2, **size)


class Keyed(types.StatefulModule):
  """Adds noise of its own for every row; a reset keeps its keys."""

  def __init__(self, rngs: nnx.Rngs):
    self.key = nnx.RngKey(rngs(), tag='noise')

  def __call__(self, state, x, rollout_extras=None):
    keys = jax.vmap(jax.random.split)(state)
    noise = jax.vmap(lambda key: jax.random.normal(key, x.shape[1:]))
    return types.StatefulModuleOutput(
      keys[:, 0], x + noise(keys[:, 1]), jnp.array(0.0), {}
    )

  def initialize_state(self, batch_size):
    keys = jax.random.split(self.key.get_value(), batch_size)
    return jax.random.key_data(keys)

  def reset_state(self, prev_state):
    return prev_state


class KeepsMore(Keyed):
  """Carries the sum of its noise as well, and keeps it over a reset."""

  def __call__(self, state, x, rollout_extras=None):
    out = super().__call__(state['key'], x)
    carry = {'key': out.next_state, 'sum': state['sum'] + out.output}
    return types.StatefulModuleOutput(carry, carry['sum'], jnp.array(0.0), {})

  def initialize_state(self, batch_size):
    key = super().initialize_state(batch_size)
    return {'key': key, 'sum': jnp.zeros((batch_size, 2))}


def test_noise_keys_may_be_kept_over_a_reset_and_nothing_else():
  check_module(Keyed, 2)
  message = re.escape("KeepsMore breaks the law 'reset' at carry['sum']")
  with pytest.raises(AssertionError, match=message):
    check_module(KeepsMore, 2)


def test_inputs_have_the_shapes_and_types_of_the_sample_and_follow_the_seed():
  sample = {
    'q': (3,),
    'pixels': np.zeros((2, 2), np.uint8),
    'contact': np.zeros(1, bool),
  }
  leaf = lambda _: broken.Leaf()
  runs = [Subject(leaf, sample, 4, 5, seed).x for seed in (1, 1, 2)]
  assert jax.tree.map(lambda a: (a.shape, str(a.dtype)), runs[0]) == {
    'q': ((5, 4, 3), 'float32'),
    'pixels': ((5, 4, 2, 2), 'uint8'),
    'contact': ((5, 4, 1), 'bool'),
  }
  assert {len(np.unique(runs[0][k])) for k in ('pixels', 'contact')} == {2}
  jax.tree.map(np.testing.assert_array_equal, runs[0], runs[1])
  assert np.all(runs[0]['q'] != runs[2]['q'])


def test_the_module_that_build_returned_keeps_its_weights():
  module = table.build('nested')
  before = nnx.state(module, nnx.Param)
  kind = type(module[1]['memory'][0])
  check_module(lambda _: module, 3)
  jax.tree.map(
    np.testing.assert_array_equal, nnx.state(module, nnx.Param), before
  )
  assert type(module[1]['memory'][0]) is kind is networks.LSTM
