"""Metrics and health of a silo over HTTP: what Prometheus and probes of an orchestrator see."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream.runtime import (
    ConfigError,
    Grain,
    Metrics,
    MetricsOptions,
    Silo,
    grain,
)
from millstream.runtime.extending import SiloPart, SiloServices

pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra `metrics`)")
pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
pytestmark = pytest.mark.real


(Probe,) = Metrics().grains("metrics")


@grain(name="HttpDesk")
class Desk(Grain):
    async def answer(self, text: str) -> str:
        return text

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@asynccontextmanager
async def serving(options: MetricsOptions | None = None) -> AsyncIterator[tuple[Silo, Metrics]]:
    metrics = Metrics("127.0.0.1:0", options=options)
    async with Silo(grains=[Desk], parts={"metrics": metrics}) as silo:
        yield silo, metrics


async def ask(address: str, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    """Ask over a connection of its own. Return the status, the headers and the body."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        data = (await asyncio.wait_for(reader.read(), 10)).decode()
    finally:
        writer.close()
    head, _, body = data.partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


async def ask_ready(address: str) -> tuple[int, Any]:
    status, _, body = await ask(address, "/readyz")
    return status, json.loads(body)


def value(text: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.M)
    assert found, f"no {series} in {text}"
    return float(found[1])


async def test_the_text_has_the_numbers_of_the_silo() -> None:
    async with serving() as (silo, metrics):
        for _ in range(5):
            await silo.grain(Desk, "a").answer("x")
        await silo.grain(Desk, "b").wait(0.3)
        status, headers, text = await ask(metrics.address, "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        series = 'millstream_calls_total{grain_type="HttpDesk",method="answer",outcome="ok"}'
        assert value(text, series) == 5
        bucket = 'millstream_call_duration_seconds_bucket{grain_type="HttpDesk",le="0.25"}'
        # a's activation, its first direct turn, and b's activation, which took 0.3 s
        assert value(text, bucket) == 2
        assert value(text, bucket.replace("0.25", "0.5")) == 3
        assert value(text, bucket.replace("0.25", "+Inf")) == 3
        count = 'millstream_call_duration_seconds_count{grain_type="HttpDesk"}'
        assert value(text, count) == 3
        assert "# TYPE millstream_calls_total counter" in text
        assert "# TYPE millstream_activations gauge" in text
        assert "# TYPE millstream_call_duration_seconds histogram" in text
        assert value(text, 'millstream_activations{grain_type="HttpDesk"}') == 2
        assert value(text, 'millstream_members{status="active"}') == 1
        assert "python_info" in text  # the program's own metrics


async def test_a_silo_is_healthy_and_ready_until_it_stops() -> None:
    async with serving() as (silo, metrics):
        address = metrics.address
        status, _, body = await ask(address, "/healthz")
        assert (status, json.loads(body)["status"]) == (200, "ok")
        assert await ask_ready(address) == (200, {"status": "ready", "reasons": []})
        working = asyncio.ensure_future(silo.grain(Desk, "a").wait(1.0))
        await asyncio.sleep(0.1)
        stopping = asyncio.ensure_future(silo.stop())
        await asyncio.sleep(0.1)
        code, told = await ask_ready(address)
        assert (code, told["status"]) == (503, "not ready")
        assert told["reasons"] in (["the silo is stopping"],)
        assert (await ask(address, "/healthz"))[0] == 200  # or its orchestrator would kill it
        await working
        await stopping
        with pytest.raises(OSError):
            await ask(address, "/healthz")


async def test_a_silo_that_joins_answers_and_is_not_ready() -> None:
    seen: list[Any] = []
    metrics = Metrics("127.0.0.1:0")

    class Slow(SiloPart):
        async def open(self, services: SiloServices, name: str, /) -> None:
            seen.append(await ask_ready(metrics.address))
            seen.append((await ask(metrics.address, "/healthz"))[0])

    async with Silo(grains=[Desk], parts={"slow": Slow(), "metrics": metrics}):
        ready = await ask_ready(metrics.address)
    reason = "the silo is joining"
    assert seen == [(503, {"status": "not ready", "reasons": [reason]}), 200]
    assert ready[0] == 200


async def test_a_silo_that_hands_its_queues_over_is_not_ready() -> None:
    seen: list[Any] = []
    metrics = Metrics("127.0.0.1:0")

    class Slow(SiloPart):
        async def stop(self) -> None:
            seen.append(await ask_ready(metrics.address))

    async with Silo(grains=[Desk], parts={"slow": Slow(), "metrics": metrics}):
        pass
    assert seen == [(503, {"status": "not ready", "reasons": ["the silo is stopping"]})]


async def test_a_silo_whose_turns_hang_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: Grain) -> None:
        await asyncio.sleep(60)

    options = MetricsOptions(probe_timeout_s=0.2)
    async with serving(options) as (silo, metrics):
        spec = Probe.__millstream_type__.specs["probe"]
        monkeypatch.setattr(spec, "fn", hang)
        monkeypatch.setattr(spec, "invoke", hang)
        async with asyncio.timeout(3.0):
            answers = await asyncio.gather(*(ask_ready(metrics.address) for _ in range(5)))
        reason = "a probe turn did not end within 0.2 s"
        assert answers == [(503, {"status": "not ready", "reasons": [reason]})] * 5
        calls = {
            key: number
            for metric, found in silo.services.metrics.collect().items()
            for key, number in found.items()
            if metric.name == "millstream_calls_total" and key[1] == "probe"
        }
        assert sum(int(n) for n in calls.values() if isinstance(n, int)) <= 2  # they share a probe


