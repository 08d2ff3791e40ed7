"""From the traced step of a policy to the operations of `numpy_operations`.

A traced program is a list of JAX primitives. Calls are replaced by what they
call, what depends on weights alone is computed here and now, and the rest has
an operation each or is refused.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

from jax.extend import core as jax_core
import numpy as np

from brax_nnx_plugin.ppo import numpy_parameters
from brax_nnx_plugin.ppo.numpy_operations import OPERATIONS
from brax_nnx_plugin.ppo.numpy_parameters import (
  UnsupportedError as UnsupportedError,
)
from brax_nnx_plugin.ppo.step_program import StepProgram

Program = dict[str, Any]

# By the name of the primitive; the program that it calls is one of its
# parameters.
_CALLS = (
  'checkpoint',
  'closed_call',
  'core_call',
  'custom_jvp_call',
  'custom_vjp_call',
  'custom_vjp_call_jaxpr',
  'jit',
  'pjit',
  'remat2',
)
_CALLED = ('jaxpr', 'call_jaxpr', 'fun_jaxpr')
_IDENTITIES = (
  'copy',
  'copy_p',
  'name',
  'optimization_barrier',
  'stop_gradient',
)
_TYPES = ('bool', 'float16', 'float32', 'float64') + tuple(
  f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)
)


@dataclasses.dataclass(frozen=True, eq=False)
class _Known:
  """A value that is the same at every step."""

  value: Any
  name: str | None = None


class _Lowering:
  """Collects operations and constants while it walks through a program."""

  def __init__(self, inputs: int):
    self.instructions: list[list[Any]] = []
    self.constants: dict[str, np.ndarray] = {}
    self._names: dict[Any, str] = {}
    self._count = inputs

  def reference(self, value: int | _Known) -> int | str:
    """Returns how the reader finds a value: a number, or a constant's name."""
    if isinstance(value, int):
      return value
    array = np.asarray(value.value)
    # Numbers come often, and are stored once.
    key = (str(array.dtype), array.tobytes()) if not array.ndim else value
    if key not in self._names:
      name = value.name or f'constant/{len(self._names)}'
      self._names[key], self.constants[name] = name, array
    return self._names[key]

  def run(
    self, jaxpr: Any, consts: Sequence[Any], arguments: Any, where: str
  ) -> list[int | _Known]:
    """Walks through a program; returns its outputs."""
    env = dict(zip(jaxpr.constvars, map(_Known, consts), strict=True))
    env |= dict(zip(jaxpr.invars, arguments, strict=True))

    def look_up(atom):
      is_literal = isinstance(atom, jax_core.Literal)
      return _Known(_literal(atom)) if is_literal else env[atom]

    for eqn in jaxpr.eqns:
      stack = str(eqn.source_info.name_stack)
      place = '/'.join(filter(None, (where, stack)))
      values = [look_up(atom) for atom in eqn.invars]
      outputs = self._equation(eqn, values, place)
      env |= dict(zip(eqn.outvars, outputs, strict=True))
    return [look_up(atom) for atom in jaxpr.outvars]

  def _equation(self, eqn: Any, values: list[Any], place: str) -> list[Any]:
    name = eqn.primitive.name
    if name in _IDENTITIES:
      return values
    if name in _CALLS:
      called = next(eqn.params[k] for k in _CALLED if k in eqn.params)
      consts = getattr(called, 'consts', ())
      return self.run(getattr(called, 'jaxpr', called), consts, values, place)
    if all(isinstance(value, _Known) for value in values):
      results = eqn.primitive.bind(*(v.value for v in values), **eqn.params)
      many = eqn.primitive.multiple_results
      return [_Known(r) for r in (results if many else [results])]
    try:
      return self._operation(eqn, values)
    except UnsupportedError as e:
      raise UnsupportedError(
        f'NumPy has no counterpart of {name} ({e}), which is used in'
        f' {place or "the network"}.'
      ) from None

  def _operation(self, eqn: Any, values: list[Any]) -> list[int]:
    operation, parameters = numpy_parameters.operation(eqn)
    if operation not in OPERATIONS:
      raise UnsupportedError('no such operation')
    for atom in (*eqn.invars, *eqn.outvars):
      if str(atom.aval.dtype) not in _TYPES:
        raise UnsupportedError(f'numbers of type {atom.aval.dtype}')
    inputs = [self.reference(value) for value in values]
    self.instructions.append([operation, inputs, parameters])
    first = self._count
    self._count += len(eqn.outvars)
    return list(range(first, self._count))


def _literal(atom: Any) -> np.ndarray:
  return np.asarray(atom.val, atom.aval.dtype)


def lower(program: StepProgram) -> tuple[Program, dict[str, np.ndarray]]:
  """Returns a step as a list of NumPy operations, and its constants.

  An operation is [name, inputs, parameters]. An input is the name of a
  constant, or the number of a value: observation and carry are numbered first,
  then the results of the operations, in order.

  Args:
    program: the step.

  Returns:
    A JSON-compatible dict of `instructions` and `outputs`, and the constants.

  Raises:
    UnsupportedError: if there is no operation for a part of the network; the
      message says which part.
  """
  inputs = len(program.observation) + len(program.state)
  lowering = _Lowering(inputs)
  weights = [
    _Known(value, f'weight/{name}') for name, value in program.weights.items()
  ]
  closed = program.jaxpr
  outputs = lowering.run(
    closed.jaxpr, closed.consts, [*weights, *range(inputs)], ''
  )
  references = [lowering.reference(value) for value in outputs]
  return (
    {'instructions': lowering.instructions, 'outputs': references},
    lowering.constants,
  )
