"""Numbered bytes that a state carries in its row until they are sent. They are called parcels.

This module owns the `Parcels` of one state. The module `state` writes the row. A `ParcelSender` of
a part knows the content of parcels and their destination. The module does no I/O.

- A parcel is sent only after it is stored, and stays in the row until it is sent.
- Numbers rise by one, and a number that was stored is never given again.
- When a value is restored from the store, parcels that were added since are dropped, except those
  of a write that is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["ParcelRow", "ParcelSender", "Parcels", "WriteRequest"]


class ParcelRow(NamedTuple):
    """The parcels of a row: the origin of their numbers, the first number, and the parcels."""

    origin: str = ""
    first: int = 1
    parcels: Sequence[bytes] = ()


class WriteRequest:
    """A requested write. `upto` is the number of the last parcel that it stores."""

    __slots__ = ("upto",)

    def __init__(self, upto: int) -> None:
        self.upto = upto


class ParcelSender(Protocol):
    """The sender of a state's parcels."""

    def on_stored(self) -> None:
        """Send more parcels, since more are stored. Must not raise."""
        ...

    async def wait_sent(self) -> None:
        """Wait until all stored parcels are sent. Raises Overloaded if it takes too long."""
        ...


class Parcels:
    """The parcels of one state.

    `origin` distinguishes these numbers from those of an earlier row of the same key that was lost.
    The code that adds the first parcel sets it. `sender` is notified of stored parcels.
    """

    __slots__ = (
        "_asked",
        "_first",
        "_held",
        "_in_row",
        "_sent",
        "_stored",
        "origin",
        "sender",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.sender: ParcelSender | None = None
        self._asked: list[WriteRequest] = []  # writes under way
        self.load(ParcelRow())

    def load(self, row: ParcelRow) -> None:
        """Take over the parcels of a row that was read."""
        self.origin = row.origin
        self._first = self._in_row = row.first  # the first number in memory, and in the row
        self._held = list(row.parcels)
        self._stored = self.last
        self._sent = row.first - 1
        self.size_bytes = sum(map(len, self._held))

    @property
    def last(self) -> int:
        """The number of the last parcel."""
        return self._first + len(self._held) - 1

    @property
    def stored(self) -> int:
        """The number of the last parcel that is stored."""
        return self._stored

    @property
    def count(self) -> int:
        """The number of parcels that are not sent."""
        return self.last - self._sent

    @property
    def has_unsent(self) -> bool:
        """Whether a stored parcel is not sent."""
        return self._sent < self._stored

    @property
    def is_calm(self) -> bool:
        """Whether no write is under way, and every parcel is stored."""
        return not self._asked and self.last == self._stored

    @property
    def is_trimmed(self) -> bool:
        """Whether the row has no parcels that are already sent."""
        return self._in_row > self._sent

    def add(self, parcel: bytes) -> None:
        """Add a parcel. The next requested write stores it."""
        self._held.append(parcel)
        self.size_bytes += len(parcel)

    def unsent(self, limit: int) -> list[tuple[int, bytes]]:
        """Return the first `limit` stored parcels that are not sent, with their numbers."""
        numbers = range(self._sent + 1, min(self._stored, self._sent + limit) + 1)
        return [(number, self._held[number - self._first]) for number in numbers]

    def on_done(self, upto: int) -> None:
        """Record that all parcels up to this number are sent."""
        assert self._sent <= upto <= self._stored, f"{upto} is sent, {self._stored} stored"
        gone = upto + 1 - self._first
        self.size_bytes -= sum(map(len, self._held[:gone]))
        del self._held[:gone]
        self._first, self._sent = upto + 1, upto

    # -- called by the state

    def ask(self) -> WriteRequest:
        """Record a requested write. It stores every parcel."""
        asked = WriteRequest(self.last)
        self._asked.append(asked)
        return asked

    def join(self, asked: WriteRequest) -> None:
        """Extend a requested write that has not begun to every parcel."""
        asked.upto = self.last

    def on_ended(self, asked: WriteRequest) -> None:
        """Record that a write has ended, with or without success."""
        self._asked.remove(asked)

    def row(self, upto: int) -> ParcelRow:
        """Return the parcels for the row: those up to this number that are not sent."""
        held = self._held[: max(0, upto + 1 - self._first)]
        return ParcelRow(self.origin, self._first, held)

    def wrote(self, row: ParcelRow) -> None:
        """Record that the row is stored."""
        self._in_row = row.first
        self._stored = max(self._stored, row.first + len(row.parcels) - 1)
        if self.has_unsent and self.sender is not None:
            self.sender.on_stored()

    def restore(self) -> None:
        """Drop the parcels that were added since the last stored value."""
        keep = max([self._stored, *(one.upto for one in self._asked)]) + 1 - self._first
        self.size_bytes -= sum(map(len, self._held[keep:]))
        del self._held[keep:]
        if not self._held and not self._stored:
            self.origin = ""  # no row has it: the code that adds the next parcel sets it
