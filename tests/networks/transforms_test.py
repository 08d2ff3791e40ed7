"""Modules under JAX transformations, and how they stand to flax and NaN."""

import ast
import pathlib
from typing import Any
import warnings

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import brax_nnx_plugin
from brax_nnx_plugin.networks import functional
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks import types
from tests.networks import cases
from tests.networks import table

ROWS = 2
STEPS = 3


def _twice(tree: Any) -> Any:
  return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), tree)


def _step(module, state, x):
  return module(state, x)


def _unroll(module, state, x):
  x = jax.tree.map(lambda leaf: jnp.stack([leaf] * STEPS), x)
  is_first = jnp.zeros((STEPS, ROWS)).at[1, 0].set(1.0)
  return stepping.unroll_module(module, state, x, is_first)


def _loss(out: types.StatefulModuleOutput) -> jax.Array:
  """Adds up all real numbers of an output."""
  leaves = [jnp.sum(v) for v in jax.tree.leaves(out) if v.dtype == jnp.float32]
  return sum(leaves, jnp.array(0.0))


def _scan(f, variables, state, x):
  """Steps the carry, and the variables with it, through a scan."""

  def body(carry, x):
    out, after = f(*carry, x)
    return (after, out.next_state), _loss(out)

  return jax.lax.scan(body, (variables, state), _twice(x))


def _nested_scan(f, variables, state, x):
  def body(carry, x):
    variables, state = carry
    return _scan(f, variables, state, x)

  return jax.lax.scan(body, (variables, state), _twice(x))


def _grad(f, variables, state, x):
  params, rest = nnx.split_state(variables, nnx.Param, ...)

  def loss(params):
    # Variables may only be written at the trace level that made them.
    copy = jax.tree.map(lambda leaf: leaf, rest)
    return _loss(f(nnx.merge_state(params, copy), state, x)[0])

  return jax.grad(loss)(params)


def _vmap(f, *args):
  return jax.vmap(f)(*_twice(args))


def _pmap(f, *args):
  return jax.pmap(f)(*_twice(args))


TRANSFORMS = {
  'jit': lambda f, *args: jax.jit(f)(*args),
  'vmap': _vmap,
  'pmap': _pmap,
  'grad': _grad,
  'scan': _scan,
  'scan in scan': _nested_scan,
}


