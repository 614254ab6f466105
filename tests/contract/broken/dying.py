"""Adapters that lose accepted messages in a crash, or keep messages that other silos should get."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.contract.broken.fault import refused_by
from tests.contract.reference import (
    PromptAdapter,
    ReferenceAdapter,
    ReferenceReceiver,
    Stored,
)

from millstream.streams import OutMessage, Token

Messages = Sequence[OutMessage]
Tokens = Sequence[Token | None]


class WritesLater(ReferenceAdapter):
    """Answers before it stores: it stores soon, or when it is closed."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.buffer: list[tuple[str, OutMessage]] = []

    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        self.buffer += [(queue, message) for message in messages]
        asyncio.get_running_loop().call_soon(self.flush)
        return [None] * len(messages)

    def flush(self) -> None:
        while self.buffer and not self.is_dead:
            queue, message = self.buffer.pop(0)
            self.store(self.broker.shelf(queue), message)

    async def aclose(self) -> None:
        self.flush()
        await super().aclose()


refused_by("what_was_accepted_outlives_its_process", "log")(WritesLater)
refused_by("what_was_accepted_outlives_its_process", "leases")(WritesLater)


@refused_by("what_was_accepted_at_once_outlives_its_process", "leases")
class WritesLaterAtOnce(PromptAdapter):
    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.buffer: list[tuple[str, OutMessage]] = []

    def enqueue_at_once(
        self, queue: str, messages: Messages, mapper_epoch: int, /
    ) -> Tokens | None:
        self.buffer += [(queue, message) for message in messages]
        asyncio.get_running_loop().call_soon(self.flush)
        return [None] * len(messages)

    def flush(self) -> None:
        while self.buffer and not self.is_dead:
            queue, message = self.buffer.pop(0)
            self.accept(self.broker.shelf(queue), message, 1)

    async def aclose(self) -> None:
        self.flush()
        await super().aclose()


class AcknowledgesSoon(ReferenceReceiver):
    """Answers before it stores an acknowledgement, which it does soon, or when it is closed."""

    late: tuple[Token | None, Sequence[Token]] = (None, ())

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        self.check_fence()
        self.late = (upto, [*self.late[1], *also])
        asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        if self.adapter.is_dead:
            return
        upto, also = self.late
        self.shelf.own = max(self.shelf.own, upto or self.shelf.own)
        for one in self.named(also):
            one.is_done = True

    async def aclose(self) -> None:
        self.flush()
        await super().aclose()


refused_by("what_was_acknowledged_before_a_death_is_done", "ledger")(AcknowledgesSoon)
refused_by("what_was_acknowledged_before_a_death_is_done", "leases")(AcknowledgesSoon)


class KeepsTheQueue(ReferenceReceiver):
    """Gives the queue to its first consumer until that is closed."""

    async def start(self, after: Token | None, /) -> None:
        await super().start(after)
        self.shelf.__dict__.setdefault("consumers", []).append(self)

    def readable(self) -> list[Stored]:
        return super().readable() if self.shelf.__dict__["consumers"][:1] == [self] else []

    async def aclose(self) -> None:
        consumers = self.shelf.__dict__.get("consumers", [])
        if self in consumers:
            consumers.remove(self)
        await super().aclose()


refused_by("a_process_that_died_keeps_no_queue", "log")(KeepsTheQueue)
refused_by("a_process_that_died_keeps_no_queue", "tags")(KeepsTheQueue)
