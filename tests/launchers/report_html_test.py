"""The page of a run."""

import dataclasses
import math
import shutil
import subprocess

import numpy as np
import pytest

from launchers import report_html
from launchers.history import History
from tests.launchers.pages import Page

_CONFIG = {
  'environment': {'name': 'Env', 'config': {'ctrl_dt': 0.02}},
  'network': {'kind': 'lstm', 'arguments': {'sizes': [64, 32]}},
  'ppo': {'learning_rate': 0.0003, 'nothing': None},
  'seed': 4,
  'versions': {'jax': '1.2.3'},
}


def _line(steps, **metrics):
  learning = {
    f'training/{name}': math.sin(steps / 9e4 + i)
    for i, name in enumerate(
      ('policy_loss', 'v_loss', 'entropy_loss', 'total_loss', 'kl_mean')
    )
  }
  return {
    'env_steps': steps,
    'seconds': steps / 5e3,
    'eval/episode_reward': 100.0 + steps / 1e3,
    'eval/episode_reward_std': 25.0,
    'eval/avg_episode_length': 900.0,
    'eval/std_episode_length': 30.0,
    'training/sps': 5000.0,
    **learning,
    **metrics,
  }


def _render(lines, **changes):
  run = report_html.Run('Env, lstm', 'runs/Env-1', 1_000_000, _CONFIG)
  run = dataclasses.replace(run, **changes)
  return report_html.render(History(lines), run)


def _page(lines, **changes):
  return Page(_render(lines, **changes))


def test_the_headline_is_that_of_the_lines():
  page = _page([_line(0), _line(400_000), _line(300_000)])
  text = page.text()
  assert (
    'sum over the steps of an episode; band: ± 1 standard deviation' in text
  )
  for part in ('400k', 'of 1M (40 %)', '500', '± 25', '0:01:20', '5,000'):
    assert part in text
  # 80 s for 400k of 1M env steps.
  assert 'about 0:02:00 left' in text


def test_the_best_reward_is_not_the_last():
  lines = [_line(0), _line(10), _line(20)]
  lines[1]['eval/episode_reward'] = 777.0
  lines[2]['eval/episode_reward'] = None
  texts = _page(lines).texts
  assert texts[texts.index('Best reward') + 1] == '777'
  assert texts[texts.index('Last reward') + 1] == 'not finite'


_EXPECTED = {
  'Reward of an episode',
  'Length of an episode',
  'Policy loss',
  'Value loss',
  'Entropy loss',
  'KL divergence',
  'Throughput of training',
}


def test_every_kind_of_metric_has_a_chart():
  page = _page([_line(0), _line(20)])
  assert {*page.texts} >= _EXPECTED
  assert 'Carry drift' not in page.texts
  network = {'training/carry_drift': 0.1, 'training/network/action/0/mu': 2.0}
  page = _page([_line(0, **network), _line(20, **network)])
  assert {*page.texts} >= _EXPECTED | {'Carry drift', 'action/0/mu'}
  assert 'training/network/action/0/mu' in page.texts  # and in the table


def test_metrics_of_training_alone_are_shown():
  lines = [
    {'env_steps': s, 'seconds': 1.0, 'episode/sum_reward': 3.0 + s,
     'episode/policy_loss': 0.1, 'episode/network/x': 1.0, 'episode/sps': 9.0}
    for s in (0, 10)
  ]  # fmt: skip
  page = _page(lines)
  assert {*page.texts} >= {'Reward of an episode', 'Policy loss', 'x', '13'}
  assert page.texts.count('x') == 1


def test_two_sources_of_rewards_are_told_apart():
  training = {'env_steps': 5, 'seconds': 1.0, 'episode/sum_reward': 3.0}
  texts = _page([_line(0), training, _line(20)]).texts
  assert {'evaluation', 'training'} <= {*texts}
  assert 'evaluation' not in _page([_line(0), _line(20)]).texts


@pytest.mark.parametrize('count', [0, 1, 2, 5])
@pytest.mark.parametrize('value', [None, 0.0, 1e300, -1e-300])
def test_few_and_strange_numbers_make_a_page(count, value):
  lines = [_line(i) | {'training/v_loss': value} for i in range(count)]
  page = _page(lines)
  assert ('Value loss' in page.texts) == (count > 0)
  assert ('Nothing has been reported yet.' in page.texts) == (count == 0)
  assert 'nan' not in page.text()


