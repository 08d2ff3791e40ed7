"""PPO of an LSTM policy by hand: no NNX, no containers, one purpose.

What the benchmark measures the library against: the same arithmetic (dense,
LSTM, dense in actor and critic, an input normalizer, Brax's advantages and
distribution) written out for this one network.
"""

import dataclasses
import functools
from typing import Any

from brax.training.agents.ppo.losses import compute_gae
from brax.training.distribution import NormalTanhDistribution
import jax
import jax.numpy as jnp
import optax

Tree = Any


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes and coefficients, named as in `ppo.train`."""

  num_envs: int
  batch_size: int
  num_minibatches: int
  unroll_length: int
  num_updates_per_batch: int
  hidden: int = 64
  discounting: float = 0.95
  gae_lambda: float = 0.9
  learning_rate: float = 5e-4
  entropy_cost: float = 1e-2
  max_grad_norm: float = 1.0
  reward_scaling: float = 1.0
  clipping_epsilon: float = 0.3
  vf_loss_coefficient: float = 0.5

  @property
  def env_steps(self) -> int:
    """Env steps of one training step."""
    return self.batch_size * self.num_minibatches * self.unroll_length


def _dense_init(key, n_in, n_out):
  kernel = jax.nn.initializers.lecun_uniform()(key, (n_in, n_out))
  return {'kernel': kernel, 'bias': jnp.zeros(n_out)}


def _network_init(key, n_in, n_out, hidden):
  keys = jax.random.split(key, 5)
  return {
    'before': _dense_init(keys[0], n_in, hidden),
    'input': jax.nn.initializers.lecun_normal()(keys[1], (hidden, 4 * hidden)),
    'memory': {
      'kernel': jax.nn.initializers.orthogonal()(keys[2], (hidden, 4 * hidden)),
      'bias': jnp.zeros(4 * hidden),
    },
    'after': _dense_init(keys[3], hidden, hidden),
    'output': _dense_init(keys[4], hidden, n_out),
  }


def _dense(params, x):
  return x @ params['kernel'] + params['bias']


def _cell(params, carry, x):
  c, h = carry
  gates = x @ params['input'] + _dense(params['memory'], h)
  i, f, g, o = jnp.split(gates, 4, axis=-1)
  c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
  h = jax.nn.sigmoid(o) * jnp.tanh(c)
  return (c, h), h


def _reset(is_first, carry):
  return jax.tree.map(lambda x: jnp.where(is_first[:, None] > 0, 0.0, x), carry)


def _head(params, h):
  return _dense(params['output'], jax.nn.swish(_dense(params['after'], h)))


def _step(params, carry, x, is_first):
  x = jax.nn.swish(_dense(params['before'], x))
  carry, h = _cell(params, _reset(is_first, carry), x)
  return carry, _head(params, h)


def _sequence(params, carry, x, is_first):
  x = jax.nn.swish(_dense(params['before'], x))

  def step(carry, inputs):
    x, is_first = inputs
    return _cell(params, _reset(is_first, carry), x)

  carry, h = jax.lax.scan(step, carry, (x, is_first))
  return carry, _head(params, h)


def _normalize(stats, x):
  mean, m2, count = stats
  variance = jnp.maximum(m2 / jnp.maximum(count, 1.0), 1e-6)
  return (x - mean) / jnp.where(count > 0, jnp.sqrt(variance), 10.0)


def _merge(stats, x):
  mean, m2, count = stats
  n = x.shape[0] * x.shape[1]
  batch_mean = x.mean((0, 1))
  delta = batch_mean - mean
  total = count + n
  m2 += ((x - batch_mean) ** 2).sum((0, 1)) + delta**2 * count * n / total
  return mean + delta * n / total, m2, total


@dataclasses.dataclass(frozen=True)
class PlainPPO:
  """Training of one network in one environment.

  Attributes:
    env: batched, with auto-reset.
    config: of the run.
    observation_size: of a flat observation.
    action_size: of the environment.
  """

  env: Any
  config: Config
  observation_size: int
  action_size: int

  @functools.cached_property
  def distribution(self) -> Any:
    """The action distribution."""
    return NormalTanhDistribution(self.action_size)

  @functools.cached_property
  def optimizer(self) -> optax.GradientTransformation:
    """Adam behind gradient clipping."""
    return optax.chain(
      optax.clip_by_global_norm(self.config.max_grad_norm),
      optax.adam(self.config.learning_rate),
    )

  def init(self, key: jax.Array) -> Tree:
    """Returns the state before the first training step."""
    config, size = self.config, self.observation_size
    keys = jax.random.split(key, 4)
    params: Any = {
      'policy': _network_init(
        keys[0], size, 2 * self.action_size, config.hidden
      ),
      'value': _network_init(keys[1], size, 1, config.hidden),
    }
    env_state = self.env.reset(jax.random.split(keys[2], config.num_envs))
    memory = (jnp.zeros((config.num_envs, config.hidden)),) * 2
    actors = (env_state, {'policy': memory, 'value': memory})
    stats = (jnp.zeros(size), jnp.zeros(size), jnp.array(0.0))
    return params, self.optimizer.init(params), stats, actors, keys[3]

  def _unroll(self, params, stats, actors, key):
    """Records one segment of every environment."""
    dist = self.distribution

    def step(carry, _):
      env_state, memory, key = carry
      key, sample_key = jax.random.split(key)
      is_first = env_state.done
      x = _normalize(stats, env_state.obs)
      policy, logits = _step(params['policy'], memory['policy'], x, is_first)
      value, _ = _step(params['value'], memory['value'], x, is_first)
      raw = dist.sample_no_postprocessing(logits, sample_key)
      next_state = self.env.step(env_state, dist.postprocess(raw))
      record = {
        'obs': env_state.obs,
        'is_first': is_first,
        'raw': raw,
        'log_prob': dist.log_prob(logits, raw),
        'reward': next_state.reward,
        'done': next_state.done,
        'truncation': next_state.info['truncation'],
      }
      return (next_state, {'policy': policy, 'value': value}, key), record

    start = actors[1]
    (env_state, memory, _), data = jax.lax.scan(
      step, (*actors, key), (), length=self.config.unroll_length
    )
    last = {'obs': env_state.obs, 'is_first': env_state.done, 'start': start}
    return (env_state, memory), (data, last)

  def collect(self, params: Tree, stats: Tree, actors: Tree, key: jax.Array):
    """Records the segments of one training step, `[segments, T, ...]`."""
    config = self.config
    segments = config.batch_size * config.num_minibatches
    actors, (data, last) = jax.lax.scan(
      lambda actors, key: self._unroll(params, stats, actors, key),
      actors,
      jax.random.split(key, segments // config.num_envs),
    )
    merge = lambda x: x.reshape((segments, *x.shape[2:]))
    data = jax.tree.map(lambda x: merge(jnp.swapaxes(x, 1, 2)), data)
    return actors, (data, jax.tree.map(merge, last))

  def _loss(self, params, stats, data, last, key):
    config, dist = self.config, self.distribution
    x = _normalize(stats, data['obs'])
    start, is_first = last['start'], data['is_first']
    _, logits = _sequence(params['policy'], start['policy'], x, is_first)
    memory, value = _sequence(params['value'], start['value'], x, is_first)
    _, bootstrap = _step(
      params['value'], memory, _normalize(stats, last['obs']), last['is_first']
    )
    value, bootstrap = value[..., 0], bootstrap[..., 0]
    targets, advantages = compute_gae(
      data['truncation'],
      data['done'] * (1 - data['truncation']),
      data['reward'] * config.reward_scaling,
      value,
      bootstrap,
      config.gae_lambda,
      config.discounting,
    )
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    rho = jnp.exp(dist.log_prob(logits, data['raw']) - data['log_prob'])
    epsilon = config.clipping_epsilon
    clipped = jnp.clip(rho, 1 - epsilon, 1 + epsilon) * advantages
    policy_loss = -jnp.mean(jnp.minimum(rho * advantages, clipped))
    value_loss = 0.5 * jnp.mean((targets - value) ** 2)
    entropy = jnp.mean(dist.entropy(logits, key))
    return (
      policy_loss
      + config.vf_loss_coefficient * value_loss
      - config.entropy_cost * entropy
    )

  def _minibatch(self, carry, rows, *, stats, data, last):
    params, optimizer_state, key = carry
    key, key_loss = jax.random.split(key)
    batch = jax.tree.map(lambda x: jnp.swapaxes(x[rows], 0, 1), data)
    rest = jax.tree.map(lambda x: x[rows], last)
    grads = jax.grad(self._loss)(params, stats, batch, rest, key_loss)
    updates, optimizer_state = self.optimizer.update(grads, optimizer_state)
    params = optax.apply_updates(params, updates)
    return (params, optimizer_state, key), None

  def train_step(self, state: Tree, _: Any) -> tuple[Tree, None]:
    """Takes one rollout with its gradient updates, as a body for `scan`."""
    config = self.config
    segments = config.batch_size * config.num_minibatches
    params, optimizer_state, stats, actors, key = state
    key, key_rollout, key_sgd = jax.random.split(key, 3)
    actors, (data, last) = self.collect(params, stats, actors, key_rollout)
    minibatch = functools.partial(
      self._minibatch, stats=stats, data=data, last=last
    )

    def epoch(carry, key):
      order = jax.random.permutation(key, segments)
      rows = order.reshape((config.num_minibatches, -1))
      return jax.lax.scan(minibatch, (*carry, key), rows)[0][:2], None

    (params, optimizer_state), _ = jax.lax.scan(
      epoch,
      (params, optimizer_state),
      jax.random.split(key_sgd, config.num_updates_per_batch),
    )
    return (
      params,
      optimizer_state,
      _merge(stats, data['obs']),
      actors,
      key,
    ), None
