"""Stock networks end with the parameters of stock Brax, bit for bit on a CPU.

The environments, the networks and ten training steps are the same; only the
`train` is another one.
"""

import functools
from typing import Any

from brax import envs
from brax.training.agents.ppo import train as brax_train
import jax
import jax.numpy as jnp
from mujoco_playground import wrapper
import numpy as np
import pytest

from brax_nnx_plugin.ppo import train as ppo_train
from tests import parity_envs
from tests import small_runs

pytestmark = pytest.mark.optimized

_ASYMMETRIC = functools.partial(
  parity_envs.stock_mlp, value_obs_key='privileged_state'
)
_PLAYGROUND = {
  'environment': parity_envs.PlaygroundEnv(),
  'normalize_observations': True,
}
_FAST: dict[str, dict[str, Any]] = {
  'normalized observations': {'normalize_observations': True},
  'quantiles, adaptive learning rate, time-outs': {
    'network_factory': functools.partial(
      parity_envs.stock_quantiles,
      distribution_type='normal',
      noise_std_type='log',
    ),
    'use_distributional_critic': True,
    'clipping_epsilon_value': 0.5,
    'learning_rate_schedule': 'ADAPTIVE_KL',
    'desired_kl': 1e-3,
    'bootstrap_on_timeout': True,
    'normalize_observations': True,
  },
  'augmented whole-number pixels': {
    'environment': parity_envs.PixelEnv(jnp.uint8),
    'network_factory': parity_envs.stock_vision_and_state,
    'vision': True,
    'augment_pixels': True,
    'normalize_observations': True,
  },
}
_SLOW: dict[str, dict[str, Any]] = {
  **parity_envs.OPTIONS,
  'all defaults': {},
  'an environment that is wrapped already': {
    'environment': envs.training.wrap(small_runs.PointEnv(), 8),
    'wrap_env': False,
  },
  'wrapped by Playground': {
    **_PLAYGROUND,
    'wrap_env_fn': wrapper.wrap_for_brax_training,
  },
  'wrapped by Playground, full resets, random gains': {
    **_PLAYGROUND,
    'wrap_env_fn': functools.partial(
      wrapper.wrap_for_brax_training, full_reset=True
    ),
    'randomization_fn': small_runs.random_gains,
  },
  'dict observations, asymmetric critic': {
    'environment': small_runs.PointEnv(dict_observations=True),
    'network_factory': _ASYMMETRIC,
    'normalize_observations': True,
  },
  'a normal distribution of its own width': {
    'network_factory': functools.partial(
      parity_envs.stock_mlp,
      distribution_type='normal',
      state_dependent_std=True,
      noise_std_type='log',
      mean_clip_scale=2.0,
      activation=jax.nn.elu,
      policy_network_kernel_init_fn=jax.nn.initializers.orthogonal,
    ),
    'desired_kl': 1e-3,
    'learning_rate_schedule': 'ADAPTIVE_KL',
  },
  'pixels and state': {
    'environment': parity_envs.PixelEnv(),
    'network_factory': parity_envs.stock_vision_and_state,
    'vision': True,
    'normalize_observations': True,
  },
  'nothing but augmented pixels': {
    'environment': parity_envs.PixelEnv(state=False),
    'network_factory': functools.partial(
      parity_envs.stock_vision, normalise_channels=True
    ),
    'augment_pixels': True,
    'normalize_observations': True,
  },
  'augmentation of a dict without pixels': {
    'environment': small_runs.PointEnv(dict_observations=True),
    'network_factory': parity_envs.stock_mlp,
    'augment_pixels': True,
  },
  'quantiles': {
    'network_factory': parity_envs.stock_quantiles,
    'use_distributional_critic': True,
    'clipping_epsilon_value': 0.2,
  },
  'evaluated, logged, on two devices': {
    'max_devices_per_host': 2,
    'normalize_observations': True,
    'num_evals': 3,
    'run_evals': True,
    'log_training_metrics': True,
  },
  'resets, random gains, quantiles on two devices': {
    'max_devices_per_host': 2,
    'num_evals': 3,
    'num_resets_per_eval': 1,
    'randomization_fn': small_runs.random_gains,
    'network_factory': parity_envs.stock_quantiles,
    'use_distributional_critic': True,
    'clipping_epsilon_value': 0.2,
    'learning_rate_schedule': 'ADAPTIVE_KL',
  },
  'augmented pixels on two devices': {
    'environment': parity_envs.PixelEnv(jnp.uint8),
    'network_factory': parity_envs.stock_vision_and_state,
    'max_devices_per_host': 2,
    'augment_pixels': True,
    'max_grad_norm': 0.5,
  },
}
_CASES = [
  *(pytest.param(case, id=name) for name, case in _FAST.items()),
  *(
    pytest.param(case, id=name, marks=pytest.mark.slow)
    for name, case in _SLOW.items()
  ),
]


def _run(train: Any, overrides: dict[str, Any]) -> tuple[Any, int]:
  """Returns the final parameters of `train`, and the env steps it reported."""
  steps = []
  named = {'network_factory': parity_envs.stock_mlp} | overrides
  _, params, _ = train(
    **small_runs.arguments(
      policy_params_fn=lambda step, *unused: steps.append(step), **named
    )
  )
  return params, steps[-1]


def _differences(ours: Any, stock: Any) -> list[str]:
  """Names the leaves whose bits differ."""
  different = []
  pairs = zip(
    jax.tree_util.tree_leaves_with_path(ours),
    jax.tree.leaves(stock),
    strict=True,
  )
  for (path, a), b in pairs:
    a, b = np.asarray(a), np.asarray(b)
    same_type = (a.dtype, a.shape) == (b.dtype, b.shape)
    if not same_type or a.tobytes() != b.tobytes():
      different.append(jax.tree_util.keystr(path))
  return different


@pytest.mark.parametrize('overrides', _CASES)
def test_stock_networks_end_with_the_bits_of_stock_brax(stock_jax, overrides):
  ours, our_steps = _run(ppo_train.train, overrides)
  stock, stock_steps = _run(brax_train.train, overrides)

  assert our_steps == stock_steps >= 10 * small_runs.STEP
  assert jax.tree.structure(ours) == jax.tree.structure(stock)
  assert _differences(ours, stock) == []


def test_one_bit_is_a_difference():
  a = {'x': np.array([1.0, 0.0], np.float32), 'y': np.ones(2)}
  last = np.nextafter(np.float32(1), np.float32(2))

  assert _differences(a, a) == []
  assert _differences(a | {'x': np.array([last, 0], np.float32)}, a) == [
    "['x']"
  ]
  assert _differences(a | {'x': np.array([1, -0.0], np.float32)}, a) == [
    "['x']"
  ]
