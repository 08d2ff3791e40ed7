"""The normal sampler against Brax's distribution and policy network."""

from typing import Any

from brax.training import distribution
from brax.training import networks as brax_networks
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.samplers import NormalSampler
from tests.networks import cases

SIZE, ROWS = 2, 5
BRAX: Any = distribution.NormalDistribution(event_size=SIZE)
# Where the scale comes from: (state_dependent_std, noise_std_type).
SCALES = [(False, 'scalar'), (False, 'log'), (True, 'scalar'), (True, 'log')]

each_scale = pytest.mark.parametrize(('dependent', 'kind'), SCALES)


def _sampler(dependent: bool, kind: str, **kwargs: Any) -> NormalSampler:
  """Makes a sampler whose trained vector, if any, has two different numbers."""
  sampler = NormalSampler(
    SIZE,
    nnx.Rngs(0),
    state_dependent_std=dependent,
    noise_std_type=kind,
    **kwargs,
  )
  for param in (sampler.std, sampler.log_std):
    if param is not None:
      param.set_value(jnp.array([0.4, 1.3]))
  return sampler


def _input(dependent: bool, kind: str) -> jax.Array:
  """Draws an input; what is a scale itself is positive."""
  x = cases.draw(2 * SIZE if dependent else SIZE, ROWS)
  if dependent and kind == 'scalar':
    x = x.at[:, SIZE:].set(jnp.abs(x[:, SIZE:]) + 0.1)
  return x


def _moments(dependent: bool, kind: str, x: Any) -> tuple[Any, Any]:
  x = np.asarray(x, np.float64)
  loc = x[:, :SIZE]
  scale = x[:, SIZE:] if dependent else np.tile([0.4, 1.3], (len(x), 1))
  return loc, np.exp(scale) if kind == 'log' else scale


def _score(raw: Any, loc: Any, scale: Any) -> Any:
  """Log-density of a normal distribution, summed over actions."""
  terms = -0.5 * ((np.asarray(raw) - loc) / scale) ** 2 - np.log(scale)
  return np.sum(terms - 0.5 * np.log(2 * np.pi), axis=-1)


@each_scale
def test_numbers_are_those_of_the_formulas(dependent, kind):
  sampler, x = _sampler(dependent, kind), _input(dependent, kind)
  out = sampler((), x)
  loc, scale = _moments(dependent, kind, x)
  entropy = np.sum(0.5 * np.log(2 * np.pi * np.e) + np.log(scale), axis=-1)
  raw = out.output['raw_action']
  np.testing.assert_allclose(out.output['loc'], loc, atol=1e-6)
  np.testing.assert_allclose(out.output['scale'], scale, atol=1e-6)
  np.testing.assert_allclose(out.output['entropy'], entropy, atol=1e-5)
  np.testing.assert_allclose(
    out.output['log_likelihood'], _score(raw, loc, scale), atol=1e-4
  )
  np.testing.assert_array_equal(out.output['action'], raw)
  np.testing.assert_array_equal(out.rollout_extras, raw)
  np.testing.assert_array_equal(
    out.output['parameters'],
    np.concatenate([out.output['loc'], out.output['scale']], axis=-1),
  )
  assert out.output['scale'].shape == (ROWS, SIZE)
  assert out.metrics.keys() == {'mu', 'sigma'}


@each_scale
def test_it_draws_and_scores_what_brax_does_to_the_last_bit(dependent, kind):
  sampler, x = _sampler(dependent, kind), _input(dependent, kind)
  key = sampler.key.get_value()
  output = sampler((), x).output
  pair = output['loc'], output['scale']
  raw = BRAX.sample_no_postprocessing(pair, key)
  for name, expected in {
    'raw_action': raw,
    'action': BRAX.postprocess(raw),
    'log_likelihood': BRAX.log_prob(pair, raw),
    'entropy': BRAX.entropy(pair, key),
  }.items():
    np.testing.assert_array_equal(output[name], expected, err_msg=name)
  # What stock Brax would do with our distribution and our parameters.
  dist: Any = sampler.distribution(SIZE)
  assert dist.param_size == output['parameters'].shape[-1]
  np.testing.assert_array_equal(dist.sample(output['parameters'], key), raw)
  np.testing.assert_array_equal(dist.mode(output['parameters']), pair[0])


