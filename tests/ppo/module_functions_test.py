"""Tests of a module as pure functions: variables, sums, preprocessing."""

import dataclasses
from typing import Any

from brax.training.acme import running_statistics
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Parallel
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.normalizer import Normalizer
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput
from brax_nnx_plugin.networks.utils import Filter
from brax_nnx_plugin.ppo.module_functions import ModuleFunctions
from tests import fakes
from tests import segments
from tests import toy_modules


def _functions(build, size: Any = (3,), action_size=1, preprocess=None):
  return ModuleFunctions(
    lambda key: build(size, action_size, nnx.Rngs(key)),
    size,
    action_size,
    preprocess or (lambda observation, params: observation),
  )


def _mlp(size, action_size, rngs):
  return Sequential(
    [
      Normalizer(size),
      PPOAdapter(
        action=Sequential(
          [Dense(3, 2 * action_size, rngs), NormalTanhSampler(rngs)]
        ),
        value=Dense(3, 1, rngs),
      ),
    ]
  )


def _leaves(tree):
  return {
    jax.tree_util.keystr(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def test_policy_and_value_are_drawn_from_their_own_keys():
  functions = _functions(_mlp)
  a, b, c = (jax.random.PRNGKey(n) for n in range(3))
  first = functions.init(a, b).params
  other_value = functions.init(a, c).params
  other_policy = functions.init(c, b).params
  same = lambda x, y: all(
    np.array_equal(v, _leaves(y)[k]) for k, v in _leaves(x).items()
  )
  assert same(first.policy, other_value.policy)
  assert same(first.value, other_policy.value)
  assert not same(first.value, other_value.value)
  assert not same(first.policy, other_policy.policy)


def test_inference_params_come_apart_into_what_was_joined():
  functions = _functions(_mlp)
  variables = segments.init(functions)
  joined = variables.inference_params()
  again = functions.variables(*joined)
  assert jax.tree.structure(again) == jax.tree.structure(variables)
  for path, leaf in _leaves(variables).items():
    np.testing.assert_array_equal(_leaves(again)[path], leaf)


def test_gradient_phase_sees_no_statistics():
  variables = segments.init(_functions(_mlp))
  names = ' '.join(_leaves(variables.params))
  assert 'kernel' in names and 'bias' in names
  assert 'mean' not in names and 'counter' not in names
  assert len(_leaves(variables.statistics)) == 3


def test_network_without_statistics_keeps_its_variables_as_they_are():
  functions = _functions(fakes.count_network, (2,))
  variables = segments.init(functions)
  assert functions.update_statistics(variables, None, None) is variables


def _two_samplers(size, action_size, rngs):
  port = lambda n: Sequential([Dense(3, 2 * n, rngs), NormalTanhSampler(rngs)])
  del size, action_size
  return PPOAdapter(
    action=Parallel(arm=port(2), leg=port(1)), value=Dense(3, 1, rngs)
  )


def test_likelihoods_and_entropies_of_several_samplers_add_up():
  functions = _functions(_two_samplers, action_size=3)
  variables = segments.init(functions)
  observation = jax.random.normal(jax.random.PRNGKey(1), (4, 3))
  state = functions.initial_state(variables, 4)
  key = jax.random.PRNGKey(2)
  out = functions.step(variables, None, state, observation, key)
  assert out.action['arm'].shape == (4, 2)
  assert out.action['leg'].shape == (4, 1)
  # NumPy: a normal in x with the change of variables of tanh, summed over the
  # three numbers: log N(x) - log(1 - tanh² x).
  raw = np.concatenate(
    [out.extras['action'][name][1] for name in ('arm', 'leg')], axis=-1
  )
  loc, scale = np.asarray(out.loc), np.asarray(out.scale)
  assert raw.shape == loc.shape == scale.shape == (4, 3)
  normal = -0.5 * ((raw - loc) / scale) ** 2 - np.log(
    scale * np.sqrt(2 * np.pi)
  )
  squash = np.log(1 - np.tanh(raw) ** 2)
  np.testing.assert_allclose(
    out.log_likelihood, np.sum(normal - squash, axis=-1), rtol=1e-4
  )
  assert out.entropy is not None and out.entropy.shape == (4,)
  # Two samplers do not share their noise.
  noise = (raw - loc) / scale
  assert np.all(noise[:, 0] != noise[:, 2])


def test_sampling_follows_the_key_and_the_mode_does_not():
  functions = _functions(_mlp)
  variables = segments.init(functions)

  def act(seed, deterministic):
    return functions.step(
      variables,
      None,
      functions.initial_state(variables, 2),
      jnp.ones((2, 3)),
      jax.random.PRNGKey(seed),
      deterministic=deterministic,
    )

  assert np.all(act(0, False).action != act(1, False).action)
  np.testing.assert_array_equal(act(0, False).action, act(0, False).action)
  np.testing.assert_array_equal(act(0, True).action, act(1, True).action)
  np.testing.assert_allclose(
    act(0, True).action, np.tanh(np.asarray(act(0, True).loc)), rtol=1e-6
  )


def _dict_network(size, action_size, rngs):
  del size
  return PPOAdapter(
    action=Sequential(
      [
        Filter('state'),
        Dense(3, 2 * action_size, rngs),
        NormalTanhSampler(rngs),
      ]
    ),
    value=Sequential([Filter('extra'), toy_modules.Feature(0)]),
  )


@pytest.mark.parametrize('known', [('state', 'extra'), ('state',)])
def test_each_entry_of_an_observation_has_its_own_statistics(known):
  size = {'state': (3,), 'extra': (1,)}
  functions = _functions(
    _dict_network, size, preprocess=running_statistics.normalize
  )
  variables = segments.init(functions)
  statistics: Any = running_statistics.init_state(
    {key: jnp.zeros(size[key]) for key in known}
  )
  extra = jnp.array([[2.0], [6.0]])  # mean 4, standard deviation 2
  batch = {'state': jnp.ones((2, 3)), 'extra': extra}
  statistics = running_statistics.update(
    statistics, {key: batch[key] for key in known}
  )
  state = functions.initial_state(variables, 2)
  key = jax.random.PRNGKey(0)
  out = functions.step(variables, statistics, state, batch, key)
  expected = [-1, 1] if 'extra' in known else [2, 6]
  np.testing.assert_allclose(out.value, expected, rtol=1e-5)


class _Writer(StatefulModule):
  """Counts its calls in a variable, which a forward pass must not do."""

  def __init__(self):
    self.calls = nnx.Variable(jnp.array(0.0))

  def __call__(self, state, x, rollout_extras=None):
    self.calls.set_value(self.calls.get_value() + 1)
    return StatefulModuleOutput(state, x[:, :1], jnp.array(0.0), {})


class _Growing(fakes.Count):
  """Turns its integer carry into floats."""

  def __call__(self, state, x, rollout_extras=None):
    out = super().__call__(state, x, rollout_extras)
    return dataclasses.replace(out, next_state=out.next_state + 0.5)


@pytest.mark.parametrize(
  ('build', 'error', 'message'),
  [
    (
      lambda *_: fakes.plain_network(_Writer(), fakes.Count()),
      ValueError,
      'calls.*update_statistics',
    ),
    (
      lambda *_: fakes.plain_network(_Growing(), fakes.Count()),
      ValueError,
      'int32.*float32',
    ),
    (lambda *_: fakes.Count(), TypeError, 'PPONetworkOutput'),
    (
      lambda *_: fakes.plain_network(
        toy_modules.Feature(0), Sequential([toy_modules.Wide()])
      ),
      ValueError,
      'one number per row',
    ),
  ],
)
def test_broken_module_is_refused_before_anything_compiles(
  build, error, message
):
  with pytest.raises(error, match=f'(?s){message}'):
    _functions(build, (2,))
