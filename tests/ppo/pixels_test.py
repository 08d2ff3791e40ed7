"""Images that are moved before they are learned from."""

import dataclasses
from typing import Any

from brax.training.agents.ppo import train as brax_train
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.recurrent import LSTM
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput
from brax_nnx_plugin.ppo import pixels
from brax_nnx_plugin.ppo.networks import make_network_factory
from brax_nnx_plugin.ppo.types import Rollout
from tests import parity_envs
from tests import small_runs

SEGMENTS, STEPS = 3, 2
KEY = jax.random.PRNGKey(4)


@pytest.fixture(scope='module')
def observation() -> dict[str, jax.Array]:
  """Segments of two views and of something that is no image."""
  rng = np.random.default_rng(0)
  lead = (SEGMENTS, STEPS)
  return {
    'state': jnp.asarray(rng.normal(size=(*lead, 3)), jnp.float32),
    'pixels/b': jnp.asarray(rng.normal(size=(*lead, 6, 5, 2)), jnp.float32),
    'pixels/a': jnp.asarray(rng.integers(0, 256, (*lead, 4, 4, 3)), jnp.uint8),
    'latent_pixels/a': jnp.asarray(rng.normal(size=(*lead, 4, 4, 3))),
  }


@pytest.fixture(scope='module')
def moved(observation) -> dict[str, jax.Array]:
  """The same after the move."""
  return pixels.translate(observation, KEY)


def test_images_move_as_in_brax(observation, moved):
  expected = brax_train._random_translate_pixels(observation, KEY)

  assert moved.keys() == expected.keys()
  for name, value in expected.items():
    assert moved[name].dtype == observation[name].dtype
    np.testing.assert_array_equal(moved[name], value, err_msg=name)
    is_image = name.startswith('pixels/')
    assert np.array_equal(value, observation[name]) != is_image


def test_an_image_is_a_window_of_itself_with_its_border_repeated(
  observation, moved
):
  for name in ('pixels/a', 'pixels/b'):
    before, after = np.asarray(observation[name]), np.asarray(moved[name])
    height, width = before.shape[2:4]
    frame = ((0, 0), (4, 4), (4, 4), (0, 0))
    for old, new in zip(before, after, strict=True):
      padded = np.pad(old, frame, mode='edge')
      # One of the 9 * 9 windows, and the same one for all steps of a segment.
      assert any(
        np.array_equal(padded[:, i : i + height, j : j + width], new)
        for i in range(9)
        for j in range(9)
      )


def test_the_observation_after_a_segment_moves_as_the_segment(observation):
  blank: Any = {field.name: None for field in dataclasses.fields(Rollout)}
  last = jax.tree.map(lambda x: x[:, -1], observation)
  extras = observation['pixels/b']
  data = Rollout(
    **blank
    | {'observation': observation, 'last_observation': last, 'extras': extras}
  )

  augmented = pixels.augment(data, KEY)

  for name, value in augmented.observation.items():
    np.testing.assert_array_equal(
      augmented.last_observation[name], value[:, -1], err_msg=name
    )
  assert augmented.extras is extras


def test_an_observation_without_names_cannot_be_augmented():
  message = 'augment_pixels=True needs a dict observation'
  with pytest.raises(ValueError, match=message):
    pixels.check(jnp.zeros((2, 4, 4, 3)))
  # And `train` says so before it steps.
  with pytest.raises(ValueError, match=message):
    small_runs.small_train(augment_pixels=True, num_timesteps=0)


class _Flat(StatefulModule):
  """Reads both views and the state."""

  def __call__(self, state, x, rollout_extras=None):
    leaves = [v.reshape((v.shape[0], -1)) / 255 for v in x.values()]
    flat = jnp.concatenate(leaves, axis=-1)
    return StatefulModuleOutput(state, flat, jnp.array(0.0), {})


def _build(observation_size: Any, action_size: int, rngs: nnx.Rngs) -> Any:
  size = sum(int(np.prod(shape)) for shape in observation_size.values())
  return Sequential(
    [
      _Flat(),
      LSTM(size, 3, rngs),
      PPOAdapter(
        action=Sequential(
          [Dense(3, 2 * action_size, rngs), NormalTanhSampler(rngs)]
        ),
        value=Dense(3, 1, rngs),
      ),
    ]
  )


@pytest.mark.slow
def test_a_network_with_memory_learns_from_moved_images():
  run = lambda num_timesteps: small_runs.small_train(
    environment=parity_envs.PixelEnv(jnp.uint8),
    network_factory=make_network_factory(_build),
    augment_pixels=True,
    normalize_observations=True,
    num_timesteps=num_timesteps,
  )

  initial, (_, params, metrics) = run(0)[1], run(small_runs.STEP)

  assert small_runs.largest_difference(initial[1:], params[1:]) > 1e-3
  assert all(np.isfinite(value) for value in metrics.values())
  # The statistics are those of the state, whose entries are no images.
  assert set(params[0].mean) == {'state', 'privileged_state'}
