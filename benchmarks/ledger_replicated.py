"""A ledger in three directories, each with a bookie in its own silo process.

This process writes: it owns a topic, whose ledgers are on all three bookies (3/3/2 or 3/3/3). The
second process reads at the same time, and takes the topic over. The third one only stores, and may
answer 50 ms late. 100 records of 1 KB make an entry, and 16 entries are in flight, as with the
embedded ledger. Times between processes use the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any
from unittest import mock

from benchmarks.ledger import quantiles
from benchmarks.measure import cpu_s, now
from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import (
    LedgerOptions,
    LedgerQueues,
    LedgerTopicSettings,
    Quorum,
)
from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.queues.adapter import LedgerAdapter
from millstream.providers.ledger.queues.directories import Directories
from millstream.providers.ledger.queues.node import LedgerNode
from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import Silo
from millstream.streams import AdapterHost, HashRingMapper, PersistentStreams, QueueId

__all__ = ["producer", "replicated"]

RECORDS, RECORD_BYTES = 100, 1_000
ENTRIES, ENTRIES_BEFORE = 600, 40
IN_FLIGHT = 16
PACED, PACE_S = 2_000, 0.001
LONE, LONE_EVERY_S = 20, 0.15
LATE_S = 0.05
WAIT_S = 60.0
FIRST = 1  # first message of a topic
USUAL, ALL = Quorum(3, 3, 2), Quorum(3, 3, 3)
BULK, PACES, TAILED, LONES = map(QueueId, ("bulk", "paced", "tailed", "lone"))
SENT_S = Struct("<d")
"""The beginning of a record: the time of its append."""
REST = os.urandom(RECORD_BYTES - SENT_S.size)


class Nodes(LedgerQueues):
    """The ordinary provider, whose node can be used without streams."""

    node: LedgerNode

    def __init__(self, work: Path, quorum: Quorum) -> None:
        directory = work / "ledger" / "{silo}"
        self._own_options = LedgerOptions(settings=LedgerTopicSettings(quorum=quorum))
        self._homes = Directories(directory)
        super().__init__(directory, self._own_options)

    async def open(self, provider: str, host: AdapterHost, /) -> LedgerAdapter:
        home = self._homes.home(host.silo, host.silo_name)
        self.node = LedgerNode(host, home, self._homes.quorum, self._own_options)
        await self.node.start()
        return LedgerAdapter(host, self.node, self._own_options, await host.era())


@asynccontextmanager
async def silo_of(work: Path, name: str, quorum: Quorum) -> AsyncIterator[LedgerNode]:
    """Yield the node of a silo in this process."""
    queues, rows = Nodes(work, quorum), f"sqlite:{work / 'rows'}"
    streams = PersistentStreams(
        queues, mapper=HashRingMapper(queues=1), balancer=DeploymentBalancer()
    )
    silo = Silo(
        grains=[],
        name=name,
        membership=rows,
        stores={"default": rows},
        streams={"default": streams},
    )
    async with silo:
        yield queues.node


# --- the other processes ---


class SiloProcess:
    """A silo process that executes commands."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def ask(self, command: str, *args: object) -> dict[str, float]:
        """Execute a command; return its figures."""
        await self.begin(command, *args)
        return await self.answer()

    async def begin(self, command: str, *args: object) -> None:
        """Begin a command; return just before it runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *args]).encode() + b"\n")
        await self.answer()

    async def answer(self) -> dict[str, float]:
        """Return the next line that the process prints."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await self._process.stdout.readline()
        assert line, "a silo process has ended"
        found: dict[str, float] = json.loads(line)
        return found


@asynccontextmanager
async def silo_process(
    work: Path, name: str, quorum: Quorum, late_s: float
) -> AsyncIterator[SiloProcess]:
    """Start a silo process, and end it by closing its standard input."""
    address = json.dumps([str(work), name, list(quorum), late_s])
    command = [sys.executable, "-m", "benchmarks", "--produce", "ledger_replicated", address]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        found = SiloProcess(process)
        await found.answer()
        yield found
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def producer(address: str) -> None:
    """Run such a process: a silo, until standard input ends."""
    work, name, quorum, late_s = json.loads(address)
    loop = asyncio.get_running_loop()
    with mock.patch.object(Bookie, "add", late(late_s) if late_s else Bookie.add):
        async with silo_of(Path(work), name, Quorum(*quorum)) as node:
            say({})
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                command, *args = json.loads(line)
                say({})
                say(await COMMANDS[command](node, *args))


def say(figures: dict[str, float]) -> None:
    print(json.dumps(figures), flush=True)


def late(late_s: float) -> Callable[[Bookie, int, Sequence[bytes]], Awaitable[None]]:
    """Return a method for a bookie that answers `late_s` after it has stored entries."""
    add = Bookie.add

    async def added(self: Bookie, term: int, entries: Sequence[bytes]) -> None:
        await add(self, term, entries)
        await asyncio.sleep(late_s)

    return added


async def catch_up(node: LedgerNode, queue: str, end: int) -> dict[str, float]:
    """Read all messages while another process writes."""
    reader, number, started_s = node.reader(QueueId(queue)), FIRST, now()
    while number < end:
        number += len(await reader.read(number, 10_000, 4 << 20))
    await reader.aclose()
    return {"catch_up_records_per_s": (end - FIRST) / (now() - started_s)}


