"""A durable queue service on a host of its own, for the suite of streams.

Owns: one log per queue at the service, and the adapter that reaches it over the simulated network.
In some runs receivers misbehave: they raise, answer wrongly, return messages again, or never
answer.
Invariants: a message is appended at one instant. A confirmed message is never lost. A publisher
without an answer gets PublishUnknown, and its message may be stored. With `is_fenced` the service
keeps the position and refuses owners of an older epoch; otherwise the queue record keeps the
position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from tests.sim.suites.run.record import current_run

from millstream.runtime import PublishUnknown, QueueFenced, QueueUnavailable, StorageUnavailable
from millstream.runtime.testing import Host, SimService, Simulation, make_random
from millstream.streams import (
    AdapterHost,
    Capability,
    OutMessage,
    Page,
    QueueId,
    QueueMessage,
    StreamId,
    Token,
)

__all__ = ["LogService"]

T = TypeVar("T")
ERA = 1
WRONG_ANSWERS: dict[str, Any] = {"None": None, "a number": 7, "None among messages": [None]}


@dataclass(slots=True)
class Log:
    """One queue at the service."""

    messages: list[QueueMessage] = field(default_factory=list)
    epoch: int = 0
    acked: int = 0
    producers: dict[str, int] = field(default_factory=dict)


class LogService:
    """The logs. `queues_for(host)` returns a provider that reaches them from a host."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        is_fenced: bool,
        can_rewind: bool = False,
        fault_share: float = 0.0,
        drops_repeats: bool = False,
    ) -> None:
        self.can_rewind = can_rewind
        self.drops_repeats = drops_repeats
        self.is_fenced = is_fenced
        self.fault_share = fault_share  # the share of receivers' calls that fail
        self.rng = make_random(simulation.seed, "receivers")
        self.simulation = simulation
        self.service = SimService(simulation.network, "log")
        self._logs: dict[QueueId, Log] = {}

    def queues_for(self, host: Host) -> LogQueues:
        """Return the adapter factory for programs on a host."""
        return LogQueues(self, host)

    def log(self, queue: QueueId) -> Log:
        """Return the log of a queue; the first call makes it."""
        return self._logs.setdefault(queue, Log())

    def all(self) -> list[Log]:
        """Return all logs."""
        return list(self._logs.values())

    def append(self, queue: QueueId, message: OutMessage) -> Token | None:
        """Store a message at the service; return None if it was stored before."""
        log, mark = self.log(queue), message.mark
        if mark is not None and self.drops_repeats:
            if mark.seq <= log.producers.get(mark.producer, -1):
                current_run().figures["repeats dropped"] += 1
                return None
            log.producers[mark.producer] = mark.seq
        token = Token(ERA, len(log.messages) + 1)
        stored_s = self.simulation.loop.time()
        log.messages.append(
            QueueMessage(message.stream, token, message.items, message.headers, stored_s)
        )
        return token

    def check_epoch(self, queue: QueueId, epoch: int) -> None:
        """Raise QueueFenced for an owner of an older epoch, at the service."""
        log = self.log(queue)
        if self.is_fenced and epoch < log.epoch:
            raise QueueFenced(f"{queue}: epoch {epoch} is over, {log.epoch} owns it")


class LogQueues:
    """The adapter factory of one host."""

    def __init__(self, logs: LogService, host: Host) -> None:
        self._logs = logs
        self._host = host

    @property
    def capabilities(self) -> frozenset[Capability]:
        always = {Capability.DURABLE, Capability.ORDERED, Capability.STABLE_TOKENS}
        if self._logs.is_fenced:
            always |= {Capability.OWN_POSITION, Capability.FENCED}
        if self._logs.can_rewind:
            always.add(Capability.REWIND)
        if self._logs.drops_repeats:
            always.add(Capability.DEDUP)
        return frozenset(always)

    async def open(self, provider: str, host: AdapterHost) -> LogAdapter:
        return LogAdapter(self._logs, self._host, host.silo)


