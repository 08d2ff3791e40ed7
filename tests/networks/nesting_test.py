"""Containers in containers: depth, time and gradients."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks.containers import Concat
from brax_nnx_plugin.networks.containers import Splitter
from brax_nnx_plugin.networks.utils import Flattener
from brax_nnx_plugin.networks.utils import Map
from brax_nnx_plugin.networks.utils import Merge
from brax_nnx_plugin.networks.utils import Scale
from tests import fakes
from tests.networks import cases


def _cell() -> fakes.LinCell:
  return fakes.LinCell(0.5, 1.0)


def _tower(depth: int) -> Any:
  """Nests every container in itself; what comes out went through the cells."""
  child = _tower(depth - 1) if depth else Scale(1)
  return networks.Sequential(
    [
      networks.Parallel(z=_cell(), a=Scale(-3)),
      Map(z=child, a=fakes.Count()),
      Concat(z=Scale(1), a=cases.Penalty()),
      Merge(one=Splitter(out=1, rest=1)),
      networks.Filter('out'),
    ]
  )


@pytest.mark.parametrize('depth', [0, 1, 4])
def test_containers_nest_to_any_depth(depth):
  net = _tower(depth)
  cells = networks.Sequential([_cell() for _ in range(depth + 1)])
  x, is_first = cases.draw(1, 4, 2), cases.masks(4, 2)
  args = (net.initialize_state(2), x, is_first)
  looped = cases.loop(net, *args)
  expected = cases.loop(cells, cells.initialize_state(2), x, is_first)
  cases.assert_same(looped.output, expected.output, 1e-6)
  unrolled = net.unroll(*args, looped.rollout_extras)
  cases.assert_same(unrolled.output, looped.output, 1e-6)
  cases.assert_same(unrolled.next_state, looped.next_state, 1e-6)
  np.testing.assert_allclose(
    unrolled.regularization_loss, looped.regularization_loss, rtol=1e-6
  )


def test_gradients_reach_every_child():
  net = networks.Sequential(
    [
      Splitter(b=1, a=1),
      Concat(b=fakes.Gain(), a=networks.Sequential([fakes.Gain(), Scale(3)])),
      networks.Parallel(u=fakes.Gain(), v=fakes.Gain()),
      Map(u=fakes.Gain(), v=Scale(0.5)),
      Merge(only=Map(u=fakes.Gain(), v=fakes.Gain())),
      Flattener(),
    ]
  )
  graphdef, variables = nnx.split(net)

  def total(variables, x):
    net = nnx.merge(graphdef, variables)
    return jnp.sum(net(net.initialize_state(1), x).output)

  # All gains are 1, so u = (b, 3 a), v = (b, 3 a) / 2 and y = 1.5 (b + 3 a).
  grads, grad_x = jax.grad(total, (0, 1))(variables, jnp.array([[2.0, 5.0]]))
  np.testing.assert_allclose(grad_x, [[1.5, 4.5]])
  # The gradient of a gain is what went through it times what is made of it.
  by_path = {
    '/'.join(
      str(key) for key in path if key not in ('components', 'gain')
    ): float(g[...])
    for path, g in nnx.to_flat_state(grads)
  }
  assert by_path == {
    '1/b': 1.5 * 2,
    '1/a/0': 4.5 * 5,
    '2/u': 17.0,
    '2/v': 8.5,
    '3/u': 17.0,
    '4/only/u': 17.0,
    '4/only/v': 8.5,
  }