def test_many_lines_make_a_page_that_opens():
  rng = np.random.default_rng(0)
  lines = [
    {'env_steps': i, 'seconds': float(i)}
    | {f'training/network/{j}': float(x) for j, x in enumerate(row)}
    for i, row in enumerate(rng.normal(size=(100_000, 3)))
  ]
  text = _render(lines)
  assert len(text) < 500_000
  assert Page(text).count('figure') == 3


@pytest.mark.parametrize(
  ('status', 'words'),
  [
    ('running', 'running'),
    ('finished', 'finished'),
    ('stopped', 'stopped, can go on'),
    ('diverged', 'diverged'),
    ('failed', 'failed'),
  ],
)
def test_how_the_run_ended_is_told(status, words):
  page = _page([_line(0)], status=status, note='Because of this.')
  assert words in page.texts
  assert ('Because of this.' in page.texts) is True
  # Only a page that may still change looks for changes.
  assert page.count('script') == (status == 'running')


def test_configuration_and_versions_can_be_unfolded():
  page = _page([_line(0)])
  shown = page.texts
  for name, value in (
    ('config.ctrl_dt', '0.02'),
    ('arguments.sizes', '64, 32'),
    ('learning_rate', '0.0003'),
    ('seed', '4'),
    ('jax', '1.2.3'),
  ):
    assert shown[shown.index(name) + 1] == value
  assert page.count('details') >= 5


def test_what_to_do_next_can_be_copied():
  kind = {'network': {'kind': 'my.networks:build'}}
  page = _page([_line(0)], folder="it's a folder", config=_CONFIG | kind)
  shown = page.text()
  quoted = """'it'"'"'s a folder'"""
  assert f'brax-nnx-train --resume={quoted}' in shown
  assert f'brax-nnx-play {quoted} --network=my.networks:build' in shown
  load = """load_policy("it's a folder", 'my.networks:build')"""
  assert load in shown


_EVIL = '</title></style><script>alert("1")</script><img src=x onerror=\'a\'>'


def test_nothing_that_a_user_names_is_markup():
  plain = _page([_line(0)])
  evil = _page(
    [_line(0, **{f'training/network/{_EVIL}': 1.0, _EVIL: 2.0})],
    title=_EVIL,
    folder=_EVIL,
    note=_EVIL,
    config={_EVIL: {_EVIL: _EVIL}, 'network': {'kind': f'{_EVIL}:x'}},
  )
  assert evil.count('script') == plain.count('script')
  assert evil.count('img') == 0
  names = {name for _, attributes in evil.elements for name in attributes}
  assert not any(name.startswith('on') for name in names)
  assert evil.texts.count(_EVIL) >= 4


def test_nothing_is_loaded_from_anywhere():
  text = _render([_line(0), _line(20)])
  assert '://' not in text
  assert 'url(' not in text
  assert '@import' not in text
  page = Page(text)
  assert page.loaded == []
  (policy,) = [
    attributes['content']
    for tag, attributes in page.elements
    if attributes.get('http-equiv') == 'Content-Security-Policy'
  ]
  assert policy is not None
  assert "default-src 'none'" in policy


def _browser():
  names = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
  return next(filter(None, map(shutil.which, names)), None)


@pytest.mark.slow
@pytest.mark.skipif(_browser() is None, reason='no Chromium is installed')
@pytest.mark.parametrize('width', [500, 1280])
def test_a_browser_shows_it_without_scrolling_aside(tmp_path, width):
  """The page measures itself, and says so in its title."""
  script = """<script>
    const wide = [...document.querySelectorAll('figure, h1, .numbers, pre')];
    const over = wide.filter(
      e => e.getBoundingClientRect().right > innerWidth + 1);
    const svg = [...document.querySelectorAll('svg')]
      .filter(e => e.getBoundingClientRect().height > 50);
    document.title = `over ${over.length} charts ${svg.length}`
      + ` aside ${document.documentElement.scrollWidth > innerWidth}`;
  </script></body>"""
  page = tmp_path / 'report.html'
  title = 'Env' * 60
  text = _render([_line(i * 9_000) for i in range(40)], title=title)
  page.write_text(text.replace('</body>', script))
  done = subprocess.run(
    [
      str(_browser()),
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      f'--user-data-dir={tmp_path / "profile"}',
      f'--window-size={width},900',
      '--dump-dom',
      page.as_uri(),
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  charts = 8  # one of the two sizes of the reward
  assert f'<title>over 0 charts {charts} aside false</title>' in done.stdout
