"""Equal weights, equal inputs: the same numbers as nnx-ppo 0.3."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from nnx_ppo.networks import adapter as their_adapter
from nnx_ppo.networks import containers as their_containers
from nnx_ppo.networks import factories as their_factories
from nnx_ppo.networks import feedforward as their_feedforward
from nnx_ppo.networks import normalizer as their_normalizer
from nnx_ppo.networks import recurrent as their_recurrent
from nnx_ppo.networks import sampling_layers as their_samplers
import numpy as np
import pytest

from brax_nnx_plugin import networks
from tests.networks import cases

STEPS, ROWS = 20, 3
ATOL = 1e-6


def _copy(ours: Any, theirs: Any) -> tuple[Any, Any]:
  """Copies weights that are not zero from one leaf layer to the other."""
  rng = np.random.default_rng(3)
  # A reference with zero biases would not tell whether they are used.
  noisy = jax.tree.map(
    lambda leaf: leaf + jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype),
    nnx.state(ours, nnx.Param),
  )
  nnx.update(ours, noisy)
  nnx.update(theirs, noisy)
  paths = lambda m: [p for p, _ in nnx.to_flat_state(nnx.state(m, nnx.Param))]
  assert paths(ours) == paths(theirs)
  return ours, theirs


def _dense(n_in: int, n_out: int, activation: Any = None) -> tuple[Any, Any]:
  args = (n_in, n_out, nnx.Rngs(0), activation)
  return _copy(networks.Dense(*args), their_feedforward.Dense(*args))


def _lstm(n_in: int, size: int, **kwargs: Any) -> tuple[Any, Any]:
  rngs = nnx.Rngs(0)
  ours, theirs = _copy(
    networks.LSTM(n_in, size, rngs, **kwargs),
    their_recurrent.LSTM(n_in, size, rngs, **kwargs),
  )
  if kwargs.get('trainable_initial_state'):
    # Their carry is flax's (cell, hidden), but they name it (hidden, cell).
    theirs.initial_h = nnx.Param(ours.initial_c[...])
    theirs.initial_c = nnx.Param(ours.initial_h[...])
  return ours, theirs


def _normalizer(shape: Any) -> tuple[Any, Any]:
  return networks.Normalizer(shape), their_normalizer.Normalizer(shape)


def _sampler(**kwargs: Any) -> tuple[Any, Any]:
  kwargs = {'entropy_weight': 0.0} | kwargs
  rngs = nnx.Rngs(0)
  return (
    networks.NormalTanhSampler(rngs, **kwargs),
    their_samplers.NormalTanhSampler(rngs, **kwargs),
  )


def _containers(ours: Any, theirs: Any, children: Any) -> tuple[Any, Any]:
  """Makes a container of pairs on both sides."""
  if isinstance(children, dict):
    items = children.items()
    return (
      ours({k: pair[0] for k, pair in items}),
      theirs({k: pair[1] for k, pair in items}),
    )
  return ours([pair[0] for pair in children]), theirs([p[1] for p in children])


def _sequential(*pairs: Any) -> tuple[Any, Any]:
  return _containers(
    networks.Sequential, their_containers.Sequential, list(pairs)
  )


def _parallel(**pairs: Any) -> tuple[Any, Any]:
  return _containers(networks.Parallel, their_containers.Parallel, pairs)


def _adapter(action: Any, value: Any) -> tuple[Any, Any]:
  return (
    networks.PPOAdapter(action[0], value[0]),
    their_adapter.PPOAdapter(action[1], value[1]),
  )


def _policy() -> tuple[Any, Any]:
  trained = {'trainable_initial_state': True}
  actor = _sequential(
    _dense(3, 4, nnx.tanh), _lstm(4, 4, **trained), _sampler(min_std=0.1)
  )
  critic = _sequential(_lstm(3, 4, use_optimized=False), _dense(4, 1))
  return _sequential(_normalizer(3), _adapter(actor, critic))


PAIRS: dict[str, Any] = {
  'dense': lambda: _dense(3, 4, nnx.swish),
  'lstm': lambda: _lstm(3, 4),
  'lstm plain': lambda: _lstm(3, 4, use_optimized=False),
  'lstm trained': lambda: _lstm(3, 4, trainable_initial_state=True),
  'normalizer': lambda: _normalizer(3),
  'sequential': lambda: _sequential(
    _dense(3, 4, nnx.tanh), _lstm(4, 3), _normalizer(3), _dense(3, 2)
  ),
  'parallel': lambda: _parallel(
    b=_lstm(3, 2), a=_sequential(_dense(3, 2), _lstm(2, 2)), c=_normalizer(3)
  ),
  'policy': _policy,
}


def _theirs_by_steps(module, state, x, is_first, extras):
  """Runs their module step by step; rows are reset in plain JAX."""
  outs = []
  for t in range(len(is_first)):
    first = is_first[t][:, None] > 0
    reset = lambda a, b, first=first: jnp.where(first, a, b)
    state = jax.tree.map(reset, module.reset_state(state), state)
    row = jax.tree.map(lambda leaf, t=t: leaf[t], (x, extras))
    outs.append(module(state, *row))
    state = outs[-1].next_state
  return state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)


def _named(output: Any) -> dict[str, np.ndarray]:
  """Names the parts of a policy's output as tuples do, on both sides."""
  if hasattr(output, 'value_estimates'):
    output = output.actions, output.loglikelihoods, output.value_estimates
  return cases.numbers(output)