def _brax_policy(dependent: bool, kind: str, noise: float = 0.1) -> Any:
  """Returns Brax's policy network of 3 inputs, and weights for it."""
  policy = brax_networks.make_policy_network(
    SIZE,
    3,
    hidden_layer_sizes=(4,),
    activation=jnp.tanh,
    distribution_type='normal',
    noise_std_type=kind,  # pyright: ignore[reportArgumentType]
    init_noise_std=0.7,
    state_dependent_std=dependent,
  )
  params = policy.init(jax.random.key(1))
  rng = np.random.default_rng(2)
  # Zero biases would not tell whether they are used.
  noisy = lambda leaf: leaf + noise * rng.normal(size=leaf.shape).astype('f')
  return policy, jax.tree.map(noisy, params)


def _our_policy(dependent: bool, kind: str, params: Any) -> Sequential:
  """Builds the same network from Brax's weights."""
  rngs = nnx.Rngs(0)
  heads = [params['Dense_0'], *([params['Dense_1']] if dependent else [])]
  sampler = NormalSampler(
    SIZE,
    rngs,
    state_dependent_std=dependent,
    noise_std_type=kind,
    init_noise_std=0.7,
  )
  layers = [Dense(3, 4, rngs, jnp.tanh), Dense(4, SIZE * len(heads), rngs)]
  joined = jax.tree.map(lambda *w: jnp.concatenate(w, axis=-1), *heads)
  weights = (params['MLP_0']['hidden_0'], joined)
  for layer, values in zip(layers, weights, strict=True):
    nnx.update(layer.linear, values)
  if sampler.std is not None:
    sampler.std.set_value(params['std_param']['value'])
  if sampler.log_std is not None:
    sampler.log_std.set_value(params['std_logparam']['log_value'])
  return Sequential([*layers, sampler])


@each_scale
def test_a_network_has_the_numbers_of_the_policy_of_brax(dependent, kind):
  policy, params = _brax_policy(dependent, kind)
  net = _our_policy(dependent, kind, params['params'])
  obs = cases.draw(3, ROWS)
  pair = policy.apply(None, params, obs)
  state = net.initialize_state(ROWS)
  key = net[2].key.get_value()
  output = net(state, obs).output
  raw = BRAX.sample_no_postprocessing(pair, key)
  for name, expected in {
    'loc': pair[0],
    'scale': pair[1],
    'action': BRAX.sample(pair, key),
    'log_likelihood': BRAX.log_prob(pair, raw),
    'entropy': BRAX.entropy(pair, key),
  }.items():
    np.testing.assert_allclose(output[name], expected, atol=2e-6, err_msg=name)


@pytest.mark.parametrize('kind', ['scalar', 'log'])
def test_the_scale_begins_where_that_of_brax_does(kind):
  policy, params = _brax_policy(False, kind, noise=0.0)
  _, scale = policy.apply(None, params, jnp.ones((1, 3)))
  sampler = NormalSampler(
    SIZE, nnx.Rngs(0), noise_std_type=kind, init_noise_std=0.7
  )
  output = sampler((), jnp.zeros((1, SIZE))).output
  np.testing.assert_array_equal(output['scale'], scale)
  default: Any = NormalSampler(SIZE, nnx.Rngs(0)).std
  np.testing.assert_array_equal(default[...], 1.0)


@pytest.mark.parametrize('kind', ['scalar', 'log'])
def test_the_trained_vector_has_the_gradient_of_finite_differences(kind):
  sampler, x = _sampler(False, kind), _input(False, kind)
  raw = cases.draw(SIZE, ROWS, seed=8)
  graphdef, params, rest = nnx.split(sampler, nnx.Param, ...)

  @jax.jit
  def loss(params):
    output = nnx.merge(graphdef, params, nnx.clone(rest))((), x, raw).output
    return jnp.mean(output['log_likelihood'] + 0.5 * output['entropy'])

  (gradient,) = jax.tree.leaves(jax.grad(loss)(params))
  for i in range(SIZE):
    up, down = (
      loss(jax.tree.map(lambda v, d=d, i=i: v.at[i].add(d), params))
      for d in (1e-2, -1e-2)
    )
    np.testing.assert_allclose(gradient[i], (up - down) / 2e-2, rtol=0.02)
  assert np.all(gradient != 0)


