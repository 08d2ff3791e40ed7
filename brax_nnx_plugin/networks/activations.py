"""Activations by name, those of Brax that keep the shape of their input."""

from collections.abc import Callable

import jax

Activation = Callable[[jax.Array], jax.Array] | str

ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
  'celu': jax.nn.celu,
  'elu': jax.nn.elu,
  'gelu': jax.nn.gelu,
  'hard_sigmoid': jax.nn.hard_sigmoid,
  'hard_silu': jax.nn.hard_silu,
  'hard_swish': jax.nn.hard_swish,
  'hard_tanh': jax.nn.hard_tanh,
  'leaky_relu': jax.nn.leaky_relu,
  'linear': lambda x: x,
  'log_sigmoid': jax.nn.log_sigmoid,
  'log_softmax': jax.nn.log_softmax,
  'mish': jax.nn.mish,
  'normalize': jax.nn.standardize,
  'relu': jax.nn.relu,
  'relu6': jax.nn.relu6,
  'selu': jax.nn.selu,
  'sigmoid': jax.nn.sigmoid,
  'silu': jax.nn.silu,
  'soft_sign': jax.nn.soft_sign,
  'softmax': jax.nn.softmax,
  'softplus': jax.nn.softplus,
  'standardize': jax.nn.standardize,
  'swish': jax.nn.swish,
  'tanh': jax.nn.tanh,
}


def activation_fn(activation: Activation) -> Callable[..., jax.Array]:
  """Returns an activation function by name, or the function itself.

  Args:
    activation: a function, or a key of `ACTIVATIONS`.

  Raises:
    ValueError: if there is no activation of that name.
  """
  if callable(activation):
    return activation
  if activation not in ACTIVATIONS:
    raise ValueError(
      f'There is no activation {activation!r}; choose one of'
      f' {", ".join(ACTIVATIONS)}, or pass a function.'
    )
  return ACTIVATIONS[activation]
