"""Action samplers against Brax's distribution and NumPy."""

from typing import Any

from brax.training import distribution
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import samplers
from tests.networks import cases


def _sampler(seed: int = 0, **kwargs: Any) -> networks.NormalTanhSampler:
  return networks.NormalTanhSampler(nnx.Rngs(seed), **kwargs)


def _moments(x, min_std=1e-3, std_scale=1.0):
  loc, s = np.split(np.asarray(x, np.float64), 2, axis=-1)
  return loc, (np.log1p(np.exp(s)) + min_std) * std_scale


def _log_likelihood(x, raw, **kwargs):
  """Density of tanh(raw): the normal's, less log(1 - tanh²) per action."""
  loc, scale = _moments(x, **kwargs)
  raw = np.asarray(raw, np.float64)
  normal = -0.5 * ((raw - loc) / scale) ** 2
  normal -= np.log(scale) + 0.5 * np.log(2 * np.pi)
  return np.sum(normal - np.log1p(-(np.tanh(raw) ** 2)), axis=-1)


SCALES = [{}, {'min_std': 0.1}, {'std_scale': 0.5}]


@pytest.mark.parametrize('scales', SCALES, ids=str)
def test_the_score_is_the_density_of_the_action(scales):
  sampler = _sampler(**scales)
  x, raw = cases.draw(4, 3), cases.draw(2, 3, seed=8)
  output = sampler((), x, raw).output
  loc, scale = _moments(x, **scales)
  expected = _log_likelihood(x, raw, **scales)
  np.testing.assert_allclose(output['log_likelihood'], expected, atol=1e-5)
  np.testing.assert_allclose(output['action'], np.tanh(raw), atol=1e-6)
  np.testing.assert_allclose(output['loc'], loc, atol=1e-6)
  np.testing.assert_allclose(output['scale'], scale, atol=1e-6)
  np.testing.assert_array_equal(output['parameters'], x)


def test_shapes_of_one_step_and_of_a_sequence():
  for lead in ((3,), (5, 3), (1,), (1, 1)):
    out = _sampler(entropy_weight=1.0)((), cases.draw(4, *lead))
    assert out.output['action'].shape == (*lead, 2)
    assert out.output['log_likelihood'].shape == lead
    assert out.output['entropy'].shape == lead
    assert out.regularization_loss.shape == lead
    assert out.rollout_extras.shape == (*lead, 2)


def test_it_draws_what_brax_draws_from_its_key():
  sampler = _sampler(min_std=0.01)
  key = sampler.key.get_value()
  x = cases.draw(4, 3)
  brax = distribution.NormalTanhDistribution(event_size=2, min_std=0.01)
  raw = brax.sample_no_postprocessing(x, key)
  out = sampler((), x)
  np.testing.assert_array_equal(out.rollout_extras, raw)
  np.testing.assert_array_equal(out.output['action'], brax.postprocess(raw))
  np.testing.assert_array_equal(out.output['entropy'], brax.entropy(x, key))
  score: Any = brax.log_prob(x, raw)
  np.testing.assert_array_equal(out.output['log_likelihood'], score)


def test_the_mean_score_of_many_draws_is_minus_the_entropy():
  # H = -E[log p]; 4000 rows leave an error of about 0.02.
  x = jnp.tile(jnp.array([[0.3, -0.2, 0.1, -0.5]]), (4000, 1))
  output = _sampler()((), x).output
  entropy = np.mean(output['entropy'])
  np.testing.assert_allclose(
    -np.mean(output['log_likelihood']), entropy, atol=0.1
  )
  # Another estimate of the same, from other draws.
  other = _sampler(seed=1)((), x).output
  np.testing.assert_allclose(np.mean(other['entropy']), entropy, atol=0.1)


def test_draws_have_the_location_and_the_scale():
  x = jnp.tile(jnp.array([[0.5, -1.0]]), (4000, 1))
  raw = np.asarray(_sampler()((), x).rollout_extras)
  loc, scale = _moments(x[:1])
  np.testing.assert_allclose(raw.mean(), loc[0, 0], atol=0.03)
  np.testing.assert_allclose(raw.std(), scale[0, 0], rtol=0.05)


def test_rows_steps_and_seeds_draw_different_noise():
  x = jnp.zeros((3, 4))
  sampler = _sampler()
  draws = [sampler((), x).rollout_extras for _ in range(3)]
  draws.append(_sampler(seed=1)((), x).rollout_extras)
  assert len(np.unique(np.stack(draws))) == 4 * 3 * 2


