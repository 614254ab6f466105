"""Explicit subscriptions: durable rows, kept by one rendezvous grain per stream.

Owns: subscription rows (one stored row each) and their states: pending, active, faulted, paused.
Not: delivering (`agent`), implicit subscriptions (`subscribe`), which need no row. Invariants: a
row is stored before anyone is told of it; `add` returns only when the agent that reads the
stream's queue knows the subscription, or when no agent reads it, so every later event is seen; a
write that was refused, or whose answer was lost, ends the activation, so the next one reads what is
stored.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Literal, Protocol

import msgspec

from millstream.runtime import (
    CallError,
    ClusterError,
    Etag,
    Grain,
    StateStore,
    StorageError,
    StorageUnavailable,
    always_interleave,
    grain,
    read_only,
    shielded,
)
from millstream.runtime.extending import services_of
from millstream.streams.contracts.identity import StreamId

from .inbox import Inbox, inbox_of
from .stream_key import SEPARATOR, join_key, split_key

__all__ = [
    "HERE",
    "Rendezvous",
    "SubscriptionRow",
    "parse_rendezvous_key",
    "rendezvous_key",
    "rendezvous_of",
]

ROWS_PER_SCAN = 1000
HERE = "here"
SubscriptionState = Literal["pending", "active", "faulted", "paused"]


class Agents(Protocol):
    """Who reads the queues of a provider, in whichever silo."""

    @property
    def store(self) -> str:
        """Name of the store that keeps the provider's rows."""
        ...

    async def attach(self, stream: StreamId, row: SubscriptionRow, /) -> None: ...
    async def detach(self, stream: StreamId, subscription: str, /) -> None: ...


class Carrier(Protocol):
    """The provider that carries the stream, as a part of this silo."""

    @property
    def agents(self) -> Agents: ...


class SubscriptionRow(msgspec.Struct, array_like=True, frozen=True):
    """One explicit subscription. `start` is `here` (where it is), `next`, `earliest`, or a token's
    text. `session`: of a consumer outside the cluster, how often it has come; 0: a grain."""

    id: str
    grain_type: str
    grain_key: str
    handler: str
    is_batch: bool
    start: str
    name: str = ""
    state: SubscriptionState = "pending"
    note: str = ""
    session: int = 0
    is_ephemeral: bool = False


def rendezvous_key(provider: str, stream: StreamId) -> str:
    """The key of a stream's rendezvous grain: another one for each provider and stream."""
    return join_key(provider, *stream)


def parse_rendezvous_key(key: str) -> tuple[str, StreamId]:
    """Provider and stream of a rendezvous grain."""
    provider, namespace, stream = split_key(key)
    return provider, StreamId(namespace, stream)


def is_same(row: SubscriptionRow, known: SubscriptionRow) -> bool:
    """Is it the one that is active already?"""
    return known.state == "active" and known.is_batch == row.is_batch


