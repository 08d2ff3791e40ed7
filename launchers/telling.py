"""What the launcher says before a run and after it, and leaves of it."""

from collections.abc import Mapping
from collections.abc import Sequence
import inspect
import pathlib
import shlex
import sys
import textwrap
from typing import Any

import jax

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import export
from brax_nnx_plugin.ppo import train as ppo
from brax_nnx_plugin.ppo.devices import Devices
from brax_nnx_plugin.ppo.schedule import Schedule
from brax_nnx_plugin.ppo.types import TrainingDiverged

from . import brax_suite
from . import configs
from . import environments
from . import reporting
from .configs import RunConfig


def view(hidden: Sequence[int], delay: int = 0) -> str:
  """Says in words what is hidden of an observation, and how late it comes.

  Args:
    hidden: entries.
    delay: env steps.
  """
  parts = []
  if hidden:
    entries = ', '.join(map(str, hidden))
    plural = 'entries' if len(hidden) > 1 else 'entry'
    parts.append(f', {plural} {entries} of the observation hidden')
  if delay:
    parts.append(f', observations {delay} env step(s) late')
  return ''.join(parts)


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
  """Leaves out what `train` does unless told otherwise."""
  known = inspect.signature(ppo.train).parameters
  return {k: v for k, v in values.items() if v != known[k].default}


def _plan(config: RunConfig, schedule: Schedule, begin: int | None) -> str:
  """Says what comes next; see `announce`."""
  total = f'{schedule.total_env_steps:,} env steps'
  if begin is not None and begin >= schedule.total_env_steps:
    return (
      f'All {total} are taken already. For more, add'
      ' --num_timesteps=<env steps in all>.'
    )
  count = Devices.of(config.ppo.get('max_devices_per_host')).count
  devices = f'{count} {jax.default_backend()} device(s)'
  if jax.process_count() > 1:
    devices += f' of {jax.process_count()} processes'
  text = f'Compiling for {devices}, which takes a while; then {total}'
  if begin is not None:
    text += (
      f', from {begin:,} on'
      if begin
      else ' from the start, as there is no checkpoint'
    )
  text += '.'
  asked = config.ppo.get('num_timesteps')
  if asked is not None and asked < schedule.total_env_steps:
    epochs = schedule.num_rounds * schedule.epochs_per_round
    text += (
      f' {asked:,} were asked for; they are rounded up to {epochs} epochs of'
      f' {schedule.env_steps_per_epoch:,}. Smaller --num_evals and'
      ' --num_resets_per_eval make fewer epochs.'
    )
  return text


def announce(
  config: RunConfig,
  folder: pathlib.Path,
  schedule: Schedule,
  begin: int | None = None,
) -> None:
  """Shows the effective configuration and what comes next.

  Args:
    config: of the run.
    folder: of the run.
    schedule: likewise.
    begin: of a run that goes on, env steps of its checkpoint, 0 if there is
      none; its configuration is shown in short.
  """

  def listing(title: str, values: Mapping[str, Any]) -> str:
    text = ', '.join(f'{name}={value}' for name, value in values.items())
    text = f'{title}: {text}' if text else title
    return textwrap.fill(text, 80, subsequent_indent='  ')

  seen = view(config.hidden, config.delay)
  physics = config.env_config.get('impl', config.env_config.get('backend'))
  print(
    f'Environment: {config.env_name}{seen}, physics: {physics or "default"}'
  )
  if config.suite == environments.BRAX:
    print(textwrap.fill(brax_suite.note(config.env_name), 80))
  print(listing(f'Network: {config.network}', config.network_arguments))
  ppo_arguments = config.ppo if begin is None else _told(config.ppo)
  print(listing('PPO', ppo_arguments))
  print(f'Folder: {folder}', flush=True)
  text = textwrap.fill(_plan(config, schedule, begin), 80)
  print(text, file=sys.stderr, flush=True)


def export_policy(config: RunConfig, folder: pathlib.Path, env: Any) -> None:
  """Writes the policy for deployment."""
  export.export_policy(
    folder,
    folder / reporting.EXPORTED_NAME,
    network_factory=configs.network_factory(config),
    control_dt=environments.control_dt(env, config.ppo.get('action_repeat', 1)),
    extra={
      'environment': config.env_name,
      'hidden': list(config.hidden),
      'delay': config.delay,
    },
    overwrite=True,  # what a run that goes on has written before
  )


def stopped(preempted: checkpoint.Preempted) -> str:
  """Says how a run that a signal has stopped goes on."""
  text = f'stopped after {preempted.env_steps:,} env steps.'
  if preempted.checkpoint is None:
    return text
  run = pathlib.Path(str(preempted.checkpoint)).parent.parent
  return f'{text} --resume={shlex.quote(str(run))} goes on.'


def diverged(error: TrainingDiverged) -> str:
  """Says what is left of a run whose numbers are no longer finite."""
  return (
    f'{error} Training stopped; checkpoints, metrics and pictures so far are'
    ' kept. --nostop_on_nan goes on regardless.'
  )


def out_of_memory(error: Exception) -> str:
  """Says what to do, if that is what an error is about, or else nothing."""
  if isinstance(error, MemoryError) or 'RESOURCE_EXHAUSTED' in str(error):
    return (
      'The memory of the device is not enough. --dry_run says what each part'
      ' needs; smaller num_envs, batch_size, unroll_length or layers need less.'
    )
  return ''


def conclude(config: RunConfig, folder: pathlib.Path, reward: str) -> None:
  """Says what there is now, and how to use it."""
  picture = folder / reporting.PICTURE_NAME
  print(f'Done, {reward or "and no reward was measured"}.')
  print(f'  configuration  {folder / reporting.CONFIG_NAME}')
  print(f'  metrics        {folder / reporting.METRICS_NAME}')
  if picture.exists():
    print(f'  picture        {picture}')
  print(f'  report         {folder / reporting.REPORT_NAME}')
  print(f'  checkpoints    {folder / reporting.CHECKPOINTS_NAME}')
  if (folder / reporting.EXPORTED_NAME).exists():
    print(f'  for a robot    {folder / reporting.EXPORTED_NAME}')
  # A network of the user's own is named by the user alone.
  own = ':' in config.network
  named = f', {config.network!r}' if own else ''
  flag = f' --network={shlex.quote(config.network)}' if own else ''
  print(f'Look at it with brax-nnx-play {shlex.quote(str(folder))}{flag}')
  print('Load the policy with')
  print('  from brax_nnx_plugin.ppo import checkpoint')
  print(
    f'  policy = checkpoint.load_policy({str(folder)!r}{named})', flush=True
  )
