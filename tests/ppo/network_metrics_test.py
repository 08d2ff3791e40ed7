"""What networks may put among their metrics."""

from typing import NamedTuple

import jax.numpy as jnp

from brax_nnx_plugin.networks import types
from brax_nnx_plugin.ppo import losses


class Pair(NamedTuple):
  """Two numbers."""

  a: float
  b: float


def test_nested_metrics_become_means_by_path():
  metrics = {
    'layer': {0: {'x': jnp.arange(3.0)}, 1: {}},
    'pair': Pair(1.0, 2.0),
    'list': [jnp.ones(2), None],
    'output': types.PPONetworkOutput(jnp.zeros(1), jnp.ones(1), jnp.full(1, 2)),
  }
  flat = losses._flat_means('network', metrics)
  assert {name: float(value) for name, value in flat.items()} == {
    'network/layer/0/x': 1.0,
    'network/pair/a': 1.0,
    'network/pair/b': 2.0,
    'network/list/0': 1.0,
    'network/output/actions': 0.0,
    'network/output/loglikelihoods': 1.0,
    'network/output/value_estimates': 2.0,
  }