class Rendezvous(Grain):
    """Rendezvous of a stream's producers and consumers; the key names provider and stream.

    Each provider has a class of its own, so that only silos that have the provider host it.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[SubscriptionRow, Etag]] = {}

    def _agents(self) -> Agents:
        provider: Carrier = services_of(self).part(parse_rendezvous_key(self.key)[0])
        return provider.agents

    def _stream(self) -> StreamId:
        return parse_rendezvous_key(self.key)[1]

    def _store(self) -> StateStore:
        store: StateStore = services_of(self).store(self._agents().store)
        return store

    def _row_key(self, subscription: str) -> str:
        return f"subscription/{self.key}{SEPARATOR}{subscription}"

    async def on_activate(self) -> None:
        """Load the stream's rows."""
        prefix, after = self._row_key(""), ""
        while found := await self._store().scan(prefix, after, ROWS_PER_SCAN):
            for key, stored in found:
                row = msgspec.msgpack.decode(stored.data, type=SubscriptionRow)
                self._rows[row.id] = (row, stored.etag)
                after = key
            if len(found) < ROWS_PER_SCAN:
                return

    async def _put(self, row: SubscriptionRow) -> None:
        expect = self._rows[row.id][1] if row.id in self._rows else None
        data = msgspec.msgpack.encode(row)
        fence = services_of(self).fence
        try:
            etag = await self._store().write(self._row_key(row.id), data, expect, fence)
        except StorageError:
            self.context.deactivate_when_idle()
            raise
        self._rows[row.id] = (row, etag)

    async def add(self, row: SubscriptionRow) -> None:
        """Store a subscription and attach it; one that exists goes to `row.start`.

        With `here` it goes on where it is, and a new one begins at `next`; one that is active
        already is left alone.
        """
        found = self._rows.get(row.id)
        if row.start == HERE and found is None:
            row = msgspec.structs.replace(row, start="next")
        elif row.start == HERE and found is not None and is_same(row, found[0]):
            return
        await self._attach(row)

    async def join(self, row: SubscriptionRow) -> int:
        """A consumer outside the cluster comes, perhaps again; returns the number of its session.

        As `add`, but that what waits to be tried again is tried at once.
        """
        found = self._rows.get(row.id)
        session = 1 if found is None else found[0].session + 1
        start = "next" if row.start == HERE and found is None else row.start
        await self._attach(msgspec.structs.replace(row, start=start, session=session))
        if row.is_ephemeral:
            await self._inbox(row).look()  # who never comes is missed there
        return session

    def _inbox(self, row: SubscriptionRow) -> Inbox:
        return self.grain(inbox_of(parse_rendezvous_key(self.key)[0]), row.grain_key)

    async def wake(self, subscription: str) -> SubscriptionRow | None:
        """What waits to be tried again is tried at once; its row, None: there is none."""
        found = self._rows.get(subscription)
        if found is None:
            return None
        await self._agents().attach(self._stream(), msgspec.structs.replace(found[0], start=HERE))
        return found[0]

    async def resume(self, subscription: str, start: str) -> bool:
        """Attach a subscription again, at `start`; False: there is none."""
        found = self._rows.get(subscription)
        if found is None:
            return False
        row = msgspec.structs.replace(found[0], start=start, state="pending", note="")
        await self._attach(row)
        return True

    async def _attach(self, row: SubscriptionRow) -> None:
        await self._put(row)
        await self._agents().attach(self._stream(), row)
        await self._put(msgspec.structs.replace(row, state="active"))

    @shielded
    async def remove(self, subscription: str) -> None:
        """Forget a subscription, here and in the agent; again is harmless.

        Who asks may end meanwhile (an inbox does, as it is closed by this): the agent is told.
        After StorageUnavailable the row may be gone, and would not be found again: the agent is
        told then, too.
        """
        found = self._rows.get(subscription)
        try:
            if found is not None:
                await self._clear(subscription, found[1])
        except StorageUnavailable:
            await self._agents().detach(self._stream(), subscription)
            raise
        await self._agents().detach(self._stream(), subscription)

    async def _clear(self, subscription: str, etag: Etag) -> None:
        try:
            await self._store().clear(self._row_key(subscription), etag, services_of(self).fence)
        except StorageError:
            self.context.deactivate_when_idle()
            raise
        row, _ = self._rows.pop(subscription)
        if row.session:
            with suppress(CallError, ClusterError):  # who takes next is told as well
                await self._inbox(row).close()

    async def change(self, subscription: str, state: SubscriptionState, note: str) -> None:
        """Set the state of a subscription, with the reason."""
        found = self._rows.get(subscription)
        if found is not None:
            await self._put(msgspec.structs.replace(found[0], state=state, note=note))

    @read_only
    async def rows(self) -> list[SubscriptionRow]:
        """Every subscription of the stream."""
        return [row for row, _ in self._rows.values()]

    @always_interleave
    async def rows_for_agent(self) -> list[SubscriptionRow]:
        """As `rows`, also while a subscription is being attached."""
        return [row for row, _ in self._rows.values()]


@cache  # one class for each provider, in every silo and client of the process
def rendezvous_of(provider: str) -> type[Rendezvous]:
    """The rendezvous grains of a provider."""
    named: dict[str, object] = {"__module__": __name__, "__doc__": Rendezvous.__doc__}
    return grain(name=f"millstream.Rendezvous.{provider}")(type("Rendezvous", (Rendezvous,), named))
