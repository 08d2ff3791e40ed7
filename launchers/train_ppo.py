"""Trains a policy in an environment of MuJoCo Playground by PPO.

    brax-nnx-train                                  # the preset, on a CPU
    brax-nnx-train --env_name=WalkerWalk --network=lstm --num_envs=256

Every mistake that can be made on the command line is found before anything
compiles, and told in a sentence (exit code 2): options, configuration, the
environment, the sizes and the network on abstract values, the folder. From
there on an exception is a fault of the program and keeps its traceback, but for
numbers that are no longer finite and checkpoints that cannot be saved (exit
code 1). Interrupted once, a run ends after its epoch with a checkpoint (exit
code 0), and --resume goes on with it.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import pathlib
import shutil
import signal
import sys
from typing import Any
import warnings

import jax

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import guards
from brax_nnx_plugin.ppo import train as ppo
from brax_nnx_plugin.ppo.environments import Unrandomized
from brax_nnx_plugin.ppo.processes import is_main
from brax_nnx_plugin.ppo.schedule import Schedule
from brax_nnx_plugin.ppo.types import TrainingDiverged

from . import command_line
from . import configs
from . import description
from . import dry_run
from . import environments
from . import longer
from . import options as flag_options
from . import planning
from . import play
from . import processes
from . import reporting
from . import saved
from . import telling
from . import videos
from .configs import RunConfig
from .errors import UserError
from .session import Session

_FAILED = 1
# Shells say so of a program that a signal has ended, plus its number.
_SIGNALLED = 128


def train_arguments(
  config: RunConfig,
  one_env: bool = False,
  load: Callable[..., Any] | None = None,
) -> dict[str, Any]:
  """Makes what `train` is called with, callbacks and folders left out.

  Training and evaluation get an environment each: domain randomization changes
  the one it is given.

  Args:
    config: of the run.
    one_env: give them the same, if nothing will be stepped.
    load: makes an environment; by default `environments.load`.

  Raises:
    UserError: if an environment cannot be made.
  """
  make: Callable[..., Any] = load or environments.load
  make_env = lambda: make(
    config.env_name,
    config.env_config,
    config.hidden,
    config.suite,
    config.delay,
  )
  with processes.local_devices_only():
    training_env = make_env()
    eval_env = training_env if one_env else make_env()
  arguments = dict(
    config.ppo,
    environment=training_env,
    eval_env=eval_env,
    network_factory=configs.network_factory(config),
    wrap_env_fn=environments.wrap_fn(config.suite),
  )
  if config.domain_randomization:
    arguments['randomization_fn'] = environments.domain_randomizer(
      config.env_name
    )
    if not config.randomize_eval:
      arguments['eval_env'] = Unrandomized(eval_env)
  return arguments


def _call_train(
  config: RunConfig, session: Session, **arguments: Any
) -> tuple[Any, Any]:
  """Trains, and lets what fits no checkpoint be told in a sentence."""
  guard = contextlib.nullcontext()
  if not config.stop_on_nan:
    guard = guards.allow_non_finite()
  try:
    with guard, session.saving(), warnings.catch_warnings():
      # Said before, in the words of the command line.
      warnings.filterwarnings('ignore', 'The run in .* has taken its')
      make_policy, params, _ = ppo.train(**arguments)
  except ValueError as e:
    if arguments['restore_checkpoint_path'] is None:
      raise
    raise UserError(str(e)) from e
  jax.effects_barrier()  # the last training metrics
  return make_policy, params


def _prepare(
  config: RunConfig, session: Session, dry: bool = False
) -> tuple[dict[str, Any], Schedule, dict[str, Any]]:
  """Finds every mistake that can be found before anything is made.

  Returns:
    The arguments of `train`, how many steps it will take, and the whole
    configuration in words.
  """
  arguments = train_arguments(config, one_env=dry)
  schedule = planning.plan(arguments, step=not dry)
  arguments['restore_checkpoint_path'] = session.restored()
  text = description.describe(config)
  if (source := session.source()) is not None:
    text[saved.SOURCE_NAME] = str(source)
  if session.resume is not None:
    saved.require_same(session.resume, text)
  return arguments, schedule, text


def _make_reporter(
  config: RunConfig,
  session: Session,
  folder: pathlib.Path,
  text: dict[str, Any],
  restored: Any,
  schedule: Schedule,
) -> reporting.Reporter:
  """Says what will be done, and makes what reports how it goes.

  Raises:
    UserError: if it cannot; of a new run nothing is left then.
  """
  # Of parameters alone no env steps are known.
  begin = int(getattr(restored, 'name', 0))
  goes_on = session.resume is not None
  telling.announce(config, folder, schedule, begin if goes_on else None)
  title = f'{config.env_name}, {config.network}'
  try:
    return reporting.Reporter(
      folder,
      schedule.total_env_steps,
      title,
      sys.stderr,
      begin,
      text,
      session.back_ends,
    )
  except UserError:
    if not goes_on:  # --resume would take it for the newest run
      shutil.rmtree(folder, ignore_errors=True)
    raise


def train(
  config: RunConfig, session: Session | None = None
) -> tuple[Any, Any, pathlib.Path | None]:
  """Trains, and leaves everything in the folder of the run.

  Of several processes only the first shows and writes anything.

  Args:
    config: of the run.
    session: how it is carried out; by default the simplest way.

  Returns:
    `make_policy` and the parameters, as `ppo.train` returns them, and the
    folder; `None` in a process that has none.

  Raises:
    UserError: before anything compiles, if something does not fit.
    TrainingDiverged: when numbers are no longer finite, unless allowed.
    Preempted: when a signal has stopped it, after a checkpoint.
  """
  session = session or Session()
  with processes.together():
    session.back_ends.check()
    arguments, schedule, text = _prepare(config, session)
    # Only the first process knows its name, and only that one writes there.
    folder = pathlib.Path(session.resume or session.logdir)
    if session.resume is None and is_main():
      folder = session.make_folder(config.env_name, text)
  arguments['save_checkpoint_path'] = str(folder / reporting.CHECKPOINTS_NAME)
  reporter = None
  with processes.together():
    if is_main():
      restored = arguments['restore_checkpoint_path']
      reporter = _make_reporter(
        config, session, folder, text, restored, schedule
      )
  if reporter is None:
    return *_call_train(config, session, **arguments), None
  films = videos.Videos.of(arguments, folder)
  arguments |= films.callbacks(
    session.video_every, schedule.total_env_steps // schedule.num_rounds
  )
  with reporter:
    policy = _call_train(config, session, **arguments, progress_fn=reporter)
  if session.export:
    telling.export_policy(config, folder, arguments['environment'])
  telling.conclude(config, folder, reporter.last_reward())
  films.after(*policy, session.num_videos)
  return *policy, folder


def _run(argv: Sequence[str]) -> None:
  """Does what the command line says; see `main`."""
  options = flag_options.parse(argv[1:])
  if options.get('help'):
    print(flag_options.help_text())
    return
  if options.get('play_only'):
    play.instead_of_training(options)
    return
  processes.connect(options, flag_options.PROGRAM)
  with processes.together():
    options = saved.resumed(options, Session.logdir)
    options, note = longer.fitted(options)
    has_gpu = jax.default_backend() == 'gpu'
    config = configs.resolve(options, has_gpu)
  if note and is_main():
    _say(note)
  session = Session.of(options)
  if not options.get('dry_run'):
    train(config, session)
  elif is_main():
    arguments, _, _ = _prepare(config, session, dry=True)
    print(dry_run.report(config, arguments))
    planning.check_step(arguments['environment'])


def _say(text: Any) -> None:
  print(f'{flag_options.PROGRAM}: {text}', file=sys.stderr)


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns its exit code.

  Args:
    argv: name of the program and its arguments.
  """
  try:
    _run(argv)
  except UserError as e:
    _say(e)
    return 2
  except TrainingDiverged as e:
    _say(telling.diverged(e))
    return _FAILED
  except checkpoint.SaveError as e:
    _say(e)
    return _FAILED
  except (jax.errors.JaxRuntimeError, MemoryError) as e:
    if not (told := telling.out_of_memory(e)):
      raise
    _say(told)
    return _FAILED
  except checkpoint.Preempted as e:
    _say(telling.stopped(e))
    return 0 if e.signal == signal.SIGINT else _SIGNALLED + e.signal
  except KeyboardInterrupt:
    _say('interrupted; checkpoints so far are kept, and --resume goes on.')
    return _SIGNALLED + signal.SIGINT
  return 0


def run() -> None:
  """The console script."""
  command_line.run(main)


if __name__ == '__main__':
  run()
