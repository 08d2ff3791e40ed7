"""What a network may not hold or draw, found when its factory is called."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import types
from brax_nnx_plugin.ppo import networks as ppo_networks


def _factory(layer):
  """Returns a network factory with `layer(rngs)` in front of the policy."""

  def build(observation_size, action_size, rngs):
    del observation_size
    head = networks.Dense(3, 2 * action_size, rngs)
    sampler = networks.NormalTanhSampler(rngs, entropy_weight=0.1)
    return networks.PPOAdapter(
      action=networks.Sequential([layer(rngs), head, sampler]),
      value=networks.Dense(3, 1, rngs),
    )

  return ppo_networks.make_network_factory(build)


class Layer(types.StatefulModule):
  """Applies `fn` of the module and its input."""

  def __init__(self, fn, **attributes: Any):
    self.fn = fn
    for name, value in attributes.items():
      setattr(self, name, value)

  def __call__(self, state, x, rollout_extras=None):
    output = self.fn(self, x)
    return types.StatefulModuleOutput(state, output, jnp.array(0.0), {})


def _dropout(rngs):
  return Layer(lambda m, x: m.drop(x), drop=nnx.Dropout(0.5, rngs=rngs))


def test_noise_that_a_replay_would_draw_anew_is_refused():
  with pytest.raises(ValueError, match=r"stream 'components/action/.*drop/rng"):
    _factory(_dropout)((3,), 1)


class Remembering(Layer):
  """Hands its noise from the rollout to the replay."""

  rngs: nnx.Rngs

  def __call__(self, state, x, rollout_extras=None):
    noise = jax.random.normal(self.rngs(), x.shape)
    if rollout_extras is not None:
      noise = rollout_extras
    return types.StatefulModuleOutput(
      state, x + noise, jnp.array(0.0), {}, noise
    )


class NoisyStart(Layer):
  """Begins every episode at random."""

  rngs: nnx.Rngs

  def __call__(self, state, x, rollout_extras=None):
    return types.StatefulModuleOutput(state, state, jnp.array(0.0), {})

  def initialize_state(self, batch_size):
    return jax.random.normal(self.rngs(), (batch_size, 3))

  def reset_state(self, prev_state):
    return self.initialize_state(len(prev_state))


def test_a_reset_that_draws_is_refused():
  with pytest.raises(ValueError, match='stream .*rngs.*key in the carry'):
    _factory(lambda rngs: NoisyStart(None, rngs=nnx.Rngs(rngs())))((3,), 1)


def test_noise_that_the_extras_carry_is_accepted():
  layer = lambda rngs: Remembering(None, rngs=nnx.Rngs(rngs()))
  networks_made = _factory(layer)((3,), 1)
  assert networks_made.functions.template.stream_count == 2


def test_noise_without_effect_is_accepted():
  def layer(rngs):
    drop = nnx.Dropout(0.0, rngs=rngs)
    return Layer(lambda m, x: m.drop(x), drop=drop)

  assert _factory(layer)((3,), 1).functions.template.stream_count == 2


@pytest.mark.parametrize(
  'make',
  [lambda rngs: jnp.ones(3), lambda rngs: jax.random.normal(rngs(), (3,))],
)
def test_a_bare_array_in_a_module_is_refused_by_name(make):
  layer = lambda rngs: Layer(lambda m, x: x * m.gain, gain=make(rngs))
  with pytest.raises(ValueError, match=r'Layer\.gain .*bare JAX array.*Param'):
    _factory(layer)((3,), 1)


@pytest.mark.parametrize('make', [np.ones, lambda n: nnx.Variable(jnp.ones(n))])
def test_a_constant_in_a_module_is_numpy_or_a_variable(make):
  layer = lambda rngs: Layer(lambda m, x: x * m.gain[...], gain=make(3))
  functions = _factory(layer)((3,), 1).functions
  variables = functions.init(jax.random.key(0), jax.random.key(1))
  state = functions.initial_state(variables, 2)
  out = functions.step(
    variables, None, state, jnp.ones((2, 3)), jax.random.key(2)
  )
  assert out.action.shape == (2, 1)


class Memory(Layer):
  """A running sum whose methods may be wrong."""

  def __init__(self, initial, reset):
    super().__init__(None)
    self.initial = initial
    self.reset = reset

  def __call__(self, state, x, rollout_extras=None):
    total = state + x
    return types.StatefulModuleOutput(total, total, jnp.array(0.0), {})

  def initialize_state(self, batch_size):
    return self.initial(batch_size)

  def reset_state(self, prev_state):
    return self.reset(prev_state)


def _zeros(rows):
  return jnp.zeros((rows, 3))


@pytest.mark.parametrize(
  ('initial', 'reset', 'message'),
  [
    (lambda b: _zeros(1), jnp.zeros_like, r'initialize_state\(2\).*\(1, 3\)'),
    (_zeros, lambda s: s[:1], r'reset_state turns.*\[2, 3\].*\[1, 3\]'),
    (_zeros, lambda s: s.astype(int) * 0, 'reset_state turns.*float32.*int32'),
    (_zeros, lambda s: (s,), 'reset_state turns a carry'),
  ],
)
def test_a_carry_that_loses_its_shape_is_refused(initial, reset, message):
  with pytest.raises(ValueError, match=message):
    _factory(lambda rngs: Memory(initial, reset))((3,), 1)


def test_a_sound_memory_is_accepted():
  layer = lambda rngs: Memory(_zeros, jnp.zeros_like)
  assert _factory(layer)((3,), 1).functions.stateful