class LogAdapter:
    """The provider, opened in one silo."""

    def __init__(self, logs: LogService, host: Host, silo: str) -> None:
        self._logs = logs
        self._host = host
        self._silo = silo

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        def act() -> list[Token | None]:
            return [self._logs.append(queue, message) for message in messages]

        try:
            return await self._logs.service.ask(self._host.name, act)
        except StorageUnavailable as error:
            raise PublishUnknown(str(error)) from None

    def receiver(self, queue: QueueId, epoch: int) -> LogReceiver:
        current_run().on_acquired(queue, self._silo, epoch)
        return LogReceiver(self._logs, self._host.name, queue, epoch)

    def reader(self, queue: QueueId) -> LogReader:
        return LogReader(self._logs, self._host.name, queue)

    async def aclose(self) -> None: ...


class _Caller:
    """Calls the service for one queue, and misbehaves in some runs."""

    def __init__(self, logs: LogService, host: str, queue: QueueId) -> None:
        self._logs = logs
        self._host = host
        self._queue = queue

    async def misbehave(self, method: str) -> str:
        """Perhaps raise, or never return; otherwise return the kind of wrong answer, or ""."""
        run, rng = current_run(), self._logs.rng
        if run.is_over or rng.random() >= self._logs.fault_share:
            return ""
        wrong = ("repeat", *WRONG_ANSWERS) if method == "read" else ()
        how = rng.choice(("raise", "cancel", "hang", *wrong))
        run.figures["adapter faults"] += 1
        if how == "raise":
            raise ValueError("an odd adapter")
        if how == "cancel":
            raise asyncio.CancelledError
        if how == "hang":
            await asyncio.get_running_loop().create_future()
        return how

    async def _ask(self, act: Callable[[], T]) -> T:
        try:
            return await self._logs.service.ask(self._host, act)
        except StorageUnavailable as error:
            raise QueueUnavailable(str(error)) from None


class LogReceiver(_Caller):
    """The receiver of one owner."""

    def __init__(self, logs: LogService, host: str, queue: QueueId, epoch: int) -> None:
        super().__init__(logs, host, queue)
        self._epoch = epoch
        self._first = self._next = 0

    async def start(self, after: Token | None) -> None:
        def act() -> int:
            self._logs.check_epoch(self._queue, self._epoch)
            log = self._logs.log(self._queue)
            log.epoch = max(log.epoch, self._epoch)
            return log.acked if self._logs.is_fenced else 0

        await self.misbehave("start")
        kept = await self._ask(act)
        self._first = self._next = kept if after is None else max(kept, after.seq)

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Any:
        def act() -> list[QueueMessage]:
            self._logs.check_epoch(self._queue, self._epoch)
            messages = self._logs.log(self._queue).messages
            return messages[self._next : self._next + max(1, max_events // 10)]

        wrong = await self.misbehave("read")
        if wrong == "repeat":
            self._next = max(self._first, self._next - 3)
        elif wrong:
            return WRONG_ANSWERS[wrong]
        found = await self._ask(act)
        self._next += len(found)
        return found

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None:
        def act() -> None:
            self._logs.check_epoch(self._queue, self._epoch)
            log = self._logs.log(self._queue)
            if upto is not None:
                log.acked = max(log.acked, upto.seq)

        await self.misbehave("ack")
        await self._ask(act)

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None: ...

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        return ()

    async def aclose(self) -> None: ...


class LogReader(_Caller):
    """Reads a log from any position, beside the owner."""

    async def bounds(self) -> tuple[Token | None, Token | None]:
        messages = await self._ask(lambda: self._logs.log(self._queue).messages)
        return (messages[0].token, messages[-1].token) if messages else (None, None)

    async def seek(self, when: datetime) -> Token | None:
        messages = await self._ask(lambda: self._logs.log(self._queue).messages)
        return next((one.token for one in messages if one.enqueued_s >= when.timestamp()), None)

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None,
    ) -> Any:
        def act() -> Page:
            messages = self._logs.log(self._queue).messages
            looked_at = messages[max(0, position.seq - 1) :][: max(1, max_events // 10)]
            found = [one for one in looked_at if streams is None or one.stream in streams]
            following = max(position.seq, 1) + len(looked_at)
            return Page(found, Token(ERA, following), following > len(messages))

        wrong = await self.misbehave("read")
        if wrong and wrong != "repeat":
            return WRONG_ANSWERS[wrong]
        page = await self._ask(act)
        current_run().figures["read anew"] += len(page.messages)
        return page

    async def aclose(self) -> None: ...
