"""What the launcher says before a run and after it, and leaves of it."""

from collections.abc import Mapping
import pathlib
import sys
import textwrap
from typing import Any

import jax

from brax_nnx_plugin.ppo import export
from brax_nnx_plugin.ppo.devices import Devices

from . import brax_suite
from . import configs
from . import environments
from . import reporting
from .configs import RunConfig


def announce(config: RunConfig, folder: pathlib.Path, total: int) -> None:
  """Shows the effective configuration and what comes next."""

  def listing(title: str, values: Mapping[str, Any]) -> str:
    text = ', '.join(f'{name}={value}' for name, value in values.items())
    return textwrap.fill(f'{title}: {text}', 80, subsequent_indent='  ')

  hidden = f' without observations {config.hidden}' if config.hidden else ''
  if config.delay:
    hidden += f', observations {config.delay} env step(s) late'
  physics = config.env_config.get('impl', config.env_config.get('backend'))
  print(
    f'Environment: {config.env_name}{hidden}, physics: {physics or "default"}'
  )
  if config.suite == environments.BRAX:
    print(textwrap.fill(brax_suite.note(config.env_name), 80))
  print(listing(f'Network: {config.network}', config.network_arguments))
  print(listing('PPO', config.ppo))
  print(f'Folder: {folder}', flush=True)
  count = Devices.of(config.ppo.get('max_devices_per_host')).count
  devices = f'{count} {jax.default_backend()} device(s)'
  if jax.process_count() > 1:
    devices += f' of {jax.process_count()} processes'
  print(
    f'Compiling for {devices}, which takes a while; then {total:,} env steps.',
    file=sys.stderr,
    flush=True,
  )


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
  print(f'Look at it with brax-nnx-play {folder}')
  print('Load the policy with')
  print('  from brax_nnx_plugin.ppo import checkpoint')
  # A network of the user's own is named by the user alone.
  named = f', {config.network!r}' if ':' in config.network else ''
  print(
    f'  policy = checkpoint.load_policy({str(folder)!r}{named})', flush=True
  )
