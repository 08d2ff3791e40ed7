"""Containers and projections: the same numbers as nnx-ppo 0.3."""

import types
from typing import Any
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
from nnx_ppo.networks import containers as their_containers
from nnx_ppo.networks import feedforward as their_feedforward
from nnx_ppo.networks import normalizer as their_normalizer
from nnx_ppo.networks import recurrent as their_recurrent
from nnx_ppo.networks import utils as their_utils
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import containers
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks import utils
from tests.networks import cases

STEPS, ROWS = 20, 3
ATOL = 1e-6


def _library(*modules: Any) -> Any:
  """Gathers the names of several modules under one."""
  names: dict[str, Any] = {}
  for module in modules:
    names |= vars(module)
  return types.SimpleNamespace(**names)


OURS = _library(networks, containers, utils)
THEIRS = _library(
  their_feedforward,
  their_normalizer,
  their_recurrent,
  their_utils,
  their_containers,
)
QP = {'q': 3, 'p': 2}


def _concat(lib: Any, rngs: nnx.Rngs) -> Any:
  branch = [lib.Dense(2, 3, rngs), lib.Normalizer(3), lib.LSTM(3, 2, rngs)]
  return lib.Concat(q=lib.LSTM(3, 4, rngs), p=lib.Sequential(branch))


def _parallel(lib: Any, rngs: nnx.Rngs) -> Any:
  # Penalty is a leaf on both sides, for there is none in nnx-ppo.
  deeper = lib.Parallel(z=lib.LSTM(3, 2, rngs), a=lib.Normalizer(3))
  penalised = lib.Sequential([lib.LSTM(3, 2, rngs), cases.Penalty(0.3)])
  return lib.Parallel({'b': penalised, 'a': deeper})


def _splitter(lib: Any, rngs: nnx.Rngs) -> Any:
  split = lib.Splitter(z=1, a=3)
  return lib.Sequential([lib.LSTM(3, 4, rngs), cases.Penalty(), split])


def _flattener(lib: Any, rngs: nnx.Rngs) -> Any:
  layers = [lib.Flattener(), lib.Normalizer(6), lib.LSTM(6, 3, rngs)]
  return lib.Sequential(layers)


def _levels(lib: Any, rngs: nnx.Rngs) -> Any:
  memories = lib.Map(q=lib.LSTM(3, 2, rngs), n=lib.LSTM(3, 2, rngs))
  return lib.Sequential([lib.Flattener(preserve_levels=1), memories])


def _filter(lib: Any, rngs: nnx.Rngs) -> Any:
  spec = {'z': ('n', 'g'), 'y': 'q', 'a': lambda x: x['n']['p'][:, 0]}
  memories = {
    'y': lib.LSTM(3, 2, rngs),
    'z': lib.Sequential([lib.LSTM(1, 2, rngs), cases.Penalty()]),
    'a': lib.Normalizer(2),
  }
  return lib.Sequential([lib.Filter(spec), lib.Map(memories)])


def _scale(lib: Any, rngs: nnx.Rngs) -> Any:
  return lib.Sequential([lib.Scale(-0.3), _concat(lib, rngs), lib.Scale(2)])


def _merge(lib: Any, rngs: nnx.Rngs) -> Any:
  one = [lib.Normalizer(3), lib.LSTM(3, 2, rngs), lib.Splitter(z=1, y=1)]
  two = [cases.Penalty(), lib.LSTM(3, 2, rngs), lib.Splitter(a=2)]
  return lib.Merge(b=lib.Sequential(one), a=lib.Sequential(two))


def _map(lib: Any, rngs: nnx.Rngs) -> Any:
  branch = [lib.Normalizer(2), lib.LSTM(2, 3, rngs), cases.Penalty()]
  return lib.Map({'q': lib.LSTM(3, 2, rngs), 'p': lib.Sequential(branch)})


class Pair(NamedTuple):
  """How both build a network, and what it takes."""

  make: Any
  shape: Any


NESTED = {'q': 3, 'n': {'p': (1, 2), 'g': 1}}
PAIRS = {
  'concat': Pair(_concat, QP),
  'parallel': Pair(_parallel, 3),
  'splitter': Pair(_splitter, 3),
  'flattener': Pair(_flattener, NESTED),
  'flattener levels': Pair(_levels, NESTED),
  'filter': Pair(_filter, NESTED),
  'scale': Pair(_scale, QP),
  'merge': Pair(_merge, 3),
  'map': Pair(_map, QP | {'dropped': 1}),
}


