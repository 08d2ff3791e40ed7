"""What a benchmark compares: PPO of several libraries, run their own way.

Every contender trains through the public training function of its library,
whose callback is where it is held; what cannot be held there (acting alone,
evaluation) is called beside it.
"""

from collections.abc import Iterator
import contextlib
import functools
from typing import Any

from brax import envs
from brax.training import acting
from brax.training.acme import running_statistics
from brax.training.acme import specs
from brax.training.agents.ppo import networks as brax_networks
from brax.training.agents.ppo import train as brax_train
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import rollout
from brax_nnx_plugin.ppo import train as ppo_train

from . import plain_lstm_ppo
from .benchmark_contender import Contender
from .benchmark_tasks import Task

# More than anybody waits for; training ends when its gate says so.
_MANY = 10**6


@contextlib.contextmanager
def stock_jax() -> Iterator[None]:
  """Lends stock Brax the function that newer versions of JAX have dropped."""

  def device_put_replicated(tree, devices):
    mesh = jax.sharding.Mesh(np.array(devices), ('i',))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('i'))
    return jax.tree.map(
      lambda x: jax.device_put(jnp.stack([x] * len(devices)), sharding), tree
    )

  name = 'device_put_replicated'
  if hasattr(jax, name):
    yield
    return
  setattr(jax, name, device_put_replicated)
  try:
    yield
  finally:
    delattr(jax, name)


class _Drop(Contender):
  """What `train` of Brax and of this library have in common."""

  def __init__(self, task: Task, train: Any, factory: Any, normalize: bool):
    super().__init__(task)
    self._train, self._factory = train, factory
    self._normalize = normalize

  def train(self, gate):
    task = self.task
    with stock_jax():
      self._train(
        environment=task.environment(),
        network_factory=self._factory,
        normalize_observations=self._normalize,
        num_timesteps=(_MANY - 1) * task.env_steps,
        num_evals=_MANY,
        run_evals=False,
        policy_params_fn=gate,
        **task.ppo_arguments(),
      )

  def _start(self) -> tuple[Any, Any, Any, Any]:
    """Returns environment, its state, networks and Brax's statistics."""
    env = self.task.wrap(self.task.environment())
    env_state = jax.jit(env.reset)(self.task.reset_keys())
    size = env_state.obs.shape[-1]
    preprocess = {
      'preprocess_observations_fn': running_statistics.normalize
      if self._normalize
      else lambda x, _: x
    }
    networks = self._factory(size, env.action_size, **preprocess)
    spec = specs.Array((size,), jnp.dtype('float32'))
    return env, env_state, networks, running_statistics.init_state(spec)


class Stock(_Drop):
  """Stock Brax, whose networks have no memory."""

  def __init__(self, task: Task):
    hidden = (task.size,) * 2
    factory = functools.partial(
      brax_networks.make_ppo_networks,
      policy_hidden_layer_sizes=hidden,
      value_hidden_layer_sizes=hidden,
    )
    super().__init__(task, brax_train.train, factory, True)

  def _policy(self, networks, statistics) -> tuple[Any, Any]:
    key = jax.random.PRNGKey(0)
    params = (
      statistics,
      networks.policy_network.init(key),
      networks.value_network.init(key),
    )
    return brax_networks.make_inference_fn(networks), params

  def acting(self):
    env, env_state, networks, statistics = self._start()
    make_policy, params = self._policy(networks, statistics)

    def act(params, env_state, key):
      def unroll(env_state, key):
        return acting.generate_unroll(
          env,
          env_state,
          make_policy(params),
          key,
          self.task.unroll_length,
          extra_fields=('truncation',),
        )

      keys = jax.random.split(key, self.task.unrolls)
      return jax.lax.scan(unroll, env_state, keys)[::-1]

    return act, (params, env_state, jax.random.PRNGKey(0))

  def evaluation(self):
    env, _, networks, statistics = self._start()
    make_policy, params = self._policy(networks, statistics)
    env, task = envs.training.EvalWrapper(env), self.task

    def evaluate(params, key):
      state = env.reset(jax.random.split(key, task.num_eval_envs))
      policy, steps = make_policy(params), task.episode_length
      return acting.generate_unroll(env, state, policy, key, steps)[0]

    return evaluate, (params, jax.random.PRNGKey(0))


