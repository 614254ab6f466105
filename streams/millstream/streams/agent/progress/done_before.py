"""What a former owner has done above the frontier, which is read again and not delivered again.

Owns: `DoneBefore`. Pure. Invariants: tokens are asked for in rising order; what has been passed is
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import TokenRange

__all__ = ["DoneBefore"]


class DoneBefore:
    """Ranges of messages that are done, as a hand-off names them.

    Attributes: `is_left`: False once all are passed.
    """

    __slots__ = ("_at", "_ranges", "is_left")

    def __init__(self, ranges: Iterable[TokenRange] = ()) -> None:
        self._ranges = tuple(ranges)
        self._at = 0  # the first that is not passed
        self.is_left = bool(self._ranges)

    def blanked(self, messages: Sequence[QueueMessage]) -> list[QueueMessage]:
        """The same messages, without the items of those that are done."""
        return [
            QueueMessage(one.stream, one.token, (), enqueued_s=one.enqueued_s)
            if self._has(one.token)
            else one
            for one in messages
        ]

    def _has(self, token: Token) -> bool:
        while self.is_left and self._ranges[self._at][1] < token:
            self._at += 1
            self.is_left = self._at < len(self._ranges)
        return self.is_left and self._ranges[self._at][0] <= token

    def above(self, token: Token | None) -> list[TokenRange]:
        """What is left of them above a message."""
        return [one for one in self._ranges[self._at :] if token is None or one[1] > token]
