"""Laws of one call: what it writes, and that rows and copies are alike."""

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.networks import contract
from brax_nnx_plugin.testing import subject as subjects


def _attributes(module: Any) -> dict[str, Any]:
  """Maps names to what a module holds besides variables and modules."""
  return {
    subjects.path_name((*path, name)): value
    for path, node in nnx.iter_modules(module)
    for name, value in vars(node).items()
    if not name.startswith('_pytree__')
    and not isinstance(value, (nnx.Variable, nnx.Module))
  }


def check_writes(subject: subjects.Subject) -> None:
  """Asserts that a call writes nothing but RNG streams."""
  module = subject.copy()
  variables, attributes = contract.variables(module), _attributes(module)
  module(subject.fresh, subjects.take(subject.x, 0))
  way_out = (
    'Keep per-episode memory in the carry, and fold running statistics in'
    ' update_statistics.'
  )
  written = contract.first_written(variables, contract.variables(module))
  if written is not None:
    path, kind = written
    subject.fail('writes', path, f'__call__ writes this {kind}', way_out)
  after = _attributes(module)
  for name in [*attributes, *(n for n in after if n not in attributes)]:
    if attributes.get(name) is not after.get(name):
      subject.fail('writes', name, '__call__ sets this attribute', way_out)


def _is_hashable(module: Any) -> bool:
  """Returns whether the structure of a module can be hashed."""
  try:
    hash(nnx.graphdef(module))
  except TypeError:
    return False
  return True


def _check_static(subject: subjects.Subject) -> None:
  """Asserts that attributes can go to a compiler as they are."""
  module = subject.copy()
  for name, value in _attributes(module).items():
    if isinstance(value, jax.Array):
      way_out = (
        'Make it an nnx.Param if it is trained, an nnx.Variable if not, or a'
        ' NumPy array if it never changes.'
      )
      subject.fail('split', name, 'it is a bare JAX array', way_out)
    if isinstance(value, (dict, list, set)) and not _is_hashable(module):
      fault = f'a {type(value).__name__} cannot be hashed, so jit refuses it'
      subject.fail('split', name, fault, 'Use a tuple, nnx.Dict or nnx.List.')


def check_split(subject: subjects.Subject) -> None:
  """Asserts that a module taken apart and put together is the same."""
  _check_static(subject)
  x = subjects.take(subject.x, 0)
  merged = subject.copy()(subject.used, x)
  direct = subject.built(subject.used, x)
  found = subjects.first_difference(
    subjects.results(merged),
    subjects.results(direct),
    tolerance=subject.tolerance,
  )
  if found is not None:
    fault = 'nnx.merge(*nnx.split(module)) computes something else'
    way_out = (
      'Depend on variables and static attributes alone; nnx.Dict sorts its'
      ' keys, so keep an order in a tuple.'
    )
    subject.fail('split', found[0], fault, way_out)


def check_finite(subject: subjects.Subject) -> None:
  """Asserts that the first step has finite outputs and gradients."""
  x = subjects.take(subject.x, 0)
  graphdef, params, rest = nnx.split(subject.copy(), nnx.Param, ...)

  def loss(params, rest):
    # Variables may only be written at the trace level that made them.
    rest = jax.tree.map(lambda leaf: leaf, rest)
    out = nnx.merge(graphdef, params, rest)(subject.fresh, x)
    leaves = [*jax.tree.leaves(out.output), out.regularization_loss]
    leaves = [jnp.asarray(v) for v in leaves]
    floats = [v for v in leaves if jnp.issubdtype(v.dtype, jnp.floating)]
    return sum((jnp.mean(v) for v in floats), start=jnp.array(0.0)), out

  gradients, out = jax.jit(jax.grad(loss, has_aux=True))(params, rest)
  way_out = (
    'Mark what is not there yet by a flag, not by NaN or inf, and choose a safe'
    ' value before the operation that would not be finite. (The input is drawn:'
    ' floats from N(0, 1), whole numbers from 0 and 1.)'
  )
  for name, tree in (
    ('carry', subject.fresh),
    ('output', out.output),
    ('next_state', out.next_state),
    ('gradient', gradients),
  ):
    for path, leaf in subjects.numbers(name, tree).items():
      # An inf in the carry may be a bound that later steps only tighten.
      carried = name in ('carry', 'next_state')
      bad = np.isnan(leaf) if carried else ~np.isfinite(leaf)
      if np.any(bad):
        fault = f'the first step of an episode has {leaf[bad][0]} here'
        leaf_name = path.removesuffix('.value')
        subject.fail('finite', leaf_name, fault, way_out)
