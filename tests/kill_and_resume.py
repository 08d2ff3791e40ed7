"""Kills runs at random moments, resumes them, and compares with one left alone.

    python -m tests.kill_and_resume --kills 10 --seed 0 --case lstm --devices 1

Each life of a run is a process of its own, which is killed (SIGKILL) after a
random time: while it compiles, acts, evaluates or saves. The last one is left
alone. Parameters, optimizer, statistics and the count of env steps that are
left at the end must be those of a run that nobody killed, bit for bit.
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib
import random
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np

from brax_nnx_plugin.networks.adapter import PPOAdapter
from brax_nnx_plugin.networks.containers import Sequential
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.normalizer import Normalizer
from brax_nnx_plugin.networks.recurrent import LSTM
from brax_nnx_plugin.networks.samplers import NormalTanhSampler
from brax_nnx_plugin.networks.variational import AR1VariationalBottleneck
from brax_nnx_plugin.networks.variational import VariationalBottleneck
from brax_nnx_plugin.ppo import arrays
from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import networks as ppo_networks
from tests import hosts
from tests import small_runs

_ROOT = pathlib.Path(__file__).parents[1]
_EPOCHS = 2


def variational(observation_size: Any, action_size: int, rngs: Any) -> Any:
  """Noise and memory on both sides, and statistics in front."""
  size = observation_size[0]
  return PPOAdapter(
    action=Sequential(
      [
        Normalizer(size),
        LSTM(size, 4, rngs),
        Dense(4, 4, rngs),
        AR1VariationalBottleneck(2, rngs, kl_weight=1e-2, ar1_weight=0.1),
        Dense(2, 2 * action_size, rngs),
        NormalTanhSampler(rngs, entropy_weight=1e-3),
      ]
    ),
    value=Sequential(
      [
        Dense(size, 4, rngs),
        VariationalBottleneck(2, rngs, kl_weight=1e-2),
        Dense(2, 1, rngs),
      ]
    ),
  )


NETWORKS: dict[str, Any] = {
  'lstm': functools.partial(small_runs.small_lstm, normalize_inputs=True),
  'variational': ppo_networks.make_network_factory(variational),
}


def live(folder: pathlib.Path, case: str, devices: int, rounds: int) -> None:
  """Trains from what is in `folder`, to the end; what is left is written there.

  Args:
    folder: of the run.
    case: which network.
    devices: how many.
    rounds: of two epochs, each with a report.
  """

  def report(step: int, metrics: Any) -> None:
    reward = float(metrics['eval/episode_reward'])
    with (folder / 'reports').open('a') as file:
      file.write(f'{step} {reward!r}\n')
    time.sleep(0.1)  # some kills come now

  _, params, _ = small_runs.small_train(
    num_timesteps=rounds * _EPOCHS * small_runs.STEP,
    num_evals=rounds + 1,
    num_resets_per_eval=_EPOCHS,
    run_evals=True,
    max_devices_per_host=devices,
    network_factory=NETWORKS[case],
    learning_rate_schedule='ADAPTIVE_KL',
    progress_fn=report,
    save_checkpoint_path=folder / 'checkpoints',
    restore_checkpoint_path=checkpoint.latest(folder),
  )
  leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
  np.savez(folder / 'params.npz', *leaves)


def _start(folder: pathlib.Path, *arguments: Any) -> Any:
  folder.mkdir(exist_ok=True)
  names = ('--live', '--case', '--devices', '--rounds')
  flags = zip(names, (folder, *arguments), strict=True)
  program = ('-m', 'tests.kill_and_resume', *itertools.chain(*flags))
  return hosts.start(*program, devices=arguments[1], cwd=_ROOT)


def saved_arrays(folder: pathlib.Path) -> dict[str, Any]:
  """Returns all that the newest checkpoint holds, and what `train` returned."""
  newest = checkpoint.find(folder)
  found: dict[str, Any] = {'step': np.array(int(newest.name))}
  for group in ('params', 'state'):
    for name, array in arrays.read(newest, group).items():
      found[f'{group}.{name}'] = array
  with np.load(folder / 'params.npz') as returned:
    found |= {f'returned.{name}': returned[name] for name in returned.files}
  return found


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
  """Names what is not bit for bit the same."""
  return [
    name
    for name in sorted({*a, *b})
    if name not in a
    or name not in b
    or a[name].dtype != b[name].dtype
    or a[name].shape != b[name].shape
    or a[name].tobytes() != b[name].tobytes()
  ]


def _reports(folder: pathlib.Path) -> list[str]:
  """Returns the lines that were reported; one may be cut short by a kill."""
  file = folder / 'reports'
  return file.read_text().splitlines() if file.exists() else []


def _kill(process: Any, folder: pathlib.Path, rng: random.Random) -> bool:
  """Kills a life at a random moment; returns whether it was still going on."""
  if rng.random() < 0.3:  # while it starts, compiles, or is restored
    limit, reports = time.time() + rng.uniform(0.5, 10), 0
  else:  # while it acts, evaluates, or saves
    limit, reports = time.time() + 600, rng.choice((1, 3, 4))
  enough = len(_reports(folder)) + reports
  while time.time() < limit and process.poll() is None:
    if reports and len(_reports(folder)) >= enough:
      limit, reports = time.time() + rng.uniform(0, 1), 0
    time.sleep(0.005)
  going_on = process.poll() is None
  process.kill()
  _, errors = process.communicate()
  if not going_on and process.returncode:
    raise RuntimeError(errors)
  return going_on


@dataclasses.dataclass
class Outcome:
  """What came of one case.

  Attributes:
    compared: arrays.
    differing: of these, and of the reports.
    killed_at: env step of the newest checkpoint at each kill, -1 for none.
    partial: half-written checkpoints that were left by the kills.
  """

  compared: int
  differing: list[str]
  killed_at: list[int]
  partial: int


def run_case(
  folder: pathlib.Path, case: str, devices: int, kills: int, seed: int
) -> Outcome:
  """Compares a run that is killed with one that is not.

  Args:
    folder: for both.
    case: one of `NETWORKS`.
    devices: of the CPU.
    kills: how often.
    seed: of the moments.
  """
  whole, pieces = folder / 'whole', folder / 'pieces'
  arguments = (case, devices, 4 * kills + 2)
  rng = random.Random(seed)
  killed_at, partial = [], set()

  def finish(path):
    code, _, errors = hosts.finish(_start(path, *arguments))[0]
    if code:
      raise RuntimeError(errors)

  finish(whole)
  while len(killed_at) < kills:
    if not _kill(_start(pieces, *arguments), pieces, rng):
      break
    newest = checkpoint.latest(pieces)
    killed_at.append(int(newest.name) if newest else -1)
    partial |= {p.name for p in pieces.glob('*/*.partial*')}
  finish(pieces)
  expected, found = saved_arrays(whole), saved_arrays(pieces)
  reported = set(_reports(whole)) - set(_reports(pieces))
  return Outcome(
    compared=len(expected),
    differing=differing(expected, found) + sorted(reported),
    killed_at=killed_at,
    partial=len(partial),
  )


def _main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--kills', type=int, default=10)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--case', choices=tuple(NETWORKS))
  parser.add_argument('--devices', type=int, choices=(1, 2))
  parser.add_argument('--live', type=pathlib.Path, help=argparse.SUPPRESS)
  parser.add_argument('--rounds', type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.live:
    live(args.live, args.case, args.devices, args.rounds)
    return
  failed = False
  cases = [args.case] if args.case else NETWORKS
  counts = [args.devices] if args.devices else (1, 2)
  for case, devices in itertools.product(cases, counts):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder)
      outcome = run_case(path, case, devices, args.kills, args.seed)
    failed = failed or bool(outcome.differing)
    print(
      f'{case}, {devices} device(s): {len(outcome.killed_at)} kills, with'
      f' checkpoints at {outcome.killed_at}, {outcome.partial} half-written;'
      f' {outcome.compared} arrays compared, differing:'
      f' {", ".join(outcome.differing) or "none"}',
      flush=True,
    )
  sys.exit(failed)


if __name__ == '__main__':
  _main()
