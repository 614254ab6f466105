"""Which implicit subscriptions are held in namespaces that have no others.

Owns: `StoppedSubscriptions`. Such a namespace's streams are known without asking for each: all that
is held is read once, at the first event, and later changes are told. Invariant: what was told is
newer than what is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from millstream.streams.api.subscription_rows import SubscriptionRow
from millstream.streams.contracts.identity import StreamId

__all__ = ["StoppedSubscriptions"]


class StoppedRows(Protocol):
    """Where it is read."""

    def read_held(
        self, namespace: str, /
    ) -> Awaitable[Sequence[tuple[StreamId, SubscriptionRow]]]: ...


class StoppedSubscriptions:
    """What one agent knows."""

    def __init__(self, stored: StoppedRows) -> None:
        self._stored = stored
        self._rows: dict[StreamId, dict[str, SubscriptionRow | None]] = {}  # None: told, not held
        self._read: set[str] = set()

    def find_known(self, stream: StreamId) -> Sequence[SubscriptionRow] | None:
        """Those of a stream; None: its namespace was not read yet."""
        if stream.namespace not in self._read:
            return None
        return [row for row in self._rows.get(stream, {}).values() if row is not None]

    async def of(self, stream: StreamId) -> Sequence[SubscriptionRow]:
        """Those of a stream. Raises what reading raises."""
        namespace = stream.namespace
        if namespace not in self._read:
            for other, row in await self._stored.read_held(namespace):
                self._rows.setdefault(other, {}).setdefault(row.id, row)
            self._read.add(namespace)
        return self.find_known(stream) or ()

    def tell(self, stream: StreamId, row: SubscriptionRow, *, is_held: bool) -> None:
        """A subscription is held, or is not any more."""
        rows = self._rows.setdefault(stream, {})
        if is_held or stream.namespace not in self._read:
            rows[row.id] = row if is_held else None
            return
        rows.pop(row.id, None)
        if not rows:
            del self._rows[stream]
