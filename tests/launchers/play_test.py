"""The program as users meet it."""

import shutil

import numpy as np
from PIL import Image
from PIL import ImageSequence
import pytest

from launchers import episodes
from launchers import play
from launchers import scenes
from launchers import train_ppo
from tests import played_runs
from tests import small_runs

pytestmark = pytest.mark.usefixtures('drawn_anew')


def _main(*arguments: object) -> int:
  return play.main(['brax-nnx-play', *map(str, arguments)])


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  played_runs.save_run(folder)
  return folder


@pytest.fixture
def no_program(monkeypatch):
  """Fails if anything is played."""
  monkeypatch.setattr(
    episodes.playing, 'make_rollout', lambda *a, **k: pytest.fail('it began')
  )


_MISTAKES = [
  ([], ['none was named', 'runs/NAME']),
  (['a', 'b'], ['one checkpoint', 'a, b']),
  (['nowhere'], ['There is no checkpoint in']),
  (['--episode=3'], ['episode', 'See brax-nnx-play --help']),
  (['RUN', '--episodes=0'], ['episodes=0', 'positive']),
  (['RUN', '--video=out.avi'], ['--video=out.avi', '.mp4 or .gif or .html']),
  (['RUN', '--video=nowhere/out.mp4'], ['there is no folder nowhere']),
  (['RUN', '--activations=out.jpg'], ['must end in .png']),
  (['RUN', '--activations=out.png', '--layer=x'], ['--layer=x', 'action/1']),
  (['RUN', '--layer=action/1'], ['--layer', 'without --activations']),
  (['RUN', '--camera=front'], ['--camera', 'without --video']),
  (['RUN', '--camera=front', '--video=out.gif'], ['--camera=front']),
  (['RUN', '--set=ppo.seed=1'], ['ppo.seed', 'stays as it is']),
  (['RUN', '--set=env.x=1'], ['no entry', "'x'", 'offset']),
  (['RUN', '--network=gru'], ['--network=gru', 'lstm']),
  (['RUN', '--env_name=ant'], ['--env_name=ant', played_runs.NAME]),
]


@pytest.mark.parametrize(('arguments', 'words'), _MISTAKES)
def test_a_mistake_is_one_line_before_anything_compiles(
  run, tmp_path, monkeypatch, capsys, no_program, arguments, words
):
  monkeypatch.chdir(tmp_path)
  arguments = [run if text == 'RUN' else text for text in arguments]
  assert _main(*arguments) == 2
  captured = capsys.readouterr()
  (line,) = captured.err.splitlines()
  assert line.startswith('brax-nnx-play: ')
  for word in words:
    assert word in line
  assert captured.out == ''
  assert not list(tmp_path.iterdir())


def test_episodes_are_listed_and_the_same_again(run, capsys):
  assert _main(run, '--episodes=3', '--seed=5') == 0
  first = capsys.readouterr()
  assert _main(f'--load_checkpoint_path={run}', '--episodes=3', '--seed=5') == 0
  assert capsys.readouterr().out == first.out
  expected = episodes.play(scenes.load(run), 3, 5)
  assert episodes.table(expected) in first.out
  assert f'{np.mean(expected.returns):.4g}' in first.out
  assert played_runs.NAME in first.out
  assert '0.05 s a step' in first.out


def test_actions_are_drawn_if_asked_for(run, capsys):
  assert _main(run, '--episodes=2') == 0
  mode = capsys.readouterr().out
  assert _main(run, '--episodes=2', '--nodeterministic') == 0
  drawn = capsys.readouterr().out
  assert 'the mode' in mode and 'actions: drawn' in drawn
  assert mode.splitlines()[4:] != drawn.splitlines()[4:]


