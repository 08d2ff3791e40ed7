"""Policies: what acts outside the training step.

Without memory a policy is Brax's, `policy(observation, key) -> (action,
extras)`. With memory the carry is explicit:

    policy = make_policy(params, deterministic=True)
    state = policy.initial_state(batch_size)
    action, extras = policy(observation, key, state)
    state = policy.reset(extras['state'], done)
"""

from collections.abc import Callable
import functools
from typing import Any

from brax.training.agents.ppo import networks as brax_ppo_networks
import jax

from brax_nnx_plugin.networks import recording
from brax_nnx_plugin.ppo import observations
from brax_nnx_plugin.ppo.types import NetworkFunctions
from brax_nnx_plugin.ppo.types import NetworkOutput


class _Policy:
  """Parameters bound to a network, and what is common to all policies."""

  def __init__(
    self, functions: NetworkFunctions, params: Any, deterministic: bool
  ):
    """Binds parameters to a network.

    Args:
      functions: the network.
      params: the triple (normalizer, policy, value) that `train` returns.
      deterministic: act by the mode of the distribution.
    """
    self._functions = functions
    self._params = params
    self._variables = functions.variables(params[1], params[2])
    self._deterministic = deterministic

  @property
  def layers_with_memory(self) -> list[str] | None:
    """Paths of the layers with a carry; `None` if nothing is recorded."""
    return getattr(self._functions, 'layers_with_memory', None)

  @functools.cached_property
  def _needed(self) -> frozenset[str]:
    """The entries of the observation without which there is no action."""
    return observations.entries_read(
      self._functions,
      self._params,
      self._deterministic,
      lambda out: (out.action, _of_the_action(out, self._deterministic)),
    )

  def _step(
    self, observation: Any, key: jax.Array, state: Any
  ) -> tuple[Any, Any, dict[str, Any]]:
    """Acts on `[B]` rows; returns action, carry and extras."""
    spec = self._functions.observation_spec
    whole = observations.completed(spec, observation, lambda: self._needed)
    out = self._functions.step(
      self._variables,
      self._params[0],
      state,
      whole,
      key,
      deterministic=self._deterministic,
    )
    extras = _of_the_action(out, self._deterministic)
    if not self._deterministic and whole is observation:
      extras['value'] = out.value
    if self.layers_with_memory is not None:
      extras['activations'] = recording.extract_activations(out.metrics)
    return out.action, out.state, extras


def _of_the_action(out: NetworkOutput, deterministic: bool) -> dict[str, Any]:
  """Returns what Brax says of an action that was drawn."""
  if deterministic:
    return {}
  return {
    'log_prob': out.log_likelihood,
    'raw_action': out.raw_action,
    'distribution_params': out.parameters,
  }


class StatefulPolicy(_Policy):
  """A policy with memory; see the module docstring for how to step it."""

  @functools.cached_property
  def _state_ranks(self) -> list[int]:
    """How many axes each leaf of the carry has, the batch axis included."""
    state = jax.eval_shape(
      lambda: self._functions.initial_state(self._variables, 1)
    )
    return [leaf.ndim for leaf in jax.tree.leaves(state)]

  def _rows(self, state: Any) -> int | None:
    """Returns the rows of a carry; `None` if it has no batch axis.

    Raises:
      ValueError: if it is no carry of this network.
    """
    shapes = [jax.numpy.shape(leaf) for leaf in jax.tree.leaves(state)]
    ranks = [len(shape) for shape in shapes]
    if ranks == [rank - 1 for rank in self._state_ranks]:
      return None
    rows = {shape[:1] for shape in shapes}
    if ranks != self._state_ranks or len(rows) != 1:
      raise ValueError(
        f'This is no state of this policy: its leaves have shapes {shapes}.'
        " Make it with initial_state(batch_size), or take extras['state']."
      )
    return rows.pop()[0]

  def initial_state(
    self, batch_size: int | None = None, key: jax.Array | None = None
  ) -> Any:
    """Returns the carry at the start of an episode.

    Args:
      batch_size: number of rows; `None` for one unbatched observation, whose
        carry has no batch axis.
      key: for networks that draw noise from their carry (a variational
        bottleneck); without one they draw the same noise each time.
    """
    rows = 1 if batch_size is None else batch_size
    state = self._functions.initial_state(self._variables, rows, key)
    return state if batch_size is not None else _strip(state)

  def reset(self, state: Any, done: Any) -> Any:
    """Resets the carry of the episodes that are over.

    Args:
      state: as `extras['state']`.
      done: of any type, nonzero where the next observation is the first of an
        episode, as in Brax's `env_state.done`: `[B]`, `[B, 1]`, or one number
        for all rows.

    Raises:
      ValueError: if `done` has other rows than the state.
    """
    rows = self._rows(state)
    done = jax.numpy.asarray(done)
    count = 1 if rows is None else rows
    if done.shape not in ((), (count,), (count, 1)):
      raise ValueError(
        f'done has shape {done.shape}, but the state has'
        f' {"no batch axis" if rows is None else f"{rows} rows"}. Give one'
        ' number per row, or a single one without an axis for all.'
      )
    batched = _expand(state) if rows is None else state
    mask = jax.numpy.broadcast_to(done.reshape(-1), count)
    result = self._functions.reset(self._variables, mask, batched)
    return _strip(result) if rows is None else result

  def __call__(
    self, observation: Any, key: jax.Array, state: Any = None
  ) -> tuple[Any, dict[str, Any]]:
    """Acts once.

    Args:
      observation: `[B, ...]`, or one observation without a batch axis. Entries
        of a dict that the action does not depend on may be left out; the value
        is then left out as well, and the critic's memory is no use.
      key: for the noise of the action.
      state: the carry, from `initial_state` or `extras['state']`.

    Returns:
      The action, and extras with the next carry under 'state'; unless
      deterministic also `log_prob`, `value` and the entries Brax has.

    Raises:
      ValueError: without a carry, or if it has other rows than the observation,
        or if the observation is not what the network was made for.
    """
    if state is None:
      raise ValueError(
        'This policy has memory and was called without a state. Start with'
        ' state = policy.initial_state(batch_size), pass it as the third'
        " argument, go on with extras['state'], and clear it with"
        ' policy.reset(state, done).'
      )
    spec = self._functions.observation_spec
    rows = observations.leading_axes(spec, observation)
    held = self._rows(state)
    if rows != (() if held is None else (held,)):
      raise ValueError(
        f'The observation has rows {rows}, but the state has'
        f' {"no batch axis" if held is None else f"{held} rows"}. Both need one'
        ' row per environment: make the state with initial_state(batch_size).'
      )
    if held is None:
      observation, state = _expand(observation), _expand(state)
    action, state, extras = self._step(observation, key, state)
    result = action, {'state': state, **extras}
    return _strip(result) if held is None else result


