"""Reading queues from a program outside: their extents, positions of times, and ranges of messages.

Owns: `QueueReads`: calls of `$rewind` and `$retain` targets, and their retries. Not: the targets
(`target`, `retain_target`), the use of messages. Invariants: every call is repeated until it is
answered, which does no harm. A known range is read to its end, or an error says why not. If a silo
knows less of the range, the call is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.runtime import ConfigError, QueueUnavailable
from millstream.runtime.extending import Gateway
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.token import Token
from millstream.streams.staging.stager import Patience

from .adapter_calls import FORM
from .claims import Holder
from .item_columns import Column
from .retain_target import RetainTarget
from .target import PAGE_BYTES_MAX, PAGE_EVENTS_MAX, Extents, ReadPage, ReadSpan, RewindTarget

__all__ = ["CLAIM_S", "RENEW_S", "QueueReads", "Range"]

CLAIM_S = 5.0
"""A run that has not renewed its claim for so long loses the name to another run that waits for it.
The next run of a stopped query waits for this time: Spark kills the process that plans a query, so
the process cannot release its name. Without a waiting run, a late renewal is accepted."""
RENEW_S = 1.0
"""How often a run renews its claim, and others look at it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a queue: from `start` on, before `end`."""

    queue: QueueId
    start: Token
    end: Token


class QueueReads:
    """Reads one namespace in the queues of one provider, and retains messages for named readers.

    Every method retries for `patience_s`. Then it raises the last error. `NotHosted`, if no silo
    has the provider, is raised sooner; a `ConfigError` is raised at once.

    Args:
        gateway: the gateway of a client.
        provider: name of the stream provider.
        namespace: name of the namespace.
        patience_s: how long to retry while no call succeeds, in seconds.
        incarnation: incarnation of the provider that assigned the positions used here; another
            incarnation refuses them. Empty: the positions come from answers of this object.
    """

    def __init__(
        self,
        gateway: Gateway,
        provider: str,
        namespace: str,
        *,
        patience_s: float = 60.0,
        incarnation: str = "",
    ) -> None:
        self._gateway = gateway
        self._namespace = namespace
        self._target = f"{RewindTarget.target_name}/{provider}"
        self._retains = f"{RetainTarget.target_name}/{provider}"
        self._patience_s = patience_s
        self._incarnation = incarnation
        self._where = f"reader of {namespace} in {provider}"

    async def _patient(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await Patience(self._where, self._patience_s).ask(call)

    async def extents(self, asked: Collection[QueueId] = ()) -> Extents:
        """Return the extents of the queues that are read now, and of the named ones.

        Args:
            asked: more queues.

        Returns:
            The incarnation of the provider, and the first and last message of each queue.
        """
        return await self._patient(
            lambda: self._gateway.call(
                self._where, self._target, RewindTarget.extents, FORM, list(asked)
            )
        )

    async def extents_from(self, reached: Mapping[QueueId, Token]) -> Extents:
        """Return the extents, for a reader that has reached positions.

        A silo may not know yet the messages that another silo has accepted. A queue that seems to
        end before its position is therefore asked for again, for `patience_s`. After that the
        answer counts, and messages between its end and the position are lost. If the incarnation
        differs, the first answer counts.

        Args:
            reached: the position of the reader in each queue.
        """
        waiting = Patience(self._where, self._patience_s)
        while True:
            found = await self.extents(list(reached))
            late = first_short(found, reached)
            if late is None or self._incarnation not in ("", found.incarnation):
                return found
            try:
                text = f"queue {late} ends before position {reached[late]}"
                await waiting.pause(QueueUnavailable(text))
            except QueueUnavailable:
                return found

    async def columns(self) -> list[Column]:
        """Return the columns of the namespace's items.

        The list is empty if no silo that answers knows them.
        """
        return await self._patient(
            lambda: self._gateway.call(
                self._where, self._target, RewindTarget.columns, FORM, self._namespace
            )
        )

    async def seek(self, when_s: float) -> dict[QueueId, Token | None]:
        """Return the first message of each queue that was accepted at a time or after it, or None
        if there is none yet.

        Args:
            when_s: wall time, in seconds since 1970.
        """
        return await self._patient(
            lambda: self._gateway.call(self._where, self._target, RewindTarget.seek, FORM, when_s)
        )

    async def retain(
        self, reader: str, positions: Mapping[QueueId, Token | None], *, run: str = ""
    ) -> None:
        """Keep the messages of queues from positions on, for a named reader.

        Args:
            reader: name of the reader.
            positions: the first message to keep in each queue. None: all that is there.
            run: the run that has claimed the name. Empty: the name is not claimed.

        Raises:
            ConfigError: another run owns the name.
        """
        incarnation, wanted = self._incarnation, dict(positions)
        await self._patient(
            lambda: self._gateway.call(
                self._where,
                self._retains,
                RetainTarget.retain,
                FORM,
                incarnation,
                reader,
                run,
                wanted,
            )
        )

    async def claim(self, reader: str, run: str, over: Holder | None = None) -> Holder:
        """Claim or renew a name for a run; returns the owner after that.

        Args:
            reader: name of the reader.
            run: name of the run.
            over: the claim of another run to take over.
        """
        return await self._patient(
            lambda: self._gateway.call(
                self._where, self._retains, RetainTarget.claim, FORM, reader, run, over
            )
        )

    async def claim_in_turn(self, reader: str, run: str) -> None:
        """Claim a name when its former run has released it, or was silent for five seconds.

        Args:
            reader: name of the reader.
            run: name of the run.

        Raises:
            ConfigError: another run keeps renewing its claim.
        """
        known, loop, changes = await self.claim(reader, run), asyncio.get_running_loop(), 0
        silent_s = loop.time() + CLAIM_S
        while known.run != run:
            await asyncio.sleep(RENEW_S)
            is_silent = loop.time() >= silent_s
            found = await self.claim(reader, run, known if is_silent else None)
            if found != known:
                changes, silent_s = changes + 1, loop.time() + CLAIM_S
            if found.run != run and changes > 1:  # one may be the last of a run that ends
                raise ConfigError(
                    f"reader {reader!r} is in use by another run ({found.run}): stop that query, "
                    "or give this query a name of its own"
                )
            known = found

    async def release(self, reader: str, run: str) -> None:
        """Release a name, if this run owns it.

        Args:
            reader: name of the reader.
            run: name of the run.
        """
        await self._patient(
            lambda: self._gateway.call(
                self._where, self._retains, RetainTarget.release, FORM, reader, run
            )
        )

    async def let_go(self, reader: str) -> None:
        """Keep nothing for a reader any more, in the queues that are read now.

        Args:
            reader: name of the reader.
        """
        nothing: list[str] = []
        await self._patient(
            lambda: self._gateway.call(
                self._where, self._retains, RetainTarget.let_go, FORM, reader, nothing
            )
        )

    async def list_retained(self) -> dict[str, dict[QueueId, Token]]:
        """Return, by name of the reader, the position from which each queue is kept."""
        return await self._patient(
            lambda: self._gateway.call(self._where, self._retains, RetainTarget.list_retained, FORM)
        )

    async def within_bytes(
        self, start: Mapping[QueueId, Token], end: Mapping[QueueId, Token], bytes_max: int
    ) -> dict[QueueId, Token]:
        """Return the end of a batch that starts at `start` and has about `bytes_max` bytes of
        items.

        Queues with messages share the bytes evenly, and each has at least one message. The silos
        read the messages that they measure, and send none.

        Args:
            start: the first position in each queue.
            end: the largest end in each queue.
            bytes_max: size of the batch, in bytes.
        """
        parts = [
            Range(queue, start[queue], stop)
            for queue, stop in end.items()
            if queue in start and start[queue] < stop
        ]
        share = max(1, bytes_max // max(1, len(parts)))
        stops = await asyncio.gather(*(self._measure_part(part, share) for part in parts))
        return {**end, **{part.queue: stop for part, stop in zip(parts, stops, strict=True)}}

    async def _measure_part(self, part: Range, bytes_max: int) -> Token:
        """The position where so many bytes of a range end."""
        span = ReadSpan(part.start, 0, is_over=False)
        while not span.is_over:
            more = await self._measure(part, span.next, bytes_max - span.bytes)
            span = ReadSpan(more.next, span.bytes + more.bytes, more.is_over)
        return span.next

    async def _measure(self, part: Range, position: Token, bytes_max: int) -> ReadSpan:
        """Measure as much of a range as a silo does in one call."""

        async def ask_once() -> ReadSpan:
            span = await self._gateway.call(
                part.queue,
                self._target,
                RewindTarget.measure,
                FORM,
                self._incarnation,
                part.queue,
                self._namespace,
                position,
                part.end,
                bytes_max,
            )
            if span.next <= position:
                raise self._ends_here(part, position)
            return span

        return await self._patient(ask_once)

    def _ends_here(self, part: Range, position: Token) -> QueueUnavailable:
        """The error for a silo that knows less than was known before."""
        return QueueUnavailable(
            f"this silo knows queue {part.queue} only up to {position}, but the queue reached "
            f"{part.end} before"
        )

    async def page(
        self,
        part: Range,
        position: Token,
        *,
        events_max: int = PAGE_EVENTS_MAX,
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> ReadPage:
        """Return a page of messages from a position of a range on; `next` is `part.end` at the end.

        Args:
            part: the range.
            position: the first position.
            events_max: largest number of events to look at.
            bytes_max: largest number of bytes to look at.
        """

        async def ask_once() -> ReadPage:
            page = await self._gateway.call(
                part.queue,
                self._target,
                RewindTarget.read,
                FORM,
                self._incarnation,
                part.queue,
                self._namespace,
                position,
                part.end,
                events_max,
                bytes_max,
            )
            if page.gone is None and page.next <= position:
                raise self._ends_here(part, position)
            return page

        return await self._patient(ask_once)


def first_short(found: Extents, reached: Mapping[QueueId, Token]) -> QueueId | None:
    """Return a queue with messages that ends before the reached position, or None."""
    for one in found.queues:
        if one.end is not None and one.queue in reached and reached[one.queue] > one.end:
            return one.queue
    return None
