"""Networks as users write them by mistake."""

from brax_nnx_plugin import networks


class _Broken(networks.StatefulModule):
  def __call__(self, state, x, rollout_extras=None):
    raise RuntimeError('off')


def raises(observation_size, action_size, rngs):
  """Looks for what is not there."""
  return {'layer': 1}['layers']


def fails(observation_size, action_size, rngs):
  """Returns a network that fails when it is called."""
  return networks.PPOAdapter(action=_Broken(), value=_Broken())


def nothing(observation_size, action_size, rngs):
  """Forgets to return a network."""
