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
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
import threading
from typing import Any

from absl import logging
import jax
from mujoco_playground import wrapper

from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import guards
from brax_nnx_plugin.ppo import train as ppo
from brax_nnx_plugin.ppo.environments import Unrandomized
from brax_nnx_plugin.ppo.processes import is_main
from brax_nnx_plugin.ppo.types import TrainingDiverged

from . import configs
from . import description
from . import environments
from . import options as command_line
from . import processes
from . import reporting
from . import saved
from . import telling
from .configs import RunConfig
from .errors import UserError

_FAILED = 1
# Shells say so of a program that a signal has ended, plus its number.
_SIGNALLED = 128


def train_arguments(
  config: RunConfig, load: Callable[..., Any] | None = None
) -> dict[str, Any]:
  """Makes what `train` is called with, callbacks and folders left out.

  Training and evaluation get an environment each: domain randomization changes
  the one it is given.

  Args:
    config: of the run.
    load: makes an environment; by default `environments.load`.

  Raises:
    UserError: if an environment cannot be made.
  """
  make_env = lambda: (load or environments.load)(
    config.env_name, config.env_config, config.hidden, config.delay
  )
  with processes.local_devices_only():
    training_env, eval_env = make_env(), make_env()
  arguments = dict(
    config.ppo,
    environment=training_env,
    eval_env=eval_env,
    network_factory=configs.network_factory(config),
    wrap_env_fn=wrapper.wrap_for_brax_training,
  )
  if config.domain_randomization:
    arguments['randomization_fn'] = environments.domain_randomizer(
      config.env_name
    )
    if not config.randomize_eval:
      arguments['eval_env'] = Unrandomized(eval_env)
  return arguments


