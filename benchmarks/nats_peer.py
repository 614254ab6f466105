"""NATS JetStream as a subject: every message is synced before it is acknowledged.

One server is compared with the embedded ledger. Three servers with three replicas of a stream, of
which two answer, are compared with the replicated ledger. 100 records of 1 KB are one message, as
they are one entry of a ledger. The consumer of the durable streams gets messages pushed, and
acknowledges all received messages at once with the last one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from benchmarks.feed import DURABLE_RUNS, Arrivals, Run, Sample, measure_feed, produce
from benchmarks.ledger import quantiles
from benchmarks.measure import cpu_s, now
from benchmarks.nats_wire import Nats, NatsRefused, connected
from benchmarks.servers import free_port, until_answering

__all__ = ["appends", "durable", "producer", "replicated"]

RECORDS, RECORD_BYTES, MESSAGES = 100, 1_000, 300
IN_FLIGHT = 16
PACED, PACE_S = 2_000, 0.001
READY_S = 30.0


# --- servers ---


@asynccontextmanager
async def server(
    work: Path, port: int, routes: Iterable[int] = (), at: int = 0
) -> AsyncIterator[int]:
    """Yield the pid of one server."""
    text = f'listen: "127.0.0.1:{port}"\nserver_name: "n{port}"\n'
    text += f'jetstream {{ store_dir: "{work / f"n{port}"}", sync_interval: always }}\n'
    if at:
        others = ", ".join(f'"nats://127.0.0.1:{one}"' for one in routes)
        text += f'cluster {{ name: "c", listen: "127.0.0.1:{at}", routes: [{others}] }}\n'
    config = work / f"n{port}.conf"
    config.write_text(text)
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        "nats-server", "-c", str(config), stdout=nothing, stderr=nothing
    )
    try:
        await until_answering(port)
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


async def create(nats: Nats, copies: int) -> None:
    """Create the stream of everything below `s.`, once the servers have found each other."""
    values = {"name": "S", "subjects": ["s.>"], "storage": "file", "num_replicas": copies}
    async with asyncio.timeout(READY_S):
        while True:
            try:
                async with asyncio.timeout(2.0):
                    await nats.ask("STREAM.CREATE.S", **values)
            except (NatsRefused, TimeoutError):
                await asyncio.sleep(0.2)
            else:
                return


# --- appends ---


async def appends(work: Path) -> dict[str, float]:
    """One server."""
    port = free_port()
    async with server(work, port) as pid:
        return await _appends(port, [pid], 1, ("append_records_per_s", "p50_us", "p99_us", ""))


async def replicated(work: Path) -> dict[str, float]:
    """Three servers."""
    ports, at = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
    async with AsyncExitStack() as stack:
        pids = [
            await stack.enter_async_context(server(work, port, at, here))
            for port, here in zip(ports, at, strict=True)
        ]
        names = [f"replicated_{name}" for name in ("records_per_s", "p50_us", "p99_us", "cpu_us")]
        return await _appends(ports[0], pids, 3, (*names,))


async def _appends(
    port: int, pids: list[int], copies: int, names: tuple[str, ...]
) -> dict[str, float]:
    nats = await connected(port)
    await create(nats, copies)
    rate, p50, p99, cpu = names
    before = cpu_s([os.getpid(), *pids])
    figures = {rate: await _rate(nats)}
    if cpu:
        figures[cpu] = (cpu_s([os.getpid(), *pids]) - before) / MESSAGES * 1e6
    figures[p50], figures[p99] = quantiles(await _paced(nats))
    nats.close()
    return figures


async def _rate(nats: Nats) -> float:
    """Return records per second, a hundred in each message."""
    payload, room = os.urandom(RECORDS * RECORD_BYTES), asyncio.Semaphore(IN_FLIGHT)
    started_s, sent = now(), list[asyncio.Future[bytes]]()
    for _ in range(MESSAGES):
        await room.acquire()
        future = nats.publish("s.bulk", payload)
        future.add_done_callback(lambda _: room.release())
        sent.append(future)
    check(await asyncio.gather(*sent))
    return MESSAGES * RECORDS / (now() - started_s)


async def _paced(nats: Nats) -> list[float]:
    """Return the seconds until each record was acknowledged; records are sent every millisecond."""
    payload, waits, begin_s = os.urandom(RECORD_BYTES), list[float](), now()
    sent = list[asyncio.Future[bytes]]()
    for number in range(PACED):
        await asyncio.sleep(max(0.0, begin_s + number * PACE_S - now()))
        future = nats.publish("s.paced", payload)
        future.add_done_callback(partial(_note, waits, now()))
        sent.append(future)
    check(await asyncio.gather(*sent))
    return waits


def _note(waits: list[float], sent_s: float, _: asyncio.Future[bytes]) -> None:
    waits.append(now() - sent_s)


def check(answers: Iterable[bytes]) -> None:
    """Raise NatsRefused unless all messages are stored."""
    for answer in answers:
        if "seq" not in json.loads(answer):
            raise NatsRefused(answer.decode())


# --- durable streams ---


class NatsConsumer:
    """Receives the messages of a key, and acknowledges."""

    def __init__(self, nats: Nats, port: int, pid: int) -> None:
        self.address = str(port)
        self.pids = (os.getpid(), pid)
        self._nats = nats
        self._reply = ""

    async def receive(self, key: str, run: Run, arrivals: Arrivals) -> None:
        self._nats.subscribe(f"d.{key}", partial(self._heard, arrivals))
        config = {
            "durable_name": key,
            "filter_subject": f"s.{key}",
            "deliver_subject": f"d.{key}",
            "ack_policy": "all",
            "max_ack_pending": 20_000,
        }
        await self._nats.ask(f"CONSUMER.DURABLE.CREATE.S.{key}", stream_name="S", config=config)

    def _heard(self, arrivals: Arrivals, reply: str, payload: bytes) -> None:
        arrivals.note([Sample(*msgpack.unpackb(payload))])
        if not self._reply:  # the last message of this iteration acknowledges all
            asyncio.get_running_loop().call_soon(self._acknowledge)
        self._reply = reply

    def _acknowledge(self) -> None:
        reply, self._reply = self._reply, ""
        self._nats.send(b"PUB %b 4\r\n+ACK\r\n" % reply.encode())


async def durable(work: Path) -> dict[str, float]:
    """A server, and its consumer in this process."""
    port = free_port()
    async with server(work, port) as pid:
        nats = await connected(port)
        await create(nats, 1)
        figures = await measure_feed("nats_peer", NatsConsumer(nats, port, pid), DURABLE_RUNS)
        nats.close()
        return figures


async def producer(address: str) -> None:
    """Publish; a batch is done once all of it is acknowledged."""
    nats = await connected(int(address))

    async def send(key: str, samples: list[Sample]) -> None:
        packed: list[Any] = [msgpack.packb(sample) for sample in samples]
        check(await asyncio.gather(*(nats.publish(f"s.{key}", one) for one in packed)))

    await produce(send)
