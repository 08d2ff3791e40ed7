"""Pixel observations: the entries `pixels/...` of a dict, `[..., H, W, C]`."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks.vision import PIXELS
from brax_nnx_plugin.ppo.types import Rollout

_PADDING = 4


def check(observation: Any) -> None:
  """Raises unless the entries of an observation have names.

  Args:
    observation: of the environment, as shapes or as arrays.

  Raises:
    ValueError: if it is not a dict.
  """
  if not isinstance(observation, Mapping):
    raise ValueError(
      'augment_pixels=True needs a dict observation, whose images are the'
      f" entries '{PIXELS}...'; this environment returns a single array. Leave"
      ' augment_pixels False, or return a dict.'
    )


def _shift(images: jax.Array, key: jax.Array) -> jax.Array:
  """Cuts one window out of all padded images `[T, H, W, C]`."""
  corner = jax.random.randint(key, (2,), 0, 2 * _PADDING + 1)
  edge = (_PADDING, _PADDING)
  padded = jnp.pad(images, ((0, 0), edge, edge, (0, 0)), mode='edge')
  start = (0, corner[0], corner[1], 0)
  return jax.lax.dynamic_slice(padded, start, images.shape)


def translate(
  observation: Mapping[str, jax.Array], key: jax.Array
) -> dict[str, jax.Array]:
  """Moves the images of each segment by up to 4 pixels in either direction.

  The border is repeated. All steps of a segment move alike; segments and views
  move independently.

  Args:
    observation: segments `[N, T, ...]`; what is not an image is left alone.
    key: split as in Brax, once per segment and then once per view.

  References:
    Kostrikov et al., Image augmentation is all you need, 2020.
    `_random_translate_pixels` of `brax.training.agents.ppo.train`.
  """

  def segment(views, key):
    moved = {}
    for name in sorted(views):
      if name.startswith(PIXELS):
        key, key_view = jax.random.split(key)
        moved[name] = _shift(views[name], key_view)
    return {**views, **moved}

  rows = jax.tree.leaves(observation)[0].shape[0]
  return jax.vmap(segment)(observation, jax.random.split(key, rows))


def augment(data: Rollout, key: jax.Array) -> Rollout:
  """Translates the images of recorded segments `[N, T, ...]`.

  The observation after a segment moves as the segment does.

  Args:
    data: segments; what the network stored besides the observation is left
      alone.
    key: of one pass over the segments.

  Raises:
    ValueError: if the observation is not a dict.
  """
  check(data.observation)
  last = jax.tree.map(lambda x: x[:, None], data.last_observation)
  last = jax.tree.map(lambda x: x[:, 0], translate(last, key))
  return dataclasses.replace(
    data,
    observation=translate(data.observation, key),
    last_observation=last,
  )
