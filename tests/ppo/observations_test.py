"""Observations that lack what the action does not depend on."""

import functools
from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks as modules
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import observations
from brax_nnx_plugin.ppo import step_program
from tests import saved_policies
from tests import small_runs

SIZE = saved_policies.DICT_SIZE
KEY = jax.random.PRNGKey(0)
_asymmetric = {'value_obs_key': 'privileged_state'}
_mlp = functools.partial(small_runs.small_mlp, **_asymmetric)
_lstm = functools.partial(small_runs.small_lstm, **_asymmetric)
FACTORIES = {
  'MLP': functools.partial(
    _mlp, preprocess_observations_fn=running_statistics.normalize
  ),
  'MLP with statistics': functools.partial(_mlp, normalize_inputs=True),
  'LSTM': _lstm,
  'LSTM with statistics': functools.partial(_lstm, normalize_inputs=True),
}


def _make_policy(factory: Any, measured: Any = None) -> Any:
  networks = factory(SIZE, 2)
  measured = measured or networks
  measure = lambda: saved_policies.measured_params(measured, SIZE)
  params = jax.jit(measure)()
  make_policy = ppo_networks.make_inference_fn(networks)
  return lambda **kwargs: make_policy(params, **kwargs)


@pytest.mark.parametrize('name', FACTORIES)
def test_an_actor_needs_no_entries_of_the_critic(name):
  plain = _mlp(SIZE, 2) if name == 'MLP' else None
  make_policy = _make_policy(FACTORIES[name], plain)
  whole = saved_policies.observation_of(SIZE)
  part = {'state': whole['state']}

  for deterministic in (True, False):
    policy = make_policy(deterministic=deterministic)
    state: Any = ()
    if hasattr(policy, 'initial_state'):
      state = (policy.initial_state(4),)
    expected, full_extras = policy(whole, KEY, *state)
    action, extras = policy(part, KEY, *state)
    np.testing.assert_array_equal(action, expected)
    # What is said of the action is right; of the value nothing is said.
    for name_ in set(extras) - {'state'}:
      np.testing.assert_array_equal(extras[name_], full_extras[name_])
    assert 'value' not in extras
    assert deterministic or 'log_prob' in extras
  with pytest.raises(ValueError, match=r"lacks \['state'\].*depends on"):
    make_policy()({'privileged_state': whole['privileged_state']}, KEY, *state)


def test_memory_of_the_actor_goes_on_without_them():
  policy = _make_policy(_lstm)(deterministic=True)
  whole = saved_policies.observation_of(SIZE)

  @jax.jit
  def twice(observation):
    _, extras = policy(observation, KEY, policy.initial_state(4))
    return policy(observation, KEY, extras['state'])[0]

  np.testing.assert_array_equal(twice({'state': whole['state']}), twice(whole))
  one = {'state': whole['state'][0]}
  single, _ = policy(one, KEY, policy.initial_state())
  row, _ = policy(whole, KEY, policy.initial_state(4))
  np.testing.assert_allclose(single, row[0], atol=1e-6)


def _build(observation_size, action_size, rngs):
  """The action reads the critic's memory."""
  n = sum(size for (size,) in observation_size.values())
  front = [
    modules.Filter({k: k for k in observation_size}),
    modules.Flattener(),
    modules.LSTM(n, 3, rngs),
  ]
  action = [modules.Dense(3, 2 * action_size, rngs)]
  adapter = modules.PPOAdapter(
    modules.Sequential([*action, modules.NormalTanhSampler(rngs)]),
    modules.Dense(3, 1, rngs),
  )
  return modules.Sequential([*front, adapter])


def test_what_the_action_depends_on_is_asked_for():
  policy = _make_policy(ppo_networks.make_network_factory(_build))()
  whole = saved_policies.observation_of(SIZE)

  with pytest.raises(ValueError, match=r"lacks \['privileged_state'\]"):
    policy({'state': whole['state']}, KEY, policy.initial_state(4))


