"""Containers: what they refuse, and what they say about it."""

import re
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brax_nnx_plugin import networks
from brax_nnx_plugin.networks import types
from brax_nnx_plugin.networks.containers import Concat
from brax_nnx_plugin.networks.containers import Splitter
from brax_nnx_plugin.networks.utils import Map
from brax_nnx_plugin.networks.utils import Merge
from tests import fakes

X = jnp.zeros((2, 1))
NAMED = (networks.Parallel, Concat, Map, Merge)


@pytest.mark.parametrize('kind', NAMED)
def test_a_container_without_children_is_refused(kind):
  message = f'{kind.__name__} needs at least one child'
  with pytest.raises(ValueError, match=message):
    kind()
  with pytest.raises(ValueError, match=message):
    kind({})
  with pytest.raises(ValueError, match='Sequential needs at least one child'):
    networks.Sequential([])


@pytest.mark.parametrize('name', ['keys', 'items', 'pop', 'update'])
def test_a_name_that_nnx_needs_is_refused(name):
  with pytest.raises(ValueError, match=f"Parallel: '{name}' cannot name"):
    networks.Parallel({name: fakes.Gain()})


def test_a_name_that_is_no_string_is_refused():
  children: Any = {3: fakes.Gain()}
  with pytest.raises(ValueError, match='Parallel: 3 cannot name a child'):
    networks.Parallel(children)


def test_a_child_that_is_no_stateful_module_is_refused():
  linear = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
  message = r'child 1 is a Linear.*\(for nnx.Linear use Dense\)'
  with pytest.raises(TypeError, match=f'Sequential: {message}'):
    networks.Sequential([fakes.Gain(), linear])
  with pytest.raises(TypeError, match="Parallel: child 'x' is a Linear"):
    networks.Parallel(x=linear)


@pytest.mark.parametrize('kind', [*NAMED, Splitter])
def test_a_dict_and_keywords_together_are_refused(kind):
  name = kind.__name__
  message = rf"{name} takes either one dict.*\['a'\].*\['b'\]"
  with pytest.raises(ValueError, match=message):
    kind({'a': fakes.Gain()}, b=fakes.Gain())


@pytest.mark.parametrize('kind', [*NAMED, Splitter])
def test_children_without_names_are_refused(kind):
  message = f'{kind.__name__} takes one dict or keyword.*got a list'
  with pytest.raises(TypeError, match=message):
    kind([fakes.Gain()])


@pytest.mark.parametrize('kind', [Concat, Map])
@pytest.mark.parametrize(
  ('x', 'given'),
  [
    (X, r'an array of shape \(2, 1\)'),
    ([X, X], 'a list'),
    (None, 'a NoneType'),
  ],
  ids=['array', 'list', 'none'],
)
def test_an_input_that_is_no_mapping_is_refused(kind, x, given):
  net = kind(legs=fakes.Gain())
  message = f"{kind.__name__}: the input must be a mapping.*'legs'.*is {given}"
  with pytest.raises(ValueError, match=message):
    net({'legs': ()}, x)


@pytest.mark.parametrize('kind', [Concat, Map])
def test_a_missing_entry_is_named_with_the_ones_there_are(kind):
  net = kind(legs=fakes.Gain(), arms=fakes.Gain())
  x = {'legs': X, 'torso': X}
  message = rf"{kind.__name__}: there is no 'arms'.*\['legs', 'torso'\]"
  with pytest.raises(ValueError, match=message):
    net({'legs': (), 'arms': ()}, x)
  with pytest.raises(ValueError, match=message):
    jax.jit(lambda x: net({'legs': (), 'arms': ()}, x).output)(x)
  sequence = jax.tree.map(lambda leaf: leaf[None], x)
  with pytest.raises(ValueError, match=message):
    net.unroll({'legs': (), 'arms': ()}, sequence, jnp.zeros((1, 2)))


@pytest.mark.parametrize(
  ('x', 'given'),
  [({'c': X}, 'a dict'), (X[:, 0], r'an array of shape \(2,\)')],
  ids=['dict', 'no features'],
)
def test_concat_joins_nothing_but_arrays_with_features(x, given):
  net = Concat(a=fakes.Gain(), b=networks.Filter(lambda x: x))
  message = f"Concat joins arrays.* 'b' is {given}.*see Flattener"
  with pytest.raises(ValueError, match=message):
    net({'a': (), 'b': ()}, {'a': X, 'b': x})


@pytest.mark.parametrize('other', [(3, 1), (2, 2, 1)], ids=str)
def test_concat_joins_nothing_whose_other_axes_differ(other):
  net = Concat(a=fakes.Gain(), b=fakes.Gain())
  shapes = re.escape(f"{{'a': (2, 1), 'b': {other}}}")
  with pytest.raises(ValueError, match=f'Concat.*must agree.*{shapes}'):
    net({'a': (), 'b': ()}, {'a': X, 'b': jnp.zeros(other)})


def test_merge_takes_nothing_but_dicts():
  net = Merge(a=Splitter(u=1), b=fakes.Gain())
  message = r"Merge: child 'b' must return a dict.*shape \(2, 1\).*Parallel"
  with pytest.raises(TypeError, match=message):
    net({'a': (), 'b': ()}, X)


