"""The uses that the documentation of nnx-ppo shows, under the new name."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.factories import make_mlp
from brax_nnx_plugin.networks.factories import make_mlp_actor_critic
from brax_nnx_plugin.networks.factories import make_mlp_layers
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.normalizer import Normalizer
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from tests import fakes
from tests.networks import cases

OBS_SIZE = fakes.ScriptEnv.observation_size


def _network() -> Any:
  rngs = nnx.Rngs(0)
  actor = make_mlp([OBS_SIZE, 4, 2], rngs, activation_last_layer=False)
  critic = make_mlp([OBS_SIZE, 4, 1], rngs, activation_last_layer=False)
  sampler = NormalTanhSampler(rngs, entropy_weight=1e-2)
  env = fakes.ScriptEnv([[3], [5]])
  return Sequential(
    [
      Normalizer(env.observation_size),
      PPOAdapter(
        action=Sequential([actor, sampler]),
        value=critic,
      ),
    ]
  )


def test_a_normalizer_on_top_of_the_network_tracks_raw_observations():
  nets = _network()
  x = cases.draw(OBS_SIZE, 3)
  out = nets(nets.initialize_state(3), x)
  assert out.output.actions.shape == (3, 1)
  assert out.output.value_estimates.shape == (3,)
  np.testing.assert_array_equal(out.rollout_extras[0], x)


def test_the_factory_does_this_internally():
  net: Any = make_mlp_actor_critic(OBS_SIZE, 1, [4], [4], nnx.Rngs(0))
  assert isinstance(net[0], Normalizer)
  assert isinstance(net[1], PPOAdapter)


def test_an_embedded_normalizer_tracks_the_activations_that_it_sees():
  rngs = nnx.Rngs(0)
  encoder = Dense(OBS_SIZE, 3, rngs)
  net = Sequential([encoder, Normalizer(3), *make_mlp_layers([3, 2], rngs)])
  x = cases.draw(OBS_SIZE, 4, 5)
  extras = net.unroll(
    net.initialize_state(5), x, jnp.zeros((4, 5))
  ).rollout_extras
  net.update_statistics(extras)
  seen = np.asarray(encoder((), x).output).reshape(-1, 3)
  mean = net[1].mean.get_value()
  variance = net[1].M2.get_value() / net[1].counter.get_value()
  np.testing.assert_allclose(mean, seen.mean(0), atol=1e-6)
  np.testing.assert_allclose(variance, seen.var(0), atol=1e-5)


def test_a_normalizer_of_a_structured_observation_treats_each_leaf_alone():
  normalizer = Normalizer({'proprio': 12, 'goal': 4})
  x = cases.draw({'proprio': 12, 'goal': 4}, 8, 16)
  x['goal'] = 100 * x['goal']  # a wildly different scale
  normalizer.update_statistics(x)
  output = normalizer((), jax.tree.map(lambda leaf: leaf[0], x)).output
  assert set(output) == {'proprio', 'goal'}
  assert output['proprio'].shape == (16, 12)
  for leaf in output.values():
    assert 0.7 < np.std(leaf) < 1.3


def test_before_any_update_a_normalizer_scales_down_to_order_one():
  x = 10 * cases.draw(OBS_SIZE, 3)
  np.testing.assert_allclose(Normalizer(OBS_SIZE)((), x).output, x / 10)


def test_statistics_accumulate_over_the_whole_run():
  nets = _network()
  x = [cases.draw(OBS_SIZE, 4, 2, seed=i) + i for i in range(3)]
  for part in x:
    out = nets.unroll(nets.initialize_state(2), part, jnp.zeros((4, 2)))
    nets.update_statistics(out.rollout_extras)
  everything = np.concatenate(x).reshape(-1, OBS_SIZE)
  mean = nets[0].mean.get_value()
  np.testing.assert_allclose(mean, everything.mean(0), rtol=1e-5)


def test_extras_have_the_shape_of_the_table_in_the_documentation():
  nets = _network()
  x = cases.draw(OBS_SIZE, 3)
  out = nets(nets.initialize_state(3), x)
  normalizer, ports = out.rollout_extras
  np.testing.assert_array_equal(normalizer, x)
  actor, raw_action = ports['action']
  assert actor == [None, None]
  assert ports['value'] == [None, None]
  np.testing.assert_allclose(np.tanh(raw_action), out.output.actions, atol=1e-6)


def test_every_name_is_importable_from_networks():
  for thing in (Dense, Normalizer, NormalTanhSampler, PPOAdapter, Sequential):
    assert getattr(networks, thing.__name__) is thing
  for name in ('LSTM', 'GRU', 'Filter', 'Parallel', 'make_mlp'):
    assert callable(getattr(networks, name))
