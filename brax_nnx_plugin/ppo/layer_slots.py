"""Which layer of a stock Brax network is which layer of ours.

Linen and NNX name the same layers differently. A common name for each, its
*slot*, says which belongs to which.
"""

import re
from typing import Any
from typing import NamedTuple

import numpy as np

from brax_nnx_plugin.ppo import leaves

# Layer names, with the numbers that tell layers of a kind apart.
_PATTERNS = {
  'conv': (
    r'(?:.*/)?CNN_(\d+)/Conv_(\d+)',
    r'.*/components/view_(\d+)/convs/(\d+)',
  ),
  'dense': (r'(?:.*/)?hidden_(\d+)', r'.*/components/(\d+)/linear'),
  'mean': (r'(?:.*/)?Dense_0', r'.*/components/mean/linear'),
  'scale': (r'(?:.*/)?Dense_1', r'.*/components/scale/linear'),
  'std': (r'(?:.*/)?std_param/value', r'.*/components/\d+/std'),
  'log_std': (
    r'(?:.*/)?std_logparam/log_value',
    r'.*/components/\d+/log_std',
  ),
}


class Layer(NamedTuple):
  """A layer: its names and its arrays, by 'kernel', 'bias' or ''."""

  names: dict[str, str]
  arrays: dict[str, Any]

  @property
  def shapes(self) -> dict[str, tuple[int, ...]]:
    """The shape of each array."""
    return {part: np.shape(array) for part, array in self.arrays.items()}


def _kind_of(layer: str) -> tuple[str, tuple[int, ...]]:
  """Returns the kind of a layer and its numbers; 'other' if it has no twin."""
  for kind, patterns in _PATTERNS.items():
    for pattern in patterns:
      if match := re.fullmatch(pattern, layer):
        return kind, tuple(map(int, match.groups()))
  return 'other', ()


def slots(tree: Any) -> dict[str, Layer]:
  """Sorts the leaves of one network, of either kind, into slots.

  Slots are 'conv i j' of image i, 'dense k' in order, 'output' for the last
  dense layer of all, 'scale', 'std' and 'log_std' for the noise. What has no
  twin goes by its own name.
  """
  found: dict[tuple[str, tuple[int, ...], str], Layer] = {}
  for name, array in leaves.by_name(tree).items():
    layer, _, part = name.rpartition('/')
    if part not in ('kernel', 'bias'):
      layer, part = name, ''
    kind, numbers = _kind_of(layer)
    key = kind, numbers, layer if kind == 'other' else ''
    if part in found.get(key, Layer({}, {})).names:
      # Two layers that go by one name: a network of another build.
      key = 'other', (), layer
    entry = found.setdefault(key, Layer({}, {}))
    entry.names[part] = name
    entry.arrays[part] = array
  dense = sorted(key for key in found if key[0] == 'dense')
  dense += [key for key in found if key[0] == 'mean']
  names = {key: f'dense {i}' for i, key in enumerate(dense[:-1])}
  names |= dict.fromkeys(dense[-1:], 'output')
  for key in found:
    kind, numbers, own_name = key
    slot = own_name or ' '.join((kind, *map(str, numbers)))
    names.setdefault(key, slot)
  return {names[key]: layer for key, layer in found.items()}


def match(
  side: str, source: Any, target: Any
) -> tuple[dict[str, Any], list[str]]:
  """Finds the array for every leaf of a network.

  Args:
    side: 'policy' or 'value', for the messages.
    source: parameters of a network of either kind.
    target: those of the network to fill, at least their shapes.

  Returns:
    Arrays by the name of the leaf in `target`, and a message for each leaf of
    the two that does not fit.
  """
  given, needed = slots(source), slots(target)
  none = Layer({}, {})
  values, wrong = {}, []
  for slot in sorted(given.keys() | needed.keys()):
    old, new = given.get(slot, none), needed.get(slot, none)
    for part in sorted(old.names.keys() | new.names.keys()):
      if part not in old.names:
        wrong.append(f'{side}/{new.names[part]} is needed and not given')
        continue
      name = f'{side}/{old.names[part]}'
      if part not in new.names:
        wrong.append(f'{name} is given and not needed')
        continue
      shapes = old.shapes[part], new.shapes[part]
      if shapes[0] != shapes[1]:
        wrong.append(
          f'{name} has shape {shapes[0]} where {shapes[1]} is needed'
        )
      values[new.names[part]] = old.arrays[part]
  return values, wrong


def pairs(source: Any, target: Any) -> tuple[dict[str, Any], dict[str, str]]:
  """Finds arrays for those layers of a network that have a twin of their size.

  Returns:
    Arrays by the name of the leaf in `target`, and the name in `source` by the
    name in `target`.
  """
  given, needed = slots(source), slots(target)
  values, names = {}, {}
  for slot, new in needed.items():
    old = given.get(slot)
    if old is None or old.shapes != new.shapes:
      continue
    for part, name in new.names.items():
      values[name], names[name] = old.arrays[part], old.names[part]
  return values, names
