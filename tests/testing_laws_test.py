"""Every law finds the modules that break it, and says how to mend them."""

import re
from typing import Any

from flax import nnx
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.testing import check
from brax_nnx_plugin.testing import check_module
from tests import broken_composites as composites
from tests import broken_modules as broken


def _wrap(wrapper: Any, child: Any = broken.Memory) -> Any:
  """Returns a builder of a wrapper, two levels below the root."""
  return lambda _: networks.Parallel(
    a=networks.Sequential([broken.Leaf(), wrapper(child())])
  )


def _of(module: Any) -> Any:
  """Returns a builder of a module without arguments."""
  return lambda _: module()


# What is broken, and by what: law, leaf and way out.
BROKEN: dict[Any, tuple[Any, str, str, str]] = {
  kind: (_of(kind), law, leaf, way_out)
  for kind, law, leaf, way_out in [
    (broken.ChangesType, 'carry', 'carry', 'cast to it in __call__'),
    (broken.ChangesStructure, 'carry', 'carry', 'must keep structure'),
    (broken.WeakStart, 'carry', 'carry', 'state the dtype'),
    (broken.OneClock, 'carry', "carry['clock']", 'one row per environment'),
    (broken.FixedRows, 'carry', 'carry', 'one row per environment'),
    (broken.PlainNumber, 'carry', 'carry[0]', 'one row per environment'),
    (broken.TypedKeys, 'carry', 'carry', 'jax.random.key_data'),
    (broken.ResetsToInt, 'carry', 'carry', 'must keep structure'),
    (broken.WritesVariable, 'writes', 'seen', 'update_statistics'),
    (broken.WritesAttribute, 'writes', 'calls', 'memory in the carry'),
    (broken.NanSentinel, 'finite', 'carry', 'by a flag, not by NaN'),
    (broken.NanGradient, 'finite', "gradient['weight']", 'a safe value'),
    (broken.InfiniteOutput, 'finite', "output['log']", 'a safe value'),
    (broken.ByDictOrder, 'split', 'output', 'keep an order in a tuple'),
    (broken.BareArray, 'split', 'offset', 'Make it an nnx.Param'),
    (broken.ListOfSizes, 'split', 'sizes', 'Use a tuple'),
    (broken.ResetsHalf, 'reset', 'carry[1]', 'for every row'),
    (broken.ResetsAllRows, 'reset', 'carry', 'flagged rows alone'),
    (broken.ResetsNoRows, 'reset', 'output', 'Let reset_rows do'),
    (broken.Centres, 'rows', 'output', 'no mean'),
    (broken.CountsRows, 'rows', 'output', 'each row by itself'),
    (broken.OneOutput, 'rows', "output['step']", 'one row per environment'),
    (broken.SumsLoss, 'regularization', 'regularization_loss', 'not the sum'),
    (
      broken.LossByFeature,
      'regularization',
      'regularization_loss',
      'one number per row',
    ),
    (composites.ForgetsResets, 'unroll', 'output', 'step by step'),
    (composites.LateError, 'unroll', 'output', 'step by step'),
    (composites.KeepsCarry, 'unroll', 'next_state', 'step by step'),
    (composites.MoreMetrics, 'unroll', "metrics['norm']", 'step by step'),
    (composites.WritesInUnroll, 'unroll', 'last', 'no variable but RNG'),
    (
      composites.SumsLossOverTime,
      'unroll',
      'mean regularization_loss',
      'step by step',
    ),
    (composites.TrainedMean, 'statistics', 'mean', 'no nnx.Param'),
    (composites.OneDevice, 'statistics', '', 'axis_name=None'),
    (composites.ScalarMean, 'statistics', 'mean', 'keep its shape'),
    (composites.MakesVariable, 'statistics', 'count', 'in the constructor'),
  ]
} | {
  'redraws': (broken.Redraws, 'replay', "output['action']", 'what is drawn'),
  'drops': (broken.Drops, 'replay', 'output', 'keys in the carry'),
  'drops metrics': (
    _wrap(composites.DropsMetrics),
    'metrics',
    'a/1/child',
    'metrics of every child',
  ),
  'drops the loss': (
    _wrap(composites.DropsLoss),
    'losses',
    'a/1/child',
    'regularization_loss of every child',
  ),
  'drops metrics below': (
    _wrap(lambda child: composites.Wrapper(composites.DropsMetrics(child))),
    'metrics',
    'a/1/child/child',
    'metrics of every child',
  ),
  'never calls': (
    _wrap(composites.NeverCalls),
    'metrics',
    'a/1/child',
    'Call it',
  ),
  'renames extras': (
    _wrap(composites.RenamesExtras, composites.Mean),
    'extras',
    "rollout_extras['a'][1]",
    'an entry for each child',
  ),
  'drops extras': (
    _wrap(composites.DropsExtras, composites.Mean),
    'extras',
    'a/1/child',
    'hand them back',
  ),
  'keeps extras': (
    _wrap(composites.KeepsExtras, composites.Mean),
    'extras',
    'a/1/child',
    'hand them back',
  ),
  'flat extras': (
    lambda _: networks.Sequential([composites.FlatExtras(a=broken.Leaf())]),
    'extras',
    'rollout_extras[0]',
    'an entry for each child',
  ),
  'no update': (
    _wrap(composites.NoUpdate, composites.Mean),
    'statistics',
    'a/1/child',
    'Call its update_statistics',
  ),
  'one device below': (
    _wrap(composites.Wrapper, composites.OneDevice),
    'statistics',
    'a/1/child',
    'jax.lax.psum',
  ),
}
SIZES = {'redraws': 4}


@pytest.mark.parametrize(
  'name', BROKEN, ids=lambda k: getattr(k, '__name__', k)
)
def test_a_broken_module_is_told_what_it_breaks_and_the_way_out(name):
  build, law, leaf, way_out = BROKEN[name]
  with pytest.raises(AssertionError) as caught:
    check_module(build, SIZES.get(name, 2))
  kind = type(build(nnx.Rngs(0))).__name__
  where = f' at {re.escape(leaf)}' if leaf else ''
  pattern = f"{kind} breaks the law '{law}'{where}: .*{re.escape(way_out)}"
  assert re.match(pattern, str(caught.value)), str(caught.value)


def test_every_law_has_a_module_that_breaks_it():
  assert {law for _, law, _, _ in BROKEN.values()} == {*check.LAWS, 'carry'}


@pytest.mark.parametrize(
  ('module', 'law', 'error'),
  [
    (composites.RaisesInUnroll, 'unroll', 'NotImplementedError: not for'),
    (composites.RaisesInUpdate, 'statistics', "KeyError: 'history'"),
  ],
)
def test_an_error_counts_as_a_broken_law(module, law, error):
  message = f"breaks the law '{law}': it raises {error}"
  with pytest.raises(AssertionError, match=message):
    check_module(_of(module), 2)


def test_the_first_step_that_differs_is_named():
  with pytest.raises(AssertionError, match='a loop of steps from step 3 on'):
    check_module(_of(composites.LateError), 2)
  with pytest.raises(AssertionError, match='something else from step 0 on'):
    check_module(broken.Redraws, 4)
