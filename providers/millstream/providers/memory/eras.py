"""Which era the tokens of an in-memory queue have, and the seal that changes it.

Owns: `Eras`. Invariants: numbers go on through a seal, and eras only rise with them; a seal is made
once for a mapper epoch; the second last era is kept, an older one has no message left that anybody
waits for.
"""

from __future__ import annotations

import msgspec

from millstream.streams import Token

__all__ = ["Eras"]


class Eras(msgspec.Struct, array_like=True):
    """The eras of one queue's messages.

    `first`: up to number `sealed_at`; `newest`: from there on. `barrier`: the last message before
    the seal. `mapper_epoch`: what was mapped by an older one is refused.
    """

    newest: int
    first: int = -1
    sealed_at: int = -1
    mapper_epoch: int = 0
    barrier: Token | None = None

    def of(self, number: int) -> int:
        """The era of a message."""
        return self.first if number <= self.sealed_at else self.newest

    def token(self, number: int) -> Token:
        """The token of a message."""
        return Token(self.of(number), number)

    def seal(self, mapper_epoch: int, era: int, last: Token | None, end: int) -> Token | None:
        """Begin an era behind message number `end`; again, or an older one, changes nothing."""
        if mapper_epoch > self.mapper_epoch:
            self.mapper_epoch, self.barrier = mapper_epoch, last
            self.first, self.sealed_at = self.newest, end
            self.newest = max(era, self.newest)
        return self.barrier
