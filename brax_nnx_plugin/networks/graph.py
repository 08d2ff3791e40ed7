"""Networks drawn as a graph: populations of units and connections between them.

`Sequential` and `Parallel` make trees. Where a part has several inputs, sends
its output to several others, or feeds back on itself, name the parts and
connect them in a `PopulationGraph`. How the result runs is in `graph_run`.
"""

from collections.abc import Callable
from typing import Any

from flax import nnx
import jax

from brax_nnx_plugin.networks import graph_dot
from brax_nnx_plugin.networks.delay import Delay
from brax_nnx_plugin.networks.feedforward import Dense
from brax_nnx_plugin.networks.graph_plan import Plan
from brax_nnx_plugin.networks.graph_plan import Population
from brax_nnx_plugin.networks.graph_run import GraphContainer

Activation = Callable[[jax.Array], jax.Array] | None


class PopulationGraph(GraphContainer):
  """Populations of units, connected by layers.

      a_j[t] = f_j(x_j[t] + Σ_{i → j} T_ij(a_i[t - d_ij]))

  with the activation `a_j` of population j, its function `f_j`, the entry `x_j`
  of the observation if it is an input, and the transform `T_ij` and delay
  `d_ij` of a connection. What lies before the episode is zero. Loops are
  allowed if there is a delay in them.

  Input: a mapping with an entry `[B, size]` for each input population. Output:
  a dict with an entry `[B, size]` for each output population.

  The children are the transforms, by the names 'source->target' (the second
  between the same two is 'source->target#2'), and for each population that is
  read with a delay its memory, 'source@past', one ring as long as the longest
  delay. Carry, rollout extras and metrics have an entry for each.

  With `record_activations` set, the activations of all populations are among
  the metrics.

  Example:
    graph = PopulationGraph(rngs)
    graph.add_input('sensors', 8, input_from='proprioception')
    graph.add_population('cortex', 32, activation=nnx.tanh)
    graph.add_output('muscles', 4)
    graph.connect('sensors', 'cortex', delay=2)
    graph.connect('cortex', 'cortex', delay=1)
    graph.connect('cortex', 'muscles')
    graph.finalize()
  """

  def __init__(self, rngs: nnx.Rngs):
    """Starts an empty graph, to be built and then finalized.

    Args:
      rngs: source of the initial weights of connections without a transform.
    """
    self.plan = Plan()
    self.order = ()
    self.names = ()
    self.components = nnx.Dict()
    self.record_activations = False
    self.rngs = rngs

  def add_population(
    self, name: str, size: int, activation: Activation = None
  ) -> None:
    """Adds an internal population.

    Args:
      name: unique in the graph.
      size: number of units.
      activation: applied once to the sum of all that comes in.

    Raises:
      ValueError: if an argument is not what it must be, the name is taken, or
        the graph is finalized.
    """
    self._add(Population(name, size, activation))

  def add_input(
    self, name: str, size: int, input_from: str, activation: Activation = None
  ) -> None:
    """Adds a population that gets an entry of the observation.

    Args:
      name: unique in the graph.
      size: number of units, and the size of the entry.
      input_from: the key of the entry, which is added to what comes in.
      activation: applied once to the sum.

    Raises:
      ValueError: as `add_population`.
    """
    if not isinstance(input_from, (str, int)):
      raise ValueError(
        f'PopulationGraph: input {name!r} needs the key of an entry of the'
        f' observation, input_from; got {input_from!r}.'
      )
    self._add(Population(name, size, activation, input_from=input_from))

  def add_output(
    self,
    name: str,
    size: int,
    output_to: str | None = None,
    activation: Activation = None,
  ) -> None:
    """Adds a population whose activation is in the output.

    Args:
      name: unique in the graph.
      size: number of units.
      output_to: the key of the activation in the output; the name by default.
      activation: applied once to the sum of all that comes in.

    Raises:
      ValueError: as `add_population`, or if the key is taken.
    """
    key = name if output_to is None else output_to
    self._add(Population(name, size, activation, output_to=key))

  def connect(
    self,
    src: str,
    dst: str,
    transform: Any = None,
    delay: int = 0,
    reciprocal: bool = False,
  ) -> None:
    """Connects two populations, or one to itself.

    Args:
      src: the population that sends.
      dst: the population that receives.
      transform: a stateful module from `[B, src.size]` to `[B, dst.size]`; by
        default a linear `Dense`.
      delay: how many steps ago the source had the activation that is sent.
      reciprocal: also connect back, with the same delay and a `Dense` of its
        own.

    Raises:
      ValueError: if there is no such population, the delay is not an int of at
        least 0, a reciprocal connection has a transform, or the graph is
        finalized.
      TypeError: if `transform` is no stateful module.
    """
    self._check_unfinished()
    if reciprocal and transform is not None:
      raise ValueError(
        f'PopulationGraph: the transform from {src!r} to {dst!r} cannot serve'
        ' the way back. Connect each way on its own instead of with'
        ' reciprocal=True.'
      )
    self._connect(src, dst, transform, delay)
    if reciprocal:
      self._connect(dst, src, None, delay)

  def finalize(self) -> None:
    """Checks the graph and makes a module of it; nothing can be added then.

    Raises:
      ValueError: if there is no connection or no output, connections without
        delay make a cycle, or the graph is finalized already.
    """
    self._check_unfinished()
    order = self.plan.run_order()
    children = {c.key: self.components[c.key] for c in self.plan.connections}
    for p in self.plan.populations:
      delays = self.plan.delays(p.name)
      if delays:
        children[p.memory] = Delay(p.size, k_steps=delays[-1])
    super().__init__(children)
    self.order = order
    del self.rngs  # it would count as random streams of the network

  @property
  def population_names(self) -> tuple[str, ...]:
    """The names of the populations, in the order in which they were added."""
    return tuple(p.name for p in self.plan.populations)

  def to_dot(self) -> str:
    """Returns the graph as text for Graphviz, finalized or not."""
    return graph_dot.render(self.plan, self.components)

  def _add(self, population: Population) -> None:
    self._check_unfinished()
    self.plan = self.plan.add(population)

  def _connect(self, src: str, dst: str, transform: Any, delay: int) -> None:
    plan = self.plan.connect(src, dst, delay)
    key = plan.connections[-1].key
    if transform is None:
      sizes = plan.find(src).size, plan.find(dst).size
      transform = Dense(*sizes, self.rngs)
    if not hasattr(transform, 'initialize_state'):
      raise TypeError(
        f'PopulationGraph: the transform of {key} is a'
        f' {type(transform).__name__}, not a StatefulModule. Wrap it in one'
        ' (for nnx.Linear use Dense).'
      )
    self.components[key] = transform
    self.plan = plan

  def _check_unfinished(self) -> None:
    if self.order:
      raise ValueError(
        'PopulationGraph: the graph is finalized, so it cannot be changed.'
        ' Build another one.'
      )
