"""Laws of modules made of modules: nothing of a child is lost.

A probe stands in for each descendant: the same layer, of a subclass that notes
what it is given and adds a metric of its own.
"""

from collections.abc import Mapping
import dataclasses
import inspect
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks.containers import AbstractContainer
from brax_nnx_plugin.networks.recording import with_metric
from brax_nnx_plugin.testing import subject as subjects


class _Probe:
  """What one descendant was given, and what it returned.

  Attributes:
    path: where in the module the descendant is.
    metric: the name of the metric that only it has.
    calls: how often it was called.
    emitted: whether it returned rollout extras.
    replayed: whether it was given some.
    updated: whether its statistics were updated.
  """

  def __init__(self, path: str, index: int):
    self.path = path
    self.metric = f'<probe {index}>'
    self.calls = 0
    self.emitted = False
    self.replayed = False
    self.updated = False


def _attach(module: Any, probe: _Probe) -> None:
  """Makes `module` report to `probe`."""
  cls: Any = type(module)

  class Probed(cls):
    def __call__(self, *args, **kwargs):
      out = super().__call__(*args, **kwargs)
      probe.calls += 1
      probe.emitted |= bool(jax.tree.leaves(out.rollout_extras))
      given = kwargs.get('rollout_extras', args[2] if len(args) > 2 else None)
      probe.replayed |= given is not None
      return with_metric(out, probe.metric, jnp.zeros(()))

    def update_statistics(self, rollout_extras, **kwargs):
      probe.updated = True
      super().update_statistics(rollout_extras, **kwargs)

  Probed.__name__ = Probed.__qualname__ = cls.__name__
  object.__setattr__(module, '__class__', Probed)


def _descendants(module: Any) -> list[tuple[str, Any]]:
  """Lists the stateful modules below `module`, those of other libraries too.

  Containers are left out: they pass on, and are seen by their children.
  """
  found = [
    (len(path), subjects.path_name(path), child)
    for path, child in nnx.iter_modules(module)
    if path
    and hasattr(child, 'initialize_state')
    and not isinstance(child, AbstractContainer)
  ]
  found.sort(key=lambda entry: entry[:2])
  return [(name, child) for _, name, child in found]


def _probe(module: Any) -> list[_Probe]:
  """Puts a probe on every descendant, from the top down."""
  probes = []
  for i, (path, child) in enumerate(_descendants(module)):
    probes.append(_Probe(path, i))
    _attach(child, probes[-1])
  return probes


def check_metrics(subject: subjects.Subject) -> None:
  """Asserts that every descendant is called and that its metrics surface."""
  module = subject.copy()
  probes = _probe(module)
  out = module(*subject.step_inputs(1)[:2])
  leaves = jax.tree_util.tree_leaves_with_path(out.metrics)
  names = [jax.tree_util.keystr(path) for path, _ in leaves]
  for probe in probes:
    if not probe.calls:
      fault = 'this child is never called in a step'
      way_out = 'Call it once per step, or its carry stands still.'
      subject.fail('metrics', probe.path, fault, way_out)
    if not any(probe.metric in name for name in names):
      fault = 'the metrics of this child are lost'
      way_out = 'Put out.metrics of every child among the metrics.'
      subject.fail('metrics', probe.path, fault, way_out)


def check_losses(subject: subjects.Subject) -> None:
  """Asserts that the loss of every descendant is part of the module's."""
  paths = [path for path, _ in _descendants(subject.copy())]

  def loss(bonus):
    module = subject.copy()  # variables that this trace may write
    for i, (_, child) in enumerate(_descendants(module)):
      _attach_bonus(child, bonus[i])
    out = module(*subject.step_inputs(1)[:2])
    return jnp.mean(out.regularization_loss)

  effects = jax.grad(loss)(jnp.zeros(len(paths)))
  for path, effect in zip(paths, effects, strict=True):
    if not effect:
      fault = 'the regularization_loss of this child is lost'
      way_out = 'Add out.regularization_loss of every child to your own.'
      subject.fail('losses', path, fault, way_out)


def _attach_bonus(module: Any, bonus: jax.Array) -> None:
  """Adds `bonus` to the loss of `module`."""
  cls: Any = type(module)

  class Biased(cls):
    def __call__(self, *args, **kwargs):
      out = super().__call__(*args, **kwargs)
      return dataclasses.replace(
        out, regularization_loss=out.regularization_loss + bonus
      )

  Biased.__name__ = Biased.__qualname__ = cls.__name__
  object.__setattr__(module, '__class__', Biased)


