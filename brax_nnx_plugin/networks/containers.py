"""Containers: modules made of named children.

A container does two things. *Dataflow*, which child gets what, differs from
container to container and is its one method, `route`. *Plumbing*, slicing the
carry and the extras per child and gathering what the children return, is the
same everywhere and is written once, in `AbstractContainer`.

Carry, extras and metrics are dicts with one entry per child (`Sequential`: a
list; its metrics are keyed by index).
"""

import abc
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import numbers
from typing import Any
from typing import final

from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import entries
from brax_nnx_plugin.networks import stepping
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


@final
class Run:
  """One pass over a container's children: calls them and keeps the record."""

  def __init__(
    self,
    container: 'AbstractContainer',
    call: Callable[..., StatefulModuleOutput],
    state: Any,
    rollout_extras: Any,
  ):
    self._container = container
    self._call = call
    self._state = state
    self._extras = rollout_extras
    self.outputs: dict[Any, StatefulModuleOutput] = {}

  def carry(self, key: Any) -> Any:
    """Returns the carry of child `key` before it runs."""
    return self._state[key]

  def __call__(self, key: Any, x: Any) -> Any:
    """Runs child `key` on `x` and returns its output."""
    if key in self.outputs:
      raise ValueError(
        f'{type(self._container).__name__}.route ran child {key!r} twice in'
        ' one step. A child has one carry; use two children that share a'
        ' submodule.'
      )
    extras = None if self._extras is None else self._extras[key]
    with jax.named_scope(str(key)):
      out = self._call(self._container[key], self._state[key], x, extras)
    self.outputs[key] = out
    return out.output


def _call_step(module, state, x, extras):
  return module(state, x, extras)


class AbstractContainer(StatefulModule):
  """A stateful module made of named children; subclasses implement `route`."""

  def __init__(self, children: Mapping[str, Any] | Sequence[Any]):
    """Checks and stores the children.

    Args:
      children: a mapping from names, or a sequence (then the names are the
        indices). Their order is kept, also under `jit`.

    Raises:
      ValueError: if there are none, or a name is one that NNX needs itself.
      TypeError: if a child is not a stateful module.
    """
    kind = type(self).__name__
    if not children:
      raise ValueError(f'{kind} needs at least one child; it got none.')
    named = isinstance(children, Mapping)
    items = list(children.items()) if named else list(enumerate(children))
    for key, child in items:
      if named and (not isinstance(key, str) or hasattr(nnx.Dict, key)):
        raise ValueError(
          f'{kind}: {key!r} cannot name a child, because nnx.Dict has an'
          ' attribute of that name or it is not a string. Rename the child.'
        )
      if not hasattr(child, 'initialize_state'):
        raise TypeError(
          f'{kind}: child {key!r} is a {type(child).__name__}, not a'
          ' StatefulModule. Wrap it in one (for nnx.Linear use Dense).'
        )
    self.components = nnx.Dict(children) if named else nnx.List(list(children))
    # nnx.Dict sorts its keys on split and merge, so the order is kept here.
    self.names = tuple(key for key, _ in items)

  @abc.abstractmethod
  def route(self, run: Run, x: Any) -> Any:
    """Sends `x` through the children and returns the container's output.

    The same method serves one step (leaves `[B, ...]`) and a whole sequence
    (`[T, B, ...]`), so it works on the last axis only and assumes no rank.

    Args:
      run: `run(key, x)` runs a child, each exactly once; not to be called
        inside `scan`, `vmap` or `checkpoint`.
      x: the container's input.
    """

  def __getitem__(self, key: Any) -> Any:
    return self.components[key]

  def _gather(self, per_child: Mapping[Any, Any]) -> Any:
    """Builds a tree with one entry per child, in order."""
    return {key: per_child[key] for key in self.names}

  def _check_entries(self, what: str, tree: Any) -> None:
    """Raises unless `tree` has one entry per child."""
    given: Any = ()
    if isinstance(tree, (Mapping, list, tuple)):
      given = tree.keys() if isinstance(tree, Mapping) else range(len(tree))
    if set(given) != set(self.names):
      raise ValueError(
        f'{type(self).__name__}: the entries of the {what} are {list(given)},'
        f' the children are {list(self.names)}. A carry comes from'
        ' initialize_state, rollout extras from a call of the same network.'
      )

  def _run(self, call, state, x, rollout_extras) -> StatefulModuleOutput:
    self._check_entries('carry', state)
    if rollout_extras is not None:
      self._check_entries('rollout extras', rollout_extras)
    run = Run(self, call, state, rollout_extras)
    output = self.route(run, x)
    missing = [key for key in self.names if key not in run.outputs]
    if missing:
      raise ValueError(
        f'{type(self).__name__}.route did not run its children {missing}.'
        ' Every child must run once per step, or its carry would stand still.'
      )
    outs = {key: run.outputs[key] for key in self.names}
    return StatefulModuleOutput(
      next_state=self._gather({k: o.next_state for k, o in outs.items()}),
      output=output,
      regularization_loss=functools.reduce(
        jnp.add, [o.regularization_loss for o in outs.values()]
      ),
      metrics={k: o.metrics for k, o in outs.items()},
      rollout_extras=self._gather(
        {k: o.rollout_extras for k, o in outs.items()}
      ),
    )

  @final
  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    return self._run(_call_step, state, x, rollout_extras)

  def unroll(self, state, x, is_first, rollout_extras=None):
    """Runs a sequence child by child: only children with memory are scanned."""

    def call(module, state, x, extras):
      return stepping.unroll_module(module, state, x, is_first, extras)

    return self._run(call, state, x, rollout_extras)

  @final
  def initialize_state(self, batch_size: int) -> Any:
    return self._gather(
      {k: self[k].initialize_state(batch_size) for k in self.names}
    )

  @final
  def reset_state(self, prev_state: Any) -> Any:
    self._check_entries('carry', prev_state)
    return self._gather(
      {k: self[k].reset_state(prev_state[k]) for k in self.names}
    )

  @final
  def reset_rows(self, is_first, state):
    self._check_entries('carry', state)
    return self._gather(
      {k: stepping.reset_rows(self[k], is_first, state[k]) for k in self.names}
    )

  @final
  def update_statistics(self, rollout_extras, *, axis_name=None) -> None:
    for key in self.names:
      stepping.update_module_statistics(
        self[key], rollout_extras[key], axis_name
      )


