"""The two ports of a PPO network."""

from typing import Any

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import types
from tests import fakes
from tests.networks import cases
from tests.networks import table


class Column(types.StatefulModule):
  """Outputs the first feature, as `[B]` or as `[B, 1]`."""

  def __init__(self, squeezed: bool):
    self.squeezed = squeezed

  def __call__(self, state, x, rollout_extras=None):
    output = x[..., 0] if self.squeezed else x[..., :1]
    return types.StatefulModuleOutput(state, output, jnp.array(0.0), {})


@pytest.mark.parametrize('squeezed', [True, False])
@pytest.mark.parametrize('batch', [1, 3])
def test_the_value_is_one_number_per_row(squeezed, batch):
  net = networks.PPOAdapter(fakes.PlainSampler(), Column(squeezed))
  x = cases.draw(2, batch)
  state = net.initialize_state(batch)
  out = net(state, x).output
  np.testing.assert_array_equal(out.value_estimates, x[:, 0])
  assert out.actions.shape == (batch, 2)
  assert out.loglikelihoods.shape == (batch,)


@pytest.mark.parametrize('squeezed', [True, False])
@pytest.mark.parametrize('shape', [(1, 1), (4, 1), (1, 3), (4, 3)], ids=str)
def test_the_value_of_a_sequence_is_one_number_per_step_and_row(
  squeezed, shape
):
  net = networks.PPOAdapter(fakes.PlainSampler(), Column(squeezed))
  x = cases.draw(2, *shape)
  out = net.unroll(net.initialize_state(shape[1]), x, jnp.zeros(shape)).output
  np.testing.assert_array_equal(out.value_estimates, x[..., 0])
  assert out.loglikelihoods.shape == shape


@pytest.mark.parametrize(
  'value', [fakes.Gain(), networks.Filter({'v': lambda x: x[:, :1]})]
)
def test_a_value_port_with_more_than_one_number_is_an_error(value):
  net = networks.PPOAdapter(fakes.PlainSampler(), value)
  with pytest.raises(ValueError, match=r'one number per row, shape \(3, 1\)'):
    net(net.initialize_state(3), cases.draw(2, 3))


def test_a_value_port_is_not_mistaken_for_squeezed_rows():
  # [B, B] is neither [B] nor [B, 1], though its last axis is B.
  net = networks.PPOAdapter(fakes.PlainSampler(), fakes.Gain())
  with pytest.raises(ValueError, match='one number per row'):
    net(net.initialize_state(2), cases.draw(2, 2))


@pytest.mark.parametrize(
  'action', [fakes.Gain(), networks.Filter({}), networks.Filter({'a': 'a'})]
)
def test_an_action_port_that_ends_in_no_sampler_is_an_error(action):
  net = networks.PPOAdapter(action, Column(True))
  x: Any = jnp.zeros((2, 2))
  if isinstance(action, networks.Filter):
    x = {'a': x}
  with pytest.raises(ValueError, match='must end in an ActionSampler'):
    net(net.initialize_state(2), x)


def test_one_branch_without_a_sampler_is_an_error():
  port = networks.Parallel(a=fakes.PlainSampler(), b=fakes.Gain())
  net = networks.PPOAdapter(port, Column(True))
  with pytest.raises(ValueError, match='must end in an ActionSampler'):
    net(net.initialize_state(2), jnp.zeros((2, 2)))


def test_several_samplers_make_a_tree_of_actions():
  net = table.build('two_samplers')
  x = table.inputs('two_samplers', 3)
  out = net(net.initialize_state(3), x)
  assert set(out.output.actions) == {'legs', 'arms'}
  for name in ('legs', 'arms'):
    port = net['action'][name]
    raw = out.rollout_extras['action'][name][1]
    alone = port([(), ()], x, [None, raw]).output
    np.testing.assert_array_equal(out.output.actions[name], alone['action'])
    np.testing.assert_array_equal(
      out.output.loglikelihoods[name], alone['log_likelihood']
    )
    for part in ('loc', 'scale', 'parameters'):
      np.testing.assert_array_equal(
        out.output.distributions[name][part], alone[part]
      )
    assert out.output.distributions[name]['entropy'].shape == (3,)


def test_a_sampler_that_knows_no_entropy_leaves_out_the_distribution():
  class Bare(fakes.PlainSampler):
    def __call__(self, state, x, rollout_extras=None):
      out: Any = super().__call__(state, x, rollout_extras)
      names = ('action', 'log_likelihood')
      return out.replace(output={name: out.output[name] for name in names})

  net = networks.PPOAdapter(Bare(), Column(True))
  out = net(net.initialize_state(2), jnp.ones((2, 2))).output
  assert out.distributions is None
  np.testing.assert_array_equal(out.actions, np.ones((2, 2)))


def test_each_port_has_its_own_memory():
  net = fakes.count_network()
  state = {'action': [jnp.array([1]), (), ()], 'value': [jnp.array([2]), ()]}
  x = jnp.zeros((1, 2))
  out = net(state, x).output
  assert (out.actions[0, 0], out.value_estimates[0]) == (1, 2)
  other = net({**state, 'value': [jnp.array([7]), ()]}, x).output
  assert (other.actions[0, 0], other.value_estimates[0]) == (1, 7)


def test_the_ports_are_attributes():
  action, value = fakes.PlainSampler(), Column(True)
  net = networks.PPOAdapter(action=action, value=value)
  assert net.action is action
  assert net.value is value
  merged = nnx.merge(*nnx.split(net))
  assert isinstance(merged.action, fakes.PlainSampler)
  assert isinstance(merged.value, Column)
