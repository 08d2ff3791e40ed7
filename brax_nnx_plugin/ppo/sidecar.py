"""What `policy.json` says of an exported policy."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import jax
import numpy as np

from brax_nnx_plugin.ppo import step_program

Names = Sequence[str] | Mapping[str, Sequence[str]]

RESET_RULE = (
  "Before the first step of an episode, set each state entry whose 'reset' is"
  " 'initial' to 'state/NAME' of policy.npz, and leave those with 'keep' as"
  " they are. Before the very first episode, set all to 'state/NAME'."
)


def reset_rules(
  functions: Any, params: Any, program: step_program.StepProgram
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """Returns the initial state, and what a reset does to each of its leaves.

  Args:
    functions: the network.
    params: the triple (normalizer, policy, value).
    program: the step of the policy.

  Raises:
    ValueError: if a reset neither sets a leaf to its initial value nor leaves
      it as it is.
  """
  variables = functions.variables(params[1], params[2])
  initial = functions.initial_state(variables, 1)
  # Another number everywhere, so that the two cases can be told apart.
  other = jax.tree.map(
    lambda x: ~x if x.dtype == bool else x + np.array(7.37, x.dtype), initial
  )
  reset = functions.reset(variables, np.ones(1), other)
  rules = {}
  trees = [step_program.named(t, 'state') for t in (initial, other, reset)]
  for name in program.state:
    start, before, after = (np.asarray(tree[name]) for tree in trees)
    if np.array_equal(after, start):
      rules[name] = 'initial'
    elif np.array_equal(after, before):
      rules[name] = 'keep'
    else:
      raise ValueError(
        f'A reset changes the state {name!r}, but not to its initial value. An'
        ' exported policy can only do that, or leave it as it is.'
      )
  return {k: np.asarray(trees[0][k])[0] for k in program.state}, rules


def describe(
  group: str, specs: Mapping[str, Any], names: Names | None = None
) -> list[dict[str, Any]]:
  """Describes the arrays of a group, in order.

  Args:
    group: 'observation', 'action' or 'state'.
    specs: shapes and types by name.
    names: what the numbers of an array are; a dict of lists if the group has
      several arrays.

  Raises:
    ValueError: if the names are too many or too few, or for something else.
  """
  by_entry = names if isinstance(names, Mapping) else {group: names}
  given = {k: list(map(str, v)) for k, v in by_entry.items() if v is not None}
  if unknown := set(given) - set(specs):
    raise ValueError(
      f'{group}_names is for {sorted(unknown)}, but the policy has the entries'
      f' {list(specs)}.'
    )
  entries = []
  for name, spec in specs.items():
    entry = {'name': name, 'shape': list(spec.shape), 'dtype': str(spec.dtype)}
    if features := given.get(name):
      if len(features) != math.prod(spec.shape):
        raise ValueError(
          f'{group}_names has {len(features)} names for {name!r}, which has'
          f' {math.prod(spec.shape)} numbers.'
        )
      entry['features'] = features
    entries.append(entry)
  return entries
