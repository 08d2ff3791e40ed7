"""The PPO loss over replayed segments.

The twin of `brax.training.agents.ppo.losses`. Where Brax applies two memoryless
networks to the recorded observations, this replays one network, with its carry
and its rollout extras, through each segment; the terms are Brax's.
"""

import dataclasses
from typing import Any

from brax.training import distribution
from brax.training.agents.ppo.losses import compute_gae as compute_gae
from brax.training.agents.ppo.losses import quantile_huber_loss
import jax
import jax.numpy as jnp

from brax_nnx_plugin.ppo.config import LossConfig
from brax_nnx_plugin.ppo.rollout_data import full_extras
from brax_nnx_plugin.ppo.rollout_data import map_rollout
from brax_nnx_plugin.ppo.types import NetworkFunctions
from brax_nnx_plugin.ppo.types import NetworkOutput
from brax_nnx_plugin.ppo.types import NetworkVariables
from brax_nnx_plugin.ppo.types import PPONetworkParams
from brax_nnx_plugin.ppo.types import Rollout

Metrics = dict[str, jax.Array]


def check_critic(distributional: bool, config: LossConfig) -> None:
  """Raises unless the critic and its loss are of one kind.

  Args:
    distributional: whether the network estimates quantiles of the return.
    config: of the loss.

  Raises:
    ValueError: if one does and the other does not.
  """
  if distributional == config.use_distributional_critic:
    return
  if distributional:
    raise ValueError(
      'The value network estimates quantiles of the return, which the loss'
      ' would ignore. Set use_distributional_critic=True in train, or make the'
      ' network without it.'
    )
  raise ValueError(
    'use_distributional_critic=True needs a value network that estimates'
    ' quantiles of the return, and this one estimates a single number. Make it'
    ' with use_distributional_critic=True too (a keyword of Brax'
    ' make_ppo_networks), or leave it False.'
  )


def replay(
  networks: NetworkFunctions,
  variables: NetworkVariables,
  normalizer_params: Any,
  data: Rollout,
  key: jax.Array,
) -> tuple[NetworkOutput, jax.Array]:
  """Runs the network again over recorded segments.

  Starts from each segment's carry and resets where the rollout did. No
  gradient flows into the start carry.

  Args:
    networks: the network.
    variables: current variables.
    normalizer_params: Brax's observation statistics.
    data: segments, time first: `[T, B, ...]`.
    key: for the entropy estimate.

  Returns:
    The network's output `[T, B, ...]`, and the bootstrap value `[B]`: of the
    observation after the last step, with the carry after the last step, or a
    fresh one where that step ended the episode. It is 0 where the loss does not
    use it, and nothing depends on it by gradient.
  """
  is_first = jnp.concatenate([data.start_is_first[None], data.done[:-1]])
  out = networks.unroll(
    variables,
    normalizer_params,
    jax.lax.stop_gradient(data.start_carry),
    data.observation,
    key,
    is_first=is_first,
    extras=full_extras(data),
  )
  peek = networks.step(
    variables,
    normalizer_params,
    out.state,
    data.last_observation,
    key,
    is_first=data.done[-1],
  )
  # Selected, not multiplied: what is not used may be NaN.
  unused = data.done[-1].astype(bool) | data.truncation[-1].astype(bool)
  bootstrap = jnp.where(unused, 0.0, jax.lax.stop_gradient(peek.value))
  return out, bootstrap


