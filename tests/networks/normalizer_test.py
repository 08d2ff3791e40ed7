"""The embedded normalizer against NumPy."""

from collections import OrderedDict
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks

SHAPES = {
  'int': (3, 3),
  'tuple': ((2, 2), (2, 2)),
  'list': ([2, 2], (2, 2)),
  'array': (jnp.full(3, 7.0), 3),
  'integer array': (np.zeros((2, 2), np.uint8), (2, 2)),
  'struct': (jax.ShapeDtypeStruct((3,), jnp.float32), 3),
  'numpy integer': (np.int64(3), 3),
  'pytree': ({'q': 3, 'p': (2, 2)}, {'q': 3, 'p': (2, 2)}),
  'nested': ({'a': {'b': 2}, 'c': jnp.zeros(3)}, {'a': {'b': 2}, 'c': 3}),
}


def _draw(shape: Any, lead: tuple[int, ...], seed: int) -> Any:
  """Draws features with a mean and a spread of their own, in NumPy."""
  rng = np.random.default_rng(seed)

  def leaf(size):
    features = (size,) if isinstance(size, int) else size
    loc, scale = rng.normal(5, 3, features), rng.uniform(0.5, 4, features)
    return rng.normal(loc, scale, (*lead, *features)).astype(np.float32)

  return jax.tree.map(leaf, shape, is_leaf=lambda n: isinstance(n, tuple))


def _assert_standardised(normalizer, histories, x) -> None:
  """Compares with the mean and spread of all histories put together."""
  out = normalizer((), jax.tree.map(jnp.asarray, x))
  together = jax.tree.map(
    lambda *parts: np.concatenate(
      [p.reshape(-1, *p.shape[2:]) for p in parts]
    ).astype(np.float64),
    *histories,
  )
  expected = jax.tree.map(
    lambda leaf, seen: (leaf - seen.mean(0)) / seen.std(0), x, together
  )
  assert jax.tree.structure(out.output) == jax.tree.structure(expected)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
    out.output,
    expected,
  )


@pytest.mark.parametrize('name', SHAPES)
def test_it_standardises_by_all_it_has_seen(name):
  given, shape = SHAPES[name]
  normalizer = networks.Normalizer(given)
  # Batches of different sizes, so that a wrong weight shows.
  histories = [_draw(shape, (4 * i, 5), seed=i) for i in (1, 2, 3)]
  sizes = jax.tree.map(jnp.shape, normalizer.mean.get_value())
  for history in histories:
    normalizer.update_statistics(jax.tree.map(jnp.asarray, history))
  assert jax.tree.map(jnp.shape, normalizer.mean.get_value()) == sizes
  assert normalizer.counter.get_value() == 20 + 40 + 60
  _assert_standardised(normalizer, histories, _draw(shape, (3,), seed=9))


def test_before_the_first_update_it_divides_by_ten():
  x = jnp.array([[1.0, -2.0, 30.0]])
  out = networks.Normalizer(3)((), x)
  np.testing.assert_allclose(out.output, [[0.1, -0.2, 3.0]], rtol=1e-6)


def test_the_extras_are_the_raw_input():
  x = _draw(3, (2,), seed=0)
  out = networks.Normalizer(3)((), jnp.asarray(x))
  np.testing.assert_array_equal(out.rollout_extras, x)


def test_a_replay_normalises_its_input_and_not_the_extras():
  normalizer = networks.Normalizer(2)
  out = normalizer((), jnp.ones((1, 2)), jnp.full((1, 2), 9.0))
  np.testing.assert_allclose(out.output, np.full((1, 2), 0.1), rtol=1e-6)


def test_a_constant_feature_stays_finite():
  normalizer = networks.Normalizer(1)
  normalizer.update_statistics(jnp.full((4, 2, 1), 3.0))
  # The smallest variance is 1e-6: (3.002 - 3) / 1e-3 = 2.
  out = normalizer((), jnp.array([[3.0], [3.002]])).output
  np.testing.assert_allclose(out, [[0.0], [2.0]], atol=1e-2)


def test_statistics_stay_exact_far_from_zero():
  # A sum of squares in float32 would lose a spread of 1 around 1e4.
  normalizer = networks.Normalizer(1)
  rng = np.random.default_rng(0)
  histories = [rng.normal(1e4, 1.0, (8, 16, 1)) for _ in range(5)]
  for history in histories:
    normalizer.update_statistics(jnp.asarray(history, jnp.float32))
  variance = normalizer.M2.get_value() / normalizer.counter.get_value()
  expected = np.concatenate(histories).reshape(-1, 1).var(0)
  np.testing.assert_allclose(variance, expected, rtol=0.01)


