"""More env steps for a run that goes on."""

from typing import Any

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import resuming

from . import saved
from .errors import UserError


def _decides(options: dict[str, Any], before: dict[str, Any]) -> bool:
  """Whether the flags say, otherwise than before, how long an epoch is."""
  return any(
    name in options and options[name] != before.get(name)
    for name in ('num_evals', 'num_resets_per_eval')
  ) or any(text.startswith('ppo.num_') for text in options.get('set', ()))


def fitted(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
  """Keeps the epochs of a run as they were, if only more are asked for.

  An epoch is compiled as a whole, and a run goes on with the same. So what is
  asked for is rounded up to whole rounds of them, and there are as many more
  evaluations.

  Args:
    options: the flags that were given, `resume` resolved; see `saved.resumed`.

  Returns:
    The flags that hold, and in words what is changed, if anything.

  Raises:
    UserError: if the run cannot be read.
  """
  if not {'resume', 'num_timesteps'} <= options.keys():
    return options, ''
  newest = checkpoint.latest(options['resume'])
  if newest is None:
    return options, ''
  before = saved.read(options['resume'], '--resume')['ppo']
  if _decides(options, before):
    return options, ''
  try:
    size = resuming.env_steps_per_epoch(newest)
  except ValueError as e:
    raise UserError(f'--resume: {e}') from None
  if size is None:
    return options, ''
  per_round = size * max(before.get('num_resets_per_eval', 0), 1)
  rounds = -(-options['num_timesteps'] // per_round)
  if rounds == max(before.get('num_evals', 1) - 1, 1):
    return options, ''
  total = rounds * per_round
  changed = {'num_timesteps': total, 'num_evals': rounds + 1}
  return options | changed, (
    f'--num_timesteps={options["num_timesteps"]}: training goes on to'
    f' {total:,} env steps with an evaluation every {per_round:,}, as before.'
  )