class _MemorylessPolicy(_Policy):
  """Brax's kind of policy, for any leading axes of the observation."""

  def __call__(
    self, observation: Any, key: jax.Array
  ) -> tuple[Any, dict[str, Any]]:
    spec = self._functions.observation_spec
    rows = observations.leading_axes(spec, observation)
    fold = lambda x: x.reshape((-1, *x.shape[len(rows) :]))
    # A tree without leaves.
    state = self._functions.initial_state(self._variables, 1)
    action, _, extras = self._step(jax.tree.map(fold, observation), key, state)
    return jax.tree.map(
      lambda x: x.reshape((*rows, *x.shape[1:])), (action, extras)
    )


def recording_policy(
  ppo_networks: Any, params: Any, deterministic: bool = False
) -> Any:
  """Makes a policy that also says what its layers put out.

  It acts as the one of `make_inference_fn` does. `extras['activations']` maps
  the path of each layer to its output `[B, ...]`, and `layers_with_memory` are
  the paths, or their beginnings, of those with a carry.

  Args:
    ppo_networks: what a network factory of this package returned.
    params: the triple (normalizer, policy, value).
    deterministic: act by the mode of the distribution.

  Raises:
    ValueError: for networks of stock Brax, which are not made of NNX modules.
  """
  functions: Any = getattr(ppo_networks, 'functions', None)
  if not hasattr(functions, 'recording'):
    raise ValueError(
      'The layers of a network of stock Brax cannot be looked into; train one'
      ' of ppo.networks instead.'
    )
  kind = StatefulPolicy if functions.stateful else _MemorylessPolicy
  return kind(functions.recording(), params, deterministic)


def _expand(tree: Any) -> Any:
  return jax.tree.map(lambda x: jax.numpy.asarray(x)[None], tree)


def _strip(tree: Any) -> Any:
  return jax.tree.map(lambda x: x[0], tree)


def make_inference_fn(
  ppo_networks: brax_ppo_networks.PPONetworks,
  compute_value: bool = False,
  use_distributional_critic: bool = False,
) -> Callable[..., Any]:
  """Makes the function that turns parameters into a policy.

  Args:
    ppo_networks: what a network factory returned.
    compute_value: as in Brax, for networks that stock Brax can run.
    use_distributional_critic: likewise.

  Returns:
    `make_policy(params, deterministic=False)`.
  """
  functions = getattr(ppo_networks, 'functions', None)
  if functions is None or getattr(ppo_networks, 'brax_compatible', False):
    return brax_ppo_networks.make_inference_fn(
      ppo_networks, compute_value, use_distributional_critic
    )
  kind = StatefulPolicy if functions.stateful else _MemorylessPolicy

  def make_policy(params: Any, deterministic: bool = False) -> Any:
    return kind(functions, params, deterministic)

  return make_policy
