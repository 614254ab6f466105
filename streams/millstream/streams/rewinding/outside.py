"""A program outside reads queues: how far they go, where a time is in them, what is in a range.

Owns: `QueueReads`: calls of `$rewind` and `$retain` targets, how long they are tried again. Not:
the targets (`target`, `retain_target`), what is done with messages. Invariants: everything is asked
for again until it is answered, which is harmless; a range that was seen is read to its end, or an
error says why not: a silo that knows of less is asked again.
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
"""A name whose run has not renewed its claim for so long may be taken over. The next run of a query
that was stopped waits for this: Spark kills the process that plans a query, which then cannot give
its name up. A run that renews its claim too late keeps it, unless another run waits for it."""
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
    """Reads one namespace in the queues of one provider.

    Args:
        patience_s: how long it goes on trying while nothing succeeds.
        incarnation: of the provider that gave the positions which are used here; another one
            refuses them. "": they come from what this object answered.
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
        """How far the queues go that are read now, and those that are asked for.

        Raises the last error when nothing succeeded for `patience_s`, NotHosted (no silo has the
        provider) sooner; at once what cannot pass: ConfigError.
        """
        return await self._patient(
            lambda: self._gateway.call(
                self._where, self._target, RewindTarget.extents, FORM, list(asked)
            )
        )

    async def extents_from(self, reached: Mapping[QueueId, Token]) -> Extents:
        """The same, with the queues in which somebody has reached a position.

        A silo may not know yet what another one has accepted. So a queue that seems to end before
        the position is asked for again, for `patience_s`; then that is the answer, and what was
        behind it is lost. Of another incarnation the first answer counts.
        """
        waiting = Patience(self._where, self._patience_s)
        while True:
            found = await self.extents(list(reached))
            late = first_short(found, reached)
            if late is None or self._incarnation not in ("", found.incarnation):
                return found
            try:
                await waiting.pause(QueueUnavailable(f"queue {late} ends before {reached[late]}"))
            except QueueUnavailable:
                return found

    async def columns(self) -> list[Column]:
        """Those of the namespace's items; empty: the silo that was asked does not know them.

        Raises as `extents`.
        """
        return await self._patient(
            lambda: self._gateway.call(
                self._where, self._target, RewindTarget.columns, FORM, self._namespace
            )
        )

    async def seek(self, when_s: float) -> dict[QueueId, Token | None]:
        """In each queue the first message accepted at or after a wall time. Raises as `extents`."""
        return await self._patient(
            lambda: self._gateway.call(self._where, self._target, RewindTarget.seek, FORM, when_s)
        )

    async def retain(
        self, reader: str, positions: Mapping[QueueId, Token | None], *, run: str = ""
    ) -> None:
        """Keep what is in these queues from these positions on, by a name; None: all that is there.

        Args:
            run: which has claimed the name; "": nobody claims it.

        Raises as `extents`; ConfigError, too: another run has the name.
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
        """Claim or renew a name for a run; who has it then. Raises as `extents`."""
        return await self._patient(
            lambda: self._gateway.call(
                self._where, self._retains, RetainTarget.claim, FORM, reader, run, over
            )
        )

    async def claim_in_turn(self, reader: str, run: str) -> None:
        """Claim a name for a run, once its former run has given it up, or was silent for `CLAIM_S`.

        Raises as `extents`; ConfigError, too: another run renews its claim.
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
                    "or give this one a name of its own"
                )
            known = found

    async def release(self, reader: str, run: str) -> None:
        """Give a name up, if this run has it. Raises as `extents`."""
        await self._patient(
            lambda: self._gateway.call(
                self._where, self._retains, RetainTarget.release, FORM, reader, run
            )
        )

    async def let_go(self, reader: str) -> None:
        """Keep nothing for this name, in the queues that are read now. Raises as `extents`."""
        nothing: list[str] = []
        await self._patient(
            lambda: self._gateway.call(
                self._where, self._retains, RetainTarget.let_go, FORM, reader, nothing
            )
        )

    async def list_retained(self) -> dict[str, dict[QueueId, Token]]:
        """The names, and from where on queues are kept for them. Raises as `extents`."""
        return await self._patient(
            lambda: self._gateway.call(self._where, self._retains, RetainTarget.list_retained, FORM)
        )

    async def within_bytes(
        self, start: Mapping[QueueId, Token], end: Mapping[QueueId, Token], bytes_max: int
    ) -> dict[QueueId, Token]:
        """How far a batch goes that has about so many bytes of items, and ends at `end` at most.

        Queues that have something share the bytes evenly; each has one message at least. The silos
        read what they measure, and send none of it. Raises as `extents`.
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
        """Where so many bytes of a range end."""
        span = ReadSpan(part.start, 0, is_over=False)
        while not span.is_over:
            more = await self._measure(part, span.next, bytes_max - span.bytes)
            span = ReadSpan(more.next, span.bytes + more.bytes, more.is_over)
        return span.next

    async def _measure(self, part: Range, position: Token, bytes_max: int) -> ReadSpan:
        """A part of it, as far as a silo looks in one call."""

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
        """A silo knows of less than was known before."""
        return QueueUnavailable(
            f"queue {part.queue} ends at {position} as this silo knows it, and went on to "
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
        """What is at a position of a range, and behind it; `next` is `part.end` at the end.

        Raises as `extents`.
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
    """A queue that has messages, and ends before a position that somebody has reached."""
    for one in found.queues:
        if one.end is not None and one.queue in reached and reached[one.queue] > one.end:
            return one.queue
    return None