def test_what_is_trained_has_a_name_of_its_own():
  names = {}
  for scale in SCALES:
    trained = nnx.state(_sampler(*scale), nnx.Param)
    names[scale] = [path for path, _ in nnx.to_flat_state(trained)]
  assert names == {
    (False, 'scalar'): [('std',)],
    (False, 'log'): [('log_std',)],
    (True, 'scalar'): [],
    (True, 'log'): [],
  }


@each_scale
def test_replay_scores_the_raw_action_and_eval_acts_by_the_mode(
  dependent, kind
):
  sampler, x = _sampler(dependent, kind), _input(dependent, kind)
  raw = 3 * cases.draw(SIZE, ROWS, seed=8)
  expected = _score(raw, *_moments(dependent, kind, x))
  for _ in range(2):
    out = sampler((), x, raw)
    np.testing.assert_array_equal(out.output['action'], raw)
    np.testing.assert_array_equal(out.rollout_extras, raw)
    np.testing.assert_allclose(
      out.output['log_likelihood'], expected, rtol=1e-4, atol=1e-4
    )
    sampler.eval()  # and once more
  out = sampler((), x)
  np.testing.assert_array_equal(out.output['action'], x[:, :SIZE])
  sampler.train()
  assert np.all(sampler((), x).output['action'] != x[:, :SIZE])


def test_the_entropy_weight_is_the_weight_of_the_entropy():
  sampler = _sampler(False, 'log', entropy_weight=0.25)
  out = sampler((), _input(False, 'log'))
  np.testing.assert_allclose(
    out.regularization_loss, -0.25 * out.output['entropy'], rtol=1e-6
  )


def test_a_scale_below_zero_is_what_it_is_in_brax():
  # Drawing works, with mirrored noise; there is no log-likelihood.
  sampler = _sampler(False, 'scalar')
  assert sampler.std is not None
  sampler.std.set_value(jnp.array([-0.5, -0.5]))
  key, x = sampler.key.get_value(), _input(False, 'scalar')
  output = sampler((), x).output
  pair = x, jnp.full_like(x, -0.5)
  np.testing.assert_array_equal(output['action'], BRAX.sample(pair, key))
  assert np.all(np.isfinite(output['action']))
  assert np.all(np.isnan(output['log_likelihood']))
  assert np.all(np.isnan(BRAX.log_prob(pair, output['action'])))


def test_nothing_is_nan_when_nans_are_errors():
  sampler, x = _sampler(True, 'log'), _input(True, 'log')
  graphdef, variables = nnx.split(sampler)

  def loss(x):
    out = nnx.merge(graphdef, nnx.clone(variables))((), x).output
    return jnp.sum(out['log_likelihood'] + out['entropy'])

  with jax.debug_nans(True):
    assert np.all(np.isfinite(jax.jit(jax.grad(loss))(x)))


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'noise_std_type': 'exp'}, "scalar and log; got 'exp'"),
    ({'init_noise_std': 0.0}, 'init_noise_std > 0; got 2 and 0.0'),
    ({'init_noise_std': -1.0}, 'init_noise_std > 0; got 2 and -1.0'),
    ({'init_noise_std': np.nan}, 'init_noise_std > 0; got 2 and nan'),
    ({'action_size': 0}, 'action_size >= 1 .* got 0'),
  ],
)
def test_wrong_numbers_and_names_are_errors(kwargs, message):
  with pytest.raises(ValueError, match=message):
    NormalSampler(**{'action_size': SIZE, 'rngs': nnx.Rngs(0)} | kwargs)


def test_the_action_size_comes_first():
  swapped: Any = (nnx.Rngs(0), SIZE)
  with pytest.raises(TypeError, match='int as action_size, its first argument'):
    NormalSampler(*swapped)


@pytest.mark.parametrize('dependent', [False, True])
@pytest.mark.parametrize('size', [1, 3, 8])
def test_an_input_of_another_size_is_an_error(dependent, size):
  needed = 2 * SIZE if dependent else SIZE
  message = f'needs {needed} inputs; got {size}. .* {needed} outputs'
  with pytest.raises(ValueError, match=message):
    _sampler(dependent, 'log')((), jnp.zeros((ROWS, size)))