@pytest.mark.parametrize('samples', [0, 10**9])
@pytest.mark.parametrize('rows', [5, 128])
def test_statistics_stay_right_over_a_long_run_far_from_zero(samples, rows):
  # From 2^24 on a counter in float32 no longer counts single samples; batches
  # and squares are rounded alike, and their ratio must stay right.
  normalizer = networks.Normalizer(1)
  normalizer.mean.set_value(jnp.full(1, 1e4 if samples else 0.0))
  normalizer.M2.set_value(jnp.full(1, float(samples)))
  normalizer.counter.set_value(jnp.float32(samples))
  graphdef, variables = nnx.split(normalizer)

  def update(variables, key):
    copy = nnx.merge(graphdef, variables)
    copy.update_statistics(1e4 + jax.random.normal(key, (10, rows, 1)))
    return nnx.state(copy), None

  keys = jax.random.split(jax.random.key(0), 2000)
  variables, _ = jax.lax.scan(update, variables, keys)
  after = nnx.merge(graphdef, variables)
  variance = after.M2[...] / after.counter[...]
  np.testing.assert_allclose(after.mean[...], 1e4, rtol=0, atol=0.03)
  np.testing.assert_allclose(variance, 1.0, rtol=0.01)


def test_whole_numbers_are_normalised_as_numbers():
  normalizer = networks.Normalizer((2,))
  pixels = np.array([[[0, 255]], [[100, 55]]], np.uint8)
  normalizer.update_statistics(jnp.asarray(pixels))
  # Means 50 and 155, spreads 50 and 100; in uint8, 0 - 50 would wrap round.
  out = normalizer((), jnp.asarray(pixels[0]))
  np.testing.assert_allclose(out.output, [[-1.0, 1.0]], rtol=1e-5)
  assert out.output.dtype == jnp.float32
  assert out.rollout_extras.dtype == jnp.uint8  # a quarter of the memory


@pytest.mark.parametrize('made_of', [dict, OrderedDict])
@pytest.mark.parametrize('given', [dict, OrderedDict])
def test_any_mapping_will_do(made_of, given):
  normalizer = networks.Normalizer(made_of([('z', 2), ('a', 1)]))
  x = given([('z', jnp.ones((4, 2))), ('a', jnp.ones((4, 1)))])
  out = normalizer((), x)
  assert set(out.output) == {'z', 'a'}
  np.testing.assert_allclose(out.output['z'], np.full((4, 2), 0.1), rtol=1e-6)
  history = jax.tree.map(lambda leaf: leaf[None], out.rollout_extras)
  normalizer.update_statistics(history)
  np.testing.assert_array_equal(normalizer((), x).output['a'], 0)


@pytest.mark.parametrize(
  'x',
  [
    jnp.ones((2, 3)),
    {'q': jnp.ones((2, 3))},
    {'q': jnp.ones((2, 3)), 'p': jnp.ones((2, 2)), 'extra': jnp.ones((2, 1))},
  ],
  ids=['array', 'missing', 'extra'],
)
def test_an_input_of_another_structure_is_an_error(x):
  normalizer = networks.Normalizer({'q': 3, 'p': 2})
  with pytest.raises(ValueError, match="made for an input.*'p'.*'q'.*but got"):
    normalizer((), x)


@pytest.mark.parametrize('size', [1, 2, 4])
def test_an_input_of_another_shape_is_an_error(size):
  message = rf'of shape \(3,\), but got an input of shape \(2, {size}\)'
  with pytest.raises(ValueError, match=message):
    networks.Normalizer(3)((), jnp.ones((2, size)))


def test_an_input_without_a_feature_axis_is_an_error():
  with pytest.raises(ValueError, match='but got an input of shape'):
    networks.Normalizer((2, 3))((), jnp.ones((3,)))


@pytest.mark.parametrize('shape', ['state', 2.5, {'a': 'b'}], ids=str)
def test_what_is_no_shape_is_an_error(shape):
  with pytest.raises(TypeError, match='Normalizer needs an int, a tuple'):
    networks.Normalizer(shape)


def test_statistics_are_not_trained():
  normalizer = networks.Normalizer({'q': 3})
  assert not jax.tree.leaves(nnx.state(normalizer, nnx.Param))


def _fold_on_devices(history):
  """Folds `[devices, T, B, *shape]` twice; returns one result per device."""
  graphdef, variables = nnx.split(networks.Normalizer(3))

  def fold(history):
    normalizer = nnx.merge(graphdef, variables)
    normalizer = nnx.clone(normalizer)
    for part in history:
      normalizer.update_statistics(part, axis_name='devices')
    mean, m2 = normalizer.mean.get_value(), normalizer.M2.get_value()
    return mean, m2, normalizer.counter.get_value()

  return jax.pmap(fold, axis_name='devices')(history)


def test_devices_agree_on_the_statistics_of_all_their_data():
  history = np.stack([_draw(3, (2, 4, 5), seed=d) for d in range(2)])
  mean, m2, counter = _fold_on_devices(jnp.asarray(history))
  everything = history.reshape(-1, 3).astype(np.float64)
  for device in range(2):
    np.testing.assert_allclose(mean[device], everything.mean(0), rtol=1e-5)
    variance = m2[device] / counter[device]
    np.testing.assert_allclose(variance, everything.var(0), rtol=1e-4)
    assert counter[device] == 2 * 2 * 4 * 5


def test_a_difference_between_devices_is_part_of_the_variance():
  # Device 0 sees 0, device 1 sees 2: mean 1, variance 1.
  history = jnp.stack([jnp.zeros((1, 3, 2, 3)), jnp.full((1, 3, 2, 3), 2.0)])
  mean, m2, counter = _fold_on_devices(history)
  np.testing.assert_array_equal(mean, np.ones((2, 3)))
  np.testing.assert_array_equal(m2 / counter[:, None], np.ones((2, 3)))
