"""What the layers of a policy put out while it plays, as a picture."""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Any

import jax
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
import numpy as np

from brax_nnx_plugin.ppo import inference
from brax_nnx_plugin.ppo import playing

from .errors import UserError
from .scenes import Scene

# More panels than these are too small to read.
_MOST_PANELS = 6


@dataclasses.dataclass(frozen=True)
class Recording:
  """Outputs of layers over time, of one environment.

  Attributes:
    layers: `[T, units]` by the path of the layer.
    dones: `[T]`, 1 where a step ended an episode.
  """

  layers: dict[str, np.ndarray]
  dones: np.ndarray


class _Telling:
  """A policy whose actions bring the activations along."""

  def __init__(self, policy: Any, layers: Sequence[str]):
    self._policy = policy
    self._layers = layers

  def __getattr__(self, name: str) -> Any:
    # Of a policy without memory there are no `initial_state` and `reset`.
    return getattr(self._policy, name)

  def __call__(self, observation: Any, key: Any, *state: Any) -> Any:
    action, extras = self._policy(observation, key, *state)
    seen = {name: extras['activations'][name] for name in self._layers}
    return {'action': action, 'activations': seen}, extras


class _Deaf:
  """An environment that takes the action and leaves what comes along."""

  def __init__(self, env: Any):
    self._env = env

  def reset(self, rng: jax.Array) -> Any:
    return self._env.reset(rng)

  def step(self, state: Any, action: Any) -> Any:
    return self._env.step(state, action['action'])


def _policy(scene: Scene, params: Any, deterministic: bool) -> Any:
  return inference.recording_policy(scene.networks, params, deterministic)


def _names(scene: Scene) -> tuple[list[str], list[str]]:
  """Returns the paths of all layers, and of those with memory; abstractly."""
  with_memory: list[str] = []

  def act():
    policy = _policy(scene, scene.params, True)
    with_memory.extend(policy.layers_with_memory)
    key = jax.random.PRNGKey(0)
    observation = scene.env.reset(key).obs
    state = ()
    if hasattr(policy, 'initial_state'):
      state = (policy.initial_state(),)
    return policy(observation, key, *state)[1]['activations']

  names = list(jax.eval_shape(act))
  below = lambda name, path: not path or (name + '/').startswith(path + '/')
  return names, [n for n in names if any(below(n, p) for p in with_memory)]


def choose(scene: Scene, wanted: Sequence[str] = ()) -> list[str]:
  """Returns the layers to look at; nothing is compiled.

  Args:
    scene: what is played.
    wanted: paths of layers; by default those with memory.

  Raises:
    UserError: if there is no such layer, or none with memory.
  """
  try:
    names, with_memory = _names(scene)
  except ValueError as e:
    raise UserError(f'--activations: {e}') from e
  for name in wanted:
    if name not in names:
      raise UserError(
        f'--layer={name}: there is no such layer; there are {", ".join(names)}.'
      )
  if not wanted and not with_memory:
    raise UserError(
      '--activations: this network has no memory and no latent to show. Name'
      f' layers with --layer: {", ".join(names)}.'
    )
  return list(wanted) or with_memory[:_MOST_PANELS]


def record(
  scene: Scene,
  layers: Sequence[str],
  num_steps: int,
  seed: int = 0,
  deterministic: bool = True,
) -> Recording:
  """Plays one environment and records layers, over as many episodes as fit.

  Args:
    scene: what is played.
    layers: their paths, from `choose`.
    num_steps: actions.
    seed: of the resets and the actions.
    deterministic: act by the mode of the policy.
  """
  played = playing.make_rollout(
    _Deaf(scene.env),
    lambda params: _Telling(_policy(scene, params, deterministic), layers),
    num_steps,
    episode_length=scene.episode_length,
    action_repeat=scene.action_repeat,
    render_every=None,
  )(scene.params, jax.random.PRNGKey(seed))
  seen = played.actions['activations']
  return Recording(
    {k: np.asarray(seen[k]).reshape(num_steps, -1) for k in layers},
    np.asarray(played.dones),
  )


def draw(
  path: pathlib.Path, recording: Recording, title: str, steps_of: str
) -> None:
  """Draws a panel a layer: units over time, and where episodes end.

  Args:
    path: of the PNG file; it is written aside and then renamed.
    recording: what to draw.
    title: above it all.
    steps_of: what a step of the recording is, in words and with its unit.
  """
  count = len(recording.layers)
  figure = Figure(figsize=(9, 1.5 + 2.2 * count), dpi=120, layout='constrained')
  FigureCanvasAgg(figure)
  panels: Any = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
  ends = np.flatnonzero(recording.dones[:-1] > 0) + 1
  for axes, (name, values) in zip(
    panels, recording.layers.items(), strict=True
  ):
    top = max(float(np.abs(values).max()), 1e-6)
    length, units = values.shape
    image = axes.imshow(
      values.T,
      aspect='auto',
      interpolation='nearest',
      cmap='RdBu_r',
      vmin=-top,
      vmax=top,
      # A column is a step, with its number at the left edge.
      extent=(0, length, units - 0.5, -0.5),
    )
    for end in ends:
      axes.axvline(end, color='black', linewidth=1, linestyle='--')
    axes.set_title(f'layer {name or "of the network"}', fontsize=9)
    axes.set_ylabel('Unit')
    axes.yaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=axes, label='Output [1]')
  note = ' (dashed: an episode ends)' if ends.size else ''
  panels[-1].set_xlabel(f'Time [{steps_of}]{note}')
  figure.suptitle(title)
  partial = path.with_name(f'.{path.name}.partial')
  try:
    figure.savefig(partial, format='png')
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)
