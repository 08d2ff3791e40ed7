"""The optimizer: Adam as Brax sets it up."""

from typing import Any

from brax.training.agents.ppo import optimizer as brax_optimizer
import jax
import jax.numpy as jnp
import optax

from brax_nnx_plugin.ppo.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
  """Makes Adam, behind gradient clipping if asked for.

  A learning rate that is a function is called with the number of gradient steps
  so far, which is part of the state.

  Args:
    config: of the optimizer.
  """
  if config.adaptive_kl:
    # The learning rate becomes part of the state, to be changed as we go.
    optimizer = optax.inject_hyperparams(optax.adam)(
      learning_rate=config.learning_rate
    )
  else:
    optimizer = optax.adam(learning_rate=config.learning_rate)
  if config.max_grad_norm is None:
    return optimizer
  return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)


def gradient_steps(state: Any) -> jax.Array:
  """Returns how many gradient steps a state has seen; 0 if it has no count."""
  counts = optax.tree.get_all_with_path(state, 'count')
  return counts[0][1] if counts else jnp.int32(0)


def adapt_learning_rate(
  state: Any, kl_mean: jax.Array, config: OptimizerConfig
) -> tuple[Any, jax.Array]:
  """Returns the optimizer state and the learning rate for the next update.

  Args:
    state: of the optimizer.
    kl_mean: divergence from the acting policy, the mean over devices.
    config: of the optimizer.
  """
  if callable(config.learning_rate):
    return state, jnp.asarray(config.learning_rate(gradient_steps(state)))
  if not config.adaptive_kl:
    return state, jnp.array(config.learning_rate)
  # Brax's function writes into the state it is given.
  copy = jax.tree.map(lambda x: x, state)
  return brax_optimizer.adaptive_kl_learning_rate(
    copy,
    kl_mean,
    config.desired_kl,
    min_learning_rate=config.learning_rate_schedule_min_lr,
    max_learning_rate=config.learning_rate_schedule_max_lr,
  )
