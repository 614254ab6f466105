"""Subscriptions as they are stored: one row each.

Owns: `SubscriptionRow`, its key and form in the store, and reading rows. Not: writing them
(`rendezvous`). Invariants: the rows of a stream, and those of a namespace, are adjacent. An
implicit subscription has a row only while it is paused or faulted, and a whole stream only while it
is paused. While a row is damaged, its subscription gets no deliveries.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from millstream.runtime import Corrupt, Row, StateStore
from millstream.runtime.extending import open_row, seal_content, show_text
from millstream.streams.contracts.identity import StreamId
from millstream.streams.failures.policy import FailurePolicy

from .implicit import ImplicitSubscription, is_implicit
from .stream_key import SEPARATOR, join_key, split_key

__all__ = [
    "HELD",
    "HERE",
    "WHOLE_STREAM",
    "Held",
    "SubscriptionRow",
    "SubscriptionState",
    "find_held",
    "implicit_row",
    "is_kept_while_held",
    "row_data",
    "row_key",
    "rows_of_namespace",
    "rows_of_streams",
    "rows_under",
    "stream_row",
    "time_of",
    "time_start",
]

log = logging.getLogger("millstream.streams")

ROWS_PER_SCAN = 1000
HERE = "here"
SubscriptionState = Literal["pending", "active", "faulted", "paused"]
HELD: tuple[SubscriptionState, ...] = ("faulted", "paused")
"""States in which a subscription keeps its events, and gets no deliveries."""
Held = Literal["", "faulted", "paused"]  # one of these states; empty: neither
WHOLE_STREAM = "*"
"""The id that means all subscriptions of a stream. It has a row while the stream is paused."""


AT = "at "


def time_start(when: datetime) -> str:
    """Return a start at a time, as it is stored."""
    return f"{AT}{when.astimezone(UTC).isoformat()}"


def time_of(start: str) -> datetime | None:
    """The time of a start, or None if the start is not given as a time."""
    return datetime.fromisoformat(start.removeprefix(AT)) if start.startswith(AT) else None


class SubscriptionRow(msgspec.Struct, array_like=True, frozen=True):
    """One subscription.

    `start`: `here` (stay at the position), `next`, `earliest`, the text of a token, or `at` and a
    time. `where`: name of the filter, a static method of the grain class; for a consumer outside
    the cluster `Type.method`, if silos may know it; empty: no filter. `session`: for a consumer
    outside the cluster, the number of its sessions so far; 0: a grain.
    """

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
    policy: FailurePolicy = FailurePolicy()
    where: str = ""
    is_manual: bool = False
    """The grain acknowledges events by hand."""
    commit_with: str = ""
    """The state of the grain that is written with the position."""


ROW = msgspec.msgpack.Decoder(SubscriptionRow)


def implicit_row(one: ImplicitSubscription, key: str) -> SubscriptionRow:
    """The row that a `@subscribe` mark makes for the stream of a key."""
    row = SubscriptionRow(one.subscription, one.grain_type, key, one.handler, False, HERE)
    return msgspec.structs.replace(row, state="active")


def stream_row(stream: StreamId) -> SubscriptionRow:
    """The row that pauses and resumes all subscriptions of a stream."""
    return SubscriptionRow(WHOLE_STREAM, "", stream.key, "", False, HERE, state="active")


def is_kept_while_held(subscription: str) -> bool:
    """Whether the subscription has a row only while it is paused or faulted."""
    return subscription == WHOLE_STREAM or is_implicit(subscription)


def find_held(row: SubscriptionRow) -> Held:
    """How the subscription of a row is stopped, paused or faulted, or "" if it is not stopped."""
    return "paused" if row.state == "paused" else "faulted" if row.state == "faulted" else ""


def row_key(rendezvous: str, subscription: str = "") -> str:
    """The key of a row in the store; without a subscription: the prefix of the stream's rows."""
    return f"subscription/{rendezvous}{SEPARATOR}{subscription}"


def row_data(key: str, row: SubscriptionRow) -> bytes:
    """The row as it is stored under its key."""
    return seal_content(key, msgspec.msgpack.encode(row))


async def rows_under(store: StateStore, prefix: str) -> list[tuple[SubscriptionRow, Row]]:
    """The rows under a prefix. Raises Corrupt (one is damaged), StorageUnavailable."""
    found = [(key, row) async for key, row in _scan(store, prefix)]
    return [(open_row(key, row.data, ROW.decode), row) for key, row in found]


async def _scan(store: StateStore, prefix: str) -> AsyncIterator[tuple[str, Row]]:
    after = ""
    while True:
        found = await store.scan(prefix, after, ROWS_PER_SCAN)
        for after, row in found:
            yield after, row
        if len(found) < ROWS_PER_SCAN:
            return


async def rows_of_namespace(
    store: StateStore, provider: str, namespace: str
) -> Sequence[tuple[StreamId, SubscriptionRow]]:
    """The paused and faulted implicit subscriptions of a namespace's streams.

    A subscription whose row is damaged counts as paused, and the log names the row. Raises
    StorageUnavailable.
    """
    found: list[tuple[StreamId, SubscriptionRow]] = []
    async for name, stored in _scan(store, row_key(join_key(provider, namespace))):
        key, subscription = _names_in(name)
        try:
            row = open_row(name, stored.data, ROW.decode)
        except Corrupt as error:
            log.error(
                "no event is delivered to subscription %s of stream key %s: %s",
                show_text(subscription),
                show_text(key),
                error,
            )
            row = SubscriptionRow(subscription, "", key, "", False, HERE, state="paused")
        found.append((StreamId(namespace, key), row))
    return found


def _names_in(name: str) -> tuple[str, str]:
    """The key of the stream, and the subscription, in the key of a row."""
    _, _, key, subscription = name.split(SEPARATOR, 3)
    (stream_key,) = split_key(key)
    return stream_key, subscription


async def rows_of_streams(
    store: StateStore, provider: str, streams: Collection[StreamId]
) -> dict[StreamId, list[SubscriptionRow]]:
    """The rows of each of these streams. Raises Corrupt (one is damaged), StorageUnavailable.

    Cost: one scan where few other streams of their namespaces have rows, else at most one scan for
    each stream and each `ROWS_PER_SCAN` rows.
    """
    wanted = {row_key(join_key(provider, *stream)): stream for stream in streams}
    found: dict[StreamId, list[SubscriptionRow]] = {stream: [] for stream in streams}
    for namespace in sorted({stream.namespace for stream in streams}):
        within = row_key(join_key(provider, namespace))
        prefixes = sorted(prefix for prefix in wanted if prefix.startswith(within))
        if len(prefixes) == 1:
            (within,) = prefixes
        at, after = 0, ""
        while at < len(prefixes):
            after = max(after, prefixes[at])
            rows = await store.scan(within, after, ROWS_PER_SCAN)
            for key, stored in rows:
                stream = wanted.get(_stream_part(key))
                if stream is not None:
                    found[stream].append(open_row(key, stored.data, ROW.decode))
            if len(rows) < ROWS_PER_SCAN:
                break
            after = rows[-1][0]
            at = bisect_right(prefixes, after, lo=at)
            if after.startswith(prefixes[at - 1]):
                at -= 1  # this stream may have more rows
    return found


def _stream_part(key: str) -> str:
    """The prefix of all rows of a row's stream; an id may contain separators."""
    return SEPARATOR.join([*key.split(SEPARATOR)[:3], ""])
