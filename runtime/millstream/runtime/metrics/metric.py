"""The description of a metric, and its values.

This module owns `Metric`, `Sample` and `Histogram`. All are pure. A name follows the conventions of
Prometheus: it ends with its unit, and a counter ends with `_total`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from millstream.runtime.errors import ConfigError
from millstream.runtime.text import show_value

__all__ = ["SECONDS", "Histogram", "Metric", "Sample"]

NAME = re.compile(r"[a-z][a-z0-9_]*")
TYPES = ("counter", "gauge", "histogram")
UNITS = ("", "seconds", "bytes", "ratio")
RESERVED = ("le", "quantile")  # Prometheus adds these labels itself

SECONDS = (
    *(0.00001, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""The upper bounds of the buckets of durations, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The description of a metric, for `SiloServices.metrics`.

    Attributes:
        name: Its name, such as `shop_orders_total`. It ends with the unit, and that of a counter
            with `_total`.
        type: `counter`, `gauge` or `histogram`.
        help: Its meaning, in one line.
        unit: `seconds`, `bytes` or `ratio`. Empty: it counts things.
        labels: The names of its labels. Each combination of their values is a series of its own, so
            a key of a grain is no label.

    Raises:
        ConfigError: The name, the type, the unit or a label is not valid.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    unit: Literal["", "seconds", "bytes", "ratio"] = ""
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigError(
                f"Metric(name={show_value(self.name)}): write small letters, digits and `_`"
            )
        for field, value, allowed in (("type", self.type, TYPES), ("unit", self.unit, UNITS)):
            if value not in allowed:
                raise ConfigError(
                    f"metric {self.name}: {field} is {show_value(value)}; it must be one of "
                    f"{', '.join(map(repr, allowed))}"
                )
        self._check_ending()
        for label in self.labels:
            if not NAME.fullmatch(label) or label in RESERVED or label.startswith("__"):
                raise ConfigError(f"metric {self.name}: {show_value(label)} is no name of a label")

    def _check_ending(self) -> None:
        is_counter = self.type == "counter"
        ending = "_total" if is_counter else ""
        wanted = f"_{self.unit}{ending}" if self.unit else ending
        if not self.name.endswith(wanted) or self.name.endswith("_total") != is_counter:
            raise ConfigError(
                f"metric {self.name}: the name of a {self.type}"
                f"{f' in {self.unit}' if self.unit else ''} must end with {wanted or 'its noun'!r},"
                " and only that of a counter with '_total'"
            )


class Histogram:
    """Durations or sizes, counted in fixed buckets.

    Adding a value costs about 0.3 µs.

    Args:
        bounds: The upper bounds of the buckets, rising. One more bucket has all larger values.

    Attributes:
        bounds: The bounds.
        counts: The number of values in each bucket.
        sum: The sum of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def observe(self, value: float, weight: int = 1) -> None:
        """Add a value.

        Args:
            value: The value.
            weight: The number of values that it stands for, if only a sample is measured.
        """
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight

    def plus(self, other: Histogram) -> Histogram:
        """Return the values of both. Their bounds must be the same."""
        assert self.bounds == other.bounds
        both = Histogram(self.bounds)
        both.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        both.sum = self.sum + other.sum
        return both


class Sample(NamedTuple):
    """The value of one series of a metric at one instant.

    Attributes:
        metric: The metric.
        labels: The values of its labels, in their order.
        value: The value.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram
