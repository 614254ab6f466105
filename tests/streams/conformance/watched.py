"""An adapter that records the calls of the runtime, and lets a test replace reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.streams import (
    AdapterHost,
    QueueAdapter,
    QueueAdapterFactory,
    QueueId,
    QueueMessage,
    QueueReceiver,
    Token,
)


@dataclass(frozen=True)
class Asked:
    """A call of an adapter or receiver."""

    what: str
    queue: QueueId
    at_s: float
    silo: str
    tokens: tuple[Token, ...] = ()
    """The single tokens of an `ack`; for `start` and `ack`, `upto` is first."""
    upto: Token | None = None
    epoch: int = 0


Read = Callable[[], Awaitable[Sequence[QueueMessage]]]


class Watch:
    """The calls of all adapters of a test, in order."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.read_by: Callable[[QueueId, Read], Awaitable[Any]] | None = None
        """Replaces a read; may call it."""

    def over(self, factory: QueueAdapterFactory) -> QueueAdapterFactory:
        return WatchedQueues(factory, self)

    def of(self, what: str, queue: QueueId | None = None) -> list[Asked]:
        return [one for one in self.asked if one.what == what and queue in (None, one.queue)]

    def note(self, what: str, queue: QueueId, silo: str, **more: Any) -> None:
        now_s = asyncio.get_running_loop().time()
        self.asked.append(Asked(what, queue, now_s, silo, **more))


watch = Watch()


def forget_the_watch() -> None:
    watch.__init__()  # type: ignore[misc]


class WatchedQueues:
    """Opens the adapter itself, and records the calls of its methods."""

    def __init__(self, factory: QueueAdapterFactory, watch: Watch) -> None:
        self._factory, self._watch = factory, watch
        self.capabilities = factory.capabilities
        self.grains = getattr(factory, "grains", ())

    async def open(self, provider: str, host: AdapterHost) -> QueueAdapter:
        adapter = await self._factory.open(provider, host)
        make, end, watch = adapter.receiver, adapter.aclose, self._watch

        def receiver(queue: QueueId, epoch: int) -> QueueReceiver:
            watch.note("receiver", queue, host.silo, epoch=epoch)
            return WatchedReceiver(make(queue, epoch), watch, queue, host.silo)

        async def aclose() -> None:
            watch.note("close adapter", "", host.silo)
            await end()

        vars(adapter).update(receiver=receiver, aclose=aclose)
        return adapter


class WatchedReceiver:
    def __init__(self, inner: QueueReceiver, watch: Watch, queue: QueueId, silo: str) -> None:
        self._inner, self._watch, self._queue, self._silo = inner, watch, queue, silo

    def _note(self, what: str, **more: Any) -> None:
        self._watch.note(what, self._queue, self._silo, **more)

    async def start(self, after: Token | None) -> None:
        self._note("start", upto=after)
        await self._inner.start(after)

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Sequence[QueueMessage]:
        self._note("read")

        async def really() -> Sequence[QueueMessage]:
            return await self._inner.read(max_events, max_bytes, wait_s)

        if self._watch.read_by is None:
            return await really()
        found: Sequence[QueueMessage] = await self._watch.read_by(self._queue, really)
        return found

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None:
        self._note("ack", upto=upto, tokens=tuple(also))
        await self._inner.ack(upto, also)

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None:
        self._note("release", tokens=tuple(tokens))
        await self._inner.release(tokens, delay_s, has_run)

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        self._note("extend", tokens=tuple(tokens))
        return await self._inner.extend(tokens, lease_s)

    async def aclose(self) -> None:
        self._note("close")
        await self._inner.aclose()
