"""Runs to be played: a small world with pictures, and what was saved of it."""

import json
import pathlib
from typing import Any

from brax import envs
from brax.training.acme import running_statistics
import jax
import numpy as np

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import saved_policies
from tests import small_runs

NAME = 'filmed_point'


class FilmedPoint(small_runs.PointEnv):
  """A `PointEnv` whose pictures are the brighter the further it is right."""

  dt = 0.05

  def __init__(self, offset: float = 0.0):
    super().__init__()
    self._offset = offset

  def _observe(self, body: Any) -> Any:
    return super()._observe(body) + self._offset

  def render(
    self, trajectory: Any, height: int, width: int, camera: Any = None
  ) -> list[Any]:
    del camera
    levels = [100 + round(50 * float(body['position'])) for body in trajectory]
    return [np.full((height, width, 3), n, np.uint8) for n in levels]


# Brax has a registry for environments that are not its own.
envs.register_environment(NAME, FilmedPoint)


def save_run(
  folder: pathlib.Path,
  factory: Any = small_runs.small_lstm,
  *,
  kind: str = 'lstm',
  arguments: Any = None,
  normalize: bool = False,
  offset: float = 0.0,
  environment: Any = None,
) -> tuple[Any, Any]:
  """Leaves in a folder what a run leaves; returns `make_policy` and params."""
  size = (2,)
  preprocess = running_statistics.normalize if normalize else lambda x, _: x
  networks = factory(size, 1, preprocess_observations_fn=preprocess)
  measured = lambda: saved_policies.measured_params(
    factory(size, 1), size, offset
  )
  params = jax.jit(measured)()
  config = checkpoint.network_config(
    factory, size, 1, normalize, std_eps=0.0, mode='welford'
  )
  checkpoint.save(folder / 'checkpoints', 7, params, config)
  text = {
    'environment': environment
    or {
      'suite': 'brax',
      'name': NAME,
      'config': {'offset': offset},
      'hidden_observations': [],
      'domain_randomization': False,
      'randomize_eval': True,
    },
    'network': {
      'kind': kind,
      'arguments': arguments or {'policy_memory_size': 3},
    },
    'ppo': {'episode_length': 4, 'action_repeat': 1},
  }
  (folder / 'config.json').write_text(json.dumps(text))
  return ppo_networks.make_inference_fn(networks), params


def actions_along(policy: Any, states: Any) -> Any:
  """The actions of a policy in the states of one episode, step by step."""
  memory: Any = ()
  if hasattr(policy, 'initial_state'):
    memory = (policy.initial_state(),)
  act = jax.jit(lambda *arguments: policy(*arguments))
  actions = []
  for state in states:
    action, extras = act(state.obs, jax.random.PRNGKey(0), *memory)
    memory = (extras['state'],) if memory else ()
    actions.append(np.asarray(action))
  return np.array(actions)
