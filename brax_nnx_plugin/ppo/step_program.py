"""A policy's step as a traced program, without what does not reach the action.

The step is a function of three things, all without a batch axis: the weights
(parameters and statistics), the observation and the carry. What the action
needs neither now nor later is left out: the critic, its memory, and the entries
of the observation that only it reads.
"""

import dataclasses
from typing import Any

import jax
from jax.extend import core as jax_core
from jax.interpreters import partial_eval

from brax_nnx_plugin.ppo import leaves
from brax_nnx_plugin.ppo.types import NetworkFunctions

Specs = dict[str, jax.ShapeDtypeStruct]


def specs(tree: Any) -> Any:
  """Returns the shapes and types of the arrays in a tree."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      jax.numpy.shape(x), jax.numpy.result_type(x)
    ),
    tree,
  )


@dataclasses.dataclass(frozen=True)
class StepProgram:
  """One step of a policy; all its arrays have names, in order.

  Attributes:
    jaxpr: a closed jaxpr from the weights, the observation and the carry to the
      action and the next carry.
    weights: what of the parameters and statistics is used.
    observation: the entries that are used; one array is called 'observation'.
    state: the leaves of the carry that are used; one array is called 'state'.
    action: likewise 'action'.
    has_entries: whether the observation is a dict.
  """

  jaxpr: Any
  weights: dict[str, Any]
  observation: Specs
  state: Specs
  action: Specs
  has_entries: bool

  def __call__(self, observation: Any, state: Any) -> tuple[Any, Any]:
    """Runs the step.

    Args:
      observation: a sequence of arrays, one for each name.
      state: likewise.

    Returns:
      The arrays of the action, and those of the next carry.
    """
    run = jax_core.jaxpr_as_fun(self.jaxpr)
    outputs = run(*self.weights.values(), *observation, *state)
    count = len(self.action)
    return tuple(outputs[:count]), tuple(outputs[count:])


def named(tree: Any, name: str) -> dict[str, Any]:
  """Returns the leaves of a tree by name; a tree of one array is `name`."""
  return {key or name: leaf for key, leaf in leaves.by_name(tree).items()}


def _expand(tree: Any) -> Any:
  return jax.tree.map(lambda x: x[None], tree)


def _strip(tree: Any) -> Any:
  return jax.tree.map(lambda x: x[0], tree)


def _prune(jaxpr: Any, outputs: int, carried: int) -> tuple[Any, list[bool]]:
  """Keeps what the first outputs need, through any number of steps.

  Args:
    jaxpr: its last `carried` inputs and outputs are a carry.
    outputs: how many outputs there are before the carry.
    carried: leaves of the carry.

  Returns:
    The program, and which inputs are left.
  """
  keep = [False] * carried
  while True:
    pruned, used = partial_eval.dce_jaxpr(jaxpr, [True] * outputs + keep)
    again = used[len(used) - carried :]
    if again == keep:
      return pruned, used
    keep = again


def trace(
  functions: NetworkFunctions,
  params: Any,
  observation: Any,
  *,
  deterministic: bool = True,
  output: Any = lambda out: out.action,
) -> StepProgram:
  """Traces the step of a policy.

  Args:
    functions: the network.
    params: the triple (normalizer, policy, value).
    observation: a `jax.ShapeDtypeStruct`, or a dict of them; no batch axis.
    deterministic: act by the mode of the distribution.
    output: takes what counts as the action out of a `NetworkOutput`.
  """
  weights = dict(zip(('normalizer', 'policy', 'value'), params, strict=True))

  def step(weights, observation, state):
    out = functions.step(
      functions.variables(weights['policy'], weights['value']),
      weights['normalizer'],
      _expand(state),
      _expand(observation),
      jax.random.key(0),
      deterministic=deterministic,
    )
    return _strip((output(out), out.state))

  def initial_state(weights):
    variables = functions.variables(weights['policy'], weights['value'])
    return _strip(functions.initial_state(variables, 1))

  state = jax.eval_shape(initial_state, weights)
  arguments = specs(weights), specs(observation), state
  jaxpr, (action, _) = jax.make_jaxpr(step, return_shape=True)(*arguments)
  actions = named(action, 'action')
  names = [
    named(tree, name)
    for tree, name in zip((weights, *arguments[1:]), _NAMES, strict=True)
  ]
  pruned, used = _prune(jaxpr.jaxpr, len(actions), len(names[-1]))
  flags = iter(used)
  kept = [{k: v for k, v in group.items() if next(flags)} for group in names]
  return StepProgram(
    jaxpr.replace(jaxpr=pruned),
    kept[0],
    kept[1],
    kept[2],
    actions,
    not isinstance(observation, jax.ShapeDtypeStruct),
  )


_NAMES = ('weights', 'observation', 'state')
