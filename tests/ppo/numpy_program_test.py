"""Array operations in NumPy against those of JAX."""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.activations import ACTIVATIONS
from brax_nnx_plugin.ppo import numpy_operations
from brax_nnx_plugin.ppo import numpy_policy
from brax_nnx_plugin.ppo import numpy_program
from brax_nnx_plugin.ppo import step_program
from brax_nnx_plugin.ppo.numpy_parameters import UnsupportedError


def _program(fn: Any, *inputs: Any) -> step_program.StepProgram:
  """A step that only has observations."""
  specs = {str(i): step_program.specs(x) for i, x in enumerate(inputs)}
  jaxpr, out = jax.make_jaxpr(fn, return_shape=True)(*specs.values())
  return step_program.StepProgram(
    jaxpr, {}, specs, {}, step_program.named(out, 'action'), True
  )


def _run(fn: Any, *inputs: Any) -> tuple[list[Any], set[str]]:
  """Runs a function by NumPy; returns its results and the operations."""
  program, constants = numpy_program.lower(_program(fn, *inputs))
  run = numpy_policy.runner(program, constants)
  results, _ = run([np.asarray(x) for x in inputs], [])
  return results, {op for op, *_ in program['instructions']}


def _check(fn: Any, *inputs: Any) -> set[str]:
  """Compares with JAX; returns the operations that were used."""
  found, used = _run(fn, *inputs)
  wanted = jax.tree.leaves(fn(*map(jnp.asarray, inputs)))
  for a, b in zip(found, wanted, strict=True):
    assert np.asarray(a).dtype == b.dtype
    assert np.shape(a) == b.shape
    np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)
  return used


