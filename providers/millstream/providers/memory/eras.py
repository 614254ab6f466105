"""The eras of the tokens of a queue in memory, and the seal that changes them.

This module owns `Eras`. Message numbers continue through a seal, and eras only rise with the
numbers. There is one seal for each mapper epoch. Only the last two eras are kept, because no reader
needs a message of an older one.
"""

from __future__ import annotations

import msgspec

from millstream.streams import Token

__all__ = ["Eras"]


class Eras(msgspec.Struct, array_like=True):
    """The eras of one queue's messages.

    A seal ends an era. `first` is the era of the messages before the last seal, and `newest` the
    era of later messages. `sealed_at` is the number of the last message before that seal, and
    `barrier` is the token of the same message. `barrier` is None if there was no message. Messages
    of a mapper epoch below `mapper_epoch` are refused.
    """

    newest: int
    first: int = -1
    sealed_at: int = -1
    mapper_epoch: int = 0
    barrier: Token | None = None

    def of(self, number: int) -> int:
        """Return the era of a message."""
        return self.first if number <= self.sealed_at else self.newest

    def token(self, number: int) -> Token:
        """Return the token of a message."""
        return Token(self.of(number), number)

    def seal(self, mapper_epoch: int, era: int, last: Token | None, end: int) -> Token | None:
        """Begin an era after message number `end`, whose token is `last` (None: no message). Return
        the barrier: `last` of the newest seal.

        A repeated or older seal changes nothing.
        """
        if mapper_epoch > self.mapper_epoch:
            self.mapper_epoch, self.barrier = mapper_epoch, last
            self.first, self.sealed_at = self.newest, end
            self.newest = max(era, self.newest)
        return self.barrier
