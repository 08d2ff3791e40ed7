"""Recording: the same numbers, with the outputs of the layers beside them."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks import types
from brax_nnx_plugin.networks.recording import extract_activations
from brax_nnx_plugin.networks.recording import with_recording
from tests.networks import cases
from tests.networks import table

KEY = types.ACTIVATION_KEY
ROWS = cases.BATCH
FIELDS = ('next_state', 'output', 'regularization_loss', 'rollout_extras')
SAME = ('sampler', 'lstm_trained', 'nested', 'two_samplers', 'foreign_child')


def _leaves(tree: Any) -> list[Any]:
  """Lists leaves as arrays, keys as their data."""
  is_key = lambda a: jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
  data = lambda a: jax.random.key_data(a) if is_key(a) else a
  return [np.asarray(data(leaf)) for leaf in jax.tree.leaves(tree)]


def _assert_bitwise(actual: Any, expected: Any) -> None:
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for a, b in zip(_leaves(actual), _leaves(expected), strict=True):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == b.dtype


def _assert_same_run(recorded: Any, plain: Any) -> None:
  for field in FIELDS:
    _assert_bitwise(getattr(recorded, field), getattr(plain, field))


def _used(module: Any, name: str) -> Any:
  """Returns a carry that no fresh episode has."""
  fresh = module.initialize_state(ROWS)
  return nnx.clone(module)(fresh, table.inputs(name, ROWS, seed=4)).next_state


@pytest.mark.parametrize('name', SAME)
def test_steps_and_sequences_are_bitwise_the_same(name):
  module = table.build(name)
  recorder = with_recording(module)
  state, x = _used(module, name), table.inputs(name, 2, ROWS)
  acted = recorder(state, x[0])
  _assert_same_run(acted, module(state, x[0]))
  # The streams of both have moved on alike.
  _assert_bitwise(nnx.state(recorder), nnx.state(module))
  args = (state, x, cases.masks(2, ROWS))
  _assert_same_run(
    stepping.unroll_module(recorder, *args),
    stepping.unroll_module(module, *args),
  )
  _assert_bitwise(nnx.state(recorder), nnx.state(module))


@pytest.fixture(scope='module')
def policy() -> Any:
  """A policy with layers of every kind; tests must not change it."""
  rngs = nnx.Rngs(0)
  actor = [
    networks.Normalizer(3),
    networks.LSTM(3, 4, rngs),
    networks.Dense(4, 2, rngs),
    networks.NormalTanhSampler(rngs),
  ]
  return networks.PPOAdapter(
    networks.Sequential(actor), networks.Dense(3, 1, rngs)
  )


def test_the_original_stays_as_it_is(policy):
  graphdef, state = nnx.split(policy)
  copy = jax.tree.map(lambda leaf: leaf, state)
  recorder = with_recording(policy)
  recorder(recorder.initialize_state(1), jnp.ones((1, 3)))
  assert nnx.graphdef(policy) == graphdef
  _assert_bitwise(nnx.state(policy), copy)
  out = policy(policy.initialize_state(1), jnp.ones((1, 3)))
  with pytest.raises(ValueError, match=r"only \['action', 'value'\].*with_rec"):
    extract_activations(out.metrics)


def test_the_copy_is_the_same_kind_of_network_with_the_same_variables(policy):
  recorder = with_recording(policy)
  lstm = recorder.action[1]
  assert isinstance(lstm, networks.LSTM)
  assert lstm.hidden_features == 4
  assert type(lstm).__name__ == 'RecordingLSTM'
  assert isinstance(recorder, networks.PPOAdapter)
  for kind in (nnx.Param, nnx.RngState, nnx.Variable):
    _assert_bitwise(nnx.state(recorder, kind), nnx.state(policy, kind))
  same = with_recording(policy)
  assert nnx.graphdef(same) == nnx.graphdef(recorder)
  assert hash(nnx.graphdef(same)) == hash(nnx.graphdef(recorder))


def test_what_one_network_learns_loads_into_the_other(policy):
  trained = nnx.clone(policy)
  params = jax.tree.map(lambda p: 2 * p + 0.1, nnx.state(trained, nnx.Param))
  nnx.update(trained, params)
  recorder = with_recording(policy)
  state, x = policy.initialize_state(2), cases.draw(3, 2)
  nnx.update(recorder, nnx.state(trained))
  _assert_same_run(recorder(state, x), nnx.clone(trained)(state, x))
  back = nnx.merge(nnx.graphdef(policy), nnx.state(with_recording(trained)))
  _assert_same_run(back(state, x), trained(state, x))


SAMPLE = (
  ['action', 'entropy', 'loc', 'log_likelihood', 'parameters']
  + ['raw_action', 'scale']
)  # fmt: skip
PATHS = {'value': (1,)} | {f'action/{i}': (n,) for i, n in enumerate((3, 4, 2))}


def test_every_layer_is_found_under_its_path(policy):
  x = cases.draw(3, ROWS)
  out = with_recording(policy)(policy.initialize_state(ROWS), x)
  activations = extract_activations(out.metrics)
  samples = {f'action/3/{name}' for name in SAMPLE}
  assert set(activations) == set(PATHS) | samples
  assert {p: activations[p].shape[1:] for p in PATHS} == PATHS
  np.testing.assert_array_equal(activations['action/0'], x / 10)
  np.testing.assert_array_equal(
    activations['action/1'], out.next_state['action'][1][1]
  )
  np.testing.assert_array_equal(
    activations['action/3/action'], out.output.actions
  )
  np.testing.assert_array_equal(
    activations['value'][:, 0], out.output.value_estimates
  )


def test_other_metrics_stay_and_are_no_activations(policy):
  state, x = policy.initialize_state(ROWS), cases.draw(3, ROWS)
  plain = nnx.clone(policy)(state, x).metrics['action'][3]
  recorded = with_recording(policy)(state, x).metrics['action'][3]
  assert set(recorded) == {'mu', 'sigma', KEY}
  np.testing.assert_array_equal(recorded['mu'], plain['mu'])


@pytest.mark.parametrize('jit', [True, False])
def test_a_sequence_has_the_activations_of_its_steps(policy, jit):
  recorder = with_recording(policy)
  x, is_first = cases.draw(3, 4, ROWS), cases.masks(4, ROWS)
  state = _used(policy, 'lstm')
  run = lambda m, *args: m.unroll(*args)
  args = (state, x, is_first)
  out = cases.jitted(recorder, run, *args) if jit else run(recorder, *args)
  looped = cases.loop(with_recording(policy), *args)
  unrolled = extract_activations(out.metrics)
  assert {p: unrolled[p].shape for p in PATHS} == {
    p: (4, ROWS, *features) for p, features in PATHS.items()
  }
  expected = extract_activations(looped.metrics)
  # Draws come in another order in a sequence: only parameters are compared.
  drawn = ('/action', '/raw_action', '/log_likelihood', '/entropy')
  for path, value in expected.items():
    if not path.endswith(drawn):
      np.testing.assert_allclose(unrolled[path], value, atol=1e-6)


def test_a_step_compiles_and_scans(policy):
  recorder = with_recording(policy)
  graphdef, variables = nnx.split(recorder)

  def step(carry, x):
    state, variables = carry
    copy = nnx.merge(graphdef, variables)
    out = copy(state, x)
    return (out.next_state, nnx.state(copy)), extract_activations(out.metrics)

  x = cases.draw(3, 4, ROWS)
  start = (policy.initialize_state(ROWS), variables)
  _, scanned = jax.lax.scan(step, start, x)
  looped = cases.loop(recorder, start[0], x, jnp.zeros((4, ROWS)))
  for path, value in extract_activations(looped.metrics).items():
    np.testing.assert_allclose(scanned[path], value, atol=1e-6, err_msg=path)


def test_a_recording_network_is_returned_as_it_is(policy):
  recorder = with_recording(policy)
  assert with_recording(recorder) is recorder
  merged = nnx.merge(*nnx.split(recorder))
  assert with_recording(merged) is merged
  mixed = networks.Parallel(a=recorder, b=networks.Dense(3, 1, nnx.Rngs(0)))
  out = with_recording(mixed)(mixed.initialize_state(1), jnp.ones((1, 3)))
  assert {'a/action/0', 'b'} <= set(extract_activations(out.metrics))
  assert set(out.metrics['a']['value']) == {KEY}


def test_a_network_of_one_layer_has_an_empty_path():
  dense = networks.Dense(3, 2, nnx.Rngs(0))
  out = with_recording(dense)((), jnp.ones((1, 3)))
  assert extract_activations(out.metrics).keys() == {''}
  sampler = with_recording(networks.NormalTanhSampler(nnx.Rngs(0)))
  out = sampler((), jnp.ones((1, 2)))
  assert sorted(extract_activations(out.metrics)) == SAMPLE


def test_recording_network_can_be_made_deterministic(policy):
  recorder = with_recording(policy)
  recorder.eval()
  state, x = policy.initialize_state(2), cases.draw(3, 2)
  a, b = recorder(state, x), recorder(state, x)
  np.testing.assert_array_equal(a.output.actions, b.output.actions)
  assert with_recording(recorder) is recorder
