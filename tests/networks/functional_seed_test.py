"""Seeds and modes of a module made from plain trees."""

from typing import Any

from brax.training import distribution
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import functional
from brax_nnx_plugin.networks import types
from tests.networks import cases
from tests.networks import table


def _template(name: str) -> functional.ModuleTemplate:
  build = table.CASES[name].build
  return functional.ModuleTemplate(lambda key: build(nnx.Rngs(key)))


def test_evaluation_makes_the_network_deterministic():
  template = _template('actor_critic')
  trees = template.init(jax.random.key(0))
  x = cases.draw(3, 2)

  def act(key, evaluate):
    net = template.module(
      trees['params'],
      trees['statistics'],
      jax.random.key(key),
      evaluate=evaluate,
    )
    out = net(net.initialize_state(2), x)
    return out.output.actions, jnp.tanh(out.output.distributions['loc'])

  for key in (1, 2):
    np.testing.assert_allclose(*act(key, True), atol=1e-6)
    action, mode = act(key, False)
    assert np.all(action != mode)
  assert np.all(act(1, False)[0] != act(2, False)[0])


@pytest.mark.parametrize('typed', [True, False])
def test_a_single_sampler_draws_what_brax_draws_from_the_key(typed):
  template = _template('actor_critic')
  trees = template.init(jax.random.key(0))
  key: Any = (jax.random.key if typed else jax.random.PRNGKey)(5)
  net = template.module(trees['params'], trees['statistics'], key)
  out = net(net.initialize_state(2), cases.draw(3, 2)).output
  brax = distribution.NormalTanhDistribution(event_size=2)
  expected = brax.sample(out.distributions['parameters'], key)
  np.testing.assert_array_equal(out.actions, expected)


def test_several_samplers_draw_different_noise_from_one_key():
  template = _template('two_samplers')
  trees = template.init(jax.random.key(0))
  draws = []
  for key in (5, 5, 6):
    net = template.module(
      trees['params'], trees['statistics'], jax.random.key(key)
    )
    out = net(net.initialize_state(2), cases.draw(3, 2)).output
    draws.append(
      {
        k: jnp.arctanh(out.actions[k]) - out.distributions[k]['loc']
        for k in ('legs', 'arms')
      }
    )
    assert np.all(draws[-1]['legs'] != draws[-1]['arms'])
  cases.assert_same(draws[0], draws[1])
  assert np.all(draws[0]['legs'] != draws[2]['legs'])


class Noisy(types.StatefulModule):
  """Two RNG streams, drawn from at different times."""

  def __init__(self, rngs: nnx.Rngs):
    self.a, self.b = nnx.Rngs(rngs()), nnx.Rngs(rngs())

  def __call__(self, state, x, rollout_extras=None):
    noise = [jax.random.normal(s(), x.shape) for s in (self.a, self.b)]
    return types.StatefulModuleOutput(state, noise, jnp.array(0.0), {})


def test_streams_are_seeded_from_the_key_and_not_from_their_past():
  template = functional.ModuleTemplate(lambda key: Noisy(nnx.Rngs(key)))

  def draw(key, past):
    used = Noisy(nnx.Rngs(past))
    for _ in range(past):
      used((), jnp.zeros(3))
    trees = template.trees(used)
    net = template.module(
      trees['params'], trees['statistics'], jax.random.key(key)
    )
    return np.stack(net((), jnp.zeros(3)).output)

  np.testing.assert_array_equal(draw(1, past=0), draw(1, past=2))
  assert np.all(draw(1, past=0) != draw(2, past=0))
  a, b = draw(1, past=0)
  assert np.all(a != b)
