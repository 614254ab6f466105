"""Explicit subscriptions: durable rows, kept by one rendezvous grain per stream.

Owns: subscription rows (`subscription_rows`) and their states: pending, active, faulted, paused.
Not: delivering (`agent`), marks (`subscribe`). Invariants:

- A row is stored before any other part learns of it.
- `add` returns when the agent that reads the stream's queue knows the subscription, or when no
  agent reads the queue. Every later event is therefore delivered.
- `pause` returns when the agent starts no more deliveries.
- A write that was refused, or whose answer was lost, ends the activation, and the next activation
  reads the stored rows. Other parts call `look_again` when they find that such a write arrived even
  later.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Protocol

import msgspec

from millstream.runtime import (
    CallError,
    ClusterError,
    Etag,
    Grain,
    NotAllowed,
    StateStore,
    StreamError,
    always_interleave,
    grain,
    read_only,
    shielded,
)
from millstream.runtime.extending import Role, open_to, services_of
from millstream.streams.contracts.identity import StreamId

from .implicit import ImplicitSubscription
from .inbox import Inbox, inbox_id, inbox_key, inbox_name, inbox_of
from .stream_key import join_key, split_key
from .subscription_rows import (
    HERE,
    WHOLE_STREAM,
    SubscriptionRow,
    SubscriptionState,
    implicit_row,
    is_kept_while_held,
    row_data,
    row_key,
    rows_under,
    stream_row,
    time_of,
)

__all__ = [
    "Rendezvous",
    "parse_rendezvous_key",
    "rendezvous_key",
    "rendezvous_of",
]


class SubscriptionAgents(Protocol):
    """The agents of a provider, in all silos."""

    @property
    def store(self) -> str:
        """Name of the store that keeps the provider's rows."""
        ...

    @property
    def can_seek(self) -> bool:
        """Whether a position can be found by its time."""
        ...

    @property
    def has_positions(self) -> bool:
        """Whether a position shows which events are processed."""
        ...

    def implicit(self, stream: StreamId, /) -> Sequence[ImplicitSubscription]:
        """The implicit subscriptions of a stream, at this moment."""
        ...

    def is_absent(self, stream: StreamId, row: SubscriptionRow, /) -> bool:
        """Whether no silo has hosted the consumer for so long that it must be forgotten."""
        ...

    async def attach(self, stream: StreamId, row: SubscriptionRow, /) -> None: ...
    async def pause(self, stream: StreamId, row: SubscriptionRow, /) -> None: ...
    async def detach(self, stream: StreamId, subscription: str, /) -> None: ...


class SubscriptionProvider(Protocol):
    """The provider that carries the stream, as a part of this silo."""

    @property
    def agents(self) -> SubscriptionAgents: ...


def rendezvous_key(provider: str, stream: StreamId) -> str:
    """The key of a stream's rendezvous grain; different for each provider and stream."""
    return join_key(provider, *stream)


def parse_rendezvous_key(key: str) -> tuple[str, StreamId]:
    """Provider and stream of a rendezvous grain."""
    provider, namespace, stream = split_key(key)
    return provider, StreamId(namespace, stream)


def is_same(row: SubscriptionRow, known: SubscriptionRow) -> bool:
    """Whether the row is equal to one that is already active."""
    return known.state == "active" and all(
        getattr(known, name) == getattr(row, name)
        for name in ("is_batch", "where", "policy", "is_manual", "commit_with")
    )


