"""All rows of a cluster's ledgers, for programs outside of the cluster.

Owns: `Source`, `Content`. Not: the content of rows. Invariant: damaged rows are left out, and
listed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar
from urllib.parse import unquote

from millstream.providers.ledger.alone.process import OneProcess
from millstream.providers.ledger.metadata.bookies import BookieRecord, bookie_rows
from millstream.providers.ledger.metadata.ledgers import ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows, RowRecord
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.providers.ledger.recovery.report import RecoveryReport, report_rows
from millstream.providers.ledger.scrubbing.report import ScrubReport, scrub_rows
from millstream.providers.ledger.topic.cursors.cursor import CursorRecord, cursor_rows
from millstream.providers.ledger.topic.record import TopicRecord, topic_rows
from millstream.runtime import Corrupt, Env, StateStore

__all__ = ["Content", "Source", "scopes_in", "source_in"]

T = TypeVar("T", bound=RowRecord)

HIGHEST = chr(0x10FFFF)
FOLDER = "ledger/"


@dataclass(frozen=True, slots=True)
class Content:
    """All rows of one cluster's ledgers, each as it was when it was read.

    Attributes:
        topics: the topics, by name.
        ledgers: the ledgers, by number.
        bookies: the bookies, by UUID.
        cursors: the cursors of each topic.
        reports: the reports on recovery, one for each directory group.
        scrubs: the reports on scrubbing, one for each bookie.
        damaged: the errors of rows that cannot be read, by name, such as `topics/t`.
    """

    topics: dict[str, TopicRecord]
    ledgers: dict[int, LedgerRecord]
    bookies: dict[str, BookieRecord]
    cursors: dict[str, list[CursorRecord]]
    reports: list[RecoveryReport]
    scrubs: list[ScrubReport]
    damaged: dict[str, Corrupt]

    def topic(self, name: str) -> TopicRecord:
        """Return a topic.

        Raises:
            LookupError: there is no such topic. The text names similar ones.
            Corrupt: its row is damaged.
        """
        self._refuse_damaged(f"topics/{key_part(name)}")
        if name not in self.topics:
            raise LookupError(f"there is no topic {name!r}; {near(name, self.topics)}")
        return self.topics[name]

    def ledger(self, ledger: int) -> LedgerRecord:
        """Return a ledger.

        Raises:
            LookupError: there is no such ledger. The text names neighbours.
            Corrupt: its row is damaged.
        """
        self._refuse_damaged(f"ledgers/{ledger:019d}")
        if ledger not in self.ledgers:
            others = sorted(self.ledgers, key=lambda one: (abs(one - ledger), one))[:3]
            known = ", ".join(map(str, sorted(others))) or "none"
            text = f"there is no ledger {ledger}: it was deleted, or never created"
            raise LookupError(f"{text}; the nearest ones: {known}")
        return self.ledgers[ledger]

    def bookie(self, text: str) -> BookieRecord:
        """Return a bookie by its UUID, or by the beginning of it.

        Raises:
            LookupError: there is no such bookie, or several. The text names similar ones.
            Corrupt: its row is damaged.
        """
        self._refuse_damaged(f"bookies/{text}")
        found = [name for name in self.bookies if text and name.startswith(text)]
        if len(found) != 1:
            what = f"{len(found)} bookies begin with" if found else "there is no bookie"
            raise LookupError(f"{what} {text!r}; {near(text, found or self.bookies)}")
        return self.bookies[found[0]]

    def _refuse_damaged(self, row: str) -> None:
        if row in self.damaged:
            raise self.damaged[row]

    def count_damaged(self, folder: str) -> int:
        """Return how many rows of a folder, such as `ledgers/`, are damaged."""
        return sum(row.startswith(folder) for row in self.damaged)

    def list_lost_bookies(self) -> set[str]:
        """Return the bookies that are lost according to the last report."""
        told = (one for report in self.reports for one in report.bookies)
        return {one.bookie for one in told if one.standing == "lost"}


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of one cluster's ledgers. Made by `source_in`."""

    store: StateStore
    scope: str
    metadata: Metadata
    process: OneProcess

    async def content(self) -> Content:
        """Read all rows that can be read.

        Raises:
            StorageError: the store does not answer.
        """
        cursors: dict[str, list[CursorRecord]] = {}
        damaged: dict[str, Corrupt] = {}
        for cursor in await self._all(cursor_rows(self.metadata), damaged):
            cursors.setdefault(cursor.topic, []).append(cursor)
        return Content(
            {one.topic: one for one in await self._all(topic_rows(self.metadata), damaged)},
            {one.ledger: one for one in await self._all(ledger_rows(self.metadata), damaged)},
            {one.bookie: one for one in await self._all(bookie_rows(self.metadata), damaged)},
            cursors,
            await self._all(report_rows(self.metadata), damaged),
            await self._all(scrub_rows(self.metadata), damaged),
            damaged,
        )

    async def _all(self, rows: RecordRows[Any, T], damaged: dict[str, Corrupt]) -> list[T]:
        scan = rows.scan()
        found = [one async for one in scan]
        damaged |= {f"{rows.folder}{name}": error for name, error in scan.damaged.items()}
        return found


@asynccontextmanager
async def source_in(store: StateStore, scope: str) -> AsyncIterator[Source]:
    """Open the rows of one cluster for the length of a block.

    Args:
        store: the state store of the cluster.
        scope: the cluster, by a name that `scopes_in` yields.
    """
    process = OneProcess(Env())
    yield Source(store, scope, Metadata(store, scope, process.clock, process.silo), process)
    await process.tasks.aclose()


async def scopes_in(store: StateStore) -> AsyncIterator[str]:
    """Yield the clusters that have ledgers in a store.

    Raises:
        StorageError: the store does not answer.
    """
    after = ""
    while page := await store.scan(FOLDER, after, 1):
        part = page[0][0].removeprefix(FOLDER).partition("/")[0]
        yield unquote(part)
        after = f"{FOLDER}{part}/{HIGHEST}"


def near(name: str, names: Iterable[str]) -> str:
    """Return a text for an unknown name: up to three similar names, or else the first three."""
    known = sorted(names)
    found = get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
    return f"similar names: {', '.join(found)}" if found else "no name is known"