async def test_other_paths_and_methods_are_refused() -> None:
    async with serving() as (_, metrics):
        assert (await ask(metrics.address, "/"))[0] == 404
        assert (await ask(metrics.address, "/metrics/../secret"))[0] == 404
        assert (await ask(metrics.address, "/metrics", "POST"))[0] == 405
        status, _, body = await ask(metrics.address, "/healthz", "HEAD")
        assert (status, body) == (200, "")


async def test_requests_above_the_limit_get_503_and_others_go_on() -> None:
    async with serving(MetricsOptions(requests_max=2, probe_timeout_s=1.0)) as (silo, metrics):
        held = asyncio.ensure_future(occupy(silo, metrics))
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(*(ask(metrics.address, "/readyz") for _ in range(4)))
        refused = [one for one in answers if "requests_max" in one[2]]
        assert len(refused) == 2
        await held
        assert (await ask_ready(metrics.address))[0] == 200


async def occupy(silo: Silo, metrics: Metrics) -> None:
    """Hold the only worker of the probe for a while."""
    await ask_ready(metrics.address)
    catalog = silo.assembly.catalog
    worker = next(one for one in catalog.all() if one.kind.name.endswith("ReadinessProbe"))
    worker.hold(True)
    await asyncio.sleep(0.5)
    worker.hold(False)


async def test_silent_connections_do_not_keep_a_probe_away() -> None:
    async with serving(MetricsOptions(connections_max=3)) as (_, metrics):
        host, _, port = metrics.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(10)]
        await asyncio.sleep(0.1)
        assert (await ask(metrics.address, "/healthz"))[0] == 200
        closed = [reader.at_eof() for reader, _ in silent]
        assert closed.count(True) >= 7
        for _, writer in silent:
            writer.close()


async def test_garbage_gets_an_answer_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (_, metrics):
        host, _, port = metrics.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x00\x01\x02 garbage\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400") or answer.startswith(b"HTTP/1.0 400")
        assert not [one for one in caplog.records if one.exc_info]


async def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        silo = Silo(grains=[Desk], parts={"metrics": Metrics(f"127.0.0.1:{port}")})
        with pytest.raises(ConfigError, match=f"cannot be served at 127.0.0.1:{port}.*another add"):
            await silo.start()


async def test_a_killed_silo_frees_its_port() -> None:
    metrics = Metrics("127.0.0.1:0")
    silo = Silo(grains=[Desk], parts={"metrics": metrics})
    await silo.start()
    address = metrics.address
    await silo.kill()
    with pytest.raises(OSError):
        await ask(address, "/healthz")
    assert metrics.address == ""
