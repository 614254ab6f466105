"""The options of the metrics of a silo."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime.options import check_fields

__all__ = ["MetricsOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """How a silo measures, for `Metrics`.

    Attributes:
        sample_every_calls: One of so many direct turns of a method is measured. Its duration counts
            for all of them. 1 measures each one.
        series_max: The most series of one metric.
        look_every_s: How often the mailboxes are looked at, in seconds. A silo with very many
            activations does so less often, for at most 1 % of its time.
        probe_timeout_s: The silo is not ready if a probe turn takes longer than this, in seconds.
        requests_max: Requests of the HTTP server at the same time. Above, the answer is 503.
        connections_max: Connections to the HTTP server. Above, the oldest one is closed.

    Raises:
        ConfigError: A value has a wrong type or range.
    """

    sample_every_calls: int = field(default=64, metadata={"max": 1_000_000})
    series_max: int = field(default=1_000, metadata={"max": 1_000_000})
    look_every_s: float = 5.0
    probe_timeout_s: float = field(default=1.0, metadata={"max": 60.0})
    requests_max: int = 16
    connections_max: int = 64

    def __post_init__(self) -> None:
        check_fields(self)