@pytest.mark.parametrize('name', PAIRS)
def test_twenty_steps_with_resets_give_the_same_numbers(name):
  ours, theirs = PAIRS[name]()
  x, is_first = cases.draw(3, STEPS, ROWS), cases.masks(STEPS, ROWS, p=0.2)
  acted = theirs(theirs.initialize_state(ROWS), x[0])
  state = acted.next_state
  extras = jax.tree.map(
    lambda leaf: cases.draw(leaf.shape[1:], STEPS, ROWS, seed=6),
    acted.rollout_extras,
  )
  end, outs = _theirs_by_steps(theirs, state, x, is_first, extras)
  looped = cases.loop(ours, state, x, is_first, extras)
  unrolled = ours.unroll(state, x, is_first, extras)
  for run in (looped, unrolled):
    cases.assert_same(run.next_state, end, ATOL)
    cases.assert_same(_named(run.output), _named(outs.output), ATOL)
    cases.assert_same(run.rollout_extras, outs.rollout_extras, ATOL)
    cases.assert_same(run.metrics, outs.metrics, ATOL)
    np.testing.assert_allclose(
      jnp.mean(run.regularization_loss),
      jnp.mean(outs.regularization_loss),
      atol=ATOL,
    )
  cases.assert_same(ours.initialize_state(2), theirs.initialize_state(2))


@pytest.mark.parametrize('shape', [3, (2, 2), {'q': 3, 'p': (2,)}], ids=str)
def test_a_normalizer_has_the_same_statistics_and_outputs(shape):
  ours, theirs = _normalizer(_their_shapes(shape))
  for i in range(1, 5):
    history = cases.draw(shape, 3 * i, 4, seed=i)
    history = jax.tree.map(lambda leaf, i=i: i * leaf + 5.0, history)
    ours.update_statistics(history)
    theirs.update_statistics(history)
    for name in ('mean', 'M2', 'counter'):
      a, b = getattr(ours, name).get_value(), getattr(theirs, name).get_value()
      jax.tree.map(
        lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-6, atol=1e-6),
        a,
        b,
      )
    x = cases.draw(shape, 6, seed=9)
    cases.assert_same(ours((), x).output, theirs((), x).output, 1e-5)


def _their_shapes(shape: Any) -> Any:
  """Writes a tree of shapes so that both read it alike: as arrays."""
  if not isinstance(shape, dict):
    return shape
  return {k: v if isinstance(v, int) else v[0] for k, v in shape.items()}


def test_containers_fold_the_same_statistics():
  ours, theirs = _policy()
  x = cases.draw(3, STEPS, ROWS) + 2.0
  is_first = jnp.zeros((STEPS, ROWS))
  start = theirs.initialize_state(ROWS)
  extras = ours.unroll(start, x, is_first).rollout_extras
  ours.update_statistics(extras)
  theirs.update_statistics(extras)
  for name in ('mean', 'M2', 'counter'):
    pair = [getattr(m[0], name).get_value() for m in (ours, theirs)]
    np.testing.assert_allclose(*pair, rtol=1e-6)
    assert np.all(pair[0] > 0)
  out = ours(start, x[0], _first(extras))
  expected = theirs(start, x[0], _first(extras))
  cases.assert_same(_named(out.output), _named(expected.output), 1e-5)


def _first(extras: Any) -> Any:
  return jax.tree.map(lambda leaf: leaf[0], extras)


SCALES = [{}, {'min_std': 0.1}, {'std_scale': 0.3}]


@pytest.mark.parametrize('kwargs', SCALES, ids=str)
def test_a_sampler_scores_given_actions_alike(kwargs):
  ours, theirs = _sampler(**kwargs)
  x, raw = cases.draw(4, 20), 2 * cases.draw(2, 20, seed=4)
  out, expected = ours((), x, raw), theirs((), x, raw)
  for name in ('action', 'log_likelihood'):
    np.testing.assert_allclose(
      out.output[name], expected.output[name], rtol=1e-6, atol=1e-6
    )
  cases.assert_same(out.metrics, expected.metrics, ATOL)
  cases.assert_same(out.rollout_extras, expected.rollout_extras)


def test_a_sampler_regularizes_alike():
  # Their estimate draws other noise, so there must be next to none of it: the
  # entropy is then a function of location and scale alone.
  ours, theirs = _sampler(entropy_weight=0.5, std_scale=1e-9)
  x = cases.draw(4, 20)
  losses = [m((), x).regularization_loss for m in (ours, theirs)]
  np.testing.assert_allclose(*losses, rtol=1e-6)
  assert losses[0].shape == (20,)


@pytest.mark.parametrize('normalize', [True, False])
def test_the_actor_critic_factory_makes_the_same_network(normalize):
  kwargs: Any = {
    'activation': 'swish',
    'normalize_obs': normalize,
    'initializer_scale': 0.7,
    'entropy_weight': 0.0,
    'min_std': 0.1,
    'std_scale': 0.8,
  }
  args = (3, 2, [5, 4], [6])
  ours = networks.make_mlp_actor_critic(*args, nnx.Rngs(0), **kwargs)
  theirs: Any = their_factories.make_mlp_actor_critic(
    *args, nnx.Rngs(0), **kwargs
  )
  x, raw = cases.draw(3, ROWS), cases.draw(2, ROWS, seed=5)
  state = ours.initialize_state(ROWS)
  cases.assert_same(state, theirs.initialize_state(ROWS))
  extras: Any = {'action': [None] * 3 + [raw], 'value': [None] * 2}
  extras = [None, extras] if normalize else extras
  out, expected = ours(state, x, extras), theirs(state, x, extras)
  # The same seed gives the same weights.
  cases.assert_same(_named(out.output), _named(expected.output), ATOL)
  cases.assert_same(out.rollout_extras, expected.rollout_extras)
  cases.assert_same(out.metrics, expected.metrics, ATOL)
  np.testing.assert_allclose(
    jnp.mean(out.regularization_loss), jnp.mean(expected.regularization_loss)
  )
