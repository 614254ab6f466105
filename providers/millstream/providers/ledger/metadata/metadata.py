"""The place of the rows of one cluster of ledgers, and the name of their writer.

Owns: `Metadata`, and the names of all rows:

    ledger/<scope>/instance                    the name of these rows, which directories store
    ledger/<scope>/counter                     the next ledger's number
    ledger/<scope>/ledgers/<19 digits>         the record of a ledger
    ledger/<scope>/bookies/<uuid>              the last report of a bookie
    ledger/<scope>/topics/<topic>              the record of a topic
    ledger/<scope>/managed/<topic>             the partitions of a topic without a silo
    ledger/<scope>/cursors/<topic>/<cursor>    the progress of a named cursor
    ledger/<scope>/witness/<n>/<row>           how new the row of that name must be

Not: the content of a row (`protocol.record`, `bookies`, `ledgers`, `topic.record`), or how it is
written (`rows`, `witness`). Invariants: two names never give one key, whatever characters scope,
topic or cursor have. No key is inside another key's folder. Every operation has a token of its own.
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
    """Return a name as one part of a key: readable, without `/`."""
    return quote(name, safe=READABLE)


class Metadata:
    """The rows of one cluster of ledgers, in a state store that all of its processes share.

    Args:
        store: as durable as the ledgers must be, since lost rows are lost ledgers.
        scope: tells clusters of ledgers in one store apart.
        clock: for back-offs and tokens.
        owner: the writer, such as the silo's address, for people who look at rows.

    Attributes: `damage`, the log of damaged rows that a reader passed over.
    """

    __slots__ = ("_clock", "_counter", "_mark", "_prefix", "_store", "damage")

    def __init__(self, store: StateStore, scope: str, clock: Clock, owner: str = "") -> None:
        self._store = store
        self._prefix = f"ledger/{key_part(scope)}/"
        self._clock = clock
        # the owner's name alone is not unique: two parts of a silo may write one row
        self._mark = f"{owner}:{int(clock.uniform(0.0, TOKEN_HIGH)):012x}"
        self._counter = count(1)
        self.damage = DamageLog(log)

    @property
    def store(self) -> StateStore:
        """The store of the rows."""
        return self._store

    @property
    def prefix(self) -> str:
        """The beginning of all keys of this cluster's rows."""
        return self._prefix

    @property
    def writer(self) -> str:
        """The name of this writer, which no other object has."""
        return self._mark

    def key(self, name: str) -> str:
        """Return the key of a row, by its name after the scope."""
        return self._prefix + name

    def new_operation(self) -> str:
        """Return a token that no other write has."""
        return f"{self._mark}:{next(self._counter)}"

    async def wait_after(self, attempt: int) -> None:
        """Wait before the next attempt; attempts count from 1."""
        roll = self._clock.uniform(0.0, 1.0)
        await asyncio.sleep(BETWEEN_TRIES.delay_s(attempt, roll))