class Ours(_Drop):
  """This library."""

  def __init__(self, task: Task, factory: Any, normalize: bool = False):
    super().__init__(task, ppo_train.train, factory, normalize)

  def acting(self):
    env, env_state, networks, statistics = self._start()
    functions, key = networks.functions, jax.random.PRNGKey(0)
    variables = functions.init(key, key)
    carry = functions.initial_state(variables, self.task.num_envs, key)

    def act(variables, statistics, actors, key):
      return rollout.collect(
        env,
        functions,
        variables,
        statistics,
        actors,
        key,
        self.task.unroll_length,
        self.task.unrolls,
      )[::-1]

    return act, (variables, statistics, rollout.start(env_state, carry), key)

  def evaluation(self):
    env, _, networks, statistics = self._start()
    functions, key = networks.functions, jax.random.PRNGKey(0)
    evaluate = functools.partial(
      rollout.eval_rollout,
      envs.training.EvalWrapper(env),
      functions,
      num_envs=self.task.num_eval_envs,
      num_steps=self.task.episode_length,
    )
    return (
      lambda *args: evaluate(*args),
      (functions.init(key, key), statistics, key),
    )


def mlp(task: Task) -> Ours:
  """Stock Brax's network as an NNX module, with Brax's normalizer."""
  hidden = (task.size,) * 2
  return Ours(
    task,
    functools.partial(
      ppo_networks.make_ppo_networks,
      policy_hidden_layer_sizes=hidden,
      value_hidden_layer_sizes=hidden,
    ),
    normalize=True,
  )


def recurrent(task: Task, cell: str, **overrides: Any) -> Ours:
  """Dense, memory, dense, with an embedded normalizer."""
  arguments: dict[str, Any] = {
    'cell': cell,
    'policy_hidden_layer_sizes': (task.size,) * 2,
    'value_hidden_layer_sizes': (task.size,) * 2,
    'policy_memory_size': task.size,
    'value_memory_size': task.size,
    'normalize_inputs': True,
  }
  factory = functools.partial(
    ppo_networks.make_recurrent_ppo_networks, **arguments | overrides
  )
  return Ours(task, factory)


class ByHand(Contender):
  """The same arithmetic as `recurrent(cell='lstm')`, in plain JAX."""

  def __init__(self, task: Task):
    super().__init__(task)
    parameters = task.ppo_arguments()
    fields = plain_lstm_ppo.Config.__dataclass_fields__
    config = {name: parameters[name] for name in fields if name in parameters}
    self._config = plain_lstm_ppo.Config(hidden=task.size, **config)

  def _start(self) -> tuple[plain_lstm_ppo.PlainPPO, Any]:
    env: Any = self.task.wrap(self.task.environment())
    plain = plain_lstm_ppo.PlainPPO(
      env, self._config, env.observation_size, env.action_size
    )
    state = jax.jit(plain.init)(jax.random.PRNGKey(0))
    # Weak types would change with the first step, and compile it again.
    return plain, jax.tree.map(lambda x: x.astype(x.dtype), state)

  def train(self, gate):
    plain, state = self._start()
    run = jax.jit(
      lambda state: jax.lax.scan(
        plain.train_step, state, (), length=self.task.training_steps
      )[0],
      donate_argnums=0,
    )
    while True:
      gate()
      state = jax.block_until_ready(run(state))

  def acting(self):
    plain, (params, _, stats, actors, key) = self._start()
    return lambda *args: plain.collect(*args)[::-1], (
      params,
      stats,
      actors,
      key,
    )

  def evaluation(self):
    return None