class Slow(modules.StatefulModule):
  """Outputs one feature now and the other, through memory, later."""

  def __call__(self, state, x, rollout_extras=None):
    late = {'first': x['privileged_state'][:, :1], 'second': state['first']}
    output = x['state'][:, :1] + state['second']
    return modules.StatefulModuleOutput(late, output, jnp.array(0.0), {})

  def initialize_state(self, batch_size):
    zeros = jnp.zeros((batch_size, 1))
    return {'first': zeros, 'second': zeros, 'unread': zeros}

  def reset_state(self, prev_state):
    return jax.tree.map(jnp.zeros_like, prev_state)


def test_an_entry_that_reaches_the_action_later_counts():
  class Whole(Slow):
    def __call__(self, state, x, rollout_extras=None):
      out = super().__call__(state, x)
      return modules.StatefulModuleOutput(
        {**out.next_state, 'unread': state['unread'] + 1},
        out.output,
        out.regularization_loss,
        {},
      )

  def build(observation_size, action_size, rngs):
    action = [Whole(), modules.Dense(1, 2, rngs)]
    return modules.PPOAdapter(
      modules.Sequential([*action, modules.NormalTanhSampler(rngs)]),
      modules.Sequential([modules.Filter('state'), modules.Dense(3, 1, rngs)]),
    )

  networks: Any = ppo_networks.make_network_factory(build)(SIZE, 1)
  functions = networks.functions
  params = (None, *functions.init(KEY, KEY).inference_params())

  program = step_program.trace(functions, params, functions.observation_spec)

  assert list(program.observation) == ['privileged_state', 'state']
  assert list(program.state) == ['action/0/first', 'action/0/second']
  assert list(program.action) == ['action']


def test_stock_inference_needs_no_entries_of_the_critic():
  networks: Any = _mlp(SIZE, 2)
  params = (None, *networks.functions.init(KEY, KEY).inference_params())
  part = {'state': saved_policies.observation_of(SIZE)['state']}

  make_policy: Any = brax_networks.make_inference_fn(networks)
  action, _ = make_policy(params)(part, KEY)
  assert action.shape == (4, 2)
  make_policy = brax_networks.make_inference_fn(networks, compute_value=True)
  with pytest.raises(ValueError, match=r"lacks \['privileged_state'\]"):
    make_policy(params)(part, KEY)


@pytest.mark.parametrize(
  ('observation', 'message'),
  [
    (jnp.zeros((4, 3)), r'dict with the entries .*; got one array'),
    ({'state': jnp.zeros((4, 5))}, r"'state' has shape \(4, 5\).*\(3,\)"),
    ({'state': jnp.zeros(())}, r"'state' has shape \(\)"),
    (
      {'state': jnp.zeros((4, 3)), 'privileged_state': jnp.zeros((2, 4))},
      r'same rows.*\(4,\).*\(2,\)',
    ),
  ],
)
def test_what_is_no_observation_is_refused(observation, message):
  spec = observations.spec_of(SIZE)

  with pytest.raises(ValueError, match=message):
    observations.leading_axes(spec, observation)


def test_leading_axes_are_what_is_before_the_features():
  spec = observations.spec_of({'image': (4, 4, 3), 'state': 2})
  for rows in ((), (5,), (2, 5)):
    x = {'image': jnp.zeros((*rows, 4, 4, 3)), 'state': jnp.zeros((*rows, 2))}
    assert observations.leading_axes(spec, x) == rows
  assert observations.leading_axes(spec, {'state': jnp.zeros((7, 2))}) == (7,)


def test_sizes_may_be_as_stock_checkpoints_have_them():
  described = {'shape': [3], 'dtype': 'unserializable object: float32'}

  assert observations.plain_size(described) == (3,)
  assert observations.plain_size({'state': described}) == {'state': (3,)}
  assert observations.plain_size({'state': 3, 'image': (4, 4, 1)}) == {
    'state': 3,
    'image': (4, 4, 1),
  }
