"""Checks of the module contract: what passes, what is refused, and why."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import contract
from brax_nnx_plugin.networks import types
from tests import fakes
from tests.networks import table


class Writer(types.StatefulModule):
  """Writes a variable in its step, in the way that it is told."""

  def __init__(self, how: str):
    self.how = how
    self.seen: Any = nnx.BatchStat(jnp.zeros(2))

  def __call__(self, state, x, rollout_extras=None):
    if self.how == 'set':
      self.seen.set_value(self.seen.get_value() + x[0])
    elif self.how == 'index':
      self.seen[...] = self.seen[...] + x[0]
    elif self.how == 'same':
      self.seen.set_value(self.seen.get_value() * 1.0)
    elif self.how == 'tree':
      self.seen.set_value({'a': jnp.ones(2)})
    elif self.how == 'create':
      self.fresh = nnx.Variable(x)
    elif self.how == 'replace':
      self.seen = nnx.BatchStat(x[0])
    elif self.how == 'delete':
      del self.seen
    return types.StatefulModuleOutput(state, x, jnp.array(0.0), {})


class Dropped(types.StatefulModule):
  """Draws from an RNG stream."""

  def __init__(self):
    self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

  def __call__(self, state, x, rollout_extras=None):
    return types.StatefulModuleOutput(
      state, self.dropout(x), jnp.array(0.0), {}
    )


def _trace(module: Any, state: Any, x: Any) -> Any:
  """Checks a module as the trainer does: traced, and built inside."""
  call = lambda: contract.call_without_writes(module(), state, x)
  return jax.eval_shape(call)


@pytest.mark.parametrize('traced', [True, False])
@pytest.mark.parametrize(
  ('how', 'path', 'kind'),
  [
    ('set', 'seen', 'BatchStat'),
    ('index', 'seen', 'BatchStat'),
    ('same', 'seen', 'BatchStat'),
    ('tree', 'seen', 'BatchStat'),
    ('create', 'fresh', 'Variable'),
    ('replace', 'seen', 'BatchStat'),
    ('delete', 'seen', 'BatchStat'),
  ],
)
def test_a_call_that_writes_a_variable_is_refused(how, path, kind, traced):
  run = (
    _trace if traced else lambda m, *a: contract.call_without_writes(m(), *a)
  )
  message = f"Writer wrote the variable '{path}' .a {kind}.*update_statistics"
  with pytest.raises(ValueError, match=message):
    run(lambda: Writer(how), (), jnp.ones((3, 2)))


def test_the_error_names_the_path_in_a_network():
  net = lambda: networks.Sequential([fakes.Gain(), Writer('set')])
  with pytest.raises(ValueError, match="'components/1/seen' .a BatchStat"):
    _trace(net, [(), ()], jnp.ones((3, 2)))


def test_a_written_weight_is_refused():
  class Learner(fakes.Gain):
    def __call__(self, state, x, rollout_extras=None):
      self.gain[...] = self.gain[...] + 1.0
      return super().__call__(state, x)

  with pytest.raises(ValueError, match="'gain' .a Param"):
    _trace(Learner, (), jnp.ones((3, 2)))


def test_a_call_that_only_reads_or_draws_passes():
  x = jnp.ones((3, 2))
  for module in (Dropped(), Writer('not at all')):
    out = contract.call_without_writes(module, (), x)
    assert out.output.shape == x.shape


@pytest.mark.parametrize('name', table.CASES)
def test_every_module_of_this_library_passes(name):
  def run():
    module = table.build(name)
    state = module.initialize_state(2)
    out = contract.call_without_writes(module, state, table.inputs(name, 2))
    contract.check_carry(module, state, out.next_state)

  jax.eval_shape(run)


STATE = {'h': jnp.zeros((2, 3)), 'n': jnp.zeros(2, jnp.int32)}


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'h': jnp.zeros((2, 4))}, r"\['h'\] from float32\[2, 3\] .*\[2, 4\]"),
    ({'h': jnp.zeros((3, 3))}, r"\['h'\] from float32\[2, 3\] .*\[3, 3\]"),
    ({'n': jnp.zeros(2)}, r"\['n'\] from int32\[2\] into float32\[2\]"),
    ({'h': jnp.zeros((2, 3), jnp.bfloat16)}, r'into bfloat16\[2, 3\]'),
    ({'more': jnp.zeros(2)}, 'must keep its structure'),
    ({'h': (jnp.zeros((2, 3)),)}, 'must keep its structure'),
  ],
)
def test_a_carry_that_changes_its_type_is_refused(change, message):
  with pytest.raises(ValueError, match=message):
    contract.check_carry(fakes.Count(), STATE, STATE | change)


def test_a_carry_that_keeps_its_type_passes():
  after = jax.tree.map(lambda leaf: leaf + 1, STATE)
  contract.check_carry(fakes.Count(), STATE, after)
  contract.check_carry(fakes.Gain(), (), ())


def _output(**changes: Any) -> Any:
  """The output of a good network on 2 rows, with 3 numbers per action."""
  ppo: Any = types.PPONetworkOutput(
    actions=jnp.zeros((2, 3)),
    loglikelihoods=jnp.zeros(2),
    value_estimates=jnp.zeros(2),
  )
  loss = changes.pop('regularization_loss', jnp.array(0.0))
  return types.StatefulModuleOutput((), ppo.replace(**changes), loss, {})


GOOD = {
  'scalar loss': {},
  'loss per row': {'regularization_loss': jnp.zeros(2)},
  'python number': {'regularization_loss': 0.0},
  'two samplers': {
    'actions': {'a': jnp.zeros((2, 1)), 'b': jnp.zeros((2, 2))},
    'loglikelihoods': {'a': jnp.zeros(2), 'b': jnp.zeros(2)},
  },
}


@pytest.mark.parametrize('name', GOOD)
def test_an_output_that_ppo_can_train_passes(name):
  contract.check_ppo_output(fakes.Gain(), _output(**GOOD[name]), 2, 3)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'loglikelihoods': jnp.zeros((2, 3))}, r'loglikelihoods .*got \(2, 3\)'),
    ({'loglikelihoods': jnp.zeros(())}, r'loglikelihoods .*got \(\)'),
    (
      {'loglikelihoods': {'a': jnp.zeros((2, 1))}},
      r'loglikelihoods .*\(2, 1\)',
    ),
    ({'value_estimates': jnp.zeros((2, 1))}, r'value_estimates .*got \(2, 1\)'),
    ({'value_estimates': (jnp.zeros(2),) * 2}, 'one value per row'),
    ({'value_estimates': ()}, 'one value per row'),
    ({'actions': jnp.zeros((2, 4))}, 'actions of size 4, .* takes 3'),
    ({'actions': (jnp.zeros((2, 3)),) * 2}, 'actions of size 6'),
    (
      {'regularization_loss': jnp.zeros(3)},
      r'shape \(\) or \(2,\); got \(3,\)',
    ),
    ({'regularization_loss': jnp.zeros((2, 1))}, r'got \(2, 1\)'),
  ],
)
def test_an_output_that_ppo_cannot_train_is_refused(changes, message):
  with pytest.raises(ValueError, match=f'Gain.*{message}'):
    contract.check_ppo_output(fakes.Gain(), _output(**changes), 2, 3)


def test_a_step_must_return_the_output_type():
  with pytest.raises(TypeError, match='Gain.* returned a tuple'):
    contract.check_ppo_output(fakes.Gain(), (1, 2), 2, 3)


def test_a_network_must_end_in_an_adapter():
  out = _output().replace(output=jnp.zeros((2, 3)))
  with pytest.raises(TypeError, match='End the network in a PPOAdapter'):
    contract.check_ppo_output(fakes.Gain(), out, 2, 3)
