"""A program outside reads queues: how far they go, where a time is in them, what is in a range.

Owns: `QueueReads`: calls of `$rewind` and `$retain` targets, how long they are tried again. Not:
the targets (`target`, `retaining`), what is done with messages. Invariants: everything is asked for
again until it is answered, which is harmless; a range that was seen is read to its end, or an error
says why not: a silo that knows of less is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.runtime import QueueUnavailable
from millstream.runtime.extending import Gateway
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.token import Token
from millstream.streams.staging.stager import Patience

from .asking import FORM
from .item_columns import Column
from .retaining import RetainTarget
from .target import PAGE_BYTES_MAX, PAGE_EVENTS_MAX, Extent, ReadPage, RewindTarget

__all__ = ["QueueReads", "Range"]

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
    """

    def __init__(
        self, gateway: Gateway, provider: str, namespace: str, *, patience_s: float = 60.0
    ) -> None:
        self._gateway = gateway
        self._namespace = namespace
        self._target = f"{RewindTarget.target_name}/{provider}"
        self._retains = f"{RetainTarget.target_name}/{provider}"
        self._patience_s = patience_s
        self._where = f"reader of {namespace} in {provider}"

    async def _patient(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await Patience(self._where, self._patience_s).ask(call)

    async def extents(self, asked: Collection[QueueId] = ()) -> list[Extent]:
        """How far the queues go that are read now, and those that are asked for.

        Raises the last error when nothing succeeded for `patience_s`, NotHosted (no silo has the
        provider) sooner; at once what cannot pass: ConfigError.
        """
        return await self._patient(
            lambda: self._gateway.call(
                self._where, self._target, RewindTarget.extents, FORM, list(asked)
            )
        )

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

    async def retain(self, reader: str, positions: Mapping[QueueId, Token | None]) -> None:
        """Keep what is in these queues from these positions on, by a name; None: all that is there.

        Raises as `extents`.
        """
        wanted = dict(positions)
        await self._patient(
            lambda: self._gateway.call(
                self._where, self._retains, RetainTarget.retain, FORM, reader, wanted
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

    async def retained(self) -> dict[str, dict[QueueId, Token]]:
        """The names, and from where on queues are kept for them. Raises as `extents`."""
        return await self._patient(
            lambda: self._gateway.call(self._where, self._retains, RetainTarget.retained, FORM)
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

        async def asked() -> ReadPage:
            page = await self._gateway.call(
                part.queue,
                self._target,
                RewindTarget.read,
                FORM,
                part.queue,
                self._namespace,
                position,
                part.end,
                events_max,
                bytes_max,
            )
            if page.gone is None and page.next <= position:
                raise QueueUnavailable(
                    f"queue {part.queue} ends at {position} as this silo knows it, and went on to "
                    f"{part.end} before"
                )
            return page

        return await self._patient(asked)