def _keys(tree: Any) -> list[Any] | None:
  """Returns the entries of a dict or list, `None` for anything else."""
  if isinstance(tree, Mapping):
    return sorted(tree, key=str)
  return list(range(len(tree))) if isinstance(tree, list) else None


def _check_mirror(
  subject: subjects.Subject, module: Any, where: str, state: Any, extras: Any
) -> None:
  """Asserts that carry and extras have the same entries, at every depth."""
  keys, mirrored = _keys(state), _keys(extras)
  is_container = isinstance(module, AbstractContainer)
  comparable = is_container or None not in (keys, mirrored)
  if comparable and keys != mirrored:
    fault = f'the carry has the entries {keys}, the extras {mirrored}'
    way_out = 'Return extras with an entry for each child, as in the carry.'
    subject.fail('extras', f'rollout_extras{where}', fault, way_out)
  if is_container:
    for key in module.names:
      args = (module[key], f'{where}[{key!r}]', state[key], extras[key])
      _check_mirror(subject, *args)


def check_extras(subject: subjects.Subject) -> None:
  """Asserts that extras mirror the carry and reach those who emit them."""
  module = subject.copy()
  probes = _probe(module)
  state, x, _ = subject.step_inputs(1)
  out = module(state, x)
  if probes:
    _check_mirror(subject, module, '', state, out.rollout_extras)
  module(state, x, out.rollout_extras)
  for probe in probes:
    if probe.emitted and not probe.replayed:
      fault = 'this child emits extras, and is given none in the replay'
      way_out = (
        'Return its extras in rollout_extras, and hand them back to it when'
        ' they are given.'
      )
      subject.fail('extras', probe.path, fault, way_out)


def _has_statistics(module: Any) -> bool:
  """Returns whether a module has an `update_statistics` of its own."""
  for cls in type(module).__mro__:
    if 'update_statistics' in vars(cls):
      # The base class of whatever library, whose method does nothing.
      return cls.__name__ != 'StatefulModule'
  return False


def _check_axis_name(subject: Any, path: str, module: Any) -> None:
  """Asserts that a module can update its statistics on several devices."""
  parameters = inspect.signature(module.update_statistics).parameters
  kinds = [p.kind for p in parameters.values()]
  if 'axis_name' in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
    return
  fault = 'update_statistics takes no axis_name'
  way_out = (
    'Add the keyword axis_name=None, and combine the batch over it with'
    ' jax.lax.psum.'
  )
  subject.fail('statistics', path, fault, way_out)


def _values(module: Any) -> dict[str, tuple[nnx.Variable, Any]]:
  """Maps the paths of variables to them and to what they hold."""
  return {
    subjects.path_name(path): (node, node.get_raw_value())
    for path, node in nnx.iter_graph(module)
    if isinstance(node, nnx.Variable)
  }


def check_statistics(subject: subjects.Subject) -> None:
  """Asserts that statistics are updated, everywhere, and nothing else is."""
  module = subject.copy()
  owners = {
    path: child
    for path, child in [('', module), *_descendants(module)]
    if _has_statistics(child)
  }
  for path, child in owners.items():
    _check_axis_name(subject, path, child)
  probes = _probe(module)
  before = _values(module)
  module.update_statistics(subject.acted[1].rollout_extras)
  for probe in probes:
    if probe.path in owners and not probe.updated:
      fault = 'update_statistics does not reach this child'
      way_out = 'Call its update_statistics with its part of the extras.'
      subject.fail('statistics', probe.path, fault, way_out)
  after = _values(module)
  for path in sorted(before.keys() | after.keys()):
    found = _fault(before.get(path), after.get(path))
    if found is not None:
      fault, way_out = found
      subject.fail('statistics', path, f'update_statistics {fault}', way_out)


def _fault(before: Any, after: Any) -> tuple[str, str] | None:
  """Returns what is wrong with how a variable changed, and the way out.

  Args:
    before: the variable and what it held; `None` if there was none.
    after: likewise.
  """
  if before is None or after is None or before[0] is not after[0]:
    return 'adds or removes this variable', 'Make it in the constructor.'
  (variable, old), (_, new) = before, after
  is_fixed = isinstance(variable, (nnx.Param, nnx.RngState))
  if is_fixed and old is not new:
    fault = f'writes this {type(variable).__name__}'
    return fault, 'Keep statistics in an nnx.Variable that is no nnx.Param.'
  old, new = (jax.tree.map(lambda v: (v.shape, v.dtype), t) for t in (old, new))
  if old != new:
    fault = f'turns the shape and type {old} into {new}'
    return fault, 'A statistic must keep its shape and dtype.'
  return None
