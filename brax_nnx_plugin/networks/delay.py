"""A layer that outputs what it was given some steps ago."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brax_nnx_plugin.networks import pytrees
from brax_nnx_plugin.networks import rings
from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


class Delay(StatefulModule):
  """Outputs its input of `k_steps` steps ago.

      y[t] = x[t - k]         if this episode had k inputs before
             initial_value    otherwise

  Input and output: a pytree of `[B, *shape]`, its types kept. Carry: a ring, as
  `rings` describes it. A step reads and writes one slot, a reset only sets a
  counter, and a sequence is shifted without a scan.

  Example:
    Sequential([Delay(64, k_steps=3), Dense(64, 8, rngs)])
  """

  def __init__(
    self,
    sample_input: Any,
    k_steps: int | None = None,
    initial_value: float = 0.0,
    *,
    k: int | None = None,
  ):
    """Initializes the layer.

    Args:
      sample_input: an int or a tuple of ints, the shape of a float32 input; an
        example array; or a pytree of those. None has a batch axis.
      k_steps: the delay, at least 1.
      initial_value: what comes out before the first input does.
      k: another spelling of `k_steps`.

    Raises:
      TypeError: if the delay is not given, or twice.
      ValueError: if the delay is not a positive int, the input has no leaves,
        or `initial_value` does not fit the type of a leaf.
    """
    if (k_steps is None) == (k is None):
      raise TypeError(
        'Delay needs its number of steps once, as k_steps or as k; got'
        f' k_steps={k_steps} and k={k}.'
      )
    self.k_steps = _delay_steps(k if k_steps is None else k_steps)
    leaves, self.treedef = jax.tree.flatten(
      pytrees.specs('Delay', sample_input)
    )
    if not leaves:
      raise ValueError(
        'Delay needs an input with at least one array; the sample has none:'
        f' {sample_input!r}.'
      )
    self.shapes = tuple(leaf.shape for leaf in leaves)
    self.dtypes = tuple(
      jax.dtypes.canonicalize_dtype(leaf.dtype) for leaf in leaves
    )
    # As Python numbers: NNX takes arrays in attributes for variables.
    self.initial = tuple(_fit(initial_value, dtype) for dtype in self.dtypes)

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    x = self._checked(x, state['index'].shape)
    past = rings.look_back(state, self.k_steps, self._initial())
    ring = rings.push(state, rings.after(state, [past], x))
    return StatefulModuleOutput(ring, past, jnp.array(0.0), {}, None)

  def unroll(self, state, x, is_first, rollout_extras=None):
    """Runs a sequence by shifting it; there is nothing to scan."""
    x = self._checked(x, is_first.shape)
    past = rings.look_back_sequence(state, x, is_first, self._initial())
    ring = rings.push_sequence(state, x, is_first)
    return StatefulModuleOutput(ring, past, jnp.array(0.0), {}, None)

  def initialize_state(self, batch_size: int) -> rings.Ring:
    """Returns empty rings of `batch_size` fresh episodes."""
    buffer = [
      jnp.full((batch_size, self.k_steps, *shape), value, dtype)
      for shape, value, dtype in zip(
        self.shapes, self.initial, self.dtypes, strict=True
      )
    ]
    return {
      'buffer': jax.tree.unflatten(self.treedef, buffer),
      'index': jnp.zeros(batch_size, jnp.int32),
      'count': jnp.zeros(batch_size, jnp.int32),
    }

  def reset_state(self, prev_state: rings.Ring) -> rings.Ring:
    return self.initialize_state(len(prev_state['index']))

  def reset_rows(self, is_first, state):
    return rings.restart(state, is_first)

  def _initial(self) -> Any:
    return jax.tree.unflatten(self.treedef, self.initial)

  def _checked(self, x: Any, lead: tuple[int, ...]) -> Any:
    """Returns `x` as arrays; raises unless it is like the sample."""
    leaves, treedef = jax.tree.flatten(pytrees.plain(x))
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    given = [_describe(leaf.shape, leaf.dtype) for leaf in leaves]
    expected = [
      _describe(lead + shape, dtype)
      for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
    ]
    if treedef != self.treedef or given != expected:
      text = [
        str(jax.tree.unflatten(*pair))
        for pair in ((self.treedef, expected), (treedef, given))
      ]
      raise ValueError(
        f'Delay: its sample_input asks for {text[0]}, but the input is'
        f' {text[1]}. Give Delay an example of what it will delay.'
      )
    return jax.tree.unflatten(treedef, leaves)


def _describe(shape: tuple[int, ...], dtype: Any) -> str:
  return f'{dtype}{list(shape)}'


def _delay_steps(k: Any) -> int:
  """Returns `k` as an int; raises unless it is a positive one."""
  if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 1:
    raise ValueError(
      f'Delay needs a whole number of steps, at least 1; got k_steps={k!r}.'
      ' For no delay leave the layer out.'
    )
  return int(k)


def _fit(value: Any, dtype: Any) -> bool | int | float:
  """Returns `value` as the Python number of `dtype`; raises if none fits."""
  number: Any = (
    value.item() if np.ndim(value) == 0 and hasattr(value, 'item') else value
  )
  if isinstance(number, numbers.Real) and _fits(number, dtype):
    return type(np.zeros((), dtype).item())(number)
  raise ValueError(
    f'Delay: initial_value={value!r} is not a number of the type {dtype},'
    ' which a leaf of sample_input has.'
  )


def _fits(number: Any, dtype: Any) -> bool:
  if jnp.issubdtype(dtype, jnp.bool_):
    return number in (0, 1)
  if jnp.issubdtype(dtype, jnp.integer):
    info = jnp.iinfo(dtype)
    return info.min <= number <= info.max and number == int(number)
  largest = float(jnp.finfo(dtype).max)
  return abs(number) <= largest or abs(number) == float('inf')
