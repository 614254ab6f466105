"""Where the rows of one cluster of ledgers are, and who writes them.

Owns: `Metadata`, and the names of all rows:

    ledger/<scope>/instance                    the name of these rows, which directories keep
    ledger/<scope>/counter                     the next ledger's number
    ledger/<scope>/ledgers/<19 digits>         the record of a ledger
    ledger/<scope>/bookies/<uuid>              a bookie as it last said of itself
    ledger/<scope>/topics/<topic>              the record of a topic
    ledger/<scope>/managed/<topic>             partitions of a topic that is used alone
    ledger/<scope>/cursors/<topic>/<cursor>    how far a named cursor is
    ledger/<scope>/witness/<n>/<row>           how new the row of that name must be

Not: what is in a row (`protocol.record`, `bookies`, `ledgers`, `topic.record`), or how it is
written (`rows`, `witness`). Invariants: whatever is in scope, topic or cursor, two names never give
one key, and no key is below another's folder; every operation has a token of its own.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from urllib.parse import quote

from millstream.runtime import StateStore
from millstream.runtime.extending import Backoff, Clock, DamageLog

__all__ = ["Metadata", "key_part"]

log = logging.getLogger("millstream.ledger")

BETWEEN_TRIES = Backoff(first_s=0.005, ceiling_s=1.0)
READABLE = " :@,;=+"  # beside letters, digits and _.-~
TOKEN_HIGH = 2.0**48


def key_part(name: str) -> str:
    """A name as one part of a key: readable, without `/`."""
    return quote(name, safe=READABLE)


class Metadata:
    """The rows of one cluster of ledgers, in a state store that all of its processes share.

    Args:
        store: durable, if the ledgers are to be: what it loses, ledgers lose.
        scope: tells clusters of ledgers in one store apart.
        clock: for back-offs and tokens.
        owner: who writes, such as the silo's address; for people who look at rows.

    Attributes: `damage`, where whoever meets a damaged row, and goes on without it, says so.
    """

    __slots__ = ("_clock", "_counter", "_mark", "_prefix", "_store", "damage")

    def __init__(self, store: StateStore, scope: str, clock: Clock, owner: str = "") -> None:
        self._store = store
        self._prefix = f"ledger/{key_part(scope)}/"
        self._clock = clock
        # the owner's name alone is no token: two parts of a silo may write one row
        self._mark = f"{owner}:{int(clock.uniform(0.0, TOKEN_HIGH)):012x}"
        self._counter = count(1)
        self.damage = DamageLog(log)

    @property
    def store(self) -> StateStore:
        """Where the rows are."""
        return self._store

    @property
    def prefix(self) -> str:
        """How all keys of this cluster's rows begin."""
        return self._prefix

    @property
    def writer(self) -> str:
        """Who writes: the owner, and what tells this object from all others."""
        return self._mark

    def key(self, name: str) -> str:
        """The key of a row, by its name behind the scope."""
        return self._prefix + name

    def new_operation(self) -> str:
        """A token that no other write has."""
        return f"{self._mark}:{next(self._counter)}"

    async def wait_after(self, attempt: int) -> None:
        """Wait until the next attempt; they count from 1."""
        roll = self._clock.uniform(0.0, 1.0)
        await asyncio.sleep(BETWEEN_TRIES.delay_s(attempt, roll))
