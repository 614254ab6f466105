"""The unfinished work of one queue, and the reason why each piece waits.

Owns `QueueWork`, which answers the watch and `why`. It changes nothing. `standstill` has the times,
and `waits` has the reason of one delivery.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from millstream.runtime.extending import Clock
from millstream.streams.agent.audience.stream_entry import StreamEntry
from millstream.streams.agent.delivery.dispatch import Dispatch
from millstream.streams.agent.delivery.subscriber import Seat, Subscriber
from millstream.streams.agent.reading.catch_up import CatchUp
from millstream.streams.agent.reading.driver import ReaderDriver
from millstream.streams.agent.reading.steps import ReaderState
from millstream.streams.agent.subscribers import Subscribers
from millstream.streams.contracts.identity import StreamId

from .standstill import PieceOfWork
from .waits import reason_of

__all__ = ["QueueWork"]


class QueueWork:
    """The work of one agent."""

    __slots__ = ("_catch_up", "_clock", "_dispatch", "_reader", "_subscribers")

    def __init__(
        self,
        reader: ReaderDriver,
        subscribers: Subscribers,
        dispatch: Dispatch,
        catch_up: CatchUp,
        clock: Clock,
    ) -> None:
        self._reader = reader
        self._subscribers = subscribers
        self._dispatch = dispatch
        self._catch_up = catch_up
        self._clock = clock

    def pieces(self) -> Iterator[PieceOfWork]:
        """Yield all unfinished work: reading, and deliveries by stream and subscription."""
        if (reading := self._reading()) is not None:
            yield reading
        for stream, entry in list(self._subscribers.streams.items()):
            yield from self._of_stream(str(stream), entry)

    def _reading(self) -> PieceOfWork | None:
        """Return reading as work, if there are events to read, or reading is impossible."""
        reader, core = self._reader, self._reader.core
        if core.state is ReaderState.FENCED:
            return None
        if core.state is ReaderState.READING and not (reader.backlog or core.is_failing):
            return None

        def reason() -> str:
            text, trouble = core.waits_for(self._clock.now()), reader.trouble
            return f"{text}; {trouble}" if text and trouble else text or trouble

        def dump() -> str:
            return f"state={core.state.value}, backlog={reader.backlog}, read={core.read_count}"

        return PieceOfWork("", "", (core.state.value, core.read_count), reason, dump)

    def _of_stream(self, name: str, entry: StreamEntry) -> Iterator[PieceOfWork]:
        if entry.cold is not None and (entry.cold or entry.is_parked):
            yield PieceOfWork(name, "", "cold", entry.waits_for, entry.dump)
        if entry.spread:
            yield PieceOfWork(name, "", entry.spread[0].index, entry.waits_for, entry.dump)
        for one in list(entry.subscribers.values()):
            if (delivery := one.work) is not None:
                reason, dump = partial(self.reason_of, one), partial(self._dump_of, one)
                yield PieceOfWork(name, one.id, delivery.place, reason, dump)

    def list_undelivered(self, namespace: str) -> list[StreamId]:
        """Return the streams of a namespace with unfinished work."""
        return [
            stream
            for stream, entry in self._subscribers.streams.items()
            if stream.namespace == namespace
            and (entry.cold or entry.is_parked or entry.has_deliveries)
        ]

    def waits_for(self, stream: StreamId) -> str:
        """Return the reason why all work of a stream waits.

        The text is empty if it does not wait, or if the reason is unknown.
        """
        entry = self._subscribers.streams.get(stream)
        return "" if entry is None else entry.waits_for()

    def reason_of(self, one: Subscriber) -> str:
        """Return the reason why a subscription waits.

        The text is empty if the subscription has no work, or if the reason is unknown.
        """
        return reason_of(one, self._seat_of(one))

    def _seat_of(self, one: Subscriber) -> Seat:
        return self._dispatch.seat_of(one, self._catch_up.doing)

    def _dump_of(self, one: Subscriber) -> str:
        return f"{self._dispatch.dump_of(one)}, seat={self._seat_of(one)}"
