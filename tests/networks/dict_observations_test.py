"""Dict observations: who sees which entry, statistics, mappings, pixels."""

from collections import OrderedDict
from typing import Any

from flax import nnx
from flax.core import FrozenDict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.containers import Concat
from brax_nnx_plugin.networks.utils import Flattener
from brax_nnx_plugin.networks.utils import Map
from brax_nnx_plugin.networks.utils import Scale
from tests.networks import cases

STEPS, ROWS = 4, 2
OBSERVATION = {'state': 3, 'privileged_state': 5}


def _ports(rngs: nnx.Rngs) -> networks.PPOAdapter:
  """Makes a policy of `state` and a value of `privileged_state`."""
  actor = [
    networks.Filter({'only': 'state'}),
    Flattener(),
    networks.LSTM(3, 2, rngs),
    networks.NormalTanhSampler(rngs),
  ]
  critic = [
    networks.Filter('privileged_state'),
    networks.GRU(5, 2, rngs),
    networks.Dense(2, 1, rngs),
  ]
  return networks.PPOAdapter(
    action=networks.Sequential(actor), value=networks.Sequential(critic)
  )


def _normalize_in_a_map(rngs: nnx.Rngs) -> Any:
  layers = {key: networks.Normalizer(n) for key, n in OBSERVATION.items()}
  return networks.Sequential([Map(layers), _ports(rngs)])


def _normalize_the_dict(rngs: nnx.Rngs) -> Any:
  return networks.Sequential([networks.Normalizer(OBSERVATION), _ports(rngs)])


NETWORKS = {
  'filters': _ports,
  'map': _normalize_in_a_map,
  'normalizer': _normalize_the_dict,
}


@pytest.fixture(scope='module', params=NETWORKS)
def made(request) -> Any:
  """A network, and a compiled function that folds, then acts."""
  net = NETWORKS[request.param](nnx.Rngs(0))

  def act(net, x, is_first):
    start = net.initialize_state(ROWS)
    net.update_statistics(net.unroll(start, x, is_first).rollout_extras)
    return net.unroll(start, x, is_first)

  variables, f = cases.pure(net, act)
  act = jax.jit(f)
  return net, lambda *args: act(variables, *args)[0]


def _policy(out: Any) -> Any:
  """Returns all that is known of the actor, the noise of its entropy too."""
  ppo, carry = out.output, out.next_state
  ports = carry[-1] if isinstance(carry, list) else carry
  return ppo.actions, ppo.loglikelihoods, ppo.distributions, ports['action']


@pytest.mark.parametrize('key', OBSERVATION)
def test_an_entry_changes_the_side_that_reads_it_and_never_the_other(made, key):
  act = made[1]
  x, is_first = cases.draw(OBSERVATION, STEPS, ROWS), cases.masks(STEPS, ROWS)
  noise = cases.draw(OBSERVATION, STEPS, ROWS, seed=9)[key]
  out, other = act(x, is_first), act({**x, key: 2 * x[key] + noise}, is_first)
  same = lambda a, b: jax.tree.leaves(jax.tree.map(np.array_equal, a, b))
  policies = same(_policy(out), _policy(other))
  values = np.equal(out.output.value_estimates, other.output.value_estimates)
  if key == 'state':
    assert not any(policies)
    assert np.all(values)
  else:
    assert all(policies)  # bitwise, though its statistics changed as well
    assert not np.any(values)


def test_no_gradient_reaches_the_other_side(made):
  net, _ = made
  x, is_first = cases.draw(OBSERVATION, STEPS, ROWS), cases.masks(STEPS, ROWS)
  graphdef, variables = nnx.split(net)

  def outputs(x):
    # Variables may only be written at the trace level that made them.
    copy = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf, variables))
    out = copy.unroll(copy.initialize_state(ROWS), x, is_first).output
    return jnp.sum(out.distributions['loc']), jnp.sum(out.value_estimates)

  policy, value = jax.jit(jax.jacrev(outputs))(x)
  assert np.all(policy['privileged_state'] == 0)
  assert np.all(value['state'] == 0)
  assert np.any(policy['state'] != 0)
  assert np.any(value['privileged_state'] != 0)


def test_a_missing_entry_is_an_error_that_lists_the_others(made):
  net, _ = made
  x = {'history': jnp.zeros((ROWS, 2)), 'state': jnp.zeros((ROWS, 3))}
  with pytest.raises(ValueError, match="privileged_state.*'history'.*'state'"):
    net(net.initialize_state(ROWS), x)


@pytest.mark.parametrize('name', ['map', 'normalizer'])
def test_statistics_are_those_of_each_entry(name):
  net = NETWORKS[name](nnx.Rngs(0))
  x = cases.draw(OBSERVATION, STEPS, ROWS)
  x = {'state': 100 * x['state'], 'privileged_state': x['privileged_state'] - 7}
  start = net.initialize_state(ROWS)
  extras = net.unroll(start, x, jnp.zeros((STEPS, ROWS))).rollout_extras
  net.update_statistics(extras)
  for key, seen in x.items():
    rows = np.asarray(seen, np.float64).reshape(STEPS * ROWS, -1)
    if name == 'map':
      layer = net[0][key]
      mean, m2 = layer.mean.get_value(), layer.M2.get_value()
    else:
      layer = net[0]
      mean, m2 = layer.mean.get_value()[key], layer.M2.get_value()[key]
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5, atol=1e-5)
    variance = m2 / layer.counter.get_value()
    np.testing.assert_allclose(variance, rows.var(0), rtol=1e-4)


