"""What runs without flags: a task that needs memory, sized for a laptop.

CartpoleBalance shows its policy two velocities. Hidden, they have to be worked
out from past positions, which a network without memory cannot do. The control
step is longer than Playground's, so that the pole moves visibly between two
observations, and the sizes suit a CPU with a few cores.
"""

from typing import Any

CARTPOLE_BALANCE: dict[str, Any] = {
  'suite': 'playground',
  'env_name': 'CartpoleBalance',
  'environment': {'impl': 'jax', 'ctrl_dt': 0.04, 'sim_dt': 0.01},
  # The velocities of the cart and of the pole.
  'hide_observations': (3, 4),
  'network': 'lstm',
  'memory_size': 64,
  'network_factory': {
    'policy_hidden_layer_sizes': (64, 64),
    'value_hidden_layer_sizes': (64, 64),
    'normalize_inputs': True,
  },
  'ppo': {
    'num_timesteps': 2_600_000,
    'num_evals': 9,
    # An episode does not end when the pole falls; a reset stands it up again.
    'num_resets_per_eval': 10,
    'episode_length': 1000,
    'num_envs': 128,
    'num_eval_envs': 64,
    'batch_size': 64,
    'num_minibatches': 8,
    'unroll_length': 32,
    'num_updates_per_batch': 4,
    'discounting': 0.95,
    'gae_lambda': 0.9,
    'learning_rate': 5e-4,
    'entropy_cost': 1e-2,
    'max_grad_norm': 1.0,
    'reward_scaling': 1.0,
    'normalize_observations': False,
  },
}