def test_a_video_and_a_picture_are_written(run, tmp_path, capsys):
  video, picture = tmp_path / 'out.gif', tmp_path / 'out.png'

  code = _main(
    run,
    '--episodes=2',
    f'--video={video}',
    f'--activations={picture}',
    '--activation_steps=12',
  )

  assert code == 0
  out = capsys.readouterr().out
  assert str(video) in out and str(picture) in out
  with Image.open(video) as gif:
    lasts = sum(f.info['duration'] for f in ImageSequence.Iterator(gif))
  assert lasts == 200  # ms: four steps, the limit of an episode
  assert picture.read_bytes().startswith(b'\x89PNG')


def test_a_checkpoint_may_have_another_name(run, tmp_path):
  shutil.copytree(run, tmp_path / 'run')
  folder = tmp_path / 'run' / 'checkpoints'
  (folder / '000000000007').rename(folder / 'best')
  picture = tmp_path / 'out.png'

  flags = ('--episodes=1', '--activation_steps=4', f'--activations={picture}')
  assert _main(folder / 'best', *flags) == 0
  assert picture.exists()


def test_where_nothing_can_be_drawn_the_table_is_there(
  run, tmp_path, capsys, monkeypatch
):
  def render(*args, **kwargs):
    raise ImportError('no OpenGL')

  monkeypatch.setattr(played_runs.FilmedPoint, 'render', render)
  assert _main(run, '--episodes=2', f'--video={tmp_path}/out.gif') == 0
  captured = capsys.readouterr()
  assert 'mean' in captured.out
  last = captured.err.splitlines()[-1]
  assert last.startswith('brax-nnx-play: no video: ')
  assert 'MUJOCO_GL=egl' in last
  assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_is_told(run, tmp_path, capsys, monkeypatch):
  def render(*args, **kwargs):
    raise OSError(28, 'No space left on device', 'out.gif')

  monkeypatch.setattr(play.rendering, 'save', render)
  assert _main(run, '--episodes=1', f'--video={tmp_path}/out.gif') == 1
  last = capsys.readouterr().err.splitlines()[-1]
  assert 'out.gif cannot be written (No space left on device)' in last


def test_an_interrupt_is_one_line(run, capsys, monkeypatch):
  def interrupt(*args, **kwargs):
    raise KeyboardInterrupt

  monkeypatch.setattr(play.episodes, 'play', interrupt)
  assert _main(run) == 130
  assert capsys.readouterr().err.endswith('brax-nnx-play: interrupted.\n')


def test_a_network_without_memory_is_played_and_has_nothing_to_show(
  tmp_path, capsys
):
  played_runs.save_run(tmp_path, small_runs.small_mlp, kind='mlp')
  assert _main(tmp_path, '--episodes=2') == 0
  assert _main(tmp_path, f'--activations={tmp_path}/out.png') == 2
  assert 'no memory' in capsys.readouterr().err.splitlines()[-1]


def test_help_is_shown_and_is_no_mistake(capsys):
  assert _main('--help') == 0
  out = capsys.readouterr().out
  for name in ('episodes', 'video', 'activations', 'layer'):
    assert f'--{name}' in out or f'--[no]{name}' in out


def test_the_training_program_plays_too(run, tmp_path, capsys):
  path = f'--load_checkpoint_path={run}'
  main = lambda *a: train_ppo.main(['brax-nnx-train', '--play_only', *a])

  assert main(path, '--num_eval_envs=2', '--memory_size=8', '--num_envs=4') == 0
  captured = capsys.readouterr()
  assert episodes.table(episodes.play(scenes.load(run), 2)) in captured.out
  assert '--memory_size=8 has no effect' in captured.err
  assert 'saved with 3' in captured.err

  assert main(path, '--num_videos=2', f'--logdir={tmp_path}') == 0
  assert {f.stem for f in tmp_path.iterdir()} == {'rollout0', 'rollout1'}

  capsys.readouterr()
  assert main() == 2
  assert '--load_checkpoint_path' in capsys.readouterr().err
  assert main(path, '--resume') == 2
  assert 'no --resume' in capsys.readouterr().err