async def tail(node: LedgerNode, queue: str, name: str, count: int) -> dict[str, float]:
    """Read messages as they arrive; return microseconds from append to read."""
    reader, number, waits = node.reader(QueueId(queue)), FIRST, list[float]()
    while len(waits) < count:
        if await reader.wait(number, WAIT_S):
            found = await reader.read(number)
            number += len(found)
            read_s = now()
            waits += [read_s - SENT_S.unpack_from(one.message.payload)[0] for one in found]
    await reader.aclose()
    waits = waits[len(waits) // 10 :]  # the first ones wait until the ledger is created
    p50_us, p99_us = quantiles(waits)
    return {
        f"{name}_p50_us": p50_us,
        f"{name}_p99_us": min(p99_us, max(waits) * 1e6),
        f"{name}_max_us": max(waits) * 1e6,
    }


async def take_over(node: LedgerNode, queue: str, name: str) -> dict[str, float]:
    """Take over a topic without the knowledge of its owner."""
    started_s = now()
    topic = await node.open(QueueId(queue), 2)
    took_ms = (now() - started_s) * 1000
    await topic.aclose()
    return {f"takeover_{name}_ms": took_ms}


COMMANDS: dict[str, Callable[..., Awaitable[dict[str, float]]]] = {
    "catch_up": catch_up,
    "tail": tail,
    "take_over": take_over,
}


# --- the writing process ---


@asynccontextmanager
async def cluster(
    work: Path, quorum: Quorum = USUAL, late_s: float = 0.0
) -> AsyncIterator[tuple[LedgerNode, SiloProcess, list[int]]]:
    """Yield the node of this process, the reading process, and the pids of all three."""
    async with AsyncExitStack() as stack:
        reading = await stack.enter_async_context(silo_process(work, "reading", quorum, 0.0))
        storing = await stack.enter_async_context(silo_process(work, "storing", quorum, late_s))
        node = await stack.enter_async_context(silo_of(work, "writing", quorum))
        yield node, reading, [os.getpid(), reading.pid, storing.pid]


async def replicated(work: Path) -> dict[str, float]:
    """Run everything: normally, and with one late bookie."""
    figures: dict[str, float] = {}
    async with cluster(work / "usual") as (node, reading, pids):
        await used(await node.open(BULK, 1), ENTRIES_BEFORE)
        figures |= await reading.ask("take_over", BULK, "4MB")
        topic = await node.open(BULK, 3)
        before = cpu_s(pids)
        rate = await used(topic, ENTRIES)
        figures["replicated_records_per_s"] = rate
        figures["replicated_cpu_us"] = (cpu_s(pids) - before) / ENTRIES * 1e6
        figures |= await reading.ask("catch_up", BULK, topic.reader.end)
        figures |= await latency(node, "replicated")
        figures |= await tailed(node, reading, TAILED, "tail", PACED, PACE_S)
        figures |= await tailed(node, reading, LONES, "tail_idle", LONE, LONE_EVERY_S)
    for quorum, name in ((USUAL, "one_late"), (ALL, "one_late_all")):
        async with cluster(work / name, quorum, LATE_S) as (node, _, _):
            figures |= await latency(node, name)
    return figures


def record() -> TopicMessage:
    """Return a message with the time of its creation."""
    return TopicMessage(SENT_S.pack(now()) + REST)


async def used(topic: Topic, entries: int) -> float:
    """Return records per second, a hundred in each append."""
    room = asyncio.Semaphore(IN_FLIGHT)
    messages = [record() for _ in range(RECORDS)]
    started_s, sent = now(), list[asyncio.Future[Any]]()
    for _ in range(entries):
        await room.acquire()
        future = topic.append(messages)
        future.add_done_callback(lambda _: room.release())
        sent.append(future)
    await asyncio.gather(*sent)
    return entries * RECORDS / (now() - started_s)


async def latency(node: LedgerNode, name: str) -> dict[str, float]:
    """Return the latency from append to confirmation, for records sent every millisecond."""
    waits = await paced(await node.open(PACES, 1), PACED, PACE_S)
    p50_us, p99_us = quantiles(waits[len(waits) // 10 :])
    return {f"{name}_p50_us": p50_us, f"{name}_p99_us": p99_us}


async def paced(topic: Topic, count: int, every_s: float) -> list[float]:
    """Append records at a rate; return the seconds until each was confirmed, in their order."""
    begin_s, sent, waits = now(), list[asyncio.Future[Any]](), list[float]()
    for number in range(count):
        await asyncio.sleep(max(0.0, begin_s + number * every_s - now()))
        future = topic.append([record()])
        future.add_done_callback(partial(_note, waits, now()))
        sent.append(future)
    await asyncio.gather(*sent)
    return waits


def _note(waits: list[float], sent_s: float, _: asyncio.Future[Any]) -> None:
    waits.append(now() - sent_s)


async def tailed(
    node: LedgerNode, reading: SiloProcess, queue: QueueId, name: str, count: int, every_s: float
) -> dict[str, float]:
    """Measure while another process reads the arriving records."""
    topic = await node.open(queue, 1)
    await reading.begin("tail", queue, name, count)
    await paced(topic, count, every_s)
    return await reading.answer()