def ppo_loss(
  params: PPONetworkParams,
  variables: NetworkVariables,
  normalizer_params: Any,
  data: Rollout,
  key: jax.Array,
  gradient_steps: jax.Array | int = 0,
  *,
  networks: NetworkFunctions,
  config: LossConfig,
) -> tuple[jax.Array, Metrics]:
  """Computes the PPO loss of a minibatch.

      L = -mean(min(ρ A, clip(ρ, 1 - ε, 1 + ε) A))
          + 0.5 c_v mean((v_target - v)²) - c_e mean(H) + mean(regularization)

  with ρ the ratio of the replayed to the recorded likelihood and A Brax's
  advantage (GAE whose λ does not weight the first step). With a distributional
  critic the second term is c_v times the quantile Huber loss of A + v.

  Args:
    params: what is differentiated.
    variables: the rest of the network; its `params` are replaced.
    normalizer_params: Brax's observation statistics.
    data: segments `[B, T, ...]`, as Brax lays them out.
    key: for the entropy estimate.
    gradient_steps: so far; what a schedule of the entropy cost is called with.
    networks: the network.
    config: coefficients.

  Returns:
    The loss, and metrics under the names Brax has; a network's own are under
    'network/'.

  References:
    Schulman et al., Proximal policy optimization algorithms, 2017, equations 7
    and 9. `brax.training.agents.ppo.losses.compute_ppo_loss`; differs from it
    where a masked bootstrap value is not finite, which here does no harm.
  """
  data = map_rollout(data, lambda x: jnp.swapaxes(x, 0, 1), lambda x: x)
  variables = dataclasses.replace(variables, params=params)
  out, bootstrap = replay(networks, variables, normalizer_params, data, key)
  check_critic(out.quantiles is not None, config)

  termination = data.done * (1 - data.truncation)
  targets, advantages = compute_gae(
    truncation=data.truncation,
    termination=termination,
    rewards=data.reward * config.reward_scaling,
    values=out.value,
    bootstrap_value=bootstrap,
    lambda_=config.gae_lambda,
    discount=config.discounting,
  )
  returns = jax.lax.stop_gradient(advantages + out.value)
  policy_loss = _policy_loss(out, data, advantages, config)
  if config.use_distributional_critic:
    v_loss = _quantile_loss(out, returns, config)
  else:
    v_loss = _value_loss(out, data, targets, config)
  entropy = 0.0 if out.entropy is None else jnp.mean(out.entropy)
  entropy_cost = config.entropy_cost
  if callable(entropy_cost):
    entropy_cost = entropy_cost(gradient_steps)
  entropy_loss = entropy_cost * -entropy
  total_loss = policy_loss + v_loss + entropy_loss
  metrics = {
    'policy_loss': policy_loss,
    'v_loss': v_loss,
    'entropy_loss': jnp.asarray(entropy_loss),
    **_distribution_metrics(out, data),
  }
  drift = carry_drift(out.state, data.end_carry)
  if drift is not None:
    metrics['carry_drift'] = drift
  if callable(config.entropy_cost):
    metrics['entropy_cost'] = jnp.asarray(entropy_cost)
  if out.regularization_loss is not None:
    total_loss += out.regularization_loss
    metrics['regularization_loss'] = out.regularization_loss
    metrics.update(_flat_means('network', out.metrics))
  return total_loss, {'total_loss': total_loss, **metrics}


def carry_drift(replayed: Any, recorded: Any) -> jax.Array | None:
  """Says how far memory is from what it would be under current weights.

      mean |replayed - recorded|

  over the numbers of the carry after the last step of a segment. It is 0, but
  for rounding, before the first gradient step of a training step, and grows
  with the passes over the data: their segments start from recorded carries.

  Args:
    replayed: after a replay with current weights.
    recorded: when the network acted; `None` if unknown.

  Returns:
    A scalar, or `None` if there is nothing to compare.
  """
  if recorded is None:
    return None
  pairs = [
    (new, old)
    for new, old in zip(
      jax.tree.leaves(replayed), jax.tree.leaves(recorded), strict=True
    )
    if jnp.issubdtype(old.dtype, jnp.floating)
  ]
  if not pairs:
    return None
  gaps = [jnp.abs(new - old).astype(jnp.float32).ravel() for new, old in pairs]
  gap = jax.lax.stop_gradient(jnp.concatenate(gaps))
  # Carries may mark what they do not know yet by a NaN.
  return jnp.mean(jnp.where(jnp.isfinite(gap), gap, 0.0))


def _policy_loss(out, data, advantages, config) -> jax.Array:
  if config.normalize_advantage:
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
  rho = jnp.exp(out.log_likelihood - data.log_likelihood)
  epsilon = config.clipping_epsilon
  clipped = jnp.clip(rho, 1 - epsilon, 1 + epsilon) * advantages
  return -jnp.mean(jnp.minimum(rho * advantages, clipped))


def _value_loss(out, data, targets, config) -> jax.Array:
  error = targets - out.value
  loss = error * error
  epsilon = config.clipping_epsilon_value
  if epsilon is not None:
    near = data.value + jnp.clip(out.value - data.value, -epsilon, epsilon)
    loss = jnp.maximum(loss, (targets - near) ** 2)
  return jnp.mean(loss) * 0.5 * config.vf_loss_coefficient


def _quantile_loss(out, returns, config) -> jax.Array:
  loss = quantile_huber_loss(
    out.quantiles, returns, kappa=config.clipping_epsilon_value
  )
  return loss * config.vf_loss_coefficient


def _distribution_metrics(out: NetworkOutput, data: Rollout) -> Metrics:
  """Returns the KL to the acting policy, and what it looks like now."""
  if out.loc is None or out.scale is None or data.loc is None:
    return {'kl_mean': jnp.array(0.0)}
  normal: Any = distribution.NormalDistribution(event_size=out.loc.shape[-1])
  new = normal.create_dist((out.loc, out.scale))
  old = normal.create_dist((data.loc, data.scale))
  metrics = {'kl_mean': jnp.mean(new.kl_divergence(old))}
  for name, value in (('std', out.scale), ('loc', out.loc)):
    for fn in (jnp.mean, jnp.max, jnp.min):
      metrics[f'policy_dist_{fn.__name__}_{name}'] = fn(value)
  return metrics


def _flat_means(name: str, metrics: Any) -> Metrics:
  """Flattens nested metrics to the mean of each leaf."""
  return {
    f'{name}/{jax.tree_util.keystr(path, simple=True, separator="/")}': (
      jnp.mean(leaf)
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(metrics)
  }