class Sequential(AbstractContainer):
  """Runs its layers one after the other.

  Example:
    net = Sequential([Dense(3, 8, rngs), LSTM(8, 8, rngs)])
    out = net(net.initialize_state(batch_size=2), jnp.zeros((2, 3)))
  """

  def __init__(self, layers: Sequence[Any], *more: Any):
    if more or isinstance(layers, (StatefulModule, Mapping)):
      raise TypeError(
        'Sequential takes its layers in one list: Sequential([first, second]).'
      )
    super().__init__(list(layers))

  @property
  def layers(self) -> Any:
    return self.components

  def _gather(self, per_child):
    return [per_child[key] for key in self.names]

  def route(self, run, x):
    """Feeds each layer the output of the one before."""
    for key in self.names:
      x = run(key, x)
    return x


class NamedContainer(AbstractContainer):
  """A container made of one dict of modules, or of keyword arguments."""

  def __init__(
    self, modules: Mapping[str, Any] | None = None, /, **kwargs: Any
  ):
    super().__init__(entries.named(type(self).__name__, modules, kwargs))


class Parallel(NamedContainer):
  """Runs its children on the same input; the output is a dict by child name."""

  def route(self, run, x):
    """Feeds every child the same input."""
    return {key: run(key, x) for key in self.names}


class Concat(NamedContainer):
  """Runs each child on the entry of its name and joins the outputs.

      y = [child_1(x['name_1']), child_2(x['name_2']), ...]

  Input: a mapping with an entry per child; others are not read. Output: one
  array, joined on the last axis in the order of construction.
  """

  def route(self, run, x):
    """Feeds each child its entry of `x` and joins what they return."""
    kind = type(self).__name__
    parts = {k: run(k, entries.take(kind, x, k)) for k in self.names}
    return entries.concatenate(kind, parts)


class Splitter(StatefulModule):
  """Cuts the last axis into named slices, in the order of construction.

  Input `[B, sum of sizes]`, output a dict of `[B, size]`. The sizes are given
  as keyword arguments or as one dict.

  Raises:
    ValueError: if a size is no int above 0, or they do not add up to the input.
  """

  def __init__(self, sizes: Mapping[str, int] | None = None, /, **kwargs: int):
    self.sizes = tuple(entries.named('Splitter', sizes, kwargs).items())
    if not self.sizes:
      raise ValueError('Splitter needs at least one name and its size.')
    for name, size in self.sizes:
      is_int = isinstance(size, numbers.Integral) and not isinstance(size, bool)
      if not is_int or size < 1:
        raise ValueError(
          f'Splitter: the size of {name!r} must be an int above 0; got'
          f' {size!r}.'
        )

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    total = sum(size for _, size in self.sizes)
    shape = getattr(x, 'shape', ())
    if len(shape) < 2 or shape[-1] != total:
      raise ValueError(
        f'Splitter: the sizes {dict(self.sizes)} add up to {total}, but the'
        f' input is {entries.describe(x)}. Give every feature to a name, or'
        f' let the layer before it have {total} outputs.'
      )
    output, start = {}, 0
    for name, size in self.sizes:
      output[name] = x[..., start : start + size]
      start += size
    return StatefulModuleOutput(state, output, jnp.array(0.0), {}, None)
