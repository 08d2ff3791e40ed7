"""Shapes and examples, and what is neither."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.networks import pytrees


class Body(NamedTuple):
  """A structured input."""

  position: Any
  velocity: Any


def _spec(shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
  ('given', 'expected'),
  [
    (3, _spec((3,))),
    ((2, 3), _spec((2, 3))),
    ([2, 3], _spec((2, 3))),
    (np.zeros(2, np.uint8), _spec((2,), jnp.uint8)),
    ({'a': 3, 'b': (2,)}, {'a': _spec((3,)), 'b': _spec((2,))}),
    (Body(3, 2), Body(_spec((3,)), _spec((2,)))),
    ([(3,), (2,)], [_spec((3,)), _spec((2,))]),
  ],
)
def test_shapes_examples_and_trees_of_them_are_read(given, expected):
  assert pytrees.specs('Test', given) == expected


@pytest.mark.parametrize(
  'given', ['3', True, -1, (2, -1), {'a': None, 'b': 'x'}]
)
def test_what_is_neither_is_refused(given):
  with pytest.raises(TypeError, match='Test needs an int, a tuple of ints'):
    pytrees.specs('Test', given)


def test_a_typed_key_is_refused():
  with pytest.raises(TypeError, match='key_data'):
    pytrees.specs('Test', jax.random.key(0))