def test_two_samplers_of_one_rngs_draw_different_noise():
  rngs = nnx.Rngs(0)
  pair = [networks.NormalTanhSampler(rngs) for _ in range(2)]
  a, b = (s((), jnp.zeros((3, 4))).rollout_extras for s in pair)
  assert np.all(a != b)


def test_the_key_moves_on_also_in_a_replay():
  x = jnp.zeros((3, 4))
  acted, replayed = _sampler(), _sampler()
  acted((), x)
  replayed((), x, jnp.zeros((3, 2)))
  after = [s((), x).rollout_extras for s in (acted, replayed)]
  np.testing.assert_array_equal(*after)


def test_eval_makes_it_deterministic_and_train_undoes_it():
  sampler = _sampler()
  x = cases.draw(4, 3)
  sampler.eval()
  out = sampler((), x)
  np.testing.assert_array_equal(out.rollout_extras, x[:, :2])
  np.testing.assert_allclose(out.output['action'], np.tanh(x[:, :2]), atol=1e-6)
  expected = _log_likelihood(x, x[:, :2])
  np.testing.assert_allclose(out.output['log_likelihood'], expected, atol=1e-5)
  sampler.train()
  assert np.all(sampler((), x).rollout_extras != x[:, :2])


def test_a_deterministic_sampler_still_scores_the_stored_action():
  sampler = _sampler()
  sampler.eval()
  x, raw = cases.draw(4, 3), cases.draw(2, 3, seed=8)
  out = sampler((), x, raw)
  np.testing.assert_array_equal(out.rollout_extras, raw)
  np.testing.assert_allclose(
    out.output['log_likelihood'], _log_likelihood(x, raw), atol=1e-5
  )


def test_the_entropy_weight_is_the_weight_of_the_entropy():
  x = cases.draw(4, 3)
  out = _sampler(entropy_weight=0.25)((), x)
  np.testing.assert_allclose(
    out.regularization_loss, -0.25 * out.output['entropy'], rtol=1e-6
  )
  assert _sampler()((), x).regularization_loss == 0.0


def test_metrics_are_location_and_scale():
  x = cases.draw(4, 3)
  out = _sampler()((), x)
  loc, scale = _moments(x)
  np.testing.assert_allclose(out.metrics['mu'], loc, atol=1e-6)
  np.testing.assert_allclose(out.metrics['sigma'], scale, atol=1e-6)


def test_no_gradient_goes_through_the_draw():
  # d/d loc of log p at a fixed raw action is (raw - loc) / scale²; through the
  # draw raw = loc + scale ε it would be another.
  x = cases.draw(4, 3)
  graphdef, variables = nnx.split(_sampler())

  def score(x):
    sampler = nnx.clone(nnx.merge(graphdef, variables))
    return jnp.sum(sampler((), x).output['log_likelihood'])

  raw = _sampler()((), x).rollout_extras
  loc, scale = _moments(x)
  expected = (np.asarray(raw) - loc) / scale**2
  gradient = jax.grad(score)(x)[:, :2]
  np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


def test_scores_of_extreme_actions_are_finite():
  # tanh(30) is 1 in float32, so log(1 - tanh²) must not be computed as such.
  raw = jnp.array([[30.0], [-30.0]])
  score = lambda x: jnp.sum(_sampler()((), x, raw).output['log_likelihood'])
  value, gradient = jax.value_and_grad(score)(jnp.zeros((2, 2)))
  assert np.isfinite(value)
  assert np.all(np.isfinite(gradient))


def test_an_odd_number_of_parameters_is_an_error():
  with pytest.raises(ValueError, match='even number of parameters; got 3'):
    _sampler()((), jnp.zeros((2, 3)))


def test_a_sampler_of_ones_own_needs_only_its_distribution():
  class Wide(samplers.ActionSampler):
    def distribution(self, action_size):
      return distribution.NormalTanhDistribution(action_size, min_std=2.0)

    def action_size(self, parameters):
      return parameters.shape[-1] // 2

  out = Wide(nnx.Rngs(0))((), jnp.zeros((3, 4)))
  np.testing.assert_allclose(out.output['scale'], np.log(2) + 2.0, rtol=1e-6)
