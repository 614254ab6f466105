"""A manager finds changes of idle queues by scans of all records, not by reads of single
records."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any

import msgspec
import pytest

from millstream.runtime import Etag, MemoryStateStore, Row, StorageUnavailable
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import Simulation, run
from millstream.streams import OwnershipOptions, Token
from millstream.streams.ownership import store
from millstream.streams.ownership.manager import QueueManager
from millstream.streams.ownership.record import QueueProgress
from millstream.streams.ownership.store import OwnershipStore

QUEUES = [f"queue-{number}" for number in range(20)]
OPTIONS = OwnershipOptions(poll_s=1.0, checkpoint_every_s=1.0)


class CountedStore(MemoryStateStore):
    """Counts requests; `is_away`: they fail."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.is_away = False

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if self.is_away:
            raise StorageUnavailable("away")

    async def read(self, key: str, /) -> Row | None:
        self._ask("read")
        return self.get(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        self._ask("write")
        return self.put(key, data, expect, fence)

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        self._ask("scan")
        return self.range(prefix, after, limit)


class StillReader:
    """Reads nothing; the test sets its position."""

    is_acked = True
    is_urgent = False
    in_flight = 0
    unacked = 0
    undone = 0

    def __init__(self) -> None:
        self.is_fenced = False
        self.is_stopped = False
        self.progress = QueueProgress()

    def fence(self) -> None:
        self.is_fenced = True

    def on_stored(self, progress: QueueProgress) -> None: ...
    def handoff(self) -> QueueProgress:
        return self.progress

    def start(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    async def stop(self) -> None:
        self.is_stopped = True

    def abort(self) -> None: ...


class Desk:
    """One manager that owns all queues."""

    me = "a:1@1"

    def __init__(self) -> None:
        self.rows = CountedStore()
        self.records = OwnershipStore(self.rows, "default")
        self.readers: dict[str, StillReader] = {}
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self.manager = QueueManager(QUEUES, self.records, OPTIONS, self, self._begin)

    def live(self) -> frozenset[str]:
        return frozenset({self.me, "b:1@1"})

    async def look_for(self, silo: str, /) -> None: ...

    def on_freed(self, queue: str, /) -> None: ...

    def _begin(
        self, queue: str, epoch: int, progress: QueueProgress, *, may_repeat: bool, has_rival: bool
    ) -> StillReader:
        return self.readers.setdefault(queue, StillReader())


def with_desk(act: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main(simulation: Simulation) -> None:
        desk = Desk()
        desk.manager.start()
        desk.manager.want(QUEUES)
        await asyncio.sleep(3)
        assert len(desk.manager.agents()) == len(QUEUES)
        desk.rows.asked.clear()
        await act(desk)
        desk.rows.is_away = False
        await desk.manager.stop()
        assert all(reader.is_stopped for reader in desk.readers.values())
        await desk.tasks.aclose()

    run(main, 1)


@pytest.mark.parametrize("rows_per_scan", [7, 10, 1000])
def test_while_nothing_happens_nobody_reads_the_record_of_a_queue(
    rows_per_scan: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ROWS_PER_SCAN", rows_per_scan)
    pages = len(QUEUES) // rows_per_scan + 1

    async def act(desk: Desk) -> None:
        await asyncio.sleep(10)
        assert 8 * pages <= desk.rows.asked["scan"] <= 11 * pages
        assert desk.rows.asked.keys() == {"scan"}

    with_desk(act)


def test_progress_is_stored_within_a_poll_and_only_where_there_is_some() -> None:
    async def act(desk: Desk) -> None:
        desk.readers["queue-7"].progress = QueueProgress(Token(1, 5))
        await asyncio.sleep(2.5)
        stored = await desk.records.read("queue-7")
        assert stored is not None and stored.record.upto == Token(1, 5)
        assert desk.rows.asked["write"] == 1

    with_desk(act)


@pytest.mark.parametrize("queue", ["queue-0", "queue-19", "queue-7"])
def test_an_owner_whose_record_another_silo_has_written_stops_within_a_poll(queue: str) -> None:
    async def act(desk: Desk) -> None:
        stored = await desk.records.read(queue)
        assert stored is not None
        taken = msgspec.structs.replace(stored.record, owner="b:1@1", epoch=stored.record.epoch + 1)
        await desk.records.write(queue, taken, stored.etag)
        await asyncio.sleep(1.5)
        assert desk.readers[queue].is_stopped
        assert sum(reader.is_stopped for reader in desk.readers.values()) == 1

    with_desk(act)


def test_while_the_store_is_away_queues_are_kept_and_it_is_said_once_a_poll(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act(desk: Desk) -> None:
        desk.rows.is_away = True
        await asyncio.sleep(3.5)
        text = "the queue records could not be read; retrying: away"
        said = [line for line in caplog.messages if line == text]
        assert 3 <= len(said) <= 4
        assert not any(reader.is_stopped for reader in desk.readers.values())
        desk.readers["queue-3"].progress = QueueProgress(Token(1, 9))
        desk.rows.is_away = False
        await asyncio.sleep(2.5)
        stored = await desk.records.read("queue-3")
        assert stored is not None and stored.record.upto == Token(1, 9)

    with_desk(act)
