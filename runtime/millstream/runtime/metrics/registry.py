"""The metrics of one silo: who reads them, and their values at one instant.

This module owns `MetricRegistry`. Nothing is counted here: a reader takes numbers that exist, when
somebody asks for them.

Invariants:

- A reader that fails loses its own samples only.
- A metric has at most `series_max` series. The others are dropped and counted.
- Equal series of several readers are added, so a metric has each series once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from millstream.runtime.errors import ConfigError

from .metric import Histogram, Metric, Sample

__all__ = ["DROPPED_SERIES", "READER_FAILURES", "MetricRegistry"]

log = logging.getLogger("millstream.metrics")

SERIES_MAX = 1_000

READER_FAILURES = Metric(
    name="millstream_metrics_reader_failures_total",
    type="counter",
    help="Failures of functions that read metrics; their metrics are missing.",
)
DROPPED_SERIES = Metric(
    name="millstream_metrics_dropped_series",
    type="gauge",
    help="Series left out of the last collection, because a metric has at most series_max.",
    labels=("metric",),
)

Values = dict[tuple[str, ...], float | Histogram]


class MetricReader(NamedTuple):
    """A function that reads the metrics of one owner."""

    metrics: frozenset[Metric]
    read: Callable[[], Iterable[Sample]]


class MetricRegistry:
    """The metrics of one silo, as `SiloServices.metrics`.

    Attributes:
        series_max: The most series of one metric in a collection.
        is_on: Whether the silo has the part `Metrics`. Otherwise nobody asks regularly, so a part
            should not measure ahead.
    """

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self.series_max = series_max
        self.is_on = False
        self._metrics: dict[str, Metric] = {m.name: m for m in (READER_FAILURES, DROPPED_SERIES)}
        self._readers: list[MetricReader] = []
        self._failures = 0
        self._is_told = False

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of all readers, sorted by name."""
        return tuple(self._metrics[name] for name in sorted(self._metrics))

    def add(self, metrics: Sequence[Metric], read: Callable[[], Iterable[Sample]], /) -> None:
        """Add a reader. It is called for each collection, in the event loop.

        Args:
            metrics: The metrics that it reads.
            read: Returns their samples, those that matter most first. It must be quick, because it
                blocks the event loop.

        Raises:
            ConfigError: Another metric has the name of one of them.
        """
        for metric in metrics:
            known = self._metrics.setdefault(metric.name, metric)
            if known != metric:
                raise ConfigError(
                    f"metric {metric.name} is already known as a {known.type} with the labels "
                    f"({', '.join(known.labels)}): give one of the two metrics another name"
                )
        self._readers.append(MetricReader(frozenset(metrics), read))

    def collect(self) -> dict[Metric, Values]:
        """Return the values of all metrics now, by metric and then by the values of its labels.

        Returns:
            Each metric that has a reader, sorted by name. A metric without a value is empty.
        """
        found: dict[Metric, Values] = {metric: {} for metric in self.metrics}
        dropped: dict[Metric, int] = {}
        for reader in self._readers:
            for metric, labels, value in self._read(reader):
                values = found[metric]
                if labels not in values and len(values) >= self.series_max:
                    dropped[metric] = dropped.get(metric, 0) + 1
                else:
                    values[labels] = add_values(values.get(labels), value)
        found[READER_FAILURES][()] = self._failures
        found[DROPPED_SERIES].update({(metric.name,): lost for metric, lost in dropped.items()})
        return found

    def _read(self, reader: MetricReader) -> list[Sample]:
        """Return the samples of a reader, or none of them if it fails. The first failure is
        logged."""
        try:
            samples = list(reader.read())
            for sample in samples:
                check_sample(sample, reader.metrics)
        except Exception:
            self._failures += 1
            if not self._is_told:
                self._is_told = True
                names = ", ".join(sorted(metric.name for metric in reader.metrics))
                text = "the metrics %s are missing: the function that reads them failed"
                log.exception(text, names)
            return []
        return samples


def check_sample(sample: Sample, metrics: frozenset[Metric]) -> None:
    """Raise ValueError for a sample that does not fit the metrics of its reader."""
    metric = sample.metric
    if metric not in metrics:
        raise ValueError(f"{metric.name} was not given to MetricRegistry.add")
    if len(sample.labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {sample.labels}")
    if isinstance(sample.value, Histogram) != (metric.type == "histogram"):
        raise ValueError(f"{metric.name} is a {metric.type}, not {type(sample.value).__name__}")


def add_values(known: float | Histogram | None, more: float | Histogram) -> float | Histogram:
    """Return the sum of two values of one series."""
    if known is None:
        return more
    if isinstance(known, Histogram) and isinstance(more, Histogram):
        return known.plus(more)
    assert not isinstance(known, Histogram) and not isinstance(more, Histogram)
    return known + more
