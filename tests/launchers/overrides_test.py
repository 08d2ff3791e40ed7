"""--set: changes of single entries."""

import inspect
from typing import Any

import pytest

from launchers import configs
from launchers import overrides
from launchers.errors import UserError


def _resolve(*items: str, **options: Any) -> configs.RunConfig:
  return configs.resolve({'set': list(items), **options}, has_gpu=False)


@pytest.mark.parametrize(
  ('text', 'value'),
  [
    ('3e-4', 3e-4),
    ('true', True),
    ('True', True),
    ('null', None),
    ('None', None),
    ('[1,2]', [1, 2]),
    ('(1, 2)', (1, 2)),
    ('elu', 'elu'),
    ('"3"', '3'),
    ('', ''),
    ('a=b', 'a=b'),
  ],
)
def test_a_value_is_json_or_python_or_a_string(text, value):
  assert overrides.parse([f'ppo.x={text}'])['ppo']['x'] == value


@pytest.mark.parametrize(
  'item', ['', 'ppo', 'ppo.x', 'x=1', '=1', 'ppo=1', 'ppo.=1', 'net.x=1']
)
def test_an_item_that_is_none_is_told_what_one_looks_like(item):
  with pytest.raises(UserError, match=r'must look like ppo\.learning_rate'):
    overrides.parse([item])


def test_each_group_is_changed_and_nothing_else():
  before = _resolve()
  after = _resolve(
    'ppo.learning_rate=3e-4',
    'ppo.num_timesteps=1e6',
    'ppo.learning_rate_schedule=ADAPTIVE_KL',
    'env.ctrl_dt=0.02',
    'network.activation=elu',
    'network.policy_hidden_layer_sizes=[3,4]',
  )

  assert after.ppo == before.ppo | {
    'learning_rate': 3e-4,
    'num_timesteps': 1_000_000,
    'learning_rate_schedule': 'ADAPTIVE_KL',
  }
  assert type(after.ppo['num_timesteps']) is int
  assert after.env_config.ctrl_dt == 0.02
  with after.env_config.unlocked():
    after.env_config.ctrl_dt = before.env_config.ctrl_dt
  assert after.env_config == before.env_config
  assert after.network_arguments == before.network_arguments | {
    'activation': 'elu',
    'policy_hidden_layer_sizes': (3, 4),
  }


@pytest.mark.parametrize(
  ('network', 'value', 'expected'),
  [
    (
      'lstm',
      '32',
      {
        'policy_hidden_layer_sizes': (32, 32),
        'value_hidden_layer_sizes': (32, 32),
        'policy_memory_size': 32,
        'value_memory_size': 32,
      },
    ),
    (
      'mlp',
      '[16,8]',
      {
        'policy_hidden_layer_sizes': (16, 8),
        'value_hidden_layer_sizes': (16, 8),
      },
    ),
  ],
)
def test_hidden_sets_all_sizes(network, value, expected):
  before = _resolve(network=network).network_arguments
  after = _resolve(f'network.hidden={value}', network=network)

  assert after.network_arguments == before | expected


_MISTAKES = [
  (['ppo.learning_rat=1'], {}, r'no such entry.*learning_rate'),
  (['ppo.environment=1'], {}, 'no such entry'),
  (['ppo.num_envs=two'], {}, "num_envs must be a int, as 128; got 'two'"),
  (['ppo.num_envs=1.5'], {}, 'num_envs must be a int'),
  (['ppo.normalize_advantage=flase'], {}, 'must be a bool, as True'),
  (['ppo.learning_rate=true'], {}, 'must be a float'),
  (['ppo.seed=1', 'ppo.seed=2'], {}, 'there twice'),
  (['ppo.seed=1'], {'seed': 1}, '--seed and --set ppo.seed say the same'),
  (['env.ctrl_dtt=1'], {}, "no entry 'ctrl_dtt'.*ctrl_dt"),
  (['env.ctrl_dt=fast'], {}, "'ctrl_dt'.*must be a float"),
  (
    ['env.ctrl_dt=0.02'],
    {'playground_config_overrides': '{"ctrl_dt": 0.02}'},
    'ctrl_dt is both',
  ),
  (['env.impl=warp'], {'impl': 'jax'}, '--impl=jax contradicts'),
  (['network.cell=gru'], {}, 'no such entry'),
  (['network.policy_memory_size=3'], {'network': 'mlp'}, 'no such entry'),
  (['network.hidden=0'], {}, 'whole number of units'),
  (['network.hidden=[8,x]'], {}, 'whole number of units'),
  (['network.hidden=[]'], {}, 'whole number of units'),
  (['network.value_hidden_layer_sizes=8'], {}, 'must be a tuple'),
]


@pytest.mark.parametrize(('items', 'options', 'message'), _MISTAKES)
def test_a_mistake_is_told(items, options, message):
  with pytest.raises(UserError, match=message):
    _resolve(*items, **options)


def test_what_has_no_default_takes_anything():
  known = inspect.signature(lambda x: x).parameters

  assert overrides.check('ppo', {'x': [1]}, known, {}) == {'x': [1]}
