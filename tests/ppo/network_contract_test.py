"""What a network must keep to be trained, checked when it is made."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import Dense
from brax_nnx_plugin.networks import NormalTanhSampler
from brax_nnx_plugin.networks import PPOAdapter
from brax_nnx_plugin.networks import Sequential
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import fakes

_ZERO = jnp.array(0.0)


class Writer(StatefulModule):
  """Counts its calls where it must not."""

  def __init__(self):
    self.calls = nnx.BatchStat(jnp.array(0.0))

  def __call__(self, state, x, rollout_extras=None):
    self.calls[...] += 1.0
    return StatefulModuleOutput(state, x, _ZERO, {})


class Drifter(StatefulModule):
  """Turns an integer carry into a float."""

  def __call__(self, state, x, rollout_extras=None):
    return StatefulModuleOutput({'n': state['n'] + 0.5}, x, _ZERO, {})

  def initialize_state(self, batch_size):
    return {'n': jnp.zeros(batch_size, jnp.int32)}

  def reset_state(self, prev_state):
    return jax.tree.map(jnp.zeros_like, prev_state)


class Grower(Drifter):
  """Adds an entry to its carry."""

  def __call__(self, state, x, rollout_extras=None):
    return StatefulModuleOutput({**state, 'm': state['n']}, x, _ZERO, {})


class Summed(StatefulModule):
  """Regularizes by a vector that is not one number a row."""

  def __call__(self, state, x, rollout_extras=None):
    return StatefulModuleOutput(state, x, jnp.zeros(7), {})


class Bare(StatefulModule):
  """Returns an array."""

  def __call__(self, state, x, rollout_extras=None):
    return x


def _policy(rngs: nnx.Rngs, actions: int) -> Sequential:
  return Sequential([Dense(3, 2 * actions, rngs), NormalTanhSampler(rngs)])


def _with(layer: Any) -> Any:
  """A build function of a good network behind `layer`."""

  def build(observation_size, action_size, rngs):
    value = Dense(observation_size[0], 1, rngs)
    return Sequential([layer(), PPOAdapter(_policy(rngs, action_size), value)])

  return build


_BAD: dict[str, tuple[Any, Any, str]] = {
  'a call writes a variable': (
    _with(Writer),
    ValueError,
    r"Sequential wrote the variable '.*calls' \(a BatchStat\)"
    '.*update_statistics',
  ),
  'the carry changes its dtype': (
    _with(Drifter),
    ValueError,
    r"carry leaf .*\['n'\] from int32\[2\] into float32\[2\]",
  ),
  'the carry changes its structure': (
    _with(Grower),
    ValueError,
    'must keep its structure',
  ),
  'a vector of regularization': (
    _with(Summed),
    ValueError,
    r'regularization_loss.*\(7,\)',
  ),
  'no adapter': (
    lambda size, actions, rngs: Dense(size[0], 1, rngs),
    TypeError,
    'output of Dense must be a PPONetworkOutput.*PPOAdapter',
  ),
  'no module output': (
    lambda *_: Bare(),
    TypeError,
    r'Bare.__call__ must return a StatefulModuleOutput',
  ),
  'too many actions': (
    lambda size, actions, rngs: PPOAdapter(
      _policy(rngs, actions + 1), Dense(size[0], 1, rngs)
    ),
    ValueError,
    'actions of size 3, but the environment takes 2',
  ),
  'an odd number of parameters': (
    lambda size, actions, rngs: PPOAdapter(
      Sequential([Dense(3, 3, rngs), NormalTanhSampler(rngs)]),
      Dense(size[0], 1, rngs),
    ),
    ValueError,
    'even number of parameters; got 3',
  ),
  'no sampler': (
    lambda size, actions, rngs: PPOAdapter(
      Dense(size[0], actions, rngs), Dense(size[0], 1, rngs)
    ),
    ValueError,
    'action port must end in an ActionSampler',
  ),
  'two values': (
    lambda size, actions, rngs: PPOAdapter(
      _policy(rngs, actions), Dense(size[0], 2, rngs)
    ),
    ValueError,
    r'one number per row.*\(2, 1\); got \(2, 2\)',
  ),
}


@pytest.mark.parametrize('fault', _BAD)
def test_a_bad_network_is_explained_when_it_is_made(fault, compilation_count):
  build, error, message = _BAD[fault]
  before = compilation_count[0]

  with pytest.raises(error, match=f'(?s){message}'):
    ppo_networks.make_network_factory(build)((3,), 2)

  # Tracing makes a few constants; nothing of a network's size is compiled.
  assert compilation_count[0] - before <= 20


def test_noise_of_a_sampler_is_no_write():
  networks = ppo_networks.make_network_factory(_with(Gainless))((3,), 2)

  assert not networks.functions.stateful


class Gainless(StatefulModule):
  """Passes its input on."""

  def __call__(self, state, x, rollout_extras=None):
    return StatefulModuleOutput(state, x, _ZERO, {})


@pytest.mark.parametrize(
  'keys',
  [
    ('state', 'mean'),
    ('key', 'idx'),
    ('value', 'action'),
    ('components', 'params'),
    ('pixels/front', 'a b.c'),
    ('activation',),
    ('keys', 'items'),
  ],
)
def test_an_observation_may_have_any_name(keys):
  sizes = dict.fromkeys(keys, (3,))
  networks = ppo_networks.make_ppo_networks(
    sizes,
    2,
    policy_hidden_layer_sizes=(5,),
    value_hidden_layer_sizes=(5,),
    policy_obs_key=keys[0],
    value_obs_key=keys[-1],
    normalize_inputs=True,
  )
  functions: Any = networks.functions
  variables = functions.init(jax.random.key(0), jax.random.key(1))
  observation = {key: jnp.full((4, 3), i) for i, key in enumerate(keys)}

  again = functions.variables(*variables.inference_params())
  state = functions.initial_state(again, 4)
  out = functions.step(again, None, state, observation, jax.random.key(2))

  assert out.action.shape == (4, 2)
  folded = functions.update_statistics(
    again, jax.tree.map(lambda x: x[None], out.extras), None
  )
  means = jax.tree.leaves(folded.statistics)
  assert any(np.all(np.asarray(leaf) == len(keys) - 1) for leaf in means)


def test_parameters_of_another_network_are_refused_by_name():
  small, large = (
    ppo_networks.make_ppo_networks(
      (3,), 2, policy_hidden_layer_sizes=sizes, value_hidden_layer_sizes=(4,)
    )
    for sizes in ((5,), (6,))
  )
  keys = jax.random.key(0), jax.random.key(1)
  policy, value = small.functions.init(*keys).inference_params()
  functions = large.functions

  with pytest.raises(ValueError, match=r'bias has shape \(5,\).*needs \(6,\)'):
    functions.step(
      functions.variables(policy, value),
      None,
      (),
      jnp.ones((1, 3)),
      jax.random.key(0),
    )
  with pytest.raises(ValueError, match='have no .*kernel|have no .*bias'):
    functions.step(
      functions.variables({}, value),
      None,
      (),
      jnp.ones((1, 3)),
      jax.random.key(0),
    )


def test_a_build_function_is_given_what_the_environment_says():
  seen = []

  def build(observation_size, action_size, rngs):
    seen.append((observation_size, action_size, type(rngs)))
    return fakes.count_network()

  ppo_networks.make_network_factory(build)({'state': (3,)}, 1)

  assert set(map(str, seen)) == {str(({'state': (3,)}, 1, nnx.Rngs))}
