"""What a state carries until it is sent: numbered bytes, stored in the row beside the value.

Owns: `Parcels` of one state. Not: writing the row (`state`), what is in a parcel and where it goes
(`ParcelSender`). Pure. Invariants: a parcel is sent only once it is stored, and stays in the row
until it is sent; numbers rise by one, and a number that was stored is not given again; what a
restored value no longer knows of is dropped, unless a write under way has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["ParcelRow", "ParcelSender", "Parcels", "WriteRequest"]


class ParcelRow(NamedTuple):
    """Parcels as a row has them: whose numbers these are, the first number, the parcels."""

    origin: str = ""
    first: int = 1
    parcels: Sequence[bytes] = ()


class WriteRequest:
    """A write that was asked for; `upto`: the last parcel that goes with it."""

    __slots__ = ("upto",)

    def __init__(self, upto: int) -> None:
        self.upto = upto


class ParcelSender(Protocol):
    """Who sends the parcels of a state."""

    def on_stored(self) -> None:
        """More may be sent now. Does not raise."""
        ...

    async def wait_sent(self) -> None:
        """Wait until what is stored is sent. Raises Overloaded: it takes too long."""
        ...


class Parcels:
    """The parcels of one state.

    Attributes: `origin` tells these numbers from those that a row of the same key had before it was
    lost; whoever adds the first parcel sets it. `sender`: who is told of what is stored.
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
        self._asked: list[WriteRequest] = []  # the writes that are under way
        self.load(ParcelRow())

    def load(self, row: ParcelRow) -> None:
        """Begin with what a row has."""
        self.origin = row.origin
        self._first = self._in_row = row.first  # number of the first held, and in the row
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
        """Parcels that are not sent."""
        return self.last - self._sent

    @property
    def has_unsent(self) -> bool:
        """Is anything stored, and not sent?"""
        return self._sent < self._stored

    @property
    def is_trimmed(self) -> bool:
        """Has the row nothing that is sent?"""
        return self._in_row > self._sent

    def add(self, parcel: bytes) -> None:
        """Let a parcel go with the next write that is asked for."""
        self._held.append(parcel)
        self.size_bytes += len(parcel)

    def unsent(self, limit: int) -> list[tuple[int, bytes]]:
        """The first parcels that are stored and not sent, with their numbers."""
        numbers = range(self._sent + 1, min(self._stored, self._sent + limit) + 1)
        return [(number, self._held[number - self._first]) for number in numbers]

    def on_done(self, upto: int) -> None:
        """Everything up to this number is sent."""
        assert self._sent <= upto <= self._stored, f"{upto} is sent, {self._stored} stored"
        gone = upto + 1 - self._first
        self.size_bytes -= sum(map(len, self._held[:gone]))
        del self._held[:gone]
        self._first, self._sent = upto + 1, upto

    # -- asked by the state

    def ask(self) -> WriteRequest:
        """A write is asked for: every parcel goes with it."""
        asked = WriteRequest(self.last)
        self._asked.append(asked)
        return asked

    def join(self, asked: WriteRequest) -> None:
        """A write that was asked for has not begun: every parcel goes with it."""
        asked.upto = self.last

    def on_ended(self, asked: WriteRequest) -> None:
        """A write has ended, well or not."""
        self._asked.remove(asked)

    def row(self, upto: int) -> ParcelRow:
        """What the row is to have: all that is not sent, up to this number."""
        held = self._held[: max(0, upto + 1 - self._first)]
        return ParcelRow(self.origin, self._first, held)

    def wrote(self, row: ParcelRow) -> None:
        """The row is stored."""
        self._in_row = row.first
        self._stored = max(self._stored, row.first + len(row.parcels) - 1)
        if self.has_unsent and self.sender is not None:
            self.sender.on_stored()

    def restore(self) -> None:
        """The value is again what is stored: what was added since is dropped."""
        keep = max([self._stored, *(one.upto for one in self._asked)]) + 1 - self._first
        self.size_bytes -= sum(map(len, self._held[keep:]))
        del self._held[keep:]
        if not self._held and not self._stored:
            self.origin = ""  # nothing has it: whoever adds the first one sets it