class Rendezvous(Grain):
    """Rendezvous of a stream's producers and consumers; the key names provider and stream.

    Each provider has its own class, so only silos that have the provider host it.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[SubscriptionRow, Etag]] = {}
        self._written: set[str] = set()  # by this activation, so that late writes of others fail

    def _agents(self) -> SubscriptionAgents:
        provider: SubscriptionProvider = services_of(self).part(parse_rendezvous_key(self.key)[0])
        return provider.agents

    def _stream(self) -> StreamId:
        return parse_rendezvous_key(self.key)[1]

    def _store(self) -> StateStore:
        store: StateStore = services_of(self).store(self._agents().store)
        return store

    async def on_activate(self) -> None:
        """Load the stream's rows."""
        await self.look_again()

    async def look_again(self) -> None:
        """Read the stored rows again: a write of another activation may have arrived late."""
        found = await rows_under(self._store(), row_key(self.key))
        self._rows = {row.id: (row, stored.etag) for row, stored in found}
        self._written.clear()

    async def _put(self, row: SubscriptionRow) -> None:
        expect = self._rows[row.id][1] if row.id in self._rows else None
        key = row_key(self.key, row.id)
        fence = services_of(self).fence
        try:
            etag = await self._store().write(key, row_data(key, row), expect, fence)
        except BaseException:
            self._doubt(row.id)
            raise
        self._rows[row.id] = (row, etag)
        self._written.add(row.id)

    def _doubt(self, subscription: str) -> None:
        """Record that a row was perhaps not written, for example after a cancelled call."""
        self._written.discard(subscription)
        self.context.deactivate_when_idle()

    def _find(self, subscription: str) -> SubscriptionRow | None:
        """The row of a subscription, or None. Implicit subscriptions and the whole stream have a
        row even if none is stored."""
        found = self._rows.get(subscription)
        if found is not None or not is_kept_while_held(subscription):
            return None if found is None else found[0]
        if subscription == WHOLE_STREAM:
            return stream_row(self._stream())
        return next((row for row in self._implicit() if row.id == subscription), None)

    def _implicit(self) -> list[SubscriptionRow]:
        stream = self._stream()
        return [implicit_row(one, stream.key) for one in self._agents().implicit(stream)]

    async def add(self, row: SubscriptionRow) -> None:
        """Store a subscription and attach it; an existing one moves to `row.start`.

        With the start `here`, an existing subscription stays at its position and a new one begins
        at `next`. An active subscription is then left alone, and a paused one stays paused. The row
        is written once in any case: otherwise a late write of the former activation could still end
        or pause it.
        """
        found = self._rows.get(row.id)
        if row.start == HERE and found is None:
            row = msgspec.structs.replace(row, start="next")
        elif row.start == HERE and found is not None and is_same(row, found[0]):
            if row.id not in self._written:
                await self._put(found[0])
            return
        await self._attach(self._keep_pause(row))

    def _keep_pause(self, row: SubscriptionRow) -> SubscriptionRow:
        """Return the new row of a subscription. It stays paused if it was, unless it gets a new
        position."""
        found = self._rows.get(row.id)
        if row.start != HERE or found is None or found[0].state != "paused":
            return row
        return msgspec.structs.replace(row, state="paused", note=found[0].note)

    @open_to(Role.CLIENT)
    async def join(self, row: SubscriptionRow) -> int:
        """Start a session of a consumer outside the cluster, and return the session's number.

        Works like `add`, but retries a waiting delivery at once. Raises NotAllowed: the
        subscription does not belong to a consumer outside the cluster.
        """
        self._check_outside(row)
        found = self._rows.get(row.id)
        session = 1 if found is None else found[0].session + 1
        start = "next" if row.start == HERE and found is None else row.start
        row = msgspec.structs.replace(row, start=start, session=session)
        await self._attach(self._keep_pause(row))
        if row.is_ephemeral:
            await self._inbox(row).look()  # the inbox notices if the consumer never takes
        return session

    def _check_outside(self, row: SubscriptionRow) -> None:
        """Refuse a row that is the subscription of a grain, because any client may call."""
        provider, stream = parse_rendezvous_key(self.key)
        own = inbox_id(provider, stream, row.name), inbox_key(provider, stream, row.name)
        if (row.id, row.grain_key, row.grain_type) != (*own, inbox_name(provider)) or row.handler:
            raise NotAllowed(f"{row.id} is not a subscription of a consumer outside the cluster")

    @open_to(Role.CLIENT)
    @shielded
    async def end(self, name: str) -> None:
        """End the subscription of a consumer outside the cluster; a repeated call does no harm."""
        await self.remove(inbox_id(*parse_rendezvous_key(self.key), name))

    def _inbox(self, row: SubscriptionRow) -> Inbox:
        return self.grain(inbox_of(parse_rendezvous_key(self.key)[0]), row.grain_key)

    async def wake(self, subscription: str) -> SubscriptionRow | None:
        """Retry a waiting delivery at once; returns the row, None: there is no such
        subscription."""
        found = self._rows.get(subscription)
        if found is None:
            return None
        row = found[0]
        if row.state == "faulted":
            row = msgspec.structs.replace(row, state="active", note="")
            await self._put(row)
        if row.state != "paused":
            await self._agents().attach(self._stream(), msgspec.structs.replace(row, start=HERE))
        return row

    @open_to(Role.OPERATOR)
    async def resume(self, subscription: str, start: str) -> bool:
        """Attach a subscription, or the whole stream, at `start`.

        Return False if there is no such subscription.
        """
        found = self._find(subscription)
        if found is None:
            return False
        self._check_start(start)
        row = msgspec.structs.replace(found, start=start, state="pending", note="")
        if not is_kept_while_held(subscription):
            await self._attach(row)
            return True
        if subscription not in self._rows:
            await self.look_again()  # a late write may have stored it
        await self._let_go(subscription)
        await self._agents().attach(self._stream(), row)
        return True

    async def _let_go(self, subscription: str) -> None:
        if subscription in self._rows:
            await self._clear(subscription, self._rows[subscription][1])

    @open_to(Role.OPERATOR)
    async def pause(self, subscription: str) -> bool:
        """Stop deliveries of a subscription, or of the whole stream.

        Return False if there is no such subscription.
        """
        found = self._find(subscription)
        if found is None:
            return False
        row = msgspec.structs.replace(found, state="paused", start=HERE)
        await self._put(row)
        await self._agents().pause(self._stream(), row)
        return True

    def _check_start(self, start: str) -> None:
        if time_of(start) is not None and not self._agents().can_seek:
            raise StreamError(
                f"{self._stream()}: a subscription cannot begin at a time, because the provider "
                "has no REWIND: write 'next', 'earliest' or a token"
            )

    def _check_ack(self, row: SubscriptionRow) -> None:
        if (row.is_manual or row.commit_with) and not self._agents().has_positions:
            what = 'ack="manual"' if row.is_manual else "commit_with"
            raise StreamError(
                f"{self._stream()}: {what} needs ORDERED and STABLE_TOKENS, because it uses "
                "positions; the provider of the stream lacks one of them"
            )

    async def _attach(self, row: SubscriptionRow) -> None:
        self._check_start(row.start)
        self._check_ack(row)
        await self._put(row)
        if row.state == "paused":
            return
        await self._agents().attach(self._stream(), row)
        await self._put(msgspec.structs.replace(row, state="active"))

    @open_to(Role.OPERATOR)
    @shielded
    async def remove(self, subscription: str) -> None:
        """Forget a subscription, here and in the agent; a repeated call does no harm.

        The call is shielded, because its caller may end meanwhile: this closes the inbox that calls
        it. The agent is told in any case. After StorageUnavailable the row may be gone; the agent
        notices that itself.
        """
        found = self._rows.get(subscription)
        if found is not None:
            await self._clear(subscription, found[1])
        await self._agents().detach(self._stream(), subscription)

    async def forget(self, subscription: str) -> None:
        """Remove a subscription whose consumer no silo has hosted for too long, if this silo
        agrees.

        Every silo learns of a new silo before the grains of that silo can subscribe.
        """
        found = self._rows.get(subscription)
        if found is not None and self._agents().is_absent(self._stream(), found[0]):
            await self.remove(subscription)

    async def _clear(self, subscription: str, etag: Etag) -> None:
        try:
            await self._store().clear(
                row_key(self.key, subscription), etag, services_of(self).fence
            )
        except BaseException:
            self._doubt(subscription)
            raise
        row, _ = self._rows.pop(subscription)
        self._written.discard(subscription)
        if row.session:
            with suppress(CallError, ClusterError):  # a later `take` learns of it as well
                await self._inbox(row).close()

    async def change(self, subscription: str, state: SubscriptionState, note: str) -> None:
        """Set the state of a subscription, with the reason."""
        found = self._find(subscription)
        if found is not None:
            await self._put(msgspec.structs.replace(found, state=state, note=note))

    async def undo_fault(self, subscription: str) -> None:
        """Undo a fault that is stored, or may be stored late; a pause by a user stays.

        A remaining row is written in any case, so that the store refuses a late write of the fault.
        """
        await self.look_again()
        found = self._find(subscription)
        if found is None:
            return
        is_faulted = found.state == "faulted"
        if not is_kept_while_held(subscription):
            calm = msgspec.structs.replace(found, state="active", note="")
            await self._put(calm if is_faulted else found)
        elif is_faulted:
            await self._let_go(subscription)

    @always_interleave
    async def is_stored(self, subscription: str) -> bool:
        """Return True if the store has the subscription. Raises StorageUnavailable."""
        return await self._store().read(row_key(self.key, subscription)) is not None

    @read_only
    async def rows(self) -> list[SubscriptionRow]:
        """Return every stored subscription of the stream."""
        return [row for row, _ in self._rows.values() if row.id != WHOLE_STREAM]

    @open_to(Role.CLIENT)
    @read_only
    async def everyone(self) -> list[SubscriptionRow]:
        """Return every stored subscription, and the implicit subscriptions without a row."""
        stored = [row for row, _ in self._rows.values() if row.id != WHOLE_STREAM]
        return [*stored, *(row for row in self._implicit() if row.id not in self._rows)]


@cache  # one class for each provider, in every silo and client of the process
def rendezvous_of(provider: str) -> type[Rendezvous]:
    """The rendezvous grains of a provider."""
    named: dict[str, object] = {"__module__": __name__, "__doc__": Rendezvous.__doc__}
    return grain(name=f"millstream.Rendezvous.{provider}")(type("Rendezvous", (Rendezvous,), named))
