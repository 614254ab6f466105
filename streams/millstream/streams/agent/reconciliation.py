"""Compares the subscriptions that an agent knows with the stored ones, stream by stream.

Owns `Reconciliation`: it chooses the next stream and repairs differences. A message about a
subscription may be lost, or may reach a silo that is stopping. Then only one side knows the
subscription, which is found and repaired here.

Invariants:

- The store is right, because it is written before agents get a message. The rendezvous reads it
  before the agent follows it.
- A subscription is left alone if a message about it arrived, or it changed here, during the read:
  that is newer.
- A stored subscription is never ended here.
- One stream is read every `reconcile_s` seconds, in turn, while the queue has streams with explicit
  subscriptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from logging import INFO, WARNING
from typing import Protocol

import msgspec

from millstream.runtime import MillstreamError
from millstream.runtime.extending import Tasks, show_text
from millstream.streams.api.implicit import is_implicit
from millstream.streams.api.subscription_rows import (
    HELD,
    HERE,
    WHOLE_STREAM,
    Held,
    SubscriptionRow,
    stream_row,
)
from millstream.streams.contracts.identity import StreamId

from .audience.stream_entry import StreamEntry
from .delivery.subscriber import Subscriber

__all__ = ["Reconciliation", "Repair", "StoredSubscriptions", "repairs"]

log = logging.getLogger("millstream.subscribers")

COMPARED_AT_ONCE = 1_000
"""Subscriptions of one stream that are compared before other tasks may run."""


class StoredSubscriptions(Protocol):
    """The stored subscriptions of a provider, read directly from the store."""

    async def read_stored(self, stream: StreamId, /) -> Sequence[SubscriptionRow]:
        """Return the rows of a stream. Raises StorageError."""
        ...

    async def is_stored(self, stream: StreamId, subscription: str, /) -> bool:
        """Say whether a subscription has a row. Raises StorageError."""
        ...

    async def look_again(self, stream: StreamId, /) -> None:
        """Let the stream's rendezvous read its rows again. Raises MillstreamError."""
        ...

    def is_absent(self, stream: StreamId, row: SubscriptionRow, /) -> bool:
        """Say whether no silo has hosted the consumer for `absent_type_retention_s`."""
        ...

    async def forget(self, stream: StreamId, subscription: str, /) -> None:
        """Remove a row, unless its consumer is hosted again. Raises MillstreamError."""
        ...


class Told(Protocol):
    """The receiver of differences, as if a rendezvous grain reported them."""

    def attach(self, stream: StreamId, row: SubscriptionRow, /) -> None: ...
    def hold(self, stream: StreamId, row: SubscriptionRow, /) -> None: ...
    def detach(self, stream: StreamId, subscription: str, /) -> None: ...
    async def follow(self, stream: StreamId, /) -> None:
        """Pause or resume a whole stream, as was reported."""
        ...


class Repair(msgspec.Struct, frozen=True):
    """A difference between the known and the stored subscriptions, and its repair.

    `row`: the subscription, which the agent pauses if `is_held`, and attaches otherwise. None: the
    agent detaches the subscription. `note`: the difference, for the log.
    """

    subscription: str
    row: SubscriptionRow | None
    is_held: bool
    note: str


def repairs(
    known: Mapping[str, Subscriber],
    were_held: Mapping[str, Held],
    rows: Sequence[SubscriptionRow],
    gone: Collection[str],
    told: Collection[str],
) -> list[Repair]:
    """Return the differences between known and stored subscriptions. Pure.

    Args:
        were_held: the subscriptions that were known when the read began, each with its stop state.
        rows: the stored subscriptions, or a part of them.
        gone: the subscriptions that are not stored.
        told: the subscriptions with a message during the read.
    """
    found: list[Repair] = []
    for row in rows:
        subscriber, is_held = known.get(row.id), row.state in HELD
        if subscriber is not None and (subscriber.held != "") is is_held:
            continue  # the common case
        if row.id in told or (subscriber is not None and _has_changed(subscriber, were_held)):
            continue
        if subscriber is None and is_implicit(row.id):
            continue  # its mark is missing at present
        if subscriber is None:
            note = "is stored, but was not known here"
        else:
            note = "is stopped, but received events" if is_held else "is not stopped any more"
        found.append(Repair(row.id, row, is_held, note))
    for name in gone:
        subscriber = known.get(name)
        if subscriber is None or name in told or _has_changed(subscriber, were_held):
            continue
        if subscriber.is_explicit:
            found.append(Repair(name, None, False, "is not stored any more"))
        elif subscriber.held:
            found.append(Repair(name, _row_of(subscriber), False, "is not stopped any more"))
    return found


def _has_changed(subscriber: Subscriber, were_held: Mapping[str, Held]) -> bool:
    return were_held.get(subscriber.id) != subscriber.held


