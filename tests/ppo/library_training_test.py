"""Every kind of layer trains, and replays exactly what acted."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import assembly
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo.learner import Learner
from tests import library
from tests import segments
from tests import small_runs

STEPS = 3
# The others take as long again; they run where the slow tests do.
FAST = {('graph', 2), ('variational', 1), ('map_of_samplers', 1)}
CASES = [(name, count) for name in library.NETWORKS for count in (1, 2)]


class TwoPartEnv(small_runs.PointEnv):
  """A point that two actions push together, handed over as a dict."""

  action_size: Any = 2

  def step(self, state, action):
    return super().step(state, (action['legs'] + action['arms']) / 2)


class ProbeLearner(Learner):
  """Reports how far a replay of the rollout is off, before any update."""

  errors: list[float] = []

  def collect(self, state, actors, key):
    actors, data = super().collect(state, actors, key)
    out, _ = segments.replay(
      self.networks, state.variables, data, state.normalizer_params
    )
    error = jnp.max(jnp.abs(out.log_likelihood.T - data.log_likelihood))
    jax.debug.callback(lambda e: self.errors.append(float(e)), error)
    return actors, data


@pytest.mark.parametrize(
  ('name', 'device_count'),
  [
    pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow)
    for case in CASES
  ],
)
def test_it_trains_and_its_replay_is_exact(name, device_count, monkeypatch):
  monkeypatch.setattr(assembly, 'Learner', ProbeLearner)
  monkeypatch.setattr(ProbeLearner, 'errors', [])
  env = TwoPartEnv() if name == 'map_of_samplers' else small_runs.PointEnv()
  params = []

  small_runs.small_train(
    environment=env,
    network_factory=ppo_networks.make_network_factory(library.NETWORKS[name]),
    num_timesteps=STEPS * small_runs.STEP,
    max_devices_per_host=device_count,
    policy_params_fn=lambda step, make_policy, p: params.append(p),
  )
  jax.effects_barrier()

  assert len(ProbeLearner.errors) == STEPS * device_count
  assert max(ProbeLearner.errors) < 1e-5
  before, after = params[0], params[-1]
  for part in (1, 2):
    for path, leaf in jax.tree_util.tree_leaves_with_path(after[part]):
      assert np.all(np.isfinite(leaf)), path
    assert small_runs.largest_difference(before[part], after[part]) > 1e-3