_DRAW = np.random.default_rng(0)
X = _DRAW.normal(size=(2, 3, 4)).astype(np.float32)
Y = _DRAW.normal(size=(2, 3, 4)).astype(np.float32)
P = np.abs(X) + np.float32(0.1)
N = np.arange(-12, 12, dtype=np.int32).reshape(2, 3, 4)
M = _DRAW.integers(1, 5, (2, 3, 4)).astype(np.int32) * np.where(N % 2, 1, -1)
M = M.astype(np.int32)
AT = np.array([1, -1, 9], np.int32)
_FILL = {'mode': 'fill'}
CASES: dict[str, tuple[Any, ...]] = {
  'sums': (lambda x, y: (x + y, x - y, x * y, x / y, -x, abs(x)), X, Y),
  'whole numbers': (
    lambda n, m: (lax.div(n, m), n % m, lax.rem(n, m), n // m, n**2, n + 7),
    N,
    M,
  ),
  'unsigned': (lambda n: (n - 5, n * 3), N.astype(np.uint32)),
  'powers': (
    lambda p, y: (
      p**y,
      p**-2,
      jnp.sqrt(p),
      lax.rsqrt(p),
      jnp.cbrt(p),
      p**3,
      jnp.square(p),
    ),
    P,
    Y,
  ),
  'exponentials': (
    lambda x, p: (
      jnp.exp(x),
      jnp.exp2(x),
      jnp.expm1(x),
      jnp.log(p),
      jnp.log1p(p),
    ),
    X,
    P,
  ),
  'angles': (
    lambda x, y: (
      jnp.sin(x),
      jnp.cos(x),
      jnp.tanh(x),
      jnp.tan(x),
      jnp.arctan2(x, y),
    ),
    X,
    Y,
  ),
  'rounding': (
    lambda x: (
      jnp.floor(x),
      jnp.ceil(x),
      jnp.round(4 * x),
      jnp.sign(x),
    ),
    X,
  ),
  'special': (
    lambda x: (lax.erf(x), lax.logistic(100 * x), jnp.isfinite(x / 0)),
    X,
  ),
  'comparisons': (
    lambda n, m: (n < m, n <= m, n > m, n >= m, n == m, n != m),
    N,
    M,
  ),
  'logic': (
    lambda n, m: (n & m, n | m, n ^ m, ~n, (n > 0) & (m > 0), ~(n > 0)),
    N,
    M,
  ),
  'choices': (
    lambda x, y, n: (
      jnp.where(n > 0, x, y),
      lax.select_n(n % 3, x, y, 2 * x),
      jnp.clip(x, -0.5, 0.5),
      lax.clamp(-0.5, x, 0.5),
      jnp.maximum(x, y),
      jnp.minimum(x, 0),
    ),
    X,
    Y,
    N,
  ),
  'types': (
    lambda x, n: (
      x.astype(int),
      n.astype(jnp.float32),
      n.astype(bool),
      (9 * x).astype('int8'),
    ),
    X,
    N,
  ),
  'shapes': (
    lambda x: (
      x.reshape(6, 4),
      x[:1].squeeze(0),
      x.T,
      x[:, None],
      x[1:, ::2, ::-1],
      jnp.broadcast_to(x[0], (5, 3, 4)),
      lax.expand_dims(x, (1,)),
    ),
    X,
  ),
  'parts': (
    lambda x, y: (
      jnp.concatenate([x, y, x], axis=1),
      jnp.stack([x, y]),
      *jnp.split(x, 2, -1),
      *jnp.split(x, [1], 1),
    ),
    X,
    Y,
  ),
  'sums over axes': (
    lambda x, n: (
      x.sum(),
      x.sum((0, 2)),
      x.max(1),
      x.min((0, 1)),
      x.prod(-1),
      (x > 0).all(-1),
      (x > 0).any(0),
      n.sum(1),
      x.argmax(1),
      x.argmin(-1),
      x.cumsum(1),
      lax.cumsum(x, 2, reverse=True),
    ),
    X,
    N,
  ),
  'products': (
    lambda x, y: (
      x[0] @ y[0].T,
      x @ y[0].T,
      jnp.einsum('bij,bkj->bik', x, y),
      jnp.einsum('bij,bij->b', x, y),
      jnp.einsum('ibj,kbj->bki', x, y),
    ),
    X,
    Y,
  ),
  'reads': (
    lambda x, i: (
      x[:, i % 3],
      x[i % 2, i % 3],
      x[..., i % 4],
      x[i % 2][:, i % 3],
      x.at[:, i].get(**_FILL),
      x.at[i, i].get(mode='clip'),
      x.at[:, i].get(mode='fill', fill_value=3.0),
      x[i[0]],
      jnp.take_along_axis(x, i.reshape(1, 3, 1) % 4, axis=-1),
      lax.dynamic_slice(x, (i[0], i[1], i[2]), (1, 2, 2)),
    ),
    X,
    AT,
  ),
  'reads of whole numbers': (
    lambda n, i: (
      n.at[:, i].get(**_FILL),
      n.astype('uint8').at[i].get(**_FILL),
      (n > 0).at[:, :, i].get(**_FILL),
    ),
    N,
    AT,
  ),
  'writes': (
    lambda x, y, i: (
      x.at[:, i].set(y),
      x.at[i % 2, i % 3].set(y[0]),
      x.at[..., -1].add(1.0),
      x.at[:, i[:2]].add(y[:, :2]),
      x.at[i[0]].set(0.0),
      x.at[:, i].set(y, mode='clip'),
      lax.dynamic_update_slice(x, y[:1, :2], (i[0], i[1], i[2])),
    ),
    X,
    Y,
    AT,
  ),
  'rows read by themselves': (
    lambda x, i: jax.vmap(lambda row, j: row[j % 3])(x, i[:2]),
    X,
    AT,
  ),
  'rows written by themselves': (
    lambda x, i: jax.vmap(lambda row, j: row.at[j % 3].set(7.0))(x, i[:2]),
    X,
    AT,
  ),
}


@pytest.mark.parametrize('name', CASES)
def test_numpy_computes_what_jax_does(name):
  _check(*CASES[name])


def test_every_operation_is_compared():
  used = set[str]()
  for fn, *inputs in CASES.values():
    used |= _run(fn, *inputs)[1]
  assert used == set(numpy_operations.OPERATIONS)


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_every_activation_of_brax_can_be_run(name):
  x = np.linspace(-20, 20, 81, dtype=np.float32)
  _check(ACTIVATIONS[name], x)


def test_what_depends_on_constants_alone_is_computed_once():
  weight = jnp.linspace(0.0, 1.0, 4)
  noise = jax.random.key(0)

  def fn(x):
    scale = jnp.sqrt(jnp.exp(weight)) + jax.random.normal(noise, (4,))
    return x * scale

  assert _check(fn, X) <= {'mul', 'broadcast_in_dim', 'reshape'}
  program, constants = numpy_program.lower(_program(fn, X))
  assert len(program['instructions']) == 1 and len(constants) == 1


def _unsupported(x: Any) -> Any:
  with jax.named_scope('leg'):
    return jax.jit(lambda v: jnp.sort(v))(x)


@pytest.mark.parametrize(
  ('fn', 'message'),
  [
    (_unsupported, r'counterpart of sort .*in leg'),
    (lambda x: lax.scan(lambda c, v: (c + v, c), x[0], x)[0], 'of scan'),
    (lambda x: x.astype(jnp.bfloat16), 'type bfloat16'),
    (lambda x: lax.round(x), 'away from zero'),
    (
      lambda x: jax.random.normal(jax.random.key(x[0, 0, 0].astype(int))),
      'rand',
    ),
  ],
)
def test_what_has_no_counterpart_is_refused(fn, message):
  with pytest.raises(UnsupportedError, match=message):
    _run(fn, X)
