"""Action samplers: from distribution parameters to an action.

A sampler is the last layer of an action port. Acting, it draws an action and
emits the raw one (before squashing) as its extras; replaying, it is handed that
raw action back and scores it under the current parameters.

The output is a dict: `action` `[B, A]`, `log_likelihood` `[B]`, `entropy`
`[B]`, `loc` and `scale` `[B, A]` of the distribution before squashing,
`raw_action`, and `parameters`, what Brax's distribution was given.
"""

import abc
import numbers
from typing import Any

from brax.training import distribution
from flax import nnx
import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks.types import StatefulModule
from brax_nnx_plugin.networks.types import StatefulModuleOutput


class SampleKey(nnx.RngKey):
  """The key of a sampler's next draw.

  Not an `nnx.RngStream`, whose draws come from keys derived from its own: Brax
  samples with the very key that it gives a policy, and so can this.
  """


# Moves a key on by hashing a counter that no draw of fewer numbers uses.
_NEXT_DRAW = 0xFFFFFFFF


class ActionSampler(StatefulModule, abc.ABC):
  """Turns distribution parameters into an action and its log-likelihood.

  With `deterministic` set (by `network.eval()`) the action is the mode.
  """

  def __init__(self, rngs: nnx.Rngs, entropy_weight: float = 0.0):
    """Initializes the sampler.

    Args:
      rngs: source of the first key.
      entropy_weight: weight of the entropy in this module's
        `regularization_loss`; PPO's own `entropy_cost` comes on top.
    """
    self.deterministic = False
    self.entropy_weight = entropy_weight
    self.key = SampleKey(rngs(), tag='sample')

  @abc.abstractmethod
  def distribution(
    self, action_size: int
  ) -> distribution.ParametricDistribution:
    """Returns Brax's distribution over actions `[..., action_size]`."""

  @abc.abstractmethod
  def action_size(self, parameters: jax.Array) -> int:
    """Returns the size of the action that `parameters` describe."""

  def parameters(self, x: jax.Array) -> jax.Array:
    """Returns the distribution's parameters for an input; the input itself."""
    return x

  def __call__(self, state, x, rollout_extras=None) -> StatefulModuleOutput:
    x = self.parameters(x)
    dist: Any = self.distribution(self.action_size(x))
    unsquashed = dist.create_dist(x)
    key = self.key.get_value()
    self.key.set_value(jax.random.fold_in(key, _NEXT_DRAW))
    if rollout_extras is not None:
      raw_action = rollout_extras
    elif self.deterministic:
      raw_action = unsquashed.mode()
    else:
      # The draw is what the environment saw: no gradient goes through it.
      raw_action = jax.lax.stop_gradient(dist.sample_no_postprocessing(x, key))
    entropy = dist.entropy(x, key)
    output = {
      'action': dist.postprocess(raw_action),
      'log_likelihood': dist.log_prob(x, raw_action),
      'entropy': entropy,
      'loc': unsquashed.loc,
      'scale': unsquashed.scale,
      'parameters': x,
      'raw_action': raw_action,
    }
    metrics = {'mu': unsquashed.loc, 'sigma': unsquashed.scale}
    loss = -self.entropy_weight * entropy if self.entropy_weight else 0.0
    return StatefulModuleOutput(
      state, output, jnp.asarray(loss), metrics, raw_action
    )


