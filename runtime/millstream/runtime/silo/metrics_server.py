"""The HTTP server of a silo's metrics and health.

This module owns `MetricsServer` and the text for Prometheus. It needs the extra `metrics`. The
server answers `GET` and `HEAD` of three paths, and reads no body.

Invariants:

- The server keeps at most `connections_max` connections, and answers at most `requests_max`
  requests at a time.
- `/healthz` needs only the event loop. `/readyz` takes at most `probe_timeout_s`.
- No answer has a secret: no key of a grain, no argument, no error text of a program.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

import msgspec
from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from millstream.runtime.cluster.heart import LoopHeart
from millstream.runtime.errors import ConfigError
from millstream.runtime.metrics.metric import Histogram, Metric
from millstream.runtime.metrics.registry import MetricRegistry
from millstream.runtime.wire.address import Address

from .metrics_options import MetricsOptions
from .readiness import Readiness

__all__ = ["MetricsServer", "show_metrics"]

log = logging.getLogger("millstream.metrics")

STOP_S = 0.5
HEADERS = {"Cache-Control": "no-store", "Server": "millstream"}
PATHS = ("/metrics", "/healthz", "/readyz")


class MetricsServer:
    """Answers `/metrics`, `/healthz` and `/readyz` of one silo.

    Attributes:
        address: The address at which it listens, `host:port`.
    """

    def __init__(
        self,
        metrics: MetricRegistry,
        readiness: Readiness,
        heart: LoopHeart,
        options: MetricsOptions,
    ) -> None:
        self._metrics = metrics
        self._readiness = readiness
        self._heart = heart
        self._options = options
        self._running = 0
        self._server = LimitedServer(self._handle, options.connections_max)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=STOP_S)
        self.address = ""

    async def start(self, at: Address) -> None:
        """Listen. Raises ConfigError if that is impossible."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, at.host, at.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"the metrics cannot be served at {at}: {error.strerror or error}: choose another "
                "address for Metrics(address) or --metrics"
            ) from None
        host, port = self._runner.addresses[0][:2]
        self.address = str(Address(host, port))

    async def aclose(self) -> None:
        """Stop listening, and end the requests within `STOP_S`."""
        await self._runner.cleanup()

    def abort(self) -> None:
        """Stop listening and close all connections at once."""
        for site in list(self._runner.sites):
            server = getattr(site, "_server", None)
            if server is not None:
                server.close()
        self._server.close_all()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return answer(405, "use GET\n", {"Allow": "GET, HEAD"})
        if self._running >= self._options.requests_max:
            return answer(503, "too many requests (requests_max)\n", {"Retry-After": "1"})
        self._running += 1
        try:
            return await self._answer(request.path)
        finally:
            self._running -= 1

    async def _answer(self, path: str) -> web.Response:
        if path == "/metrics":
            text = show_metrics(self._metrics) + generate_latest(REGISTRY)
            headers = {**HEADERS, "Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
            return web.Response(body=text, headers=headers)
        if path == "/healthz":
            return answer_json(200, {"status": "ok", "loop_lag_s": round(self._heart.lag_s, 3)})
        if path == "/readyz":
            reasons = await self._readiness.list_reasons()
            body = {"status": "not ready" if reasons else "ready", "reasons": reasons}
            return answer_json(503 if reasons else 200, body)
        return answer(404, f"there are {', '.join(PATHS)}\n")


def answer(status: int, text: str, more: Mapping[str, str] | None = None) -> web.Response:
    """Return a response of plain text."""
    return web.Response(status=status, text=text, headers={**HEADERS, **(more or {})})


def answer_json(status: int, body: object) -> web.Response:
    """Return a response of JSON."""
    data = msgspec.json.encode(body) + b"\n"
    return web.Response(status=status, body=data, headers=HEADERS, content_type="application/json")


class LimitedServer(web.Server):
    """Keeps the newest connections, up to a limit: a silent one must not block those of probes."""

    def __init__(self, handler: web.Server | object, connections_max: int) -> None:
        super().__init__(handler, handler_cancellation=True)  # type: ignore[arg-type]
        self._connections_max = connections_max
        self._open: dict[MetricsConnection, None] = {}

    def __call__(self) -> MetricsConnection:
        return MetricsConnection(self)

    def admit(self, connection: MetricsConnection) -> None:
        """Take a connection. Above the limit, the oldest one is closed."""
        if len(self._open) >= self._connections_max:
            oldest = next(iter(self._open))
            self.forget(oldest)
            oldest.force_close()
        self._open[connection] = None

    def forget(self, connection: MetricsConnection) -> None:
        """Record that a connection is closed."""
        self._open.pop(connection, None)

    def close_all(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.force_close()


class MetricsConnection(web.RequestHandler):
    """One connection to the server."""

    def __init__(self, server: LimitedServer) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as aiohttp takes it
        )
        self._limited = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the connection."""
        self._limited.admit(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Record that the connection is closed."""
        self._limited.forget(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer input that is not HTTP, without a line of the log for each."""
        response = answer(400, "the input is not an HTTP/1.1 request\n")
        response.force_close()
        return response


# -- the text for Prometheus


class MetricsCollector(Collector):
    """The metrics of a silo for `prometheus_client`."""

    def __init__(self, metrics: MetricRegistry) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        """Yield each metric with its samples."""
        for metric, values in self._metrics.collect().items():
            yield family_of(metric, values)


def show_metrics(metrics: MetricRegistry) -> bytes:
    """Return the metrics of a silo as text for Prometheus, version 0.0.4."""
    registry = CollectorRegistry()
    registry.register(MetricsCollector(metrics))
    return generate_latest(registry)


def family_of(metric: Metric, values: Mapping[tuple[str, ...], float | Histogram]) -> Family:
    """Return a metric and its values in the form of `prometheus_client`."""
    if metric.type == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            assert isinstance(value, Histogram)
            histograms.add_metric(list(labels), list(buckets_of(value)), value.sum)
        return histograms
    make = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        assert not isinstance(value, Histogram)
        family.add_metric(list(labels), value)
    return family


def buckets_of(histogram: Histogram) -> Iterator[tuple[str, float]]:
    """Yield the upper bound of each bucket, with the number of values up to it."""
    total = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        yield "+Inf" if bound == float("inf") else repr(float(bound)), total