def _flat(module: Any, *filters: Any) -> dict[Any, Any]:
  """Maps paths to variables; only a Sequential names its layers otherwise."""
  same = lambda path: tuple('components' if k == 'layers' else k for k in path)
  state: Any = nnx.state(module, *filters)
  flat = nnx.to_flat_state(state)
  return {same(path): variable[...] for path, variable in flat}


def _same_weights(make: Any) -> tuple[Any, Any]:
  """Builds both with weights that are equal, and not zero anywhere."""
  ours, theirs = (make(lib, nnx.Rngs(0)) for lib in (OURS, THEIRS))
  rng = np.random.default_rng(3)
  noisy = [
    leaf + jnp.asarray(rng.normal(0, 0.3, leaf.shape), jnp.float32)
    for leaf in _flat(ours, nnx.Param).values()
  ]
  for module in (ours, theirs):
    treedef = jax.tree.structure(nnx.state(module, nnx.Param))
    nnx.update(module, jax.tree.unflatten(treedef, noisy))
  _assert_same_variables(ours, theirs)
  return ours, theirs


def _assert_same_variables(ours: Any, theirs: Any) -> None:
  """Compares all weights and running statistics."""
  a, b = _flat(ours), _flat(theirs)
  assert a.keys() == b.keys()
  for path, value in a.items():
    np.testing.assert_allclose(
      value, b[path], rtol=ATOL, atol=ATOL, err_msg=str(path)
    )


def _theirs(module: Any, state: Any, x: Any, is_first: jax.Array) -> Any:
  """Scans their module; rows are reset in plain JAX."""

  def step(state, inputs):
    x, first = inputs
    reset = lambda a, b: jnp.where(first[:, None] > 0, a, b)
    state = jax.tree.map(reset, module.reset_state(state), state)
    out = module(state, x)
    return out.next_state, out.replace(next_state=())

  # Their module is not split, for that would change the order of children.
  scan = jax.jit(lambda *args: jax.lax.scan(step, *args))
  state, out = scan(state, (x, is_first))
  return out.replace(next_state=state)


def _assert_same_runs(ours: Any, theirs: Any) -> None:
  """Compares all that runs return."""
  for name in ('next_state', 'output', 'metrics', 'rollout_extras'):
    cases.assert_same(getattr(ours, name), getattr(theirs, name), ATOL)
  losses = []
  for loss in (ours.regularization_loss, theirs.regularization_loss):
    # A number for the whole batch counts for each row.
    rows = loss[:, None] if loss.ndim == 1 else loss
    losses.append(jnp.broadcast_to(rows, (STEPS, ROWS)))
  np.testing.assert_allclose(*losses, rtol=ATOL, atol=ATOL)


@pytest.mark.parametrize('name', PAIRS)
def test_twenty_steps_with_resets_give_the_same_numbers(name):
  make, shape = PAIRS[name]
  ours, theirs = _same_weights(make)
  x, is_first = cases.draw(shape, STEPS, ROWS), cases.masks(STEPS, ROWS, p=0.2)
  state = ours.initialize_state(ROWS)
  cases.assert_same(state, theirs.initialize_state(ROWS))
  for _ in range(2):  # with fresh statistics, then with those of the first run
    expected = _theirs(theirs, state, x, is_first)
    for run in (stepping.unroll_module, stepping.scan_steps):
      out = cases.jitted(ours, run, state, x, is_first, None)
      _assert_same_runs(out, expected)
    for module in (ours, theirs):
      module.update_statistics(expected.rollout_extras)
    _assert_same_variables(ours, theirs)
    state = expected.next_state


def test_some_of_the_networks_do_regularize_and_keep_statistics():
  x, is_first = cases.draw(QP, 2, ROWS), jnp.zeros((2, ROWS))
  net = _map(OURS, nnx.Rngs(0))
  out = net.unroll(net.initialize_state(ROWS), x, is_first)
  assert np.all(out.regularization_loss > 0)
  net.update_statistics(out.rollout_extras)
  assert net['p'][0].counter[...] == 2 * ROWS


@pytest.mark.parametrize('way', ['split and merge', 'jit'])
def test_concat_keeps_the_order_of_construction_where_theirs_sorts(way):
  # A split and merge, and so jit, sorts the children of nnx-ppo's Concat by
  # name: a fault. Its output before that is the right one.
  ours, theirs = _same_weights(_concat)
  x = cases.draw(QP, ROWS)
  state = theirs.initialize_state(ROWS)
  expected = theirs(state, x).output
  run = lambda net: net(state, x).output
  if way == 'jit':
    output = nnx.jit(run)(ours)
  else:
    output = run(nnx.merge(*nnx.split(ours)))
  np.testing.assert_allclose(output, expected, rtol=ATOL, atol=ATOL)