def _snapshot(module: Any) -> Any:
  """Copies all variables; keys as the numbers that they are made of."""

  def plain(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.array(jax.random.key_data(leaf) if is_key else leaf)

  return jax.tree.map(plain, nnx.to_pure_dict(nnx.state(module)))


@pytest.mark.parametrize('transform', TRANSFORMS)
@pytest.mark.parametrize('name', table.CASES)
def test_a_copy_can_be_traced_and_the_original_is_unchanged(name, transform):
  module = table.build(name)
  state, x = module.initialize_state(ROWS), table.inputs(name, ROWS)
  before = _snapshot(module)
  for run in (_step, _unroll):
    variables, f = cases.pure(module, run)
    # Errors of this kind are raised by tracing; nothing need be compiled.
    jax.make_jaxpr(lambda *a, f=f: TRANSFORMS[transform](f, *a))(
      variables, state, x
    )
  jax.tree.map(np.testing.assert_array_equal, _snapshot(module), before)
  module(state, x)  # and it can still be called


@pytest.mark.slow
@pytest.mark.parametrize('run', [_step, _unroll])
def test_transformations_change_no_numbers(run):
  module = table.build('nested')
  state, x = module.initialize_state(ROWS), table.inputs('nested', ROWS)
  variables, f = cases.pure(module, run)
  plain, _ = f(variables, state, x)
  for name in ('jit', 'vmap', 'pmap'):
    out, _ = TRANSFORMS[name](f, variables, state, x)
    expected = plain if name == 'jit' else _twice(plain)
    cases.assert_same(out, expected, 1e-6)
  (_, end), _ = _scan(f, variables, state, x)
  again, _ = f(variables, plain.next_state, x)
  cases.assert_same(end, again.next_state, 1e-6)
  (_, end), _ = _nested_scan(f, variables, state, x)
  for _ in range(2):
    again, _ = f(variables, again.next_state, x)
  cases.assert_same(end, again.next_state, 1e-5)


def test_unroll_of_the_original_inside_jit_is_refused_or_harmless():
  # A network with an RNG stream that is closed over must not leave a tracer.
  module = table.build('actor_critic')
  state, x = module.initialize_state(ROWS), table.inputs('actor_critic', ROWS)
  with pytest.raises(Exception, match='trace level'):
    jax.jit(lambda x: module(state, x).output.actions)(x)
  assert np.all(np.isfinite(module(state, x).output.actions))


@pytest.mark.parametrize('name', table.CASES)
def test_a_fresh_carry_makes_no_nan_forward_or_backward(name):
  module = table.build(name)
  state, x = module.initialize_state(ROWS), table.inputs(name, ROWS)
  variables, f = cases.pure(module, _step)
  zeros = jax.tree.map(jnp.zeros_like, x)
  with jax.debug_nans(True):
    run = jax.jit(lambda *args: (f(*args)[0], _grad(f, *args)))
    for observation in (x, zeros):
      out, gradient = run(variables, state, observation)
  leaves = jax.tree.leaves((out, gradient))
  assert all(np.all(np.isfinite(leaf)) for leaf in leaves)


@pytest.mark.parametrize('name', table.CASES)
def test_weights_are_trained_and_statistics_and_streams_are_not(name):
  module = table.build(name)
  parts = functional.split(module)
  for _, variable in nnx.to_flat_state(parts.params):
    assert isinstance(variable, nnx.Param)
    assert jnp.issubdtype(variable.dtype, jnp.floating)
  paths = {path for path, _ in nnx.to_flat_state(nnx.state(module, nnx.Param))}
  measured = {'mean', 'M2', 'counter', 'key'}
  assert not [path for path in paths if measured & set(path)]
  state, x = module.initialize_state(ROWS), table.inputs(name, ROWS)
  variables, f = cases.pure(module, _step)
  gradient = jax.eval_shape(lambda *a: _grad(f, *a), variables, state, x)
  assert {path for path, _ in nnx.to_flat_state(gradient)} == paths


def test_statistics_of_a_network_change_without_a_gradient():
  module = table.build('actor_critic')
  weights = _snapshot(functional.split(module).params)
  x = table.inputs('actor_critic', ROWS)
  extras = module(module.initialize_state(ROWS), x).rollout_extras
  module.update_statistics(jax.tree.map(lambda leaf: leaf[None], extras))
  np.testing.assert_allclose(
    module[0].mean.get_value(), np.mean(x, axis=0), atol=1e-6
  )
  after = _snapshot(functional.split(module).params)
  jax.tree.map(np.testing.assert_array_equal, after, weights)


@pytest.mark.parametrize(
  'name', [n for n in table.CASES if n != 'foreign_child']
)
def test_no_use_of_a_module_is_deprecated(name):
  with warnings.catch_warnings():
    for kind in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
      warnings.simplefilter('error', kind)
    module = table.build(name)
    state, x = module.initialize_state(ROWS), table.inputs(name, ROWS)
    out = module(module.reset_state(state), x)
    extras = jax.tree.map(lambda leaf: leaf[None], out.rollout_extras)
    module.update_statistics(extras)
    jax.eval_shape(lambda: _unroll(table.build(name), state, x))
    template = functional.ModuleTemplate(lambda key: table.build(name))
    trees = template.init(jax.random.key(0))
    template.module(trees['params'], trees['statistics'])


def _attributes(path: pathlib.Path) -> list[tuple[int, str]]:
  tree = ast.parse(path.read_text())
  nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
  return [(node.lineno, node.attr) for node in nodes]


def test_variables_are_read_without_deprecated_attributes():
  root = pathlib.Path(brax_nnx_plugin.__file__).parent
  files = list(root.rglob('*.py'))
  assert len(files) > 10
  for path in files:
    # In `ppo` trees of policy and value have an attribute called `value`.
    banned = {'to_pure_dict'}
    banned |= (
      {'value', 'raw_value'} if path.parent.name == 'networks' else set()
    )
    found = [(n, name) for n, name in _attributes(path) if name in banned]
    assert not found, path
