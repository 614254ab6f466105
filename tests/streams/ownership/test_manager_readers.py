"""The manager pauses its readers in time, and stops them when a queue is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context

import pytest
from tests.conditions import spin, until
from tests.contract.in_virtual_time import in_virtual_time

from millstream.runtime import Etag, MemoryStateStore, Row, StorageUnavailable
from millstream.runtime.extending import Tasks
from millstream.streams import OwnershipOptions, Token
from millstream.streams.ownership.manager import QueueManager
from millstream.streams.ownership.record import QueueProgress, QueueRecord, QueueState
from millstream.streams.ownership.store import OwnershipStore

ME, OTHER = "127.0.0.1:1@1", "127.0.0.1:2@1"
QUEUE = "queue-0"


class FakeReader:
    def __init__(self) -> None:
        self.is_fenced = False
        self.is_acked = True
        self.progress: QueueProgress | None = None
        self.kept: list[QueueProgress] = []
        self.is_urgent = False
        self.in_flight = 0
        self.unacked = 0
        self.undone = 0
        self.said: list[str] = []

    def fence(self) -> None:
        self.is_fenced = True

    def start(self) -> None:
        self.said.append("start")

    def pause(self) -> None:
        self.said.append("pause")

    def resume(self) -> None:
        self.said.append("resume")

    def on_stored(self, progress: QueueProgress) -> None:
        self.kept.append(progress)

    def handoff(self) -> QueueProgress | None:
        return self.progress

    async def stop(self) -> None:
        self.said.append("stop")

    def abort(self) -> None:
        self.said.append("abort")


class Store(MemoryStateStore):
    """Fails or never answers, as the test decides."""

    is_away = False
    writes = 0

    def __init__(self) -> None:
        super().__init__()
        self._answers = asyncio.Event()
        self._answers.set()

    @property
    def is_silent(self) -> bool:
        return not self._answers.is_set()

    @is_silent.setter
    def is_silent(self, is_silent: bool) -> None:
        if is_silent:
            self._answers.clear()
        else:
            self._answers.set()

    async def _come(self) -> None:
        await self._answers.wait()
        if self.is_away:
            raise StorageUnavailable("away")

    async def read(self, key: str, /) -> Row | None:
        await self._come()
        return await super().read(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        await self._come()
        self.writes += 1
        return await super().write(key, data, expect, fence)


class Desk:
    me = ME

    def __init__(self, options: OwnershipOptions) -> None:
        self.store = Store()
        self.records = OwnershipStore(self.store, "default")
        self.readers: list[FakeReader] = []
        self.known, self.joined = {ME, OTHER}, {ME, OTHER}  # by the view, by the table
        self.looked = self.failed_looks = 0
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self.manager = QueueManager([QUEUE], self.records, options, self, self._begin)

    def live(self) -> frozenset[str]:
        return frozenset(self.known)

    async def look_for(self, silo: str, /) -> None:
        self.looked += 1
        if self.looked <= self.failed_looks:
            raise StorageUnavailable("the membership table does not answer")
        self.known |= {silo} & self.joined

    def on_freed(self, queue: str, /) -> None: ...

    def _begin(
        self,
        queue: str,
        epoch: int,
        progress: QueueProgress,
        *,
        may_repeat: bool,
        has_rival: bool,
    ) -> FakeReader:
        self.readers.append(FakeReader())
        return self.readers[-1]

    async def record(self) -> QueueRecord:
        stored = await self.records.read(QUEUE)
        assert stored is not None
        return stored.record

    async def until_state(self, state: QueueState) -> QueueRecord:
        async with asyncio.timeout(20):
            while (record := await self.record()).state is not state:
                await asyncio.sleep(0)
        return record


@asynccontextmanager
async def owning(options: OwnershipOptions) -> AsyncIterator[Desk]:
    """Make a manager that owns the queue."""
    desk = Desk(options)
    desk.manager.start()
    desk.manager.want([QUEUE])
    await until(lambda: bool(desk.readers))
    assert desk.readers[0].said == ["start"]
    yield desk
    desk.manager.abort()
    await desk.tasks.aclose()


FAST = OwnershipOptions(poll_s=0.01, max_handoff_s=5.0, checkpoint_every_s=0.02)
LEASED = OwnershipOptions(poll_s=0.01, lease_s=0.06)


async def test_an_owner_that_lost_its_queue_stops_reading() -> None:
    async with owning(FAST) as desk:
        stored = await desk.records.read(QUEUE)
        assert stored is not None
        taken = QueueRecord(OTHER, stored.record.epoch + 1, QueueState.OWNED)
        await desk.records.write(QUEUE, taken, stored.etag)
        reader = desk.readers[0]
        await until(lambda: reader.said == ["start", "stop"])
        assert reader.is_fenced and desk.manager.agent(QUEUE) is None
        assert await desk.record() == taken


async def test_an_owner_that_is_fenced_by_the_provider_stops_reading() -> None:
    async with owning(FAST) as desk:
        desk.readers[0].is_fenced = True
        desk.manager.wake(QUEUE)
        await until(lambda: desk.readers[0].said == ["start", "stop"])


async def test_the_position_is_stored_while_reading_and_never_goes_back() -> None:
    async with owning(FAST) as desk:
        for seq, wanted in ((4, 4), (9, 9), (7, 9)):
            desk.readers[0].progress = QueueProgress(Token(1, seq))
            async with asyncio.timeout(20):
                while (await desk.record()).upto != Token(1, wanted):
                    await asyncio.sleep(0)
            await spin(50)
            assert (await desk.record()).upto == Token(1, wanted)


async def test_a_pause_is_recorded_and_called_off() -> None:
    async with owning(FAST) as desk:
        reader = desk.readers[0]
        reader.in_flight = 1
        desk.manager.want([])
        record = await desk.until_state(QueueState.PAUSING)
        assert reader.said == ["start", "pause"] and 0 < record.drain_by_s <= 5.0
        desk.manager.want([QUEUE])
        await desk.until_state(QueueState.OWNED)
        await until(lambda: reader.said == ["start", "pause", "resume"])


async def test_an_owner_stops_before_its_record_is_free() -> None:
    async with owning(FAST) as desk:
        desk.manager.want([])
        record = await desk.until_state(QueueState.FREE)
        assert desk.readers[0].said[-1] == "stop"
        assert record.handoff is not None and record.handoff.clean


@pytest.mark.parametrize("fault", ["is_away", "is_silent"])
def test_a_lease_that_runs_out_stops_the_reader_although_the_store_is_away(fault: str) -> None:
    async def main() -> None:
        async with owning(LEASED) as desk:
            await asyncio.sleep(10 * LEASED.lease_s)  # the lease is renewed
            (reader,) = desk.readers
            assert not reader.is_fenced
            setattr(desk.store, fault, True)
            await asyncio.sleep(2 * LEASED.lease_s)
            assert reader.is_fenced and "pause" in reader.said
            setattr(desk.store, fault, False)
            await asyncio.sleep(5.0)  # it takes the queue again, in a new epoch
            assert len(desk.readers) == 2
            assert reader.said[-1] == "stop" and (await desk.record()).epoch == 2

    in_virtual_time(main)


async def test_a_queue_that_is_not_wanted_is_paused_at_once_store_or_no_store() -> None:
    for fault in ("is_away", "is_silent"):
        async with owning(FAST) as desk:
            setattr(desk.store, fault, True)
            await spin(50)
            desk.manager.want([])
            assert desk.readers[0].said == ["start", "pause"]
            setattr(desk.store, fault, False)
            await desk.until_state(QueueState.FREE)


async def test_a_reader_is_not_resumed_by_a_write_that_ends_when_its_queue_is_not_wanted() -> None:
    async with owning(FAST) as desk:
        reader = desk.readers[0]
        reader.in_flight = 1
        reader.progress = QueueProgress(Token(1, 7))
        desk.store.is_silent = True
        await spin(200)  # the write of the progress is under way
        desk.manager.want([])
        desk.store.is_silent = False
        await desk.until_state(QueueState.PAUSING)
        assert reader.said == ["start", "pause"]


async def test_an_idle_queue_is_given_away_in_one_write() -> None:
    async with owning(FAST) as desk:
        before = desk.store.writes
        desk.manager.want([])
        await desk.until_state(QueueState.FREE)
        assert desk.store.writes == before + 1


@pytest.mark.parametrize("has_joined", [True, False])
async def test_an_owner_that_the_view_does_not_know_is_looked_for_before_it_is_taken_for_dead(
    has_joined: bool,
) -> None:
    async with owning(FAST) as desk:
        desk.known, desk.joined = {ME}, {ME, OTHER} if has_joined else {ME}
        desk.looked, desk.failed_looks = 0, 3
        stored = await desk.records.read(QUEUE)
        assert stored is not None
        taken = QueueRecord(OTHER, stored.record.epoch + 1, QueueState.OWNED)
        await desk.records.write(QUEUE, taken, stored.etag)
        await until(lambda: desk.looked > 3)
        await spin(200)
        record = await desk.record()
        if has_joined:
            assert record == taken, "it is a newer silo, not a dead one"
        else:
            assert (record.owner, record.epoch, record.deaths) == (ME, taken.epoch + 1, 1)
