"""Axes of charts: where values are, which ones are named, and how."""

import dataclasses
import math

import numpy as np

# Values whose highest is so many times the lowest are drawn by their logarithm.
_DECADES = 4

# What is smaller is drawn as 0: its reciprocal would be infinite.
_TINY = 1e-300


@dataclasses.dataclass(frozen=True)
class Axis:
  """A scale from 0 to 1.

  Attributes:
    low: value at 0, or its logarithm.
    high: value at 1, likewise.
    ticks: values that are named, and their names.
    logarithmic: whether it is.
  """

  low: float
  high: float
  ticks: list[tuple[float, str]]
  logarithmic: bool = False

  def place(self, values: np.ndarray) -> np.ndarray:
    """Returns where values are, NaN for NaN."""
    if self.logarithmic:
      values = np.log10(np.maximum(values, 10.0**self.low))
    return (values - self.low) / (self.high - self.low)


def _exponential(value: float, digits: int) -> str:
  """Writes 1.5e-7, not 1.5e-07."""
  mantissa, exponent = f'{value:.{digits}e}'.split('e')
  if '.' in mantissa:
    mantissa = mantissa.rstrip('0').rstrip('.')
  return f'{mantissa}e{int(exponent)}'


def number(value: float) -> str:
  """Returns a number for reading: four digits of it, in as few signs."""
  if not math.isfinite(value):
    return 'not finite'
  size = abs(value)
  if size < _TINY:
    return '0'
  if not 1e-3 <= size < 1e6:
    return _exponential(value, 3).replace('-', '−')
  text = f'{value:,.{max(3 - math.floor(math.log10(size)), 0)}f}'
  text = text.rstrip('0').rstrip('.') if '.' in text else text
  return text.replace('-', '−')


def steps_in_words(steps: float) -> str:
  """Returns env steps as 1.5M; of ten thousands on, three digits of them."""
  for size, suffix in ((1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
    if abs(steps) >= size:
      unit = 1e3 if suffix == 'k' else size
      return f'{steps / unit:.4g}{suffix}'
  return f'{steps:,.0f}'


def _spacing(span: float, count: int) -> float:
  """Returns a round distance that fits about `count` times."""
  rough = span / max(count, 1)
  unit = 10.0 ** math.floor(math.log10(rough))
  return unit * next(f for f in (1, 2, 5, 10) if f * unit >= rough * 0.6)


def _multiples(low: float, high: float, spacing: float) -> np.ndarray:
  """Returns the multiples of `spacing` from `low` to `high`."""
  first, last = np.ceil(low / spacing - 1e-9), np.floor(high / spacing + 1e-9)
  return np.arange(first, last + 1) * spacing + 0.0  # no -0


def _names(ticks: np.ndarray, spacing: float) -> list[str]:
  """Returns ticks with the digits in which they differ."""
  largest = float(np.max(np.abs(ticks), initial=0.0))
  exponent = math.floor(math.log10(spacing) + 1e-9)
  if largest >= 1e6 or exponent < -5:
    digits = max(math.floor(math.log10(max(largest, _TINY))) - exponent, 0)
    named = [_exponential(t, min(digits, 15)) if t else '0' for t in ticks]
  else:
    named = [f'{tick:,.{max(-exponent, 0)}f}' for tick in ticks]
  return [name.replace('-', '−') for name in named]


def _widened(low: float, high: float) -> tuple[float, float]:
  """Makes room where all values are the same, but for rounding."""
  size = max(abs(low), abs(high))
  if size < _TINY:
    return -1.0, 1.0
  if high - low > 1e-9 * size:
    return low, high
  return low - 0.1 * size, high + 0.1 * size


def value_axis(values: np.ndarray, count: int) -> Axis:
  """Makes the axis of a metric.

  Args:
    values: that it must show; at least one is finite, and none is so large
      that the difference of two is not.
    count: of ticks, about.
  """
  finite = values[np.isfinite(values)]
  low, high = float(finite.min()), float(finite.max())
  if low > _TINY and math.log10(high) - math.log10(low) > _DECADES:
    return _logarithmic(math.log10(low), math.log10(high), count)
  low, high = _widened(low, high)
  margin = 0.04 * (high - low)
  low, high = low - margin, high + margin
  spacing = _spacing(high - low, count)
  ticks = _multiples(low, high, spacing)
  return Axis(low, high, list(zip(ticks, _names(ticks, spacing), strict=True)))


def _logarithmic(low: float, high: float, count: int) -> Axis:
  spacing = max(math.ceil((high - low) / max(count, 1)), 1)
  exponents = _multiples(low, high, spacing)
  ticks = [(10.0**e, number(10.0**e)) for e in exponents]
  margin = 0.04 * (high - low)
  return Axis(low - margin, high + margin, ticks, logarithmic=True)


def step_axis(steps: np.ndarray, count: int) -> Axis:
  """Makes the axis of env steps, from 0, so that charts can be compared.

  Args:
    steps: that it must show; at least one.
    count: of ticks, about.
  """
  high = float(steps.max())
  if high == 0:
    return Axis(-1.0, 1.0, [(0.0, '0')])
  ticks = _multiples(0.0, high, max(_spacing(high, count), 1.0))
  return Axis(0.0, high, [(tick, steps_in_words(tick)) for tick in ticks])
