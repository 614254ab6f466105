"""Metrics and health of a silo: the part that switches them on.

This module owns `Metrics`. A silo counts its calls only if it has this part.
Other numbers exist anyway, and are read when somebody asks. `runtime_metrics` reads those of the
runtime, and `metrics_server` answers over HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.runtime.definition.grain import Grain
from millstream.runtime.errors import ConfigError
from millstream.runtime.options import check_kind
from millstream.runtime.turns.call_counts import CallCounts

from .arguments import read_address
from .assembly import SiloAssembly
from .mailboxes import Mailboxes
from .metrics_options import MetricsOptions
from .part import SiloPart
from .readiness import Readiness, ReadinessProbe
from .runtime_metrics import RUNTIME_METRICS, read_runtime
from .services import SiloServices

if TYPE_CHECKING:
    from .metrics_server import MetricsServer

__all__ = ["METRICS", "Metrics", "attach_metrics", "counts_of", "put_first"]

log = logging.getLogger("millstream.metrics")

METRICS = "metrics"
"""The name of the part that `millstream run --metrics` adds."""


class Metrics(SiloPart):
    """The metrics and the health of a silo, as one of its parts.

    ```python
    Silo(grains=[Airport], parts={"metrics": Metrics("127.0.0.1:9100")})
    ```

    With this part the silo counts its calls, which costs a direct turn at most 5 %. With an
    address, it answers `GET /metrics` (text for Prometheus), `/healthz` and `/readyz` from the
    first step of its start to the last step of its stop. The answers have no secrets, so the
    address need not be loopback. `services.metrics` has the values in any case.

    `millstream run --metrics` adds this part.

    Args:
        address: The address to listen at, `host:port`. Port 0 takes a free port. Empty: no HTTP.
        options: The options. None: the defaults.

    Raises:
        ConfigError: The address is not valid, or the extra `metrics` is not installed.
    """

    def __init__(self, address: str = "", *, options: MetricsOptions | None = None) -> None:
        check_kind("Metrics(options=...)", options or MetricsOptions(), MetricsOptions)
        self.options = options or MetricsOptions()
        self.counts = CallCounts(self.options.sample_every_calls)
        check_kind("Metrics(address=...)", address, str)
        self._listen_at = read_address("address", address, "Metrics") if address else None
        if address:
            check_extra()
        self._silo: SiloAssembly | None = None
        self._server: MetricsServer | None = None

    @property
    def address(self) -> str:
        """The address of the HTTP server, `host:port`. Empty while there is none."""
        return "" if self._server is None else self._server.address

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        return (ReadinessProbe,)

    def attach(self, silo: SiloAssembly, services: SiloServices) -> None:
        """Register the metrics of a silo's runtime."""
        self._silo = silo
        services.metrics.series_max, services.metrics.is_on = self.options.series_max, True
        self._mailboxes = Mailboxes(silo.catalog, silo.turns)
        services.metrics.add(
            RUNTIME_METRICS,
            lambda: read_runtime(silo, services.name, self.counts, self._mailboxes),
        )

    async def open(self, services: SiloServices, name: str, /) -> None:
        assert self._silo is not None
        services.tasks.start(self._mailboxes.look_while_running(self.options.look_every_s))
        if self._listen_at is None:
            return
        from .metrics_server import MetricsServer  # loads aiohttp and prometheus-client

        silo = self._silo
        readiness = Readiness(silo, services, self.options.probe_timeout_s)
        server = MetricsServer(services.metrics, readiness, silo.heart, self.options)
        await server.start(self._listen_at)
        self._server = server
        log.info("silo %s serves metrics and health at http://%s", silo.address, server.address)

    async def aclose(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.aclose()

    def abort(self) -> None:
        if self._server is not None:
            self._server.abort()
            self._server = None


def check_extra() -> None:
    """Raise ConfigError unless the packages of the extra `metrics` are installed."""
    try:
        import aiohttp
        import prometheus_client
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Metrics(address=...) needs {error.name}: install the extra millstream[metrics]"
        ) from None
    assert aiohttp and prometheus_client


def find_metrics(parts: Mapping[str, SiloPart]) -> Metrics | None:
    """Return the part among those of a silo. Raises ConfigError if there are several."""
    found = {name: part for name, part in parts.items() if isinstance(part, Metrics)}
    if len(found) > 1:
        raise ConfigError(
            f"a silo has one Metrics part, and this one has {len(found)} "
            f"({', '.join(map(repr, found))}): pass only one, or leave out --metrics"
        )
    return next(iter(found.values()), None)


def put_first(parts: Mapping[str, SiloPart]) -> dict[str, SiloPart]:
    """Return the parts with `Metrics` first: it opens first and closes last."""
    find_metrics(parts)
    return dict(sorted(parts.items(), key=lambda item: not isinstance(item[1], Metrics)))


def counts_of(parts: Mapping[str, SiloPart]) -> CallCounts | None:
    """Return the counts of calls of a silo, or None if nobody counts."""
    found = find_metrics(parts)
    return None if found is None else found.counts


def attach_metrics(
    parts: Mapping[str, SiloPart], silo: SiloAssembly, services: SiloServices
) -> None:
    """Attach the part to its silo, if there is one."""
    found = find_metrics(parts)
    if found is not None:
        found.attach(silo, services)
