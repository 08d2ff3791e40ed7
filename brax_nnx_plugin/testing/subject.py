"""The module under test: its inputs, its recorded run, and how it fails."""

from collections.abc import Callable
import functools
from typing import Any
from typing import NoReturn

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.networks import pytrees
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.types import StatefulModuleOutput

# How far equal computations may differ, and where halves of numbers are used:
# a compiled program may compute those in full.
_TOLERANCE = 1e-5
_HALF_TOLERANCE = 5e-2
_METHODS = (
  '__call__',
  'initialize_state',
  'reset_state',
  'update_statistics',
)


def numbers(name: str, tree: Any) -> dict[str, np.ndarray]:
  """Maps the paths of leaves to their values.

  Entropies are left out: a sampler may estimate them from one fresh draw.

  Args:
    name: what the tree is; every path begins with it.
    tree: any pytree of arrays.
  """
  named = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    key = name + jax.tree_util.keystr(path)
    if 'entropy' not in key:
      named[key] = np.asarray(leaf)
  return named


def results(out: Any, *fields: str) -> dict[str, np.ndarray]:
  """Returns the numbers in some fields of what a module returned."""
  fields = fields or ('output', 'next_state', 'rollout_extras')
  return {
    path: leaf
    for field in fields
    for path, leaf in numbers(field, getattr(out, field)).items()
  }


def differing(a: np.ndarray, b: np.ndarray, tolerance: float) -> np.ndarray:
  """Returns where two arrays of one shape differ; NaN equals itself.

  Args:
    a: any array.
    b: likewise.
    tolerance: how much they may differ, relative to the largest of `b` or 1.
  """
  if not jnp.issubdtype(b.dtype, jnp.floating):
    return a != b
  a, b = a.astype(np.float64), b.astype(np.float64)
  largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
  return ~np.isclose(a, b, rtol=0.0, atol=tolerance * largest, equal_nan=True)


def first_difference(
  actual: dict[str, np.ndarray],
  expected: dict[str, np.ndarray],
  tolerance: float,
) -> tuple[str, np.ndarray] | None:
  """Returns the first leaf that differs, and where in it.

  Args:
    actual: leaves by path.
    expected: likewise; a path, shape or dtype that differs counts as well, and
      then it is everywhere.
    tolerance: see `differing`.
  """
  for path in [*expected, *(p for p in actual if p not in expected)]:
    a, b = actual.get(path), expected.get(path)
    if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
      return path, np.array(True)
    where = differing(a, b, tolerance)
    if np.any(where):
      return path, where
  return None


def when(path: str, where: np.ndarray) -> str:
  """Says from which step on a sequence differs, if its leaf has steps."""
  if path.startswith('next_state') or not where.ndim:
    return ''
  return f' from step {np.argwhere(where)[0][0]} on'


def take(tree: Any, index: Any) -> Any:
  """Indexes every leaf; in NumPy, where nothing has to be compiled."""
  return jax.tree.map(lambda v: jnp.asarray(np.asarray(v)[index]), tree)


def path_name(path: Any) -> str:
  """Names the way to a module or variable; `''` for the root."""
  return '/'.join(str(part) for part in path if part != 'components')


def _record(out: Any) -> tuple[Any, ...]:
  """Returns what of a call is stacked over time."""
  return (
    out.output,
    out.regularization_loss,
    out.metrics,
    out.rollout_extras,
  )


def _stack(*leaves: Any) -> jax.Array:
  return jnp.asarray(np.stack(leaves))


def _other_key(key: jax.Array, i: int) -> jax.Array:
  """Returns a key of the same kind that has nothing to do with `key`."""
  typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
  impl = jax.random.key_impl(key) if typed else None
  shape = key.shape if typed else key.shape[:-1]
  fresh = jax.random.split(jax.random.key(0x5EED + i, impl=impl), shape)
  return fresh if typed else jax.random.key_data(fresh)


