"""The stopped implicit subscriptions of namespaces without explicit subscriptions.

An agent need not read the rows of each stream of such a namespace. It reads all stopped
subscriptions once, at the first event, and messages report later changes. Invariant: a message is
newer than a row that is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from millstream.streams.api.subscription_rows import SubscriptionRow
from millstream.streams.contracts.identity import StreamId

__all__ = ["StoppedSubscriptions"]


class StoppedRows(Protocol):
    """The source of the rows."""

    def read_held(
        self, namespace: str, /
    ) -> Awaitable[Sequence[tuple[StreamId, SubscriptionRow]]]: ...


class StoppedSubscriptions:
    """The stopped subscriptions that one agent knows."""

    def __init__(self, stored: StoppedRows) -> None:
        self._stored = stored
        self._rows: dict[StreamId, dict[str, SubscriptionRow | None]] = {}  # None: not stopped
        self._read: set[str] = set()

    def find_known(self, stream: StreamId) -> Sequence[SubscriptionRow] | None:
        """Return the stopped subscriptions of a stream, or None if its namespace was not read."""
        if stream.namespace not in self._read:
            return None
        return [row for row in self._rows.get(stream, {}).values() if row is not None]

    async def of(self, stream: StreamId) -> Sequence[SubscriptionRow]:
        """Return the stopped subscriptions of a stream, and read them if necessary. Raises errors
        of the store."""
        namespace = stream.namespace
        if namespace not in self._read:
            for other, row in await self._stored.read_held(namespace):
                self._rows.setdefault(other, {}).setdefault(row.id, row)
            self._read.add(namespace)
        return self.find_known(stream) or ()

    def tell(self, stream: StreamId, row: SubscriptionRow, *, is_held: bool) -> None:
        """Record that a subscription is stopped, or no longer stopped."""
        rows = self._rows.setdefault(stream, {})
        if is_held or stream.namespace not in self._read:
            rows[row.id] = row if is_held else None
            return
        rows.pop(row.id, None)
        if not rows:
            del self._rows[stream]
