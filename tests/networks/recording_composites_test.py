"""Recording inside composites, odd containers and modules of other kinds."""

import dataclasses
from typing import Any

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks import types
from brax_nnx_plugin.networks.recording import extract_activations
from brax_nnx_plugin.networks.recording import with_recording
from tests import fakes
from tests.networks import cases
from tests.networks import table

KEY = types.ACTIVATION_KEY


class Residual(types.StatefulModule):
  """Adds its child's output to the input; has the child's metrics as its own.

  Unrolls its child itself, as layers with a faster way through time do.
  """

  def __init__(self, child: Any):
    self.child = child

  def _sum(self, x, out):
    return dataclasses.replace(out, output=x + out.output)

  def __call__(self, state, x, rollout_extras=None):
    return self._sum(x, self.child(state, x, rollout_extras))

  def initialize_state(self, batch_size):
    return self.child.initialize_state(batch_size)

  def reset_state(self, prev_state):
    return self.child.reset_state(prev_state)

  def unroll(self, state, x, is_first, rollout_extras=None):
    args = (state, x, is_first, rollout_extras)
    return self._sum(x, stepping.unroll_module(self.child, *args))


class ByCalls(Residual):
  """Unrolls by a scan over its own calls."""

  def unroll(self, state, x, is_first, rollout_extras=None):
    return stepping.scan_steps(self, state, x, is_first, rollout_extras)


class Numbered(types.StatefulModule):
  """A composite of its own kind, with metrics by number."""

  def __init__(self, rngs: nnx.Rngs):
    self.layers = nnx.List([networks.Dense(3, 3, rngs) for _ in range(2)])

  def __call__(self, state, x, rollout_extras=None):
    metrics: dict[Any, Any] = {}
    for i, layer in enumerate(self.layers):
      out = layer((), x)
      x, metrics[i] = out.output, out.metrics
    return types.StatefulModuleOutput(state, x, jnp.array(0.0), metrics)


class Doubled(Residual):
  """Has an output under the name of its child, and one with a reserved name."""

  def __call__(self, state, x, rollout_extras=None):
    out = self.child(state, x, rollout_extras)
    output = {'child': 2 * out.output, 'rest': {KEY: x}}
    return dataclasses.replace(
      out, output=output, metrics={'child': out.metrics}
    )


class Own(networks.Sequential):
  """A container with activations of its own besides those of its layers."""

  record_activations = False

  def _run(self, call, state, x, rollout_extras):
    out = super()._run(call, state, x, rollout_extras)
    if not self.record_activations:
      return out
    metrics = {str(k): v for k, v in out.metrics.items()}
    metrics[KEY] = {'mine': 2 * x}
    return dataclasses.replace(out, metrics=metrics)


class Frozen(types.StatefulModule):
  """A module whose attributes cannot be set once it is made."""

  def __init__(self):
    vars(self)['done'] = True

  def __setattr__(self, name, value):
    raise dataclasses.FrozenInstanceError(name)

  def __call__(self, state, x, rollout_extras=None):
    return types.StatefulModuleOutput(state, 2 * x, jnp.array(0.0), {})


def test_a_layer_of_another_library_is_recorded():
  module = table.build('foreign_child')
  recorder = with_recording(module)
  assert type(recorder[1]).__name__ == 'RecordingLSTM'
  assert isinstance(recorder[1], type(module[1]))
  start, x = module.initialize_state(2), cases.draw(3, 4, 2)
  out = recorder(start, x[0])
  np.testing.assert_array_equal(
    extract_activations(out.metrics)['1'], out.output
  )
  out = recorder.unroll(start, x, jnp.zeros((4, 2)))
  np.testing.assert_array_equal(
    extract_activations(out.metrics)['1'], out.output
  )


@pytest.mark.parametrize('kind', [Residual, ByCalls])
def test_a_composite_and_the_layer_inside_are_both_recorded(kind):
  recorder = with_recording(
    networks.Sequential([kind(kind(fakes.LinCell(0.5, 2.0)))])
  )
  x = cases.draw(1, 4, 2)
  start = recorder.initialize_state(2)
  out = recorder.unroll(start, x, jnp.zeros((4, 2)))
  seen = extract_activations(out.metrics)
  assert set(seen) == {'0', '0/child', '0/child/child'}
  np.testing.assert_array_equal(seen['0'], out.output)
  np.testing.assert_allclose(seen['0'], seen['0/child'] + x, atol=1e-6)
  np.testing.assert_allclose(
    seen['0/child'], seen['0/child/child'] + x, atol=1e-6
  )
  step = extract_activations(recorder(start, x[0]).metrics)
  assert {k: v.shape for k, v in step.items()} == {
    k: v.shape[1:] for k, v in seen.items()
  }


def test_an_output_that_is_a_tree_has_its_own_paths_and_the_childs_go_first():
  recorder = with_recording(Doubled(networks.Dense(3, 3, nnx.Rngs(0))))
  x = cases.draw(3, 2)
  out = recorder((), x)
  seen = extract_activations(out.metrics)
  assert sorted(seen) == ['child', f'rest/{KEY}']
  np.testing.assert_array_equal(2 * seen['child'], out.output['child'])
  np.testing.assert_array_equal(seen[f'rest/{KEY}'], x)


def test_metrics_by_number_still_compile():
  module = Numbered(nnx.Rngs(0))
  run = lambda m, x: m((), x)
  x = cases.draw(3, 2)
  out = cases.jitted(with_recording(module), run, x)
  seen = extract_activations(out.metrics)
  assert sorted(seen) == ['', '0', '1']
  np.testing.assert_array_equal(seen['1'], seen[''])


def test_a_container_may_have_activations_of_its_own():
  module = Own([networks.Dense(3, 2, nnx.Rngs(0))])
  x = cases.draw(3, 2)
  out = with_recording(networks.Parallel(graph=module))({'graph': [()]}, x)
  seen = extract_activations(out.metrics)
  assert sorted(seen) == ['graph/0', 'graph/mine']
  np.testing.assert_array_equal(seen['graph/mine'], 2 * x)
  assert not module.record_activations


def test_a_module_that_cannot_be_written_is_recorded():
  out = with_recording(Frozen())((), jnp.ones((1, 2)))
  np.testing.assert_array_equal(extract_activations(out.metrics)[''], [[2, 2]])


def test_a_shared_layer_is_recorded_at_each_of_its_places():
  dense = networks.Dense(3, 3, nnx.Rngs(0))
  recorder = with_recording(networks.Sequential([dense, dense]))
  assert recorder[0] is recorder[1]
  out = recorder(recorder.initialize_state(1), jnp.ones((1, 3)))
  seen = extract_activations(out.metrics)
  np.testing.assert_array_equal(seen['1'], out.output)
  assert np.any(seen['0'] != seen['1'])


def test_a_child_with_the_reserved_name_is_refused():
  module = networks.Parallel({KEY: networks.Dense(3, 2, nnx.Rngs(0))})
  with pytest.raises(ValueError, match="'<activation>'.*Rename the child"):
    with_recording(module)


def test_what_is_no_network_is_refused():
  for thing in (lambda x: x, nnx.Linear(2, 2, rngs=nnx.Rngs(0))):
    with pytest.raises(TypeError, match=f'got a {type(thing).__name__}'):
      with_recording(thing)
