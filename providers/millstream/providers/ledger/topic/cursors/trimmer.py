"""Deleting the ledgers of a topic that are no longer needed.

Owns: `Trimmer`. Not: the choice of ledgers (`retention`). Invariant: a ledger leaves the topic's
list before it is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream.providers.ledger.topic.appending.outbox import Outbox
from millstream.providers.ledger.topic.ledgers import Ledgers, delete_unlisted
from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.providers.ledger.topic.owned import OwnedTopic
from millstream.providers.ledger.topic.record import TopicRecord
from millstream.runtime import Corrupt, QueueFenced, StorageError
from millstream.runtime.extending import Clock, Tasks, show_text

from .cursors import Cursors
from .retention import ledgers_to_trim

__all__ = ["Trimmer"]

log = logging.getLogger("millstream.ledger")


class Trimmer:
    """Deletes messages that all cursors have acknowledged and that retention does not keep.

    Args:
        fenced: called when another owner of the topic was seen.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        owned: OwnedTopic,
        outbox: Outbox,
        cursors: Cursors,
        options: LedgerTopicOptions,
        clock: Clock,
        tasks: Tasks,
        fenced: Callable[[QueueFenced], None],
    ) -> None:
        self._ledgers = ledgers
        self._owned = owned
        self._outbox = outbox
        self._cursors = cursors
        self._options = options
        self._clock = clock
        self._tasks = tasks
        self._fenced = fenced
        self._trimming: asyncio.Task[None] | None = None

    def trim_soon(self) -> None:
        """Start to delete ledgers, if there are some to delete."""
        if self._trimming is None and self._count_to_trim():
            self._trimming = self._tasks.start(self._trim())

    def _count_to_trim(self) -> int:
        mark = self._cursors.stored_mark
        if mark is None:
            return 0
        spans = self._outbox.fill_spans(self._owned.record.spans)
        return ledgers_to_trim(spans, mark + 1, int(self._clock.wall_s() * 1000), self._options)

    async def _trim(self) -> None:
        """Change the list first, then delete the ledgers, so a listed ledger is never deleted."""
        try:
            gone = self._owned.record.spans[: self._count_to_trim()]
            ledgers = {span.ledger for span in gone}

            def without(record: TopicRecord) -> TopicRecord:
                return record.without(sum(span.ledger in ledgers for span in record.spans))

            await self._owned.update(without)
        except QueueFenced as error:
            self._fenced(error)
        except Corrupt as error:
            log.error("topic %s keeps all messages: %s", show_text(self._owned.name), error)
        except StorageError:
            pass  # the next check tries again
        else:
            await asyncio.gather(*(delete_unlisted(self._ledgers, span.ledger) for span in gone))
        finally:
            self._trimming = None

    async def aclose(self) -> None:
        """Delete no more ledgers."""
        trimming, self._trimming = self._trimming, None
        if trimming is not None:
            trimming.cancel()
            await asyncio.wait([trimming])
