"""How a run is carried out, apart from what it is."""

from collections.abc import Mapping
import contextlib
import dataclasses
import pathlib
import shutil
import signal
import sys
import threading
from typing import Any

from brax_nnx_plugin.ppo import checkpoint

from . import options as flag_options
from . import reporting
from . import saved
from .back_ends import Wanted
from .errors import UserError

# Ctrl-C, what batch systems send, and a terminal that is closed.
_SIGNALS = (
  signal.SIGINT,
  signal.SIGTERM,
  *filter(None, [getattr(signal, 'SIGHUP', None)]),  # not on Windows
)


@dataclasses.dataclass(frozen=True)
class Session:
  """How a run is carried out, apart from what it is.

  Attributes:
    logdir: folder that the one of a new run goes into.
    suffix: end of its name.
    resume: folder of a run to go on with; `None` to start one.
    load_checkpoint_path: checkpoint whose parameters a new run starts from.
    export: whether to write the policy for deployment, too.
    back_ends: where else metrics are to go.
    num_videos: how many episodes to film after training.
    video_every: evaluations from one video to the next during training; `None`
      for none.
  """

  logdir: str = 'runs'
  suffix: str | None = None
  resume: str | None = None
  load_checkpoint_path: str | None = None
  export: bool = False
  back_ends: Wanted = Wanted()
  num_videos: int = 0
  video_every: int | None = None

  @classmethod
  def of(cls, options: Mapping[str, Any]) -> 'Session':
    """Takes what it needs out of the flags that were given."""
    names = [field.name for field in dataclasses.fields(cls)]
    given = {name: options[name] for name in names if name in options}
    return cls(**given, back_ends=Wanted.of(options))

  def restored(self) -> Any:
    """Returns what `train` is to restore, if anything.

    Raises:
      UserError: if there is no checkpoint where one was named.
    """
    if self.resume is not None:
      newest = checkpoint.latest(self.resume)
      if newest is not None:
        return newest
    source = self.source()
    return None if source is None else checkpoint.params_only(source)

  def source(self) -> Any:
    """Returns the checkpoint that the run has its first parameters from.

    Raises:
      UserError: if there is none where one was named.
    """
    named, flag = self.load_checkpoint_path, '--load_checkpoint_path'
    if self.resume is not None:
      # It may have been stopped before a checkpoint of its own.
      named, flag = saved.first_parameters(self.resume), '--resume'
      if named is None or checkpoint.latest(self.resume) is not None:
        return named
    if named is None:
      return None
    try:
      return checkpoint.find(named)
    except ValueError as e:
      raise UserError(f'{flag}: the first parameters: {e}') from None

  def make_folder(self, env_name: str, text: Mapping[str, Any]) -> pathlib.Path:
    """Makes the folder of a new run, with its configuration in it.

    Args:
      env_name: of the run.
      text: its configuration; see `description.describe`.

    Raises:
      UserError: if it cannot be made or written to.
    """
    folder = reporting.make_folder(self.logdir, env_name, self.suffix)
    try:
      reporting.write_json(folder / reporting.CONFIG_NAME, text)
    except OSError as e:
      shutil.rmtree(folder, ignore_errors=True)
      raise UserError(
        f'--logdir={self.logdir}: nothing can be written there'
        f' ({e.strerror or e}).'
      ) from e
    return folder

  def saving(self) -> contextlib.AbstractContextManager[None]:
    """Lets signals end the run with a checkpoint, if they can come here."""
    if threading.current_thread() is not threading.main_thread():
      return contextlib.nullcontext()
    signals = heeded_signals()
    if not signals:
      return contextlib.nullcontext()
    return checkpoint.save_on(*signals, notify=_promise)


def heeded_signals() -> list[int]:
  """Returns the signals that end a program in order.

  Those that it was started to ignore are left out: SIGHUP under `nohup`, and
  SIGINT in the background of a script.
  """
  return [s for s in _SIGNALS if signal.getsignal(s) != signal.SIG_IGN]


def _promise(signum: int) -> None:
  print(
    f'\n{flag_options.PROGRAM}: {signal.Signals(signum).name}: stopping after'
    ' this epoch, with a checkpoint (if it is not compiled yet, that comes'
    ' first); a second one stops at once.',
    file=sys.stderr,
    flush=True,
  )