NESTED = {'state': {'z': 2, 'a': 1}, 'goal': {'far': {'y': (2, 1), 'b': 1}}}


def _as(kind: Any, tree: Any) -> Any:
  """Turns every dict of `tree` into another kind of mapping."""
  if not isinstance(tree, dict):
    return tree
  return kind({k: _as(kind, v) for k, v in tree.items()})


def _backwards(items: Any) -> Any:
  return OrderedDict(reversed(items.items()))


def _nested_network(rngs: nnx.Rngs) -> Any:
  """Routes, normalises and flattens a nested observation."""
  goal = networks.Sequential(
    [networks.Filter({'far': 'far'}), Flattener(1), networks.Filter('far')]
  )
  return networks.Sequential(
    [
      networks.Parallel(
        routed=Concat(
          state=networks.Sequential([Flattener(), networks.GRU(3, 2, rngs)]),
          goal=goal,
        ),
        normal=networks.Sequential([networks.Normalizer(NESTED), Flattener()]),
        scaled=networks.Sequential([Scale(0.5), Flattener()]),
      ),
      Flattener(),
      networks.Dense(2 + 3 + 6 + 6, 3, rngs),
    ]
  )


@pytest.fixture(scope='module')
def nested() -> Any:
  """The network with nested observations and its result for plain dicts."""
  net = _nested_network(nnx.Rngs(0))
  x = cases.draw(NESTED, STEPS, ROWS)
  return net, x, _fold_and_run(net, x)


def _fold_and_run(net: Any, x: Any) -> Any:
  """Folds the rollout of `x` into the statistics and runs it again."""

  def run(net, x):
    args = (net.initialize_state(ROWS), x, cases.masks(STEPS, ROWS))
    extras = net.unroll(*args).rollout_extras
    net.update_statistics(extras)
    return net.unroll(*args, extras)

  return cases.jitted(net, run, x)


@pytest.mark.parametrize(
  'kind',
  [OrderedDict, _backwards, FrozenDict],
  ids=['in order', 'not', 'frozen'],
)
def test_every_kind_of_mapping_gives_the_same_result(nested, kind):
  net, x, expected = nested
  cases.assert_same(_fold_and_run(net, _as(kind, x)), expected)
  step = lambda x: net(
    net.initialize_state(ROWS), jax.tree.map(lambda leaf: leaf[0], x)
  )
  cases.assert_same(step(_as(kind, x)), step(x))


PIXELS = 'pixels/view'


def _images(*lead: int) -> dict[str, Any]:
  """Draws a state and bytes that would overflow when squared or summed."""
  rng = np.random.default_rng(4)
  pixels = rng.integers(0, 256, (*lead, 2, 2, 3)).astype(np.uint8)
  return {'state': cases.draw(3, *lead), PIXELS: jnp.asarray(pixels)}


def _leaves(tree: Any) -> list[tuple[Any, str]]:
  return [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(tree)]


def test_pixels_go_round_the_statistics():
  net = Concat(
    {
      'state': networks.Normalizer(3),
      PIXELS: networks.Sequential([Flattener(), Scale(1 / 255)]),
    }
  )
  x = _images(STEPS, ROWS)
  out = net.unroll(net.initialize_state(ROWS), x, jnp.zeros((STEPS, ROWS)))
  expected = np.asarray(x[PIXELS], np.float32).reshape(STEPS, ROWS, 12) / 255
  np.testing.assert_allclose(out.output[..., 3:], expected, rtol=1e-6)
  # The rollout keeps no second copy of the pixels.
  assert _leaves(out.rollout_extras) == [((STEPS, ROWS, 3), 'float32')]
  net.update_statistics(out.rollout_extras)
  statistics = nnx.state(net, nnx.Not(nnx.Param))
  assert [shape for shape, _ in _leaves(statistics)] == [(3,), (), (3,)]


def test_a_normalizer_behind_a_filter_sees_no_pixels():
  net = networks.Sequential(
    [networks.Filter({'state': 'state'}), networks.Normalizer({'state': 3})]
  )
  x = _images(ROWS)
  out = net(net.initialize_state(ROWS), x)
  assert _leaves(out.rollout_extras) == [((ROWS, 3), 'float32')]
  np.testing.assert_allclose(out.output['state'], x['state'] / 10, rtol=1e-6)


def test_a_normalizer_of_bytes_does_not_overflow():
  net = networks.Normalizer({'state': 3, PIXELS: (2, 2, 3)})
  x = _images(STEPS, ROWS)
  extras = net.unroll((), x, jnp.zeros((STEPS, ROWS))).rollout_extras
  assert extras[PIXELS].dtype == jnp.uint8  # a quarter of the memory
  net.update_statistics(extras)
  rows = np.asarray(x[PIXELS], np.float64).reshape(STEPS * ROWS, 2, 2, 3)
  mean = net.mean.get_value()[PIXELS]
  variance = net.M2.get_value()[PIXELS] / net.counter.get_value()
  np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5)
  np.testing.assert_allclose(variance, rows.var(0), rtol=1e-4)
  output = net((), jax.tree.map(lambda leaf: leaf[0], x)).output[PIXELS]
  expected = (np.asarray(x[PIXELS][0]) - rows.mean(0)) / rows.std(0)
  np.testing.assert_allclose(output, expected, atol=1e-4)