def _row_of(one: Subscriber) -> SubscriptionRow:
    """Return the row of an implicit subscription."""
    return SubscriptionRow(one.id, one.grain_type, one.grain_key, one.handler, False, HERE)


class Reconciliation:
    """Compares the streams of one agent in turn."""

    def __init__(
        self,
        streams: Mapping[StreamId, StreamEntry],
        told: Told,
        stored: StoredSubscriptions,
        every_s: float,
        tasks: Tasks,
    ) -> None:
        self._streams = streams
        self._told = told
        self._stored = stored
        self._every_s = every_s
        self._tasks = tasks
        self._round: list[StreamId] = []  # taken from the end
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin if there is a stream to compare; a repeated call is harmless."""
        if self._running is None or self._running.done():
            self._running = self._tasks.start(self._run())

    async def _run(self) -> None:
        """Compare streams until there is nothing to compare."""
        while self._streams:
            await asyncio.sleep(self._every_s)
            if not self._round:
                asked = [one for one, entry in self._streams.items() if entry.is_asked_for]
                self._round = asked[::-1]
            if not self._round:
                return
            await self.look(self._round.pop())

    async def look(self, stream: StreamId) -> None:
        """Compare one stream, and repair the differences."""
        entry = self._streams.get(stream)
        if entry is None or entry.cold is not None or entry.told is not None:
            return
        try:
            await self._look(stream, entry)
        except Exception as error:  # a store may raise anything: the next look tries again
            is_known = isinstance(error, MillstreamError)
            text = "the subscriptions of %s could not be compared with the store: %s: %s"
            name = type(error).__name__
            log.log(INFO if is_known else WARNING, text, show_text(str(stream)), name, error)
        finally:
            entry.told = None

    async def _look(
        self, stream: StreamId, entry: StreamEntry, *, has_looked_again: bool = False
    ) -> None:
        told: set[str] = set()
        entry.told = told
        were_held: dict[str, Held] = {one.id: one.held for one in entry.subscribers.values()}
        was_paused = entry.is_paused
        rows = await self._stored.read_stored(stream)
        pause = next((row for row in rows if row.id == WHOLE_STREAM), None)
        if pause is None and was_paused and await self._stored.is_stored(stream, WHOLE_STREAM):
            return  # the pause was written during the read
        rows = [row for row in rows if row is not pause]
        stored = {row.id for row in rows}
        missing = [name for name in were_held if name not in stored]
        gone = [name for name in missing if not await self._stored.is_stored(stream, name)]
        for start in range(0, max(1, len(rows)), COMPARED_AT_ONCE):
            if self._streams.get(stream) is not entry or entry.cold is not None:
                return
            part = rows[start : start + COMPARED_AT_ONCE]
            found = repairs(entry.subscribers, were_held, part, gone, told)
            if found and not has_looked_again:
                return await self._look_again(stream, entry)
            for one in found:
                self._repair(stream, one)
            gone = []
            await asyncio.sleep(0)
        is_told = WHOLE_STREAM in told or entry.is_paused is not was_paused
        if was_paused is (pause is None) and not is_told:
            if not has_looked_again:
                return await self._look_again(stream, entry)
            await self._follow(stream, pause)
        consumers = {row.id if is_implicit(row.id) else row.grain_type: row for row in rows}
        absent = next(
            (row for row in consumers.values() if self._stored.is_absent(stream, row)), None
        )
        if absent is not None:
            await self._forget(stream, absent)

    async def _look_again(self, stream: StreamId, entry: StreamEntry) -> None:
        """Let the rendezvous read the store first: it may be wrong, too, and would mislead new
        subscribers."""
        await self._stored.look_again(stream)
        await self._look(stream, entry, has_looked_again=True)

    def _repair(self, stream: StreamId, one: Repair) -> None:
        name, where = show_text(one.subscription), show_text(str(stream))
        log.warning("subscription %s of %s %s", name, where, one.note)
        if one.row is None:
            self._told.detach(stream, one.subscription)
        elif one.is_held:
            self._told.hold(stream, one.row)
        else:
            self._told.attach(stream, msgspec.structs.replace(one.row, start=HERE))

    async def _follow(self, stream: StreamId, pause: SubscriptionRow | None) -> None:
        note = "is not paused any more" if pause is None else "is paused, but received events"
        log.warning("stream %s %s", show_text(str(stream)), note)
        if pause is None:
            self._told.attach(stream, stream_row(stream))
        else:
            self._told.hold(stream, pause)
        await self._told.follow(stream)

    async def _forget(self, stream: StreamId, row: SubscriptionRow) -> None:
        text = (
            "subscription %s of %s is deleted: no silo has hosted grain type %s for "
            "absent_type_retention_s"
        )
        log.warning(text, show_text(row.id), show_text(str(stream)), row.grain_type)
        await self._stored.forget(stream, row.id)
