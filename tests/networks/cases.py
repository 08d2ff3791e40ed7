"""What tests of modules share: small layers, inputs, loops, equality."""

from collections.abc import Callable
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks import types
from brax_nnx_plugin.networks.containers import AbstractContainer

BATCH = 3
STEPS = 5


class Penalty(types.StatefulModule):
  """Passes its input on; penalises its square, one number a row."""

  def __init__(self, weight: float = 1.0):
    self.weight = nnx.Param(jnp.array(weight))

  def __call__(self, state, x, rollout_extras=None):
    penalty = self.weight[...] * jnp.sum(jnp.square(x), axis=-1)
    return types.StatefulModuleOutput(state, x, penalty, {'penalty': penalty})


class Join(types.StatefulModule):
  """Concatenates the leaves of its input."""

  def __call__(self, state, x, rollout_extras=None):
    output = jnp.concatenate(jax.tree.leaves(x), axis=-1)
    return types.StatefulModuleOutput(state, output, jnp.array(0.0), {})


class Exposed(types.StatefulModule):
  """Outputs the carry of its child after the step: a trace of it."""

  def __init__(self, child: Any):
    self.child = child

  def __call__(self, state, x, rollout_extras=None):
    out = self.child(state, x)
    return types.StatefulModuleOutput(
      out.next_state, out.next_state, jnp.array(0.0), {}
    )

  def initialize_state(self, batch_size):
    return self.child.initialize_state(batch_size)

  def reset_state(self, prev_state):
    return self.child.reset_state(prev_state)


def fill(module: Any, *names: str) -> Any:
  """Gives zero vectors values, so that a test sees whether they are used."""
  for i, name in enumerate(names):
    param = getattr(module, name)
    values = jnp.linspace(-0.5, 0.7, param.size) + 0.1 * i
    param.set_value(values.reshape(param.shape))
  return module


def fold_history(module: Any) -> Any:
  """Gives a normalizer statistics: mean and spread that are not 0 and 1."""

  def history(mean):
    noise = np.random.default_rng(0).normal(2.0, 3.0, (4, 5, *mean.shape))
    return jnp.asarray(noise, jnp.float32)

  module.update_statistics(jax.tree.map(history, module.mean.get_value()))
  return module


def trained_lstm(rngs: nnx.Rngs, **kwargs: Any) -> networks.LSTM:
  """An LSTM with an initial state that is not zero."""
  lstm = networks.LSTM(3, 4, rngs, trainable_initial_state=True, **kwargs)
  return fill(lstm, 'initial_c', 'initial_h')


def trained_gru(rngs: nnx.Rngs) -> networks.GRU:
  """A GRU with an initial state that is not zero."""
  gru = networks.GRU(3, 4, rngs, trainable_initial_state=True)
  return fill(gru, 'initial_h')


def draw(shape: Any, *lead: int, seed: int = 1) -> Any:
  """Draws a pytree of arrays `[*lead, *features]` for a pytree of shapes."""
  rng = np.random.default_rng(seed)

  def leaf(size):
    features = (size,) if isinstance(size, int) else size
    return jnp.asarray(rng.normal(size=(*lead, *features)), jnp.float32)

  return jax.tree.map(leaf, shape, is_leaf=lambda n: isinstance(n, tuple))


def masks(*shape: int, seed: int = 2, p: float = 0.3) -> jax.Array:
  """Draws flags as Brax has them: float, 1 with probability `p`."""
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.random(shape) < p, jnp.float32)


def numbers(tree: Any) -> dict[str, np.ndarray]:
  """Maps paths to leaves, without the entropies: those are fresh estimates."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  named = {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}
  return {k: v for k, v in named.items() if 'entropy' not in k}


def assert_same(actual: Any, expected: Any, atol: float = 0.0) -> None:
  """Asserts equal paths, shapes, dtypes and numbers, entropies left out."""
  a, b = numbers(actual), numbers(expected)
  assert a.keys() == b.keys()
  for path, value in a.items():
    assert value.shape == b[path].shape, path
    assert value.dtype == b[path].dtype, path
    np.testing.assert_allclose(
      value, b[path], rtol=atol, atol=atol, err_msg=path
    )


def without_keys(tree: Any) -> Any:
  """Drops the keys of noise, which a reset does not rewind."""
  return [leaf for leaf in jax.tree.leaves(tree) if leaf.dtype != jnp.uint32]


def assert_mirrors(module: Any, tree: Any) -> None:
  """Asserts that `tree` has an entry for each child, at every depth."""
  if isinstance(module, AbstractContainer):
    keys: Any = range(len(tree)) if isinstance(tree, list) else tree.keys()
    assert set(keys) == set(module.names)
    children: Any = module.names
    for name in children:
      assert_mirrors(module[name], tree[name])


def loop(
  module: Any, state: Any, x: Any, is_first: jax.Array, extras: Any = None
) -> types.StatefulModuleOutput:
  """Runs `module` by a Python loop of reset and call; the meaning of unroll."""
  outs = []
  for t in range(is_first.shape[0]):
    row = jax.tree.map(lambda leaf, t=t: leaf[t], (x, is_first, extras))
    state = stepping.reset_rows(module, row[1], state)
    outs.append(module(state, row[0], row[2]))
    state = outs[-1].next_state
  stacked: Any = jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)
  return stacked.replace(next_state=state)


def pure(
  module: Any, run: Callable[..., Any]
) -> tuple[Any, Callable[..., Any]]:
  """Makes `run(module, ...)` a function of the module's variables.

  Returns:
    The variables, and `f(variables, ...)`, which returns the result and the
    variables afterwards.
  """
  graphdef, variables = nnx.split(module)

  def f(variables, *args):
    copy = nnx.merge(graphdef, variables)
    result = run(copy, *args)
    return result, nnx.state(copy)

  return variables, f


def jitted(module: Any, run: Callable[..., Any], *args: Any) -> Any:
  """Runs `run(module, *args)` compiled, leaving `module` as it is."""
  variables, f = pure(module, run)
  return jax.jit(f)(variables, *args)[0]
