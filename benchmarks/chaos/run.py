"""`python -m benchmarks ledger --chaos [--records N] [--json]`: appends under kills, and counts.

There are three silo processes with a bookie each (3/3/2). Sixteen producers append batches of 100
small records, each one batch at a time, as a client does. A batch with an unknown outcome is sent
again with its sequence. Meanwhile the processes are killed with SIGKILL and restarted, one after
the other. At the end every queue is read from its first record. The run ends when `records` were
acknowledged and every process was killed at least once. Figures:

- `lost`, `doubled`, `reordered`: acknowledged records; each must be 0.
- `records_per_s`: acknowledged records, from the first to the last.
- `still_max_s`: longest time without any acknowledgement. `wait_max_s`: longest wait of one batch.
  `back_max_s`: longest time from a kill to the silo's return.
- `changes`: how often a writer continued with other bookies.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from examples.flights.killing import Killer, Killing

from millstream.runtime import Client, connect
from millstream.streams import QueueReader, Rewinds
from millstream.streams.extending import IngestMessage, NumberedPublisher, encode_messages

from .silos import CLUSTER, RECORDS, SILOS, Silos, make_silo, streams
from .tally import Tally

__all__ = ["report"]

PRODUCERS = 16
BATCH = 100
PADDING = bytes(48)
LOOK_S = 0.05
WRONG = ("lost", "doubled", "reordered")
PAGE_EVENTS, PAGE_BYTES = 20_000, 4 << 20
ALWAYS = Killing(every=0.0, kills_max=1_000_000, restarts=True)


def record(producer: int, number: int) -> bytes:
    """Return a record: its producer, its number, and some bytes."""
    return producer.to_bytes(4) + number.to_bytes(8) + PADDING


def batch(producer: int, first: int) -> list[msgspec.Raw]:
    """Return the next records of a producer, encoded."""
    numbers = range(first, first + BATCH)
    return [msgspec.Raw(RECORDS.codec.encode(record(producer, number))) for number in numbers]


class Appends:
    """All producers, and the times of acknowledgements."""

    def __init__(self, client: Client, wanted: int) -> None:
        self.tally = Tally(PRODUCERS)
        self.wait_max_s = self.still_max_s = 0.0
        self.is_over = False
        self._client = client
        self._wanted = wanted
        self._last_s = 0.0

    @property
    def has_enough(self) -> bool:
        return self.tally.records >= self._wanted

    async def run(self) -> float:
        """Append until the end; return the seconds. Raises errors that were repeated too often."""
        started_s = self._last_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for producer in range(PRODUCERS):
                group.create_task(self._produce(producer))
        return time.perf_counter() - started_s

    async def _produce(self, producer: int) -> None:
        name = f"producer-{producer}"
        unique = f"{self._client.address}/{name}"
        publisher = NumberedPublisher(self._client.gateway, RECORDS.name, name, unique)
        sequence = 0
        while not self.is_over:
            items = batch(producer, sequence * BATCH)
            sequence += 1
            sent_s = time.perf_counter()
            message = IngestMessage(str(producer), sequence, items)
            await publisher.publish(encode_messages([message]), 1)
            self._acknowledged(producer, sent_s)

    def _acknowledged(self, producer: int, sent_s: float) -> None:
        now_s = time.perf_counter()
        self.wait_max_s = max(self.wait_max_s, now_s - sent_s)
        self.still_max_s = max(self.still_max_s, now_s - self._last_s)
        self._last_s = now_s
        self.tally.acknowledge(producer, BATCH)


async def count(work: Path, tally: Tally) -> None:
    """Read every queue from its first record."""
    provider = streams(str(work))
    async with make_silo(str(work), "reader", provider=provider):
        for queue in provider.mapper.queues():
            assert isinstance(provider.adapter, Rewinds)
            reader = provider.adapter.reader(queue)
            try:
                await count_queue(reader, tally)
            finally:
                await reader.aclose()


async def count_queue(reader: QueueReader, tally: Tally) -> None:
    """Count the records of a queue."""
    at, last = await reader.bounds()
    while at is not None and last is not None and at.seq <= last.seq:
        page = await reader.read_from(at, PAGE_EVENTS, PAGE_BYTES, None)
        for message in page.messages:
            for item in message.items:
                found = RECORDS.codec.decode(item)
                tally.found(int.from_bytes(found[:4]), int.from_bytes(found[4:12]))
        if page.next.seq <= at.seq:
            raise SystemExit(f"reading stands still at {at}")
        at = page.next


async def measure(work: Path, records: int, say: Callable[[str], None]) -> dict[str, float]:
    """Append under kills, and count."""
    async with Silos(work) as silos:
        async with connect(*silos.gateways, cluster=CLUSTER) as client:
            appends = Appends(client, records)
            killer = Killer(silos, ALWAYS, SILOS, lambda: 1.0, say)
            seconds = await under_kills(appends, killer)
        say(f"{appends.tally.records:,} records acknowledged in {seconds:.1f} s; counting them ...")
        await count(work, appends.tally)
        changes = silos.changes()
    tally = appends.tally
    return {
        "records": tally.records,
        "lost": tally.lost,
        "doubled": tally.doubled,
        "reordered": tally.reordered,
        "kills": killer.kills,
        "seconds": seconds,
        "records_per_s": tally.records / seconds,
        "still_max_s": appends.still_max_s,
        "wait_max_s": appends.wait_max_s,
        "back_max_s": killer.back_max_s,
        "changes": changes,
    }


async def under_kills(appends: Appends, killer: Killer) -> float:
    """Append while silos are killed, until records and kills suffice; return the seconds."""
    killing = asyncio.ensure_future(killer.run())
    appending = asyncio.ensure_future(appends.run())
    try:
        while not (appends.has_enough and killer.kills >= SILOS):
            done = [task for task in (killing, appending) if task.done()]
            for task in done:
                task.result()
            await asyncio.sleep(LOOK_S)
        killer.stop()
        await killing  # the last killed silo is back, and appends continued meanwhile
        appends.is_over = True
        return await appending
    finally:
        killing.cancel()
        appending.cancel()
        await asyncio.gather(killing, appending, return_exceptions=True)


async def report(records: int, is_json: bool) -> int:
    """Measure and print; return the exit code: 1 if a record is lost, doubled or reordered."""
    with tempfile.TemporaryDirectory(prefix="millstream-chaos-") as work:
        out = sys.stderr if is_json else sys.stdout
        figures = await measure(Path(work), records, partial(print, file=out, flush=True))
    if is_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<14} {value:>14,.{0 if value == int(value) else 2}f}")
    return 1 if any(figures[name] for name in WRONG) else 0
