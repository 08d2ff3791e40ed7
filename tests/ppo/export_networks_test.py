"""Which networks are exported, and how."""

import functools
import json
from typing import Any

from brax.training.acme import running_statistics
from brax.training.agents.ppo import networks as brax_networks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import types
from brax_nnx_plugin.ppo import export
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import numpy_policy
from tests import exports
from tests import fakes
from tests import library
from tests import saved_policies

LOADERS = (export.load_exported, numpy_policy.load)


class Unusual(types.StatefulModule):
  """Sorts its input, which NumPy programs cannot."""

  def __call__(self, state, x, rollout_extras=None):
    return types.StatefulModuleOutput(
      state, jnp.sort(x, axis=-1), jnp.array(0.0), {}
    )


def test_what_numpy_cannot_do_is_named_and_left_out(tmp_path):
  factory = ppo_networks.make_network_factory(
    lambda *args: fakes.plain_network(Unusual(), fakes.Count())
  )
  networks: Any = factory((3,), 3)
  keys = jax.random.split(jax.random.PRNGKey(0))
  params = (None, *networks.functions.init(*keys).inference_params())

  out = export.export_networks(networks, params, tmp_path / 'policy')

  reason = json.loads((out / 'policy.json').read_text())['numpy']['reason']
  assert 'sort' in reason and 'action/0' in reason
  with pytest.raises(ValueError, match='sort.*export.load_exported'):
    numpy_policy.load(out)
  action, state = export.load_exported(out).step([3.0, 1.0, 2.0], {})
  assert action.tolist() == [1, 2, 3] and state == {}


class Halved(fakes.Echo):
  """Memory that a reset halves."""

  def reset_state(self, prev_state):
    return prev_state / 2


class Kept(fakes.Echo):
  """Memory that outlives episodes."""

  def reset_state(self, prev_state):
    return prev_state


def test_an_observation_that_is_not_read_may_be_anything(tmp_path):
  out = export.export_networks(*_with_memory(fakes.Count), tmp_path / 'policy')
  for load in LOADERS:
    policy = load(out)
    state, counts = policy.initial_state(), []
    for _ in range(3):
      action, state = policy.step([1.0], state)
      counts.append(action.tolist())
    assert counts == [[0], [1], [2]]


def _with_memory(memory: Any) -> tuple[Any, Any]:
  factory = ppo_networks.make_network_factory(
    lambda *args: fakes.plain_network(memory(), fakes.Count())
  )
  networks: Any = factory((1,), 1)
  keys = jax.random.split(jax.random.PRNGKey(0))
  return networks, (None, *networks.functions.init(*keys).inference_params())


def test_a_reset_does_what_it_does_in_training(tmp_path):
  out = export.export_networks(*_with_memory(Kept), tmp_path / 'policy')
  policy = numpy_policy.load(out)
  _, state = policy.step([5.0], policy.initial_state())
  action, _ = policy.step([6.0], policy.reset(state))
  assert action.tolist() == [5.0]
  assert policy.step([6.0], policy.reset())[0].tolist() == [-1.0]

  with pytest.raises(ValueError, match="reset changes the state 'action/0'"):
    export.export_networks(*_with_memory(Halved), tmp_path / 'other')


@pytest.mark.parametrize(
  'name', ['map_of_samplers', 'min_gru', 'simple_rnn', 'variational']
)
def test_every_kind_of_layer_is_exported(tmp_path, name):
  factory = ppo_networks.make_network_factory(library.NETWORKS[name])
  networks: Any = factory((3,), 2)
  keys = jax.random.split(jax.random.PRNGKey(2))
  variables = jax.jit(networks.functions.init)(*keys)
  params = (None, *variables.inference_params())
  policy = ppo_networks.make_inference_fn(networks)(params, True)
  act = jax.jit(policy)

  out = export.export_networks(networks, params, tmp_path / 'policy')

  for load in LOADERS:
    exported = load(out)
    remembers = networks.functions.stateful
    state = policy.initial_state() if remembers else None
    mine = exported.initial_state()
    for x in exports.observations()[:4] / exports.OFFSET:
      arguments = (x, jax.random.key(0)) + (() if state is None else (state,))
      expected, extras = act(*arguments)
      state = extras.get('state')
      action, mine = exported.step(x, mine)
      # The parts of an action have names, as in the environment.
      assert jax.tree.structure(action) == jax.tree.structure(expected)
      for a, b in zip(*map(jax.tree.leaves, (action, expected)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
  if name == 'variational':
    # The most likely action needs no noise, so there is no key to carry.
    assert mine == {}


def test_a_network_of_stock_brax_is_exported(tmp_path):
  size: Any = {'state': (3,), 'privileged_state': (4,)}
  normalize: Any = running_statistics.normalize
  factory = functools.partial(
    brax_networks.make_ppo_networks,
    size,
    2,
    preprocess_observations_fn=normalize,
    policy_hidden_layer_sizes=(5,),
    value_obs_key='privileged_state',
  )
  networks: Any = factory()
  observation = saved_policies.observation_of(size, exports.OFFSET)
  spec = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), observation
  )
  params = (
    running_statistics.update(running_statistics.init_state(spec), observation),
    networks.policy_network.init(jax.random.PRNGKey(0)),
    networks.value_network.init(jax.random.PRNGKey(1)),
  )

  with pytest.raises(ValueError, match='pass observation_size'):
    export.export_networks(networks, params, tmp_path / 'policy')
  out = export.export_networks(
    networks, params, tmp_path / 'policy', observation_size=size
  )

  make_policy: Any = brax_networks.make_inference_fn(networks)
  expected, _ = make_policy(params, True)(observation, jax.random.PRNGKey(0))
  for load in LOADERS:
    policy = load(out)
    for row in range(4):
      x = {'state': np.asarray(observation['state'][row])}
      action, _ = policy.step(x, policy.initial_state())
      np.testing.assert_allclose(action, expected[row], atol=1e-5)


def test_a_checkpoint_is_exported_with_its_factory(tmp_path):
  factory, size, normalize = saved_policies.CASES['LSTM']
  saved_policies.save(tmp_path / 'run', factory, size, normalize)

  out = export.export_policy(
    tmp_path / 'run', tmp_path / 'out', action_names=['a', 'b']
  )

  first = saved_policies.observation_of(size)[0]
  networks, params = exports.saved('LSTM')
  policy = ppo_networks.make_inference_fn(networks)(params, True)
  expected, _ = policy(first, jax.random.key(0), policy.initial_state())
  exported = numpy_policy.load(out)
  action, _ = exported.step(first, exported.initial_state())
  np.testing.assert_allclose(action, expected, atol=1e-6)
  with pytest.raises(ValueError, match='There is no checkpoint'):
    export.export_policy(tmp_path / 'nowhere', tmp_path / 'other')
