"""The plan of a population graph: its parts, and the order in which they run.

Plain Python and hashable, so a graph holds it as static data.
"""

from collections.abc import Callable
import dataclasses
import numbers
from typing import Any

from flax import nnx

# A population has no such name, because those of the graph's children have.
_SEPARATORS = ('->', '@', '#', '/')


def _is_count(value: Any, least: int) -> bool:
  if isinstance(value, bool) or not isinstance(value, numbers.Integral):
    return False
  return int(value) >= least


@dataclasses.dataclass(frozen=True)
class Population:
  """A group of units with one activation vector.

  Attributes:
    name: unique in the graph.
    size: number of units.
    activation: applied to the sum of what comes in; `None` for none.
    input_from: the entry of the observation that is added to the sum.
    output_to: the entry of the graph's output that has the activation.
  """

  name: str
  size: int
  activation: Callable[..., Any] | None = None
  input_from: Any = None
  output_to: str | None = None

  def __post_init__(self):
    name = self.name
    if (
      not isinstance(name, str)
      or not name
      or any(mark in name for mark in _SEPARATORS)
    ):
      raise ValueError(
        'PopulationGraph: the name of a population is a string without'
        f' {", ".join(map(repr, _SEPARATORS))}; got {name!r}.'
      )
    if not _is_count(self.size, 1):
      raise ValueError(
        f'PopulationGraph: the size of population {name!r} must be an int of'
        f' at least 1; got {self.size!r}.'
      )
    if isinstance(self.activation, nnx.Module) or not (
      self.activation is None or callable(self.activation)
    ):
      raise ValueError(
        f'PopulationGraph: the activation of population {name!r} must be a'
        f' function of an array; got a {type(self.activation).__name__}. A'
        ' module can be the transform of a connection.'
      )
    if not isinstance(self.output_to, str | None):
      raise ValueError(
        f'PopulationGraph: the key of output {name!r}, output_to, must be a'
        f' string; got {self.output_to!r}.'
      )
    object.__setattr__(self, 'size', int(self.size))

  @property
  def memory(self) -> str:
    """The name of the child that remembers the activations."""
    return f'{self.name}@past'


@dataclasses.dataclass(frozen=True)
class Connection:
  """A way from one population to another.

  Attributes:
    key: the name of the child that transforms what is sent.
    source: the name of the population that sends.
    target: the name of the population that receives.
    delay: how many steps ago the source had the activation that is sent.
  """

  key: str
  source: str
  target: str
  delay: int

  def __post_init__(self):
    if not _is_count(self.delay, 0):
      raise ValueError(
        f'PopulationGraph: the delay of the connection {self.key} must be an'
        f' int of at least 0; got {self.delay!r}.'
      )
    object.__setattr__(self, 'delay', int(self.delay))


@dataclasses.dataclass(frozen=True)
class Plan:
  """All populations and connections, in the order in which they were added."""

  populations: tuple[Population, ...] = ()
  connections: tuple[Connection, ...] = ()

  def find(self, name: str) -> Population:
    """Returns the population called `name`.

    Raises:
      ValueError: if there is none.
    """
    for population in self.populations:
      if population.name == name:
        return population
    raise ValueError(
      f'PopulationGraph: there is no population {name!r}; there are'
      f' {[p.name for p in self.populations]}.'
    )

  def add(self, population: Population) -> 'Plan':
    """Returns the plan with one more population.

    Raises:
      ValueError: if its name or its entry in the output is taken.
    """
    for other in self.populations:
      if other.name == population.name:
        raise ValueError(
          f'PopulationGraph: there is a population {other.name!r} already.'
        )
      if other.output_to == population.output_to is not None:
        raise ValueError(
          f'PopulationGraph: there is an output {other.output_to!r} already.'
          f' Give population {population.name!r} another output_to.'
        )
    return Plan((*self.populations, population), self.connections)

  def connect(self, src: str, dst: str, delay: int) -> 'Plan':
    """Returns the plan with one more connection, the last.

    The first from a to b has the key 'a->b', the second 'a->b#2', and so on.

    Raises:
      ValueError: if a population is missing or the delay is no delay.
    """
    key = f'{self.find(src).name}->{self.find(dst).name}'
    ends = [(c.source, c.target) for c in self.connections]
    if (src, dst) in ends:
      key += f'#{ends.count((src, dst)) + 1}'
    connection = Connection(key, src, dst, delay)
    return Plan(self.populations, (*self.connections, connection))

  def inputs(self) -> list[Population]:
    """Returns the populations that get an entry of the observation."""
    return [p for p in self.populations if p.input_from is not None]

  def outputs(self) -> list[Population]:
    """Returns the populations whose activation is in the output."""
    return [p for p in self.populations if p.output_to is not None]

  def delays(self, name: str) -> list[int]:
    """Returns the delays with which a population is read, shortest first."""
    sent = {c.delay for c in self.connections if c.source == name}
    return sorted(sent - {0})

  def run_order(self) -> tuple[str, ...]:
    """Orders populations so that each comes after those it reads undelayed.

    Raises:
      ValueError: if there is no connection or no output, or if undelayed
        connections make a cycle.
    """
    if not self.connections:
      raise ValueError('PopulationGraph: there is no connection; call connect.')
    if not self.outputs():
      raise ValueError('PopulationGraph: there is no output; call add_output.')
    waits = {p.name: set[str]() for p in self.populations}
    for c in self.connections:
      if c.delay == 0:
        waits[c.target].add(c.source)
    order: list[str] = []
    while waits:
      ready = [name for name, on in waits.items() if not on & waits.keys()]
      if not ready:
        raise ValueError(
          f'PopulationGraph: {" -> ".join(_cycle(waits))} is a cycle without'
          ' delay, so each of these populations needs the others first. Give'
          ' one connection delay >= 1.'
        )
      order += ready
      waits = {name: on for name, on in waits.items() if name not in ready}
    return tuple(order)


def _cycle(waits: dict[str, set[str]]) -> list[str]:
  """Finds a cycle, given that every population waits on one of the others."""
  path = [next(iter(waits))]
  while True:
    source = next(name for name in waits if name in waits[path[-1]])
    if source in path:
      break
    path.append(source)
  # Each member of the path waits on the next, so signals run backwards.
  cycle = path[path.index(source) :][::-1]
  start = cycle.index(next(name for name in waits if name in cycle))
  cycle = cycle[start:] + cycle[:start]
  return [*cycle, cycle[0]]
