"""Every form of a policy acts alike, in this process and in others."""

import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin.ppo import export
from brax_nnx_plugin.ppo import networks as ppo_networks
from brax_nnx_plugin.ppo import numpy_policy
from tests import exports
from tests import small_runs
from tests import source_tree


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  """A folder of exported policies, and by name how each acts in training."""
  root, cases = tmp_path_factory.mktemp('exported'), {}
  for name in exports.FACTORIES:
    networks, params = exports.make(name)
    export.export_networks(networks, params, root / name)
    policy = ppo_networks.make_inference_fn(networks)(params, True)
    cases[name] = networks, params, exports.play(policy)
  return root, cases


@pytest.mark.parametrize('load', [export.load_exported, numpy_policy.load])
@pytest.mark.parametrize('name', exports.FACTORIES)
def test_an_exported_policy_acts_as_the_policy(exported, name, load):
  root, cases = exported
  expected = cases[name][-1]
  policy = load(root / name)

  np.testing.assert_allclose(exports.play_exported(policy), expected, atol=1e-5)
  # And it does remember.
  forgetful = exports.play_exported(policy, forget=True)
  assert np.max(np.abs(forgetful - expected)) > 1e-3


@pytest.mark.parametrize('name', exports.FACTORIES)
def test_it_acts_by_what_was_measured(exported, name):
  networks, params, expected = exported[1][name]
  initial = networks.functions.init(jax.random.key(3), jax.random.key(4))
  identity = params[0].replace(mean=jnp.zeros(3), std=jnp.ones(3))
  blank = (identity, *initial.inference_params())
  policy = ppo_networks.make_inference_fn(networks)(blank, True)

  assert np.max(np.abs(exports.play(policy) - expected)) > 0.1


_BLOCKED = """
import sys
class Block:
  def find_spec(self, name, *args):
    if name.split('.')[0] in {blocked}:
      raise ImportError(name + ' is not installed here')
sys.meta_path.insert(0, Block())
sys.path[:0] = {paths}
"""
_NUMPY = """
import numpy as np
from brax_nnx_plugin.ppo import numpy_policy
for name in {names}:
  policy = numpy_policy.load({root!r} + '/' + name)
  state, actions = policy.initial_state(), []
  for t, x in enumerate(np.load({root!r} + '/observations.npy')):
    if t in {resets}:
      state = policy.reset(state)
    action, state = policy.step(x, state)
    actions.append(action)
  np.save({root!r} + '/numpy_' + name, actions)
assert not {blocked} & set(sys.modules), sys.modules
"""


def _run(script: str, *flags: str) -> None:
  subprocess.run(
    [sys.executable, *flags, '-c', script], check=True, cwd=source_tree.ROOT
  )


def test_a_robot_needs_neither_jax_nor_the_network(exported):
  root, cases = exported
  np.save(root / 'observations.npy', exports.observations())
  site = pathlib.Path(np.__file__).parent.parent
  blocked = {
    'jax',
    'jaxlib',
    'flax',
    'brax',
    'orbax',
    'etils',
    'optax',
    'mujoco',
  }
  values = {
    'blocked': blocked,
    'paths': [str(source_tree.ROOT), str(site)],
    'names': list(cases),
    'resets': exports.RESETS,
    'root': str(root),
  }

  # Without the site module nothing but these paths is imported from.
  _run((_BLOCKED + _NUMPY).format(**values), '-I', '-S')

  for name, case in cases.items():
    found = np.load(root / f'numpy_{name}.npy')
    np.testing.assert_allclose(found, case[-1], atol=1e-5)


class FarEnv(small_runs.PointEnv):
  """`PointEnv` as seen by a sensor with a large offset."""

  def _observe(self, body):
    return exports.OFFSET + super()._observe(body)


_ELSEWHERE = """
import sys
import jax
import numpy as np
from brax_nnx_plugin.ppo import checkpoint
from brax_nnx_plugin.ppo import export
saved = checkpoint.load_policy({run!r})
exported = export.load_exported({out!r})
initial, key = saved.initial_state(), jax.random.PRNGKey(0)
step = jax.jit(saved)
a, b, actions = initial, exported.initial_state(), []
for t, x in enumerate(np.load({data!r})):
  if t in {resets}:
    a, b = saved.reset(a, 1), exported.reset(b)
  action, extras = step(x, key, a)
  again, b = exported.step(x, b)
  a = extras['state']
  actions.append((action, again))
np.save({actions!r}, actions)
assert not {{'tests', 'mujoco_playground'}} & set(sys.modules)
"""


@pytest.mark.slow
def test_trained_saved_reloaded_and_exported_policies_act_alike(tmp_path):
  make_policy, params, _ = small_runs.small_train(
    environment=FarEnv(),
    num_timesteps=2 * small_runs.STEP,
    network_factory=small_runs.small_lstm,
    normalize_observations=True,
    save_checkpoint_path=tmp_path / 'run' / 'checkpoints',
  )
  data = exports.observations(2)
  np.save(tmp_path / 'data.npy', data)
  out = export.export_policy(tmp_path / 'run', tmp_path / 'out')
  policy = make_policy(params, deterministic=True)
  names = {k: str(tmp_path / k) for k in ('run', 'out')}
  files = {k: str(tmp_path / f'{k}.npy') for k in ('data', 'actions')}

  _run(_ELSEWHERE.format(**names, **files, resets=exports.RESETS))

  trained, mine = [], []
  runner, step = numpy_policy.load(out), jax.jit(policy)
  a, b, key = policy.initial_state(), runner.initial_state(), jax.random.key(0)
  for t, x in enumerate(data):
    if t in exports.RESETS:
      a, b = policy.reset(a, 1), runner.reset(b)
    action, extras = step(x, key, a)
    a = extras['state']
    trained.append(action)
    action, b = runner.step(x, b)
    mine.append(action)
  there = np.load(tmp_path / 'actions.npy')
  assert np.std(np.stack(trained), axis=0).min() > 1e-3
  for found in (there[:, 0], there[:, 1], np.stack(mine)):
    np.testing.assert_allclose(found, trained, atol=1e-5)
