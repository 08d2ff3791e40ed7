"""Networks, options and environments for runs against stock Brax."""

import functools
from typing import Any

from brax import envs
from brax.training.agents.ppo import networks as brax_networks
from brax.training.agents.ppo import networks_vision as brax_vision
import jax
import jax.numpy as jnp
from mujoco_playground import State as PlaygroundState

from tests import small_runs

stock_mlp = functools.partial(
  brax_networks.make_ppo_networks,
  policy_hidden_layer_sizes=(5,),
  value_hidden_layer_sizes=(6,),
)
stock_quantiles = functools.partial(
  stock_mlp, use_distributional_critic=True, num_quantiles=5
)
stock_vision = functools.partial(
  brax_vision.make_ppo_networks_vision,
  policy_hidden_layer_sizes=(5,),
  value_hidden_layer_sizes=(6,),
  cnn_output_channels=(3,),
  cnn_kernel_size=(3,),
  cnn_stride=(2,),
)
stock_vision_and_state = functools.partial(
  stock_vision, policy_obs_key='state', value_obs_key='privileged_state'
)
# Options of `train`; each changes something that the others leave alone.
OPTIONS: dict[str, dict[str, Any]] = {
  'a moving average, for a while': {
    'normalize_observations': True,
    'normalize_observations_mode': 'ema',
    'normalize_observations_std_eps': 1e-2,
    'normalize_until_count': 4 * small_runs.STEP,
  },
  'adaptive learning rate, clipped gradients': {
    'normalize_observations': True,
    'learning_rate_schedule': 'ADAPTIVE_KL',
    'desired_kl': 1e-3,
    'max_grad_norm': 0.1,
  },
  'clipped value': {
    'clipping_epsilon_value': 1e-2,
    'clipping_epsilon': 0.05,
    'vf_loss_coefficient': 0.3,
    'use_pmap_on_reset': False,
  },
  'bootstrapped time-outs': {
    'bootstrap_on_timeout': True,
    'discounting': 0.8,
    'gae_lambda': 0.7,
    'normalize_advantage': False,
  },
  'repeated actions, random gains': {
    'action_repeat': 2,
    'num_timesteps': 20 * small_runs.STEP,
    'randomization_fn': small_runs.random_gains,
  },
  'resets by the host': {
    'num_resets_per_eval': 1,
    'num_evals': 6,
    'seed': 3,
  },
}


class PixelEnv(small_runs.PointEnv):
  """Shows the point as a bright band in two images of 6 * 5 * 2 pixels."""

  def __init__(self, dtype: Any = jnp.float32, state: bool = True):
    super().__init__(dict_observations=True)
    self._dtype = dtype
    self._state = state

  def _observe(self, body: Any) -> Any:
    place = jnp.linspace(-1.5, 1.5, 6) - body['position']
    band = jnp.exp(-4 * jnp.square(place))[:, None, None]
    slope = jnp.linspace(0.5, 1.0, 5)[None, :, None]
    front = band * slope * jnp.array([1.0, 0.5])
    images = {'b': front, 'a': front[::-1] * jnp.abs(body['push'])}
    scale = 255 if jnp.issubdtype(self._dtype, jnp.integer) else 1
    pixels = {
      f'pixels/{name}': (scale * image).astype(self._dtype)
      for name, image in images.items()
    }
    return {**(super()._observe(body) if self._state else {}), **pixels}


class PlaygroundEnv(small_runs.PointEnv):
  """The point as an environment of MuJoCo Playground, for its wrappers."""

  _mjx_model: Any = None

  @property
  def mjx_model(self) -> Any:
    return self._mjx_model

  @property
  def sys(self) -> Any:
    return self._mjx_model

  @sys.setter
  def sys(self, sys: Any) -> None:
    self._mjx_model = sys

  def reset(self, rng: jax.Array) -> Any:
    return _playground(super().reset(rng))

  def step(self, state: Any, action: jax.Array) -> Any:
    before = (state.data, state.obs, state.reward, state.done)
    stock: Any = envs.State(*before, state.metrics, state.info)  # pyright: ignore[reportCallIssue]
    return _playground(super().step(stock, action))


def _playground(state: Any) -> Any:
  make: Any = PlaygroundState
  return make(
    state.pipeline_state,
    state.obs,
    state.reward,
    state.done,
    state.metrics,
    state.info,
  )
