"""The contenders of nnx-ppo, which nothing else needs."""

from collections.abc import Sequence
from typing import Any

from flax import nnx
import jax
from nnx_ppo.algorithms import config as nnx_ppo_config
from nnx_ppo.algorithms import ppo
from nnx_ppo.algorithms import rollout
from nnx_ppo.networks import adapter
from nnx_ppo.networks import containers
from nnx_ppo.networks import factories
from nnx_ppo.networks import feedforward
from nnx_ppo.networks import normalizer
from nnx_ppo.networks import recurrent
from nnx_ppo.networks import sampling_layers
from nnx_ppo.wrappers import episode_wrapper

from .benchmark_contender import Contender
from .benchmark_tasks import Task


def _port(sizes: Sequence[int], out: int, memory: bool, rngs: nnx.Rngs) -> Any:
  """Dense, memory, dense, and a dense layer as the output."""
  kwargs: dict[str, Any] = {
    'activation': nnx.swish,
    'kernel_init': jax.nn.initializers.lecun_uniform(),
  }
  layers: list[Any] = factories.make_mlp_layers(list(sizes), rngs, **kwargs)
  if memory:
    layers.insert(1, recurrent.LSTM(sizes[1], sizes[1], rngs))
  return [*layers, feedforward.Dense(sizes[-1], out, rngs)]


class NnxPpo(Contender):
  """Networks of the same sizes, trained by nnx-ppo."""

  def __init__(
    self,
    task: Task,
    memory: bool,
    value_hidden: Sequence[int] | None = None,
  ):
    """Sets up a contender.

    Args:
      task: sizes.
      memory: whether there is an LSTM after the first layer.
      value_hidden: hidden layers of a critic without memory, if it is not as
        the actor.
    """
    super().__init__(task)
    self._memory, self._value_hidden = memory, value_hidden

  def _make(self) -> tuple[Any, Any]:
    """Returns environment and network."""
    task, rngs = self.task, nnx.Rngs(0)
    env: Any = episode_wrapper.EpisodeWrapper(
      task.environment(), task.episode_length
    )
    size, hidden = env.observation_size, (task.size,) * 2
    sampler = sampling_layers.NormalTanhSampler(rngs, 1e-2)
    actor = _port((size, *hidden), 2 * env.action_size, self._memory, rngs)
    memory = self._memory and self._value_hidden is None
    critic = _port((size, *(self._value_hidden or hidden)), 1, memory, rngs)
    network = containers.Sequential(
      [
        normalizer.Normalizer(size),
        adapter.PPOAdapter(
          action=containers.Sequential([*actor, sampler]),
          value=containers.Sequential(critic),
        ),
      ]
    )
    return env, network

  def train(self, gate):
    task = self.task
    parameters = task.ppo_arguments()
    env, network = self._make()
    config = nnx_ppo_config.TrainConfig(
      ppo=nnx_ppo_config.PPOConfig(
        n_envs=task.num_envs,
        rollout_length=task.unroll_length,
        total_steps=2**62,
        n_epochs=task.num_updates_per_batch,
        n_minibatches=task.num_minibatches,
        learning_rate=parameters['learning_rate'],
        discounting_factor=parameters['discounting'],
        gradient_clipping=parameters['max_grad_norm'],
      ),
      eval=nnx_ppo_config.EvalConfig(enabled=False),
    )
    steps = 0

    def held(*_):
      nonlocal steps
      steps += 1
      if steps % task.training_steps == 0:
        gate()

    gate()
    ppo.train_ppo(env, network, config, log_fn=held)

  def acting(self):
    env, network = self._make()
    task = self.task
    keys = jax.random.split(jax.random.key(0), task.num_envs)
    env_state = jax.jit(jax.vmap(env.reset))(keys)
    carry = network.initialize_state(task.num_envs)
    graphdef, variables = nnx.split(network)

    def act(variables, env_state, carry, key):
      network = nnx.merge(graphdef, variables)
      *actors, data = rollout.unroll_env(
        env, env_state, network, carry, task.unroll_length, key
      )
      return data, (actors, nnx.state(network))

    return act, (variables, env_state, carry, jax.random.key(0))

  def evaluation(self):
    env, network = self._make()
    task = self.task
    network.eval()
    graphdef, variables = nnx.split(network)

    def evaluate(variables, key):
      return rollout.eval_rollout(
        env,
        nnx.merge(graphdef, variables),
        task.num_eval_envs,
        task.episode_length,
        key,
      )

    return evaluate, (variables, jax.random.key(0))
