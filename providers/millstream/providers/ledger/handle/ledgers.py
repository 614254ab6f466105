"""The ledgers of one cluster, as a process uses them.

Owns: `BookieLedgers`, which implements `topic.ledgers.Ledgers`. Invariants: a number belongs to one
ledger only. A ledger is deleted by deleting its row, and bookies find out by themselves.
"""

from __future__ import annotations

from millstream.providers.ledger.metadata.ledgers import LedgerIds
from millstream.providers.ledger.protocol.entry import NOTHING
from millstream.providers.ledger.protocol.errors import NotEnoughBookies
from millstream.providers.ledger.protocol.quorum import Quorum, check_quorum
from millstream.providers.ledger.protocol.record import Fragment, LedgerRecord, LedgerState

from .context import HandleContext, choose, existing
from .reader import LedgerReader
from .recovery import recover
from .writer import LedgerWriter

__all__ = ["BookieLedgers"]

FIRST_TERM = 1
ALONE = Quorum(1, 1, 1)


class BookieLedgers:
    """Creates, opens, recovers and deletes ledgers.

    Args:
        context: the options, the metadata and the bookies of this process.
        numbers: gives each new ledger its number.
        usual: the quorum of ledgers that are created without one.
    """

    def __init__(self, context: HandleContext, numbers: LedgerIds, usual: Quorum = ALONE) -> None:
        self._context = context
        self._numbers = numbers
        self._usual = usual
        self._writers: dict[int, LedgerWriter] = {}

    async def create(
        self, quorum: Quorum | None, topic: str, /, first: int = 0, owner: tuple[int, int] = (0, 0)
    ) -> LedgerWriter:
        wanted = self._usual if quorum is None else quorum
        check_quorum(wanted)
        bookies = self._choose(wanted.ensemble)
        if len(bookies) < wanted.ensemble:
            await self._context.bookies.look()  # others may have been started
            bookies = self._choose(wanted.ensemble)
        found = len(bookies)
        if found < wanted.ack:
            text = f"a ledger of {topic!r} needs {wanted.ack} running bookies with free disk space"
            whys = self._context.bookies.unwilling().values()
            why = "".join(f"; {why}" for why in whys)
            raise NotEnoughBookies(f"{text}, but there are {found}; start more, or free space{why}")
        quorum = wanted.reduce(found)
        number = await self._numbers.next()
        record = LedgerRecord(
            ledger=number,
            state=LedgerState.OPEN,
            quorum=quorum,
            term=FIRST_TERM,
            fragments=(Fragment(0, tuple(bookies)),),
            topic=topic,
            created_s=self._context.clock.wall_s(),
            wanted=wanted if quorum.write < wanted.write else None,
            first=first,
            owner=owner,
        )
        record = await self._context.rows.create(number, record)
        if await self._numbers.is_late(number):
            await self._context.rows.delete(number)
            return await self.create(
                wanted, topic, first, owner
            )  # more bookies may be there by now
        writer = LedgerWriter(self._context, record)
        self._writers = {n: w for n, w in self._writers.items() if w.failed is None}
        self._writers[number] = writer
        return writer

    def _choose(self, count: int) -> list[str]:
        return choose(self._context.bookies.writable(), count, (), self._context.clock)

    async def recover(self, ledger: int, /) -> LedgerRecord:
        return await recover(self._context, ledger)

    async def reader(self, ledger: int, /) -> LedgerReader:
        record = existing(ledger, await self._context.rows.read(ledger))

        def find_confirmed() -> int:
            writer = self._writers.get(ledger)
            return NOTHING if writer is None else writer.confirmed

        return LedgerReader(self._context, record, find_confirmed)

    async def delete(self, ledger: int, /) -> None:
        await self._context.rows.delete(ledger)
