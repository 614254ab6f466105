"""Consumers that no silo hosts any longer, and the times since when.

`reconciliation` and `rendezvous` act on them. Invariant: a live silo that hosts the type ends the
absence. If no silo remembers the beginning, the absence begins with the first question.
"""

from __future__ import annotations

from typing import Protocol

from millstream.runtime import Status, TableView
from millstream.streams.api.implicit import implicit_in, is_implicit
from millstream.streams.api.subscription_rows import SubscriptionRow
from millstream.streams.contracts.identity import StreamId

__all__ = ["Absence"]

NOTED_MAX = 10_000


class View(Protocol):
    """The members of the cluster."""

    @property
    def view(self) -> TableView: ...


class WallClock(Protocol):
    """A clock that can be compared with the members' signs of life."""

    def wall_s(self) -> float: ...


class Absence:
    """The absent consumers of one provider, as one silo knows them."""

    def __init__(self, provider: str, members: View, clock: WallClock, retention_s: float) -> None:
        self._provider = provider
        self._members = members
        self._clock = clock
        self._retention_s = retention_s
        self._noted: dict[str, float] = {}  # by absent consumer: the first known time

    def is_over(self, stream: StreamId, row: SubscriptionRow) -> bool:
        """Say whether no silo has hosted the consumer for so long that its row must be
        forgotten."""
        now_s = self._clock.wall_s()
        name = row.id if is_implicit(row.id) else row.grain_type
        if self._is_there(stream, row, now_s):
            self._noted.pop(name, None)
            return False
        if name not in self._noted and len(self._noted) >= NOTED_MAX:
            del self._noted[next(iter(self._noted))]
        since_s = self._noted.setdefault(name, now_s)
        return now_s - min(since_s, self._last_sign_s(row, since_s)) > self._retention_s

    def _is_there(self, stream: StreamId, row: SubscriptionRow, now_s: float) -> bool:
        view = self._members.view
        if is_implicit(row.id):
            return row.id in implicit_in(view, self._provider, now_s, self._retention_s).of(stream)
        return any(
            one.status is not Status.DEAD and row.grain_type in one.grain_types for one in view.rows
        )

    def _last_sign_s(self, row: SubscriptionRow, default_s: float) -> float:
        """Return the newest sign of life of the silos that have hosted the type."""
        if is_implicit(row.id):
            return default_s
        signs = [
            one.last_sign_s for one in self._members.view.rows if row.grain_type in one.grain_types
        ]
        return max(signs, default=default_s)
