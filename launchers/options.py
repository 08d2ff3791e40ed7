"""The command line. Its names are those of Playground's training script.

Flags live in a registry of their own, not in absl's global one: importing the
launcher defines nothing, and `parse` can be called any number of times.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from . import command_line
from .environments import SUITES
from .errors import UserError
from .networks import KINDS

PROGRAM = 'brax-nnx-train'

_USAGE = f"""{PROGRAM}: train a policy with memory by PPO.

Without --env_name a tuned preset runs: an LSTM on CartpoleBalance with its two
velocities hidden, in minutes on a CPU. With --env_name=X the configuration that
MuJoCo Playground tuned for X holds, also for X = CartpoleBalance, and the
network is an MLP unless --network says otherwise. With --suite=brax, X is one
of Brax's own environments, ant for instance, and the PPO settings are those of
Brax's training notebook. With --config=<folder of a run> that run's holds. A
flag changes what it names and nothing else. Results go to <logdir>/<name>/.

--dry_run shows what would run, with its layers and the memory it needs, and
runs nothing.

Several processes, each with its own devices, train one policy if each is
started with --coordinator_address, --num_processes and --process_id, or with
--distributed=auto. Sizes such as --num_envs are those of all together.
"""

_STRINGS = {
  'config': 'Configuration of a former run to start from: its folder, or the'
  ' config.json in it.',
  'env_name': 'Environment of the suite. Naming one, CartpoleBalance'
  " too, selects Playground's tuned configuration instead of the preset.",
  'playground_config_overrides': 'Changes of the environment configuration, as'
  ' a JSON object: \'{"ctrl_dt": 0.02, "reward_config.scales.alive": 1.0}\'.',
  'policy_obs_key': 'Entry of a dict observation that the policy reads.',
  'value_obs_key': 'Entry of a dict observation that the value function reads.',
  'hide_observations': 'Entries of a flat observation to hide: indices and'
  ' half-open ranges, as in 0,3:5. Empty hides nothing.',
  'logdir': "Folder that runs are written to; by default 'runs'.",
  'suffix': 'End of the name of the run.',
  'network': f'Kind of policy and value function: {", ".join(KINDS)};'
  ' or one of your own, package.module:function, where the function is'
  ' build(observation_size, action_size, rngs) or a network factory.',
  'resume': 'Run to go on with: its folder, or one that runs are in, for the'
  ' newest of them. Without a value, the newest in --logdir.',
  'load_checkpoint_path': 'Checkpoint, or run, that a new run has its first'
  ' parameters from.',
  'wandb_project': 'Project in Weights & Biases; by default $WANDB_PROJECT, or'
  ' brax-nnx-plugin.',
  'wandb_entity': "User or team in Weights & Biases; by default one's own.",
  'coordinator_address': 'Host and port where the processes meet: those of'
  ' process 0, as in 10.0.0.1:8476.',
}

_ENUMS = {
  'suite': (
    SUITES,
    'Where --env_name is looked for: MuJoCo Playground, the default, or Brax.',
  ),
  'impl': (
    ('jax', 'warp'),
    'Physics implementation. By default jax where jax has no GPU, and what the'
    ' environment names elsewhere.',
  ),
  'distributed': (
    ('auto',),
    'Be one of several processes, as Slurm, Open MPI, Kubernetes or Cloud TPU'
    ' says.',
  ),
}

_REPEATED = {
  'set': 'Change of one entry: ppo.<parameter of train>=..., env.<entry of the'
  ' environment configuration>=..., or network.<argument of its factory>=...;'
  ' network.hidden=128 sets all sizes. May be given many times.',
}

# Name: (lowest value, help).
_INTEGERS = {
  'seed': (0, 'Of all randomness; by default 0.'),
  'num_timesteps': (1, 'Env steps to train for, rounded up to whole epochs.'),
  'num_evals': (1, 'Evaluations, one before training included.'),
  'num_resets_per_eval': (
    0,
    'Resets of all environments between two evaluations.',
  ),
  'episode_length': (1, 'Env steps after which an episode is cut off.'),
  'action_repeat': (1, 'Env steps per action.'),
  'unroll_length': (1, 'Actions in a segment that is learned from.'),
  'num_minibatches': (1, 'Minibatches of a training step.'),
  'num_updates_per_batch': (1, 'Times each minibatch is learned from.'),
  'num_envs': (1, 'Environments stepped in parallel.'),
  'num_eval_envs': (1, 'Episodes of an evaluation.'),
  'batch_size': (1, 'Segments of a minibatch.'),
  'delay_observations': (
    0,
    'Env steps that a flat observation is shown late by; 0 shows it at once.',
  ),
  'memory_size': (1, 'Units of the memory, in policy and value function each.'),
  'training_metrics_steps': (
    1,
    'Env steps between reports of --log_training_metrics.',
  ),
  'num_processes': (1, 'Processes that train together.'),
  'num_videos': (
    0,
    'Episodes to film after training, rollout0.mp4 and so on; by default 0.'
    ' With --play_only they go to --logdir, by default here.',
  ),
  'video_every': (
    1,
    'Film an episode at every so many evaluations, too: videos/ in the folder'
    ' of the run.',
  ),
  'process_id': (0, 'Number of this one, from 0; process 0 reports and saves.'),
}

_FLOATS = {
  'discounting': 'Discount factor of rewards, per action.',
  'gae_lambda': 'Of the advantage estimate.',
  'learning_rate': 'Of Adam.',
  'entropy_cost': 'Weight of the entropy bonus.',
  'max_grad_norm': 'Gradients are scaled down to this norm.',
  'clipping_epsilon': 'Of the likelihood ratio.',
  'reward_scaling': 'Factor on rewards in the loss.',
}

_BOOLEANS = {
  'normalize_observations': "Standardise observations with Brax's running"
  ' statistics.',
  'normalize_inputs': 'Standardise observations with statistics embedded in the'
  ' network, which replay exactly.',
  'domain_randomization': "Use the environment's domain randomizer.",
  'randomize_eval': 'Use it in evaluations too; on by default, as in Brax.',
  'deterministic_eval': 'Evaluate the mode of the policy.',
  'run_evals': 'Evaluate at all; if not, only training metrics are written.',
  'log_training_metrics': 'Report episodes of training, too.',
  'export': 'Write the policy for deployment, too: exported/ in the folder of'
  ' the run.',
  'use_tb': 'Write metrics for TensorBoard, too, into the folder of the run.',
  'use_wandb': 'Log to Weights & Biases, too; needs the package wandb.',
  'dry_run': 'Show the configuration, the layers and the memory that would be'
  ' needed, and stop: nothing is trained, and no folder is made.',
  'play_only': 'Play --load_checkpoint_path, as brax-nnx-play does, and train'
  ' nothing.',
  'stop_on_nan': 'Stop when an observation, a reward, a loss or a parameter is'
  ' not finite; on by default.',
}

_LISTS = {
  'policy_hidden_layer_sizes': 'Layers of the policy. A memory is one layer'
  ' more, after the first of them.',
  'value_hidden_layer_sizes': 'Likewise of the value function.',
}


def _define() -> flags.FlagValues:
  """Returns the flags, all without a value."""
  values = flags.FlagValues()
  kwargs: dict[str, Any] = {'flag_values': values, 'module_name': 'Flags'}
  flags.DEFINE_boolean('help', None, 'Show this text.', **kwargs)
  for name, text in _STRINGS.items():
    flags.DEFINE_string(name, None, text, **kwargs)
  for name, text in _REPEATED.items():
    flags.DEFINE_multi_string(name, None, text, **kwargs)
  for name, (choices, text) in _ENUMS.items():
    flags.DEFINE_enum(name, None, choices, text, **kwargs)
  for name, (low, text) in _INTEGERS.items():
    flags.DEFINE_integer(name, None, text, lower_bound=low, **kwargs)
  for name, text in _FLOATS.items():
    flags.DEFINE_float(name, None, text, lower_bound=0.0, **kwargs)
  for name, text in _BOOLEANS.items():
    flags.DEFINE_boolean(name, None, text, **kwargs)
  for name, text in _LISTS.items():
    flags.DEFINE_list(name, None, text, **kwargs)
  return values


def help_text() -> str:
  """Returns what --help shows."""
  return _USAGE + _define().get_help()


def _sizes(name: str, items: Sequence[str]) -> tuple[int, ...]:
  """Reads layer sizes."""
  if not all(item.strip().isdecimal() and int(item) > 0 for item in items):
    raise UserError(
      f'--{name}={",".join(items)} must be positive whole numbers with commas'
      ' between them, as in 64,64.'
    )
  return tuple(int(item) for item in items)


def _with_value(flag: str, arguments: Sequence[str]) -> list[str]:
  """Gives a flag that stands alone an empty value."""
  following = [*arguments, '--'][1:]
  return [
    f'{flag}=' if argument == flag and after.startswith('-') else argument
    for argument, after in zip(arguments, following, strict=True)
  ]


def parse(arguments: Sequence[str]) -> dict[str, Any]:
  """Reads a command line.

  Args:
    arguments: of the program, its name left out.

  Returns:
    The flags that were given, by name; layer sizes as tuples of ints.

  Raises:
    UserError: for a flag or a value that does not exist.
  """
  values = _define()
  # A flag of a string needs a value, and this one has a natural one.
  arguments = _with_value('--resume', arguments)
  given, rest = command_line.read(values, PROGRAM, arguments)
  if rest:
    raise UserError(
      f'{rest[0]!r} is not a flag; flags look like --num_envs=128.'
    )
  for name in _LISTS.keys() & given.keys():
    given[name] = _sizes(name, given[name])
  return given
