"""The row of a topic, as its owner changes it.

Owns: `OwnedTopic`. Invariants: one change is running at a time, so `record` is never older than the
last write of this owner. An owner that finds a higher epoch gets QueueFenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.providers.ledger.metadata.rows import RecordRows

from .record import TopicRecord, make_owned_change

__all__ = ["OwnedTopic"]


class OwnedTopic:
    """A topic that its owner has opened. An owner can open a topic several times in one epoch.

    Attributes:
        record: the record of the topic, as this process wrote or read it last.
    """

    __slots__ = ("_rows", "_writing", "record")

    def __init__(self, rows: RecordRows[str, TopicRecord], record: TopicRecord) -> None:
        self._rows = rows
        self._writing = asyncio.Lock()
        self.record = record

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.record.topic

    async def update(self, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        """Change the record; `change` may run twice. Raises QueueFenced, StorageError."""
        async with self._writing:
            checked = make_owned_change(self.record, change)
            self.record = await self._rows.update(self.record.topic, checked)
            return self.record

    async def check(self) -> None:
        """Raise QueueFenced if another process has taken the topic over.

        The method writes the unchanged record. Raises StorageError if that write fails.
        """
        await self.update(lambda record: record)
