"""Changes the number of a provider's queues while they hold events.

Owns `resize`, for programs, and `QueueResize`, which follows the mapper record, seals the former
queues, and records the former queues whose events are processed. `ownership.mapper_record` has the
record. `silo_publisher`, `subscribers` and `owned_queues` follow the change for publishers, agents
and balancers.

Invariants: every silo takes every step that it can, by compare-and-set, so a change completes even
if silos crash. Publishers use the new ring when every former queue is sealed. The barrier of a
former queue is its last message before the seal. The former ring is dropped when the events of each
former queue are processed up to its barrier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from millstream.runtime import ConfigError, MillstreamError
from millstream.runtime.extending import Opener, Program, SiloServices, show_text
from millstream.streams.contracts.answers import AdapterFault, fault_of
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.queue import QueueAdapter, Seals
from millstream.streams.contracts.timed_call import ask_in_time
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.layout import Layout
from millstream.streams.ownership.mapper_record import MapperRecord, MapperRecords, OldRing

from .target import StreamsTarget, target_of

__all__ = ["QueueResize", "resize"]

log = logging.getLogger("millstream.streams")

LOOK_S = 1.0
BUSY_LOOK_S = 0.1
"""Seconds between two reads of the record; the second value holds during a change."""


class Reads(Protocol):
    """The reader of a queue in this silo."""

    def undone_up_to(self, token: Token, /) -> frozenset[StreamId] | None: ...


class QueueResize:
    """One silo's part in changes of the number of queues.

    A *ring* is the mapper of one epoch, from streams to queues (`ownership.layout`).

    Args:
        remap: stops sending, calls its argument, which adopts another ring, and then sends waiting
            messages to the new queues.
        relaid: called when the set of queues to read may have changed.
        reader: returns this silo's reader of a queue, or None if this silo does not read it.
    """

    def __init__(
        self,
        provider: str,
        services: SiloServices,
        records: MapperRecords,
        layout: Layout,
        adapter: QueueAdapter,
        remap: Callable[[Callable[[], object]], Coroutine[Any, Any, None]],
        relaid: Callable[[], Coroutine[Any, Any, None]],
        reader: Callable[[QueueId], Reads | None],
        call_limit_s: float,
    ) -> None:
        self._provider = provider
        self._services = services
        self._records = records
        self._layout = layout
        self._adapter = adapter
        self._remap = remap
        self._relaid = relaid
        self._reader = reader
        self._call_limit_s = call_limit_s
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        layout.look_again = self.nudge

    def start(self) -> None:
        """Follow the record from now on."""
        self._task = self._services.tasks.start(self._follow())

    def close(self) -> None:
        """Stop following the record."""
        if self._task is not None:
            self._task.cancel()

    def nudge(self) -> None:
        """Read the record now."""
        self._nudged.set()

    async def resize(self, queues: int) -> None:
        """Change the number of queues. Return when publishers of this silo use the new queues.

        Raises ConfigError if the adapter or the mapper cannot do that, or if another change is not
        finished. Also raises StorageError.
        """
        if not isinstance(self._adapter, Seals):
            raise ConfigError(
                f"stream provider {self._provider!r}: {type(self._adapter).__name__} has no "
                "method `seal`, so the number of its queues is fixed"
            )
        record = await self._records.read()
        new = self._layout.with_queues(queues, record.mapper_epoch + 1)
        record = await self._records.resize(new, self._layout.ring_of)
        self.nudge()
        self._tell_others()
        while self._layout.epoch < record.mapper_epoch:  # noqa: ASYNC110 no event signals this
            await asyncio.sleep(BUSY_LOOK_S)

    def _tell_others(self) -> None:
        for silo in self._services.members.active():
            if silo != self._services.address:
                self._services.tasks.start(self._tell(silo))

    async def _tell(self, silo: str) -> None:
        try:
            target = target_of(self._provider)
            await self._services.targets.call(silo, target, StreamsTarget.look_at_queues)
        except MillstreamError:
            return  # that silo reads the record by itself

    async def _follow(self) -> None:
        while True:
            self._nudged.clear()
            try:
                await self.look()
            except MillstreamError as error:
                text = "%s: the change of the mapper record waits; retrying: %s"
                log.warning(text, self._provider, error)
            except Exception:
                text = "%s: the mapper record could not be followed; retrying"
                log.exception(text, self._provider)
            wait_s = LOOK_S if self._layout.old is None else BUSY_LOOK_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._nudged.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Read the record, adopt it, and take the next step of a change."""
        asked_era = self._layout.asked_era
        record = await self._records.read()
        await self._adopt(record)
        self._layout.on_record_read(asked_era)
        while record.old is not None:
            new = await self._step(record.old, record.mapper_epoch)
            if new is None or new == record:
                return
            await self._adopt(new)
            record = new

    async def _adopt(self, record: MapperRecord) -> None:
        layout = self._layout
        if layout.is_news(record):
            await self._remap(lambda: layout.adopt(record))
            text = "%s: events go to %d queues now (mapper epoch %d)"
            log.info(text, self._provider, len(layout.queues()), layout.epoch)
        else:
            layout.adopt(record)
        await self._relaid()

    async def _step(self, old: OldRing, epoch: int) -> MapperRecord | None:
        """Take one step of a resize, and return the new record, or None if there is nothing to do.

        The step seals the next queue that is not sealed. If all queues are sealed, the step records
        one queue that this silo reads, with the streams that may still lag behind its barrier.
        """
        if old.unsealed:
            return await self._seal(old.unsealed[0], epoch, old.begun_era)
        for queue, barrier in old.barriers.items():
            reader = self._reader(queue)
            if reader is None or barrier is None or old.passed.get(queue) == ():
                continue
            behind = reader.undone_up_to(barrier)
            if behind is not None and tuple(sorted(behind)) != old.passed.get(queue):
                return await self._pass(queue, behind, epoch)
        return None

    async def _pass(self, queue: QueueId, behind: frozenset[StreamId], epoch: int) -> MapperRecord:
        def step(record: MapperRecord) -> MapperRecord:
            return record.pass_barrier(queue, behind) if record.mapper_epoch == epoch else record

        return await self._records.change(step)

    async def _seal(self, queue: QueueId, epoch: int, era: int) -> MapperRecord:
        assert isinstance(self._adapter, Seals)
        barrier = await self._ask_to_seal(self._adapter, queue, epoch, era)
        is_old = queue in self._layout.old_queues()

        def step(record: MapperRecord) -> MapperRecord:
            if record.mapper_epoch != epoch:
                return record
            return record.seal(queue, barrier, is_old=is_old)

        return await self._records.change(step)

    async def _ask_to_seal(
        self, adapter: Seals, queue: QueueId, epoch: int, era: int
    ) -> Token | None:
        """Seal a queue. After an AdapterFault the next look tries again: seals may be repeated."""
        where = f"stream provider {self._provider!r}, queue {queue}: seal"
        tasks = self._services.tasks
        try:
            barrier: object = await ask_in_time(
                where, lambda: adapter.seal(queue, epoch, era), tasks, self._call_limit_s
            )
        except Exception as error:
            raise fault_of(where, error) from error
        if barrier is None or isinstance(barrier, Token):
            return barrier
        raise AdapterFault(f"{where} returned {show_text(repr(barrier))}, not a token or None")


class Resizes:
    """Opens the resizing of a provider as a namespace opens streams; the key is the provider."""

    def open(self, runtime: Opener, key: str, /) -> Callable[[int], Awaitable[None]]:
        runtime.check_running()
        gateway, target = runtime.gateway, target_of(key)
        if gateway is None:
            part = runtime.part(key)

            async def here(queues: int) -> None:
                await part.resize(queues=queues)

            return here

        async def there(queues: int) -> None:
            await gateway.call("", target, StreamsTarget.resize, queues)

        return there


async def resize(program: Program, provider: str = "default", /, *, queues: int) -> None:
    """Change the number of queues of a stream provider while events are in them.

    The call returns when the asked silo publishes to the new queues; other silos follow within a
    second. Events in the former queues are delivered first, stream by stream: none is lost, and no
    stream is reordered. If the former mapper had no queue for a stream, its events wait until the
    events in the former queues are processed.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        provider: the name under which silos were given the provider.
        queues: the new number of queues, 1 to 65,536.

    Raises:
        ConfigError: the adapter has no `SEALED`, the mapper has no `with_queues(queues, epoch)`, or
            an earlier change is not finished.
        StorageError: the store failed.
    """
    await program.stream(Resizes(), provider)(queues)
