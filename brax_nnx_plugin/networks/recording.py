"""Looks inside a network: the outputs of its layers, as metrics.

    recorder = with_recording(network)
    out = recorder(state, x)
    activations = extract_activations(out.metrics)  # {'action/0': [B, n], ...}

A recording layer is still the layer it was: an instance of a subclass made for
the purpose, with the same variables under the same paths. So the weights of a
network fit its recording copy, and the other way round.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from flax import nnx
import jax

from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.containers import AbstractContainer
from brax_nnx_plugin.networks.types import ACTIVATION_KEY

# What a container has that records more than its children do.
_CONTAINER_FLAG = 'record_activations'
# Where a parent that hands on the metrics of a child as its own has them.
_CHILD = 'child'


class _Recorder:
  """Marks the classes whose outputs are among their metrics."""


def with_metric(out: Any, key: str, value: Any) -> Any:
  """Adds a metric to what a module returned.

  Args:
    out: a `StatefulModuleOutput`, left as it is.
    key: name of the metric.
    value: any array or pytree of arrays.
  """
  metrics = out.metrics
  if not all(isinstance(k, str) for k in metrics):
    # JAX sorts the keys of a dict, and does not sort an int beside a string.
    metrics = {str(k): v for k, v in metrics.items()}
  return dataclasses.replace(out, metrics={**metrics, key: value})


def _with_activation(out: Any) -> Any:
  """Adds the output to the metrics."""
  if ACTIVATION_KEY in out.metrics:
    out = dataclasses.replace(out, metrics={_CHILD: out.metrics})
  return with_metric(out, ACTIVATION_KEY, out.output)


@functools.cache
def _recording_class(cls: Any) -> Any:
  """Returns the recording subclass of `cls`; the same one every time."""

  # The layer comes first: its layout must be that of the instances to change.
  class Recording(cls, _Recorder):
    def __call__(self, *args, **kwargs):
      return _with_activation(super().__call__(*args, **kwargs))

    def unroll(self, state, x, is_first, rollout_extras=None):
      # On a view that does not record: some modules unroll by `__call__`, and
      # would record every step and then the sequence.
      view = object.__new__(cls)
      vars(view).update(vars(self))
      return _with_activation(
        stepping.unroll_module(view, state, x, is_first, rollout_extras)
      )

  Recording.__name__ = Recording.__qualname__ = f'Recording{cls.__name__}'
  Recording.__module__ = cls.__module__
  Recording.__doc__ = cls.__doc__
  return Recording


def _stateful_modules(network: Any) -> Iterator[Any]:
  """Yields every module that has a carry, also those of other libraries."""
  for _, module in nnx.iter_modules(network):
    if hasattr(module, 'initialize_state'):
      yield module


def _records(module: Any) -> bool:
  """Returns whether a module does its part in a recording."""
  if isinstance(module, AbstractContainer):
    return getattr(module, _CONTAINER_FLAG, True)
  return isinstance(module, _Recorder)


def _check_names(module: Any) -> None:
  """Raises if a child has the name under which outputs are recorded."""
  if isinstance(module, AbstractContainer) and ACTIVATION_KEY in module.names:
    raise ValueError(
      f'A child of {type(module).__name__} is called {ACTIVATION_KEY!r}, the'
      ' name of a recorded output. Rename the child.'
    )


def _start_recording(module: Any) -> None:
  """Makes one module put its output among its metrics."""
  if not isinstance(module, AbstractContainer):
    # Not by assignment, which a class may refuse.
    object.__setattr__(module, '__class__', _recording_class(type(module)))
  else:
    setattr(module, _CONTAINER_FLAG, True)


def with_recording(network: Any) -> Any:
  """Makes a copy of a network that has the outputs of its layers as metrics.

  The copy computes the same numbers, in a step, in a sequence and under
  `jit`, with variables of its own under the same paths: `nnx.update(copy,
  nnx.state(network))` brings it up to date. Every stateful module that is no
  container is recorded; containers only pass on, and their outputs are those
  of a child. A layer inside a module of the user's own is seen if that module
  has the layer's metrics among its own.

  Args:
    network: a stateful module, left as it is.

  Returns:
    The copy; a network that records already is returned itself.

  Raises:
    TypeError: if `network` is no stateful module.
    ValueError: if a child of a container is called `<activation>`.
  """
  if not (
    isinstance(network, nnx.Module) and hasattr(network, 'initialize_state')
  ):
    raise TypeError(
      'with_recording needs the network itself, a StatefulModule; got a'
      f' {type(network).__name__}.'
    )
  if all(map(_records, _stateful_modules(network))):
    return network
  copy = nnx.clone(network)
  for module in list(_stateful_modules(copy)):
    _check_names(module)
    if not _records(module):
      _start_recording(module)
  return copy


def layers_with_memory(network: Any) -> list[str]:
  """Lists the layers that have a carry, by the paths of `extract_activations`.

  A graph of populations counts as one layer, and so does what hides its
  children.

  Args:
    network: a stateful module. Its `initialize_state` is called, which may draw
      keys: pass a copy, or call this on abstract values.
  """

  def walk(module: Any, path: tuple[str, ...]) -> Iterator[str]:
    if not jax.tree.leaves(module.initialize_state(1)):
      return
    if isinstance(module, AbstractContainer) and not hasattr(
      module, _CONTAINER_FLAG
    ):
      for name in module.names:
        yield from walk(module[name], (*path, str(name)))
    else:
      yield '/'.join(path)

  return list(walk(network, ()))


def _walk(metrics: Mapping[Any, Any], path: str) -> Iterator[tuple[str, Any]]:
  """Yields the recorded outputs, those of parents before their children's."""
  if ACTIVATION_KEY in metrics:
    leaves = jax.tree_util.tree_leaves_with_path(metrics[ACTIVATION_KEY])
    for key, leaf in leaves:
      name = jax.tree_util.keystr(key, simple=True, separator='/')
      yield '/'.join(filter(None, [path, name])), leaf
  for key, value in metrics.items():
    if key != ACTIVATION_KEY and isinstance(value, Mapping):
      yield from _walk(value, f'{path}/{key}' if path else str(key))


def extract_activations(metrics: Mapping[Any, Any]) -> dict[str, Any]:
  """Returns the recorded outputs by the path of their layer.

  Args:
    metrics: of a step or a sequence of a network from `with_recording`; the
      axes stay as they are, `[B, ...]` or `[T, B, ...]`.

  Returns:
    A dict from paths to arrays. A path is made of the names of the children,
    as in `action/0`; it is empty for a network of one layer. An output that is
    a pytree has an entry per leaf (`action/3/raw_action`); where that is also
    the path of a child, the entry is the child's.

  Raises:
    ValueError: if nothing was recorded.
  """
  activations = dict(_walk(metrics, ''))
  if not activations:
    raise ValueError(
      'There are no recorded outputs in these metrics, only'
      f' {sorted(map(str, metrics))}. Run the network that'
      ' with_recording(network) returns, and pass the metrics of its output.'
    )
  return activations
