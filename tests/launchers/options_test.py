"""The command line, against Playground's own script."""

import ast
import importlib.util
import inspect
import pathlib

import pytest

from brax_nnx_plugin.ppo.train import train
from launchers import configs
from launchers import networks
from launchers import options
from launchers.errors import UserError

_OWN = {
  'suite',
  'dry_run',
  'resume',
  'video_every',
  'export',
  'config',
  'set',
  'gae_lambda',
  'num_resets_per_eval',
  'network',
  'memory_size',
  'normalize_inputs',
  'hide_observations',
  'delay_observations',
  'deterministic_eval',
  'randomize_eval',
  'stop_on_nan',
  'wandb_project',
  'wandb_entity',
  'coordinator_address',
  'num_processes',
  'process_id',
  'distributed',
  'help',
}

# What is not handed on under its own name.
_TREATED = {
  'suite',
  'dry_run',
  'resume',
  'play_only',
  'num_videos',
  'video_every',
  'load_checkpoint_path',
  'export',
  'config',
  'set',
  'env_name',
  'impl',
  'playground_config_overrides',
  'network',
  'memory_size',
  'hide_observations',
  'delay_observations',
  'domain_randomization',
  'randomize_eval',
  'logdir',
  'suffix',
  'use_tb',
  'use_wandb',
  'wandb_project',
  'wandb_entity',
  'stop_on_nan',
  'coordinator_address',
  'num_processes',
  'process_id',
  'distributed',
  'help',
}


@pytest.fixture(scope='module')
def playground_flags():
  """Maps the flags of Playground's script to their kind, read off its code."""
  package = importlib.util.find_spec('learning')
  assert package is not None
  (folder,) = package.submodule_search_locations or ['']
  source = pathlib.Path(folder, 'train_jax_ppo.py').read_text()
  return {
    node.args[0].value: node.func.attr.removeprefix('DEFINE_')
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.Call)
    and isinstance(node.func, ast.Attribute)
    and node.func.attr.startswith('DEFINE_')
    and isinstance(node.args[0], ast.Constant)
  }


def _kind(name):
  kinds = {
    'STRINGS': 'string',
    'ENUMS': 'enum',
    'INTEGERS': 'integer',
    'FLOATS': 'float',
    'BOOLEANS': 'boolean',
    'LISTS': 'list',
  }
  (kind,) = [
    kind for key, kind in kinds.items() if name in getattr(options, f'_{key}')
  ]
  return kind


def _names():
  return {*options._define()} - {'flagfile', 'undefok'}


def test_flags_have_the_names_and_kinds_of_playgrounds(playground_flags):
  shared = _names() - _OWN
  assert {name: _kind(name) for name in shared} == {
    name: playground_flags.get(name) for name in shared
  }


def test_every_flag_is_used():
  handed_on = {*configs.PPO_OPTIONS, *networks.NETWORK_OPTIONS}
  assert _names() == handed_on | _TREATED
  assert not handed_on & _TREATED


def test_ppo_options_are_parameters_of_train():
  assert {*configs.PPO_OPTIONS} <= inspect.signature(train).parameters.keys()


@pytest.mark.parametrize(
  ('argument', 'expected'),
  [
    ('--num_envs=7', {'num_envs': 7}),
    ('--learning_rate=3e-4', {'learning_rate': 3e-4}),
    ('--norun_evals', {'run_evals': False}),
    ('--deterministic_eval', {'deterministic_eval': True}),
    ('--network=gru', {'network': 'gru'}),
    ('--hide_observations=', {'hide_observations': ''}),
    ('--policy_hidden_layer_sizes=8, 4', {'policy_hidden_layer_sizes': (8, 4)}),
    ('--value_hidden_layer_sizes=', {'value_hidden_layer_sizes': ()}),
    ('--seed=0', {'seed': 0}),
  ],
)
def test_only_given_flags_have_values(argument, expected):
  assert options.parse([argument]) == expected


def test_no_flags_no_options():
  assert options.parse([]) == {}


def test_parsing_twice_forgets_the_first():
  options.parse(['--num_envs=7'])
  assert options.parse(['--seed=1']) == {'seed': 1}


@pytest.mark.parametrize(
  ('argument', 'words'),
  [
    ('--num_env=7', ['num_env', 'Did you mean: num_envs']),
    ('--num_envs=0', ['--num_envs=0', 'positive integer']),
    ('--num_envs=3e6', ['--num_envs=3e6', 'int']),
    ('--num_envs', ['num_envs', 'Missing value']),
    ('--impl=wrap', ['--impl=wrap', 'jax|warp']),
    ('--learning_rate=-1', ['--learning_rate=-1', 'non-negative']),
    ('--run_evals=maybe', ['run_evals', 'maybe']),
    ('--policy_hidden_layer_sizes=8,x', ['8,x', '64,64']),
    ('--policy_hidden_layer_sizes=8,,8', ['8,,8', '64,64']),
    ('--value_hidden_layer_sizes=0', ['value_hidden_layer_sizes=0', '64,64']),
    ('WalkerWalk', ["'WalkerWalk'", 'not a flag']),
  ],
)
def test_mistakes_are_told_in_one_line(argument, words):
  with pytest.raises(UserError) as caught:
    options.parse([argument])
  text = str(caught.value)
  assert '\n' not in text
  for word in words:
    assert word in text


def test_help_names_every_flag():
  text = options.help_text()
  for name in _names():
    assert f'--{name}:' in text or f'--[no]{name}:' in text