class Subject:
  """A module, the inputs it is given, and the run that the laws compare with.

  Attributes:
    built: the module as it was made; to be called once.
    kind: the name of its class.
    batch_size: rows `B`.
    x: its inputs, `[T, B, ...]`.
    is_first: which of them begin an episode, `[T, B]`.
    fresh: the carry of new episodes.
  """

  def __init__(
    self,
    build: Callable[[nnx.Rngs], Any],
    sample_input: Any,
    batch_size: int,
    steps: int,
    seed: int,
  ):
    if batch_size < 2 or steps < 2:
      raise ValueError(
        'check_module needs at least 2 rows and 2 steps to compare; got'
        f' batch_size={batch_size} and steps={steps}.'
      )
    self._specs = pytrees.specs('check_module', sample_input)
    self._random = np.random.default_rng(seed)
    self.built = build(nnx.Rngs(seed))
    self.kind = type(self.built).__name__
    self._check_methods()
    self._module = nnx.clone(self.built)
    self.batch_size = batch_size
    self.x = self.draw(steps, batch_size)
    self.is_first = self._flags(steps)
    self.fresh = self.copy().initialize_state(batch_size)

  def _check_methods(self) -> None:
    """Raises if `build` did not return a stateful module."""
    missing = [name for name in _METHODS if not hasattr(self.built, name)]
    if missing or not isinstance(self.built, nnx.Module):
      raise TypeError(
        'check_module: build(rngs) must return a StatefulModule, an nnx.Module'
        f' with {", ".join(_METHODS)}; it returned a {self.kind}, which'
        f' {"has no " + ", ".join(missing) if missing else "is none"}. Derive'
        ' the class from StatefulModule.'
      )

  def draw(self, *lead: int) -> Any:
    """Draws inputs `[*lead, *features]`."""

    def leaf(spec):
      shape = (*lead, *spec.shape)
      if jnp.issubdtype(spec.dtype, jnp.floating):
        return jnp.asarray(self._random.normal(size=shape), spec.dtype)
      # 0 and 1 do for flags, for pixels, and for an index into any table.
      return jnp.asarray(self._random.integers(0, 2, shape), spec.dtype)

    return jax.tree.map(leaf, self._specs)

  def _flags(self, steps: int) -> jax.Array:
    """Draws `[T, B]`; some rows begin at once, some do not, some end late."""
    flags = self._random.random((steps, self.batch_size)) < 0.3
    flags[0, 0], flags[0, -1], flags[-1, 0] = False, True, True
    return jnp.asarray(flags, jnp.float32)

  def fail(self, law: str, leaf: str, fault: str, way_out: str) -> NoReturn:
    """Raises the error that says which law is broken, where, and what to do."""
    where = f' at {leaf}' if leaf else ''
    raise AssertionError(
      f'{self.kind} breaks the law {law!r}{where}: {fault}. {way_out}'
    )

  def copy(self) -> Any:
    """Returns the module as it was when new."""
    return nnx.clone(self._module)

  def reseeded(self) -> Any:
    """Returns the module with other RNG streams and nothing else changed."""
    module = self.copy()
    for i, (_, node) in enumerate(nnx.iter_graph(module)):
      if isinstance(node, nnx.RngKey):
        node.set_value(_other_key(node.get_value(), i))
    return module

  def run(self, module: Any, state: Any, x: Any, is_first: Any, extras: Any):
    """Loops over reset and call, from `state`.

    Returns:
      The carries that the steps began with, a list, and what they returned,
      as `unroll` has it.
    """
    states, outs = [], []
    for t in range(is_first.shape[0]):
      state = stepping.reset_rows(module, is_first[t], state)
      states.append(state)
      outs.append(module(state, take(x, t), take(extras, t)))
      state = outs[-1].next_state
    stacked: Any = jax.tree.map(_stack, *map(_record, outs))
    return states, StatefulModuleOutput(state, *stacked)

  def check_output(self, out: Any) -> None:
    """Raises unless a call returned what the contract says."""
    fields = StatefulModuleOutput.__dataclass_fields__
    if not all(hasattr(out, field) for field in fields):
      raise TypeError(
        f'{self.kind}.__call__ must return a StatefulModuleOutput; it returned'
        f' a {type(out).__name__}.'
      )

  @functools.cached_property
  def tolerance(self) -> float:
    """How far results that should be equal may differ."""
    graphdef, variables = nnx.split(self.copy())

    def step(variables, x):
      module = nnx.merge(graphdef, variables)
      return module(self.fresh, x)

    program = jax.make_jaxpr(step)(variables, take(self.x, 0))
    return _HALF_TOLERANCE if 'f16[' in str(program) else _TOLERANCE

  @functools.cached_property
  def used(self) -> Any:
    """A carry that no new episode has."""
    x = self.draw(2, self.batch_size)
    never = jnp.zeros((2, self.batch_size))
    return self.run(self.copy(), self.fresh, x, never, None)[1].next_state

  @functools.cached_property
  def acted(self) -> tuple[list[Any], Any]:
    """The run that acts, from the used carry, with resets."""
    return self.run(self.copy(), self.used, self.x, self.is_first, None)

  @functools.cached_property
  def replayed(self) -> Any:
    """The same run once more, with the extras of the first and other noise."""
    extras = self.acted[1].rollout_extras
    args = (self.used, self.x, self.is_first, extras)
    return self.run(self.reseeded(), *args)[1]

  def step_inputs(self, t: int) -> tuple[Any, Any, Any]:
    """Returns carry, input and extras of one step of the recorded run."""
    states, out = self.acted
    return states[t], take(self.x, t), take(out.rollout_extras, t)

  @functools.cached_property
  def repeatable_loss(self) -> bool:
    """Whether replays agree on the loss; one with an entropy in it may not."""
    losses = self.acted[1], self.replayed
    a, b = (np.asarray(out.regularization_loss) for out in losses)
    return not np.any(differing(a, b, self.tolerance))

  @functools.cached_property
  def noise(self) -> frozenset[str]:
    """Paths of the leaves of the carry that are drawn, not computed."""
    other = self.reseeded().initialize_state(self.batch_size)
    a, b = numbers('carry', self.fresh), numbers('carry', other)
    return frozenset(path for path in a if np.any(a[path] != b[path]))