def test_merge_takes_no_name_twice():
  heads = {name: Splitter(u=1) for name in ('a', 'b')}
  with pytest.raises(ValueError, match="children 'a' and 'b' both return 'u'"):
    Merge(heads)({'a': (), 'b': ()}, X)


@pytest.mark.parametrize('size', [0, -1, 1.0, True, '3', None])
def test_a_slice_of_no_size_is_refused(size):
  message = f"size of 'b' must be an int above 0; got {size!r}"
  with pytest.raises(ValueError, match=message):
    Splitter(a=1, b=size)


def test_a_splitter_without_slices_is_refused():
  with pytest.raises(ValueError, match='Splitter needs at least one name'):
    Splitter()


@pytest.mark.parametrize(
  'x',
  [jnp.zeros((2, 4)), jnp.zeros((2, 2)), jnp.zeros(3), {'a': X}],
  ids=['more', 'fewer', 'no rows', 'dict'],
)
def test_slices_that_are_not_the_whole_input_are_refused(x):
  given = f'shape {x.shape}' if hasattr(x, 'shape') else 'a dict'
  message = re.escape("{'a': 2, 'b': 1} add up to 3, but the input is")
  with pytest.raises(ValueError, match=f'{message}.*{re.escape(given)}'):
    Splitter(a=2, b=1)((), x)


@pytest.mark.parametrize(
  'state', [[], [()], [()] * 3, {'a': (), 'b': ()}, (), None, jnp.zeros(2)]
)
def test_a_carry_of_another_container_is_refused(state):
  net = networks.Sequential([fakes.Gain(), fakes.Gain()])
  with pytest.raises(ValueError, match='Sequential: the entries of the carry'):
    net(state, X)
  with pytest.raises(ValueError, match='A carry comes from initialize_state'):
    net.reset_state(state)
  with pytest.raises(ValueError, match='the children are'):
    net.unroll(state, X[None], jnp.zeros((1, 2)))


@pytest.mark.parametrize('extras', [[None], [None] * 3, {'a': None}])
def test_extras_of_another_container_are_refused(extras):
  net = networks.Sequential([fakes.Gain(), fakes.Gain()])
  with pytest.raises(ValueError, match='the entries of the rollout extras'):
    net([(), ()], X, extras)


def test_a_child_that_runs_twice_is_refused():
  class Twice(networks.AbstractContainer):
    def route(self, run, x):
      return run('a', run('a', x))

  with pytest.raises(ValueError, match="Twice.route ran child 'a' twice"):
    Twice({'a': fakes.Gain()})({'a': ()}, X)


def test_a_child_that_never_runs_is_refused():
  class Idle(networks.AbstractContainer):
    def route(self, run, x):
      return run('b', x)

  net = Idle({'a': fakes.Gain(), 'b': fakes.Gain()})
  with pytest.raises(ValueError, match=r"did not run its children \['a'\]"):
    net({'a': (), 'b': ()}, X)


def test_a_container_must_say_how_it_routes():
  class Lost(networks.AbstractContainer):
    pass

  with pytest.raises(TypeError, match='route'):
    Lost({'a': fakes.Gain()})  # pyright: ignore[reportAbstractUsage]


@pytest.mark.parametrize('wrap', [list, lambda layers: dict(enumerate(layers))])
def test_a_plain_list_or_dict_of_layers_is_an_error_that_names_the_remedy(wrap):
  class Stack(types.StatefulModule):
    def __init__(self):
      self.layers: Any = wrap([fakes.Gain()])

    def __call__(self, state, x, rollout_extras=None):
      return self.layers[0](state, x)

  with pytest.raises(ValueError, match='nnx.List'):
    Stack()


@pytest.mark.parametrize('kind', ['list', 'dict'])
def test_modules_with_nnx_lists_and_dicts_of_layers_work(kind):
  class Stack(types.StatefulModule):
    def __init__(self):
      layers = [fakes.Gain() for _ in range(2)]
      named = {'a': layers[0], 'b': layers[1]}
      self.layers = nnx.List(layers) if kind == 'list' else nnx.Dict(named)

    def __call__(self, state, x, rollout_extras=None):
      layers: Any = self.layers
      for layer in layers if kind == 'list' else layers.values():
        x = layer((), x).output * 3
      return types.StatefulModuleOutput(state, x, jnp.array(0.0), {})

  net = networks.Sequential([Stack()])
  assert len(jax.tree.leaves(nnx.state(net, nnx.Param))) == 2
  np.testing.assert_array_equal(net([()], X + 1).output, X + 9)


def _sequential(layers: Any) -> networks.Sequential:
  return networks.Sequential(layers)


@pytest.mark.parametrize(
  'make',
  [
    lambda a, b: networks.Sequential(a, b),
    lambda a, b: _sequential(networks.Parallel(a=a, b=b)),
    lambda a, b: _sequential(networks.Sequential([a, b])),
    lambda a, b: _sequential({'a': a, 'b': b}),
  ],
)
def test_layers_that_are_not_in_one_list_are_refused(make):
  layers: Any = [networks.Dense(3, 3, nnx.Rngs(i)) for i in range(2)]
  with pytest.raises(TypeError, match='in one list'):
    make(*layers)