class NormalTanhSampler(ActionSampler):
  """A normal distribution squashed by tanh.

      loc, s = split(x),   scale = (softplus(s) + min_std) std_scale
      action = tanh(loc + scale ε),   ε ~ N(0, 1)

  Input `[B, 2 A]`. Entropy is the normal's plus a one-sample estimate of the
  squashing term.

  References:
    `brax.training.distribution.NormalTanhDistribution`, called for all of the
    arithmetic.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    entropy_weight: float = 0.0,
    min_std: float = 1e-3,
    std_scale: float = 1.0,
  ):
    """Initializes the sampler.

    Args:
      rngs: source of the first key.
      entropy_weight: see `ActionSampler`.
      min_std: added to the softplus; the smallest scale.
      std_scale: factor on the scale.
    """
    super().__init__(rngs, entropy_weight)
    self.min_std = min_std
    self.std_scale = std_scale

  def distribution(self, action_size):
    """Returns Brax's `NormalTanhDistribution` with this sampler's scales."""
    return distribution.NormalTanhDistribution(
      event_size=action_size,
      min_std=self.min_std,
      var_scale=self.std_scale,  # pyright: ignore[reportArgumentType]
    )

  def action_size(self, parameters):
    """Returns half the size of the parameters `[..., 2 A]`."""
    size = parameters.shape[-1]
    if size % 2:
      raise ValueError(
        'NormalTanhSampler needs a location and a scale per action, an even'
        f' number of parameters; got {size}. Give the layer before it'
        ' 2 * action_size outputs.'
      )
    return size // 2


class SplitNormalDistribution(distribution.NormalDistribution):
  """Brax's `NormalDistribution` with one array `[..., 2 A]` as parameters.

  Brax passes a pair (loc, scale). One array goes wherever the parameters of
  other samplers go: joined with theirs, reshaped, recorded.
  """

  def __init__(self, event_size: int):
    super().__init__(event_size)
    self._param_size = 2 * event_size

  def create_dist(self, parameters):
    """Returns the normal distribution of `loc, scale = split(parameters)`."""
    return super().create_dist(jnp.split(parameters, 2, axis=-1))


# What `NormalSampler` trains for its scale, or reads as one.
NOISE_STD_TYPES = ('scalar', 'log')


class NormalSampler(ActionSampler):
  """A normal distribution; actions are not squashed.

      action = loc + scale ε,   ε ~ N(0, 1)

  By default loc is the input `[B, A]` and scale a trained vector `[A]`, the
  same in every state. With `state_dependent_std` the input is `[B, 2 A]`, loc
  and a number s for the scale. The output's `parameters` are loc and scale,
  `[B, 2 A]`.

  `noise_std_type` says what is trained, or what s is: the scale itself
  ('scalar') or its logarithm ('log'). As in Brax nothing keeps a 'scalar' scale
  above zero, and the log-likelihood is NaN where it is below; so prefer 'log',
  above all with `state_dependent_std`, where s has either sign from the start.

  References:
    `brax.training.distribution.NormalDistribution`, called for all of the
    arithmetic, and `brax.training.networks.PolicyModuleWithStd`.
  """

  def __init__(
    self,
    action_size: int,
    rngs: nnx.Rngs,
    entropy_weight: float = 0.0,
    *,
    state_dependent_std: bool = False,
    noise_std_type: str = 'scalar',
    init_noise_std: float = 1.0,
  ):
    """Initializes the sampler.

    Args:
      action_size: A.
      rngs: source of the first key.
      entropy_weight: see `ActionSampler`.
      state_dependent_std: whether the scale is a function of the state.
      noise_std_type: 'scalar' or 'log'.
      init_noise_std: scale before training, if it does not depend on the
        state.

    Raises:
      TypeError: if `action_size` is not an int.
      ValueError: if `noise_std_type` is unknown, or a number is not positive.
    """
    if not isinstance(action_size, numbers.Integral):
      raise TypeError(
        'NormalSampler needs an int as action_size, its first argument; got a'
        f' {type(action_size).__name__}.'
      )
    if action_size < 1 or not init_noise_std > 0:
      raise ValueError(
        'NormalSampler needs action_size >= 1 and init_noise_std > 0; got'
        f' {action_size} and {init_noise_std}.'
      )
    if noise_std_type not in NOISE_STD_TYPES:
      raise ValueError(
        'NormalSampler knows the noise_std_type'
        f' {" and ".join(NOISE_STD_TYPES)}; got {noise_std_type!r}.'
      )
    super().__init__(rngs, entropy_weight)
    self.size = int(action_size)
    self.state_dependent_std = state_dependent_std
    self.noise_std_type = noise_std_type
    # Two names, so that weights of one type are never read as the other's.
    initial = {'scalar': float(init_noise_std), 'log': jnp.log(init_noise_std)}
    vector = jnp.full(self.size, initial[noise_std_type])
    trained = None if state_dependent_std else noise_std_type
    self.std = nnx.Param(vector) if trained == 'scalar' else None
    self.log_std = nnx.Param(vector) if trained == 'log' else None

  def distribution(self, action_size):
    """Returns Brax's `NormalDistribution`, with parameters `[..., 2 A]`."""
    return SplitNormalDistribution(event_size=action_size)

  def action_size(self, parameters):
    """Returns the size that the sampler was made for."""
    return self.size

  def parameters(self, x):
    """Returns loc and scale, `[..., 2 A]`.

    Raises:
      ValueError: if the input has another size than the sampler needs.
    """
    outputs = 2 * self.size if self.state_dependent_std else self.size
    if x.shape[-1] != outputs:
      raise ValueError(
        f'NormalSampler(action_size={self.size}, state_dependent_std='
        f'{self.state_dependent_std}) needs {outputs} inputs; got'
        f' {x.shape[-1]}. Give the layer before it {outputs} outputs.'
      )
    vector: Any = self.log_std if self.noise_std_type == 'log' else self.std
    loc, std = (
      jnp.split(x, 2, axis=-1) if self.state_dependent_std else (x, vector[...])
    )
    scale = jnp.exp(std) if self.noise_std_type == 'log' else std
    return jnp.concatenate([loc, jnp.broadcast_to(scale, loc.shape)], axis=-1)
