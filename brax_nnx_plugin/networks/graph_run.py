"""A container that runs the plan of a population graph."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from brax_nnx_plugin.networks import entries
from brax_nnx_plugin.networks import rings
from brax_nnx_plugin.networks.containers import AbstractContainer
from brax_nnx_plugin.networks.containers import Run
from brax_nnx_plugin.networks.graph_plan import Connection
from brax_nnx_plugin.networks.graph_plan import Plan
from brax_nnx_plugin.networks.graph_plan import Population
from brax_nnx_plugin.networks.types import ACTIVATION_KEY
from brax_nnx_plugin.networks.types import StatefulModule


class GraphContainer(AbstractContainer):
  """Runs connections and memories as a plan says.

  Attributes:
    plan: the populations and connections.
    order: the populations as they run; empty while the graph is built.
    record_activations: puts the activations of all populations into the
      metrics.
  """

  plan: Plan
  order: tuple[str, ...]
  record_activations: bool

  def route(self, run, x):
    """Runs the populations in order; returns the activations of all."""
    observations = self._observations(x)
    lead = _leading_axes(observations, x)
    past = {p.name: self._recall(run, p) for p in self.plan.populations}
    now: dict[str, jax.Array] = {}
    for name in self.order:
      population = self.plan.find(name)
      total = jnp.zeros((*lead, population.size))
      if name in observations:
        total = total + observations[name]
      for c in self.plan.connections:
        if c.target == name:
          signal = past[c.source][c.delay] if c.delay else now[c.source]
          total = total + self._send(run, c, signal, total.shape)
      now[name] = _activate(population, total)
      if past[name]:
        self._remember(run, population, past[name], now[name])
    return now

  def unroll(self, state, x, is_first, rollout_extras=None):
    """Runs a sequence, step by step only if a connection has a delay."""
    undelayed = all(c.delay == 0 for c in self.plan.connections)
    # Without inputs there is nothing that tells whether there is a time axis.
    if undelayed and self.plan.inputs():
      return super().unroll(state, x, is_first, rollout_extras)
    return StatefulModule.unroll(self, state, x, is_first, rollout_extras)

  def _run(self, call, state, x, rollout_extras):
    out = super()._run(call, state, x, rollout_extras)
    now, metrics = out.output, out.metrics
    if self.record_activations:
      metrics = {**metrics, ACTIVATION_KEY: now}
    output = {p.output_to: now[p.name] for p in self.plan.outputs()}
    return dataclasses.replace(out, output=output, metrics=metrics)

  def _check_entries(self, what, tree):
    self._check_finalized()
    super()._check_entries(what, tree)

  def _gather(self, per_child):
    self._check_finalized()
    return super()._gather(per_child)

  def _check_finalized(self) -> None:
    if not self.order:
      raise ValueError(
        'PopulationGraph: the graph is still being built. Call finalize()'
        ' before it is used.'
      )

  def _observations(self, x: Any) -> dict[str, jax.Array]:
    """Takes the entry of each input population."""
    observations = {}
    for p in self.plan.inputs():
      kind = f'PopulationGraph, input {p.name!r}'
      entry = entries.take(kind, x, p.input_from)
      shape = getattr(entry, 'shape', ())
      if len(shape) < 2 or shape[-1] != p.size:
        raise ValueError(
          f'{kind}: the population has {p.size} units, so the entry'
          f' {p.input_from!r} must be [B, {p.size}]; it is'
          f' {entries.describe(entry)}.'
        )
      observations[p.name] = entry
    return observations

  def _recall(self, run: Run, population: Population) -> dict[int, jax.Array]:
    """Reads the activations that are sent with a delay, by that delay."""
    read = lambda d: rings.look_back(run.carry(population.memory), d, 0.0)
    return {delay: read(delay) for delay in self.plan.delays(population.name)}

  def _remember(self, run, population, past, activation) -> None:
    """Runs the memory of a population."""
    ring = run.carry(population.memory)
    x = activation.astype(ring['buffer'].dtype)
    run(population.memory, rings.after(ring, list(past.values()), x))

  def _send(
    self,
    run: Run,
    connection: Connection,
    signal: jax.Array,
    shape: tuple[int, ...],
  ) -> jax.Array:
    """Runs a connection; returns what it adds to its target `shape`."""
    output = run(connection.key, signal)
    if getattr(output, 'shape', None) != shape:
      kind = type(self[connection.key]).__name__
      raise ValueError(
        f'PopulationGraph: the transform of {connection.key}, a {kind}, must'
        f' turn {signal.shape[-1]} units into {shape[-1]}, shape {signal.shape}'
        f' into {shape}; it returned {entries.describe(output)}.'
      )
    return output


def _leading_axes(
  observations: Mapping[str, jax.Array], x: Any
) -> tuple[int, ...]:
  """Returns the axes before the features, the same for all inputs."""
  shapes = {name: entry.shape for name, entry in observations.items()}
  if not shapes:
    leaves = jax.tree.leaves(x)
    if not leaves:
      raise ValueError(
        'PopulationGraph: the input has no arrays, so there is no telling how'
        ' many rows there are.'
      )
    return leaves[0].shape[:1]
  leading = {shape[:-1] for shape in shapes.values()}
  if len(leading) > 1:
    raise ValueError(
      'PopulationGraph: all inputs must have the same rows; the shapes are'
      f' {shapes}.'
    )
  return leading.pop()


def _activate(population: Population, total: jax.Array) -> jax.Array:
  if population.activation is None:
    return total
  activation = population.activation(total)
  if getattr(activation, 'shape', None) != total.shape:
    raise ValueError(
      f'PopulationGraph: the activation of population {population.name!r}'
      f' must keep the shape {total.shape}; it returned'
      f' {entries.describe(activation)}.'
    )
  return activation
