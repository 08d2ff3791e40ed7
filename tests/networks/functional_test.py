"""A module as plain trees: round trips and the two sides."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import functional
from tests import fakes
from tests.networks import cases
from tests.networks import table


def _template(name: str) -> functional.ModuleTemplate:
  return functional.ModuleTemplate(lambda key: _build(name, key))


def _build(name: str, key: jax.Array) -> Any:
  return table.CASES[name].build(nnx.Rngs(key))


def _twelve_layers(key: jax.Array) -> Any:
  rngs = nnx.Rngs(key)
  critic = [networks.Dense(3, 3, rngs, nnx.tanh) for _ in range(12)]
  critic.append(networks.Dense(3, 1, rngs))
  actor = [networks.Dense(3, 4, rngs), networks.NormalTanhSampler(rngs)]
  return networks.PPOAdapter(
    networks.Sequential(actor), networks.Sequential(critic)
  )


def test_a_network_with_more_than_ten_layers_survives_a_round_trip():
  # As text '10' comes before '2'.
  template = functional.ModuleTemplate(_twelve_layers)
  module = _twelve_layers(jax.random.key(3))
  trees = template.trees(module)
  copy = template.module(trees['params'], trees['statistics'])
  x = cases.draw(3, 2)
  state = module.initialize_state(2)
  expected = module(state, x).output.value_estimates
  np.testing.assert_array_equal(copy(state, x).output.value_estimates, expected)


@pytest.mark.parametrize('name', table.CASES)
def test_every_module_survives_a_round_trip(name):
  template = _template(name)
  module = _build(name, jax.random.key(3))
  trees = template.trees(module)
  copy = template.module(trees['params'], trees['statistics'])
  parts, expected = functional.split(copy), functional.split(module)
  for part in functional.PARTS:
    a, b = getattr(parts, part), getattr(expected, part)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize('name', table.CASES)
def test_the_abstract_module_has_the_shapes_of_a_real_one(name):
  def shapes(module):
    parts = functional.split(module)
    return jax.tree.map(lambda x: (tuple(x.shape), x.dtype), tuple(parts))

  template = _template(name)
  expected = shapes(_build(name, jax.random.key(3)))
  assert shapes(template.abstract()) == expected


def _assert_plain(tree: Any) -> None:
  if isinstance(tree, dict):
    assert type(tree) is dict
    for key, value in tree.items():
      assert type(key) is str
      _assert_plain(value)
  else:
    assert isinstance(tree, jax.Array)
    assert not jnp.issubdtype(tree.dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize('name', table.CASES)
def test_trees_are_plain_dicts_of_arrays_with_string_keys(name):
  trees = _template(name).trees(table.build(name))
  for part in functional.PARTS:
    for side in trees[part]:
      _assert_plain(side)


def test_weights_and_statistics_are_told_apart():
  template = _template('actor_critic')
  trees = template.trees(table.build('actor_critic'))
  leaves = lambda tree: {
    '/'.join(str(k.key) for k in path): leaf.shape
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
  policy, value = map(leaves, trees['params'])
  action = 'params/components/1/components/action/components'
  assert policy == {
    f'{action}/0/linear/kernel': (3, 4),
    f'{action}/0/linear/bias': (4,),
    f'{action}/1/linear/kernel': (4, 4),
    f'{action}/1/linear/bias': (4,),
  }
  critic = 'params/components/1/components/value/components'
  assert value == {
    f'{critic}/0/linear/kernel': (3, 4),
    f'{critic}/0/linear/bias': (4,),
    f'{critic}/1/linear/kernel': (4, 1),
    f'{critic}/1/linear/bias': (1,),
  }
  policy, value = map(leaves, trees['statistics'])
  normalizer = 'statistics/components/0'
  assert policy == {
    f'{normalizer}/mean': (3,),
    f'{normalizer}/M2': (3,),
    f'{normalizer}/counter': (),
  }
  assert value == {}
  assert set(template.parameter_names()) == {
    tuple(path.split('/')[1:])
    for path in [*leaves(trees['params'][0]), *leaves(trees['params'][1])]
  }


def test_init_depends_on_the_key_and_on_nothing_else():
  template = _template('recurrent_policy')
  one, same, other = (template.init(jax.random.key(k)) for k in (1, 1, 2))
  cases.assert_same(one, same)
  kernel = lambda trees: trees['params'][0]['params']['components']['action'][
    'components'
  ]['0']['linear']['kernel']
  assert np.all(kernel(one) != kernel(other))


def _tied(key: jax.Array) -> Any:
  rngs = nnx.Rngs(key)
  trunk = networks.Dense(3, 3, rngs)
  actor = [trunk, networks.Dense(3, 4, rngs), networks.NormalTanhSampler(rngs)]
  critic = [trunk, networks.Dense(3, 1, rngs)]
  return networks.PPOAdapter(
    networks.Sequential(actor), networks.Sequential(critic)
  )


def test_a_shared_layer_is_stored_once_and_belongs_to_the_policy():
  template = functional.ModuleTemplate(_tied)
  module = _tied(jax.random.key(0))
  trees = template.trees(module)
  policy, value = trees['params']
  size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
  assert size(policy) == (3 * 3 + 3) + (3 * 4 + 4)
  assert size(value) == 3 + 1
  copy = template.module((policy, value), trees['statistics'])
  shared = copy['value'][0].linear.kernel
  assert shared is copy['action'][0].linear.kernel
  np.testing.assert_array_equal(shared[...], module['value'][0].linear.kernel)


def test_the_gradient_of_a_shared_layer_is_the_sum_of_both_uses():
  template = functional.ModuleTemplate(_tied)
  trees = template.init(jax.random.key(0))
  x = cases.draw(3, 2)
  raw = cases.draw(2, 2)

  def loss(params, actor, critic):
    net = template.module(params, trees['statistics'])
    state = net.initialize_state(2)
    extras = {'action': [None, None, raw], 'value': [None, None]}
    out = net(state, x, extras).output
    return jnp.sum(
      actor * out.loglikelihoods + critic * jnp.square(out.value_estimates)
    )

  gradient = jax.jit(jax.grad(loss))
  both, actor, critic = (
    gradient(trees['params'], *weights)[0]['params']['components']['action'][
      'components'
    ]['0']['linear']['kernel']
    for weights in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
  )
  assert np.any(actor != 0) and np.any(critic != 0)
  np.testing.assert_allclose(both, actor + critic, atol=1e-5)


def test_only_the_value_port_of_an_adapter_is_the_value_function():
  def build(key):
    rngs = nnx.Rngs(key)
    trunk = networks.Parallel(
      value=networks.Dense(3, 2, rngs), action=networks.Dense(3, 2, rngs)
    )
    head = networks.PPOAdapter(fakes.PlainSampler(), networks.Dense(4, 1, rngs))
    return networks.Sequential([trunk, cases.Join(), head])

  template = functional.ModuleTemplate(build)
  assert template.ports == [('components', '2', 'components')]
  policy, value = template.init(jax.random.key(0))['params']
  assert len(jax.tree.leaves(policy)) == 4
  assert len(jax.tree.leaves(value)) == 2


@pytest.mark.parametrize('side', [0, 1], ids=['policy', 'value'])
def test_a_missing_leaf_is_an_error_that_names_it(side):
  template = _template('actor_critic')
  trees = template.init(jax.random.key(0))
  port = trees['params'][side]['params']['components']['1']['components']
  layer = port[('action', 'value')[side]]['components']['1']['linear']
  del layer['bias']
  name = f'1/components/{("action", "value")[side]}/components/1/linear/bias'
  with pytest.raises(ValueError, match=f'have no components/{name}'):
    template.module(trees['params'], trees['statistics'])


def test_a_missing_part_is_an_error_that_names_a_leaf():
  template = _template('actor_critic')
  trees = template.init(jax.random.key(0))
  with pytest.raises(ValueError, match='have no components/0/'):
    template.module(trees['params'], ({}, {}))


def test_a_leaf_of_another_shape_is_an_error_that_names_it():
  template = _template('dense')
  policy, value = template.init(jax.random.key(0))['params']
  policy['params']['linear']['kernel'] = jnp.zeros((3, 5))
  message = r'linear/kernel has shape \(3, 5\), but this network needs \(3, 4\)'
  with pytest.raises(ValueError, match=message):
    template.module((policy, value), ({}, {}))


def test_a_leaf_too_many_is_an_error_that_names_it():
  template = functional.ModuleTemplate(_twelve_layers)
  trees = template.init(jax.random.key(0))
  policy, value = trees['params']
  more = {'params': {**policy['params'], 'more': {'kernel': jnp.zeros(2)}}}
  with pytest.raises(ValueError, match='have more/kernel, which this network'):
    template.module((more, value), trees['statistics'])