@dataclasses.dataclass(frozen=True)
class Session:
  """How a run is carried out, apart from what it is.

  Attributes:
    logdir: folder that the one of a new run goes into.
    suffix: end of its name.
    resume: folder of a run to go on with; `None` to start one.
    load_checkpoint_path: checkpoint whose parameters a new run starts from.
    export: whether to write the policy for deployment, too.
  """

  logdir: str = 'runs'
  suffix: str | None = None
  resume: str | None = None
  load_checkpoint_path: str | None = None
  export: bool = False

  @classmethod
  def of(cls, options: Mapping[str, Any]) -> 'Session':
    """Takes what it needs out of the flags that were given."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: options[name] for name in names if name in options})

  def restored(self) -> Any:
    """Returns what `train` is to restore, if anything.

    Raises:
      UserError: if there is no checkpoint where one was named.
    """
    if self.resume is not None:
      return checkpoint.latest(self.resume)
    if self.load_checkpoint_path is None:
      return None
    try:
      path = checkpoint.find(self.load_checkpoint_path)
    except ValueError as e:
      raise UserError(f'--load_checkpoint_path: {e}') from None
    return checkpoint.params_only(path)

  def saving(self) -> contextlib.AbstractContextManager[None]:
    """Lets signals end the run with a checkpoint, if they can come here."""
    if threading.current_thread() is not threading.main_thread():
      return contextlib.nullcontext()
    return checkpoint.save_on(signal.SIGINT, signal.SIGTERM, notify=_promise)


def _promise(signum: int) -> None:
  print(
    f'\n{command_line.PROGRAM}: {signal.Signals(signum).name}: stopping after'
    ' this epoch, with a checkpoint; a second one stops at once.',
    file=sys.stderr,
    flush=True,
  )


def _call_train(
  config: RunConfig, session: Session, **arguments: Any
) -> tuple[Any, Any]:
  """Trains, and lets what fits no checkpoint be told in a sentence."""
  guard = contextlib.nullcontext()
  if not config.stop_on_nan:
    guard = guards.allow_non_finite()
  try:
    with guard, session.saving():
      make_policy, params, _ = ppo.train(**arguments)
  except ValueError as e:
    if arguments['restore_checkpoint_path'] is None:
      raise
    raise UserError(str(e)) from e
  jax.effects_barrier()  # the last training metrics
  return make_policy, params


def train(
  config: RunConfig, session: Session = Session()
) -> tuple[Any, Any, pathlib.Path | None]:
  """Trains, and leaves everything in the folder of the run.

  Of several processes only the first shows and writes anything.

  Args:
    config: of the run.
    session: how it is carried out.

  Returns:
    `make_policy` and the parameters, as `ppo.train` returns them, and the
    folder; `None` in a process that has none.

  Raises:
    UserError: before anything compiles, if something does not fit.
    TrainingDiverged: when numbers are no longer finite, unless allowed.
    Preempted: when a signal has stopped it, after a checkpoint.
  """
  with processes.together():
    arguments = train_arguments(config)
    schedule = configs.plan(arguments)
    arguments['restore_checkpoint_path'] = session.restored()
    # Only the first process knows its name, and only that one writes there.
    folder = pathlib.Path(session.resume or session.logdir)
    text = description.describe(config)
    if session.resume is not None:
      saved.require_same(session.resume, text)
    elif is_main():
      folder = reporting.make_folder(
        session.logdir, config.env_name, session.suffix
      )
      reporting.write_json(folder / reporting.CONFIG_NAME, text)
  arguments['save_checkpoint_path'] = str(folder / reporting.CHECKPOINTS_NAME)
  if not is_main():
    return *_call_train(config, session, **arguments), None
  telling.announce(config, folder, schedule.total_env_steps)
  begin = 0
  if session.resume is not None and arguments['restore_checkpoint_path']:
    begin = int(arguments['restore_checkpoint_path'].name)
  title = f'{config.env_name}, {config.network}'
  total = schedule.total_env_steps
  reporter = reporting.Reporter(folder, total, title, sys.stderr, begin)

  def report(env_steps: int, metrics: Mapping[str, Any]) -> None:
    # Only now is it sure that the run goes on with these flags.
    reporting.write_json(folder / reporting.CONFIG_NAME, text)
    reporter(env_steps, metrics)

  try:
    policy = _call_train(config, session, **arguments, progress_fn=report)
  finally:
    reporter.close()
  if session.export:
    telling.export_policy(config, folder, arguments['environment'])
  telling.conclude(config, folder, reporter.last_reward())
  return *policy, folder


def _resumed(options: dict[str, Any]) -> dict[str, Any]:
  """Names the run to go on with, if one is to.

  Raises:
    UserError: if there is none, or other flags contradict.
  """
  if 'resume' not in options:
    return options
  for name in ('suffix', 'config', 'load_checkpoint_path'):
    if name in options:
      raise UserError(f'--resume goes on with a run as it was; no --{name}.')
  path = options['resume'] or options.get('logdir', Session.logdir)
  return options | {'resume': str(saved.newest_run('--resume', path))}


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns its exit code.

  Args:
    argv: name of the program and its arguments.
  """
  say = lambda text: print(f'{command_line.PROGRAM}: {text}', file=sys.stderr)
  try:
    options = command_line.parse(argv[1:])
    if options.get('help'):
      print(command_line.help_text())
      return 0
    processes.connect(options, command_line.PROGRAM)
    with processes.together():
      options = _resumed(options)
      has_gpu = jax.default_backend() == 'gpu'
      config = configs.resolve(options, has_gpu)
    train(config, Session.of(options))
  except UserError as e:
    say(e)
    return 2
  except TrainingDiverged as e:
    say(
      f'{e} Training stopped; checkpoints, metrics and pictures so far are'
      ' kept. --nostop_on_nan goes on regardless.'
    )
    return _FAILED
  except checkpoint.SaveError as e:
    say(e)
    return _FAILED
  except checkpoint.Preempted as e:
    say(f'stopped after {e.env_steps} env steps. --resume goes on.')
    return 0 if e.signal == signal.SIGINT else _SIGNALLED + e.signal
  except KeyboardInterrupt:
    say('interrupted; checkpoints so far are kept, and --resume goes on.')
    return _SIGNALLED + signal.SIGINT
  return 0


def run() -> None:
  """The console script."""
  logging.set_verbosity(logging.WARNING)
  # A script in bin/ does not look here for --network=my_module:build.
  sys.path.append(os.getcwd())
  sys.exit(main(sys.argv))


if __name__ == '__main__':
  run()
