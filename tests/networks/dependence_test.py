"""What a traced result depends on."""

import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import dependence


def _f(x, y, z):
  return x['a'] + jax.jit(lambda v: (v, jnp.sin(z)))(x['b'])[1], y * 0


def test_it_tells_used_from_unused_arguments():
  x = {'a': jnp.ones(2), 'b': jnp.ones(2)}
  used = dependence.depends_on(_f, x, jnp.ones(3), jnp.ones(2))
  assert used == ({'a': True, 'b': False}, True, True)


def test_what_a_scan_only_carries_along_does_not_count():
  def f(key, x):
    def body(carry, _):
      key, total = carry
      return (jax.random.fold_in(key, 0), total + 1), None

    return jax.lax.scan(body, (key, x), None, length=3)[0][1]

  assert dependence.depends_on(f, jax.random.key(0), 1.0) == (False, True)


def test_a_key_that_reaches_the_result_through_a_scan_is_found():
  def f(key, x):
    def body(total, _):
      return total + jax.random.normal(key), None

    return jax.lax.scan(body, x, None, length=3)[0]

  assert dependence.depends_on(f, jax.random.key(0), 1.0) == (True, True)


def test_abstract_arguments_will_do():
  spec = jax.ShapeDtypeStruct((2,), jnp.float32)
  assert dependence.depends_on(lambda a, b: a, spec, spec) == (True, False)
