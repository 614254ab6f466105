"""Reads the subscriptions of streams from the store, while they are unknown.

Owns `ColdStreams`: it chooses the questions and repeats them until there is an answer.
`subscribers` has the entries of streams, and `audience` adds subscriptions from rows.

Invariants: streams that become cold in one iteration of the loop are read together. A stream that
cannot be read delays no other stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from millstream.runtime.extending import Clock, LineBudget, Tasks, show_text
from millstream.streams.agent.delivery.deliveries import Deliveries
from millstream.streams.agent.delivery.dispatch import Dispatch
from millstream.streams.api.subscription_rows import WHOLE_STREAM, SubscriptionRow
from millstream.streams.contracts.answers import text_of
from millstream.streams.contracts.identity import StreamId

from .audience import Audience, Known
from .fan_out import FanOut
from .stopped_subscriptions import StoppedSubscriptions
from .stream_entry import AT_ONCE, StreamEntry, follow_few, follow_stream, parts

__all__ = ["ColdStreams"]

log = logging.getLogger("millstream.subscribers")

ASKED_AT_ONCE = 1_000
"""Streams whose subscription rows are read by one question."""
ASK_RETRY_S = 0.5
ASK_LIMIT_S = 60.0  # seconds for one question to the store


class ColdStreams:
    """Reads the subscriptions of the streams of one queue.

    Args:
        stopped: the stored rows of streams without explicit subscriptions.
        progressed: called when a waiting message may be done.
    """

    __slots__ = (
        "_audience",
        "_clock",
        "_deliveries",
        "_dispatch",
        "_fan_out",
        "_known",
        "_lines",
        "_progressed",
        "_stopped",
        "_tasks",
        "_unasked",
    )

    def __init__(
        self,
        known: Known,
        stopped: StoppedSubscriptions,
        audience: Audience,
        fan_out: FanOut,
        deliveries: Deliveries,
        dispatch: Dispatch,
        clock: Clock,
        tasks: Tasks,
        progressed: Callable[[], None],
    ) -> None:
        self._known, self._stopped = known, stopped
        self._audience, self._fan_out = audience, fan_out
        self._deliveries, self._dispatch = deliveries, dispatch
        self._clock = clock
        self._tasks = tasks
        self._progressed = progressed
        self._unasked: list[tuple[StreamId, StreamEntry]] = []  # since this iteration of the loop
        self._lines = LineBudget()

    def is_implicit_only(self, stream: StreamId) -> bool:
        """Say whether the stream can never have explicit subscriptions."""
        return self._known.implicit.kinds(stream.namespace) == "implicit"

    def ask(self, stream: StreamId, entry: StreamEntry) -> None:
        """Read the rows of all streams together that become cold in this iteration of the loop."""
        entry.asking = "the subscriptions of the stream are being read"
        self._unasked.append((stream, entry))
        if len(self._unasked) == 1:
            self._tasks.start(self._ask_all())

    async def _ask_all(self) -> None:
        asked, self._unasked = self._unasked, []
        for part in parts(asked, ASKED_AT_ONCE):
            self._tasks.start(self._ask(part))

    async def _ask(self, asked: Sequence[tuple[StreamId, StreamEntry]]) -> None:
        """Read the rows of some streams until that succeeds; other streams do not wait."""
        while True:
            try:
                rows = await self._rows_of([stream for stream, _ in asked])
                break
            except Exception as error:  # any error; one stream may be the cause
                if len(asked) > 1:
                    for one in asked:
                        self._tasks.start(self._ask([one]))
                    return
                self._note_unknown(*asked[0], error)
                await asyncio.sleep(ASK_RETRY_S)
        for some in parts(asked, AT_ONCE):
            for stream, entry in some:
                self._on_answer(stream, entry, rows[stream])
            self._progressed()
            self._dispatch.pump()
            await asyncio.sleep(0)

    def _note_unknown(self, stream: StreamId, entry: StreamEntry, error: Exception) -> None:
        text = f"{type(error).__name__}: {text_of(error)}"
        entry.asking = f"the subscriptions of the stream are read again, after {text}"
        left_out = self._lines.take(self._clock.now())
        if left_out is not None:
            said = "the subscriptions of %s are not known yet, so its events wait: %s: %s%s"
            log.warning(
                said, show_text(str(stream)), type(error).__name__, text_of(error), left_out
            )

    async def _rows_of(
        self, streams: Collection[StreamId]
    ) -> Mapping[StreamId, Sequence[SubscriptionRow]]:
        """Return the rows of these streams. Raises any error of the store."""
        implicit = [stream for stream in streams if self.is_implicit_only(stream)]
        others = [stream for stream in streams if not self.is_implicit_only(stream)]
        async with asyncio.timeout(ASK_LIMIT_S):
            found = dict(await self._known.rows_of(others)) if others else {}
            for stream in implicit:
                found[stream] = await self._stopped.of(stream)
        return found

    def _on_answer(
        self, stream: StreamId, entry: StreamEntry, rows: Sequence[SubscriptionRow]
    ) -> None:
        """Add the stored subscriptions, and give them the messages that waited.

        This is done at once, or part by part in a task if there are many subscriptions.
        """
        entry.asking = ""
        if len(rows) > AT_ONCE:
            self._tasks.start(self._learn(stream, entry, rows))
            return
        self._audience.add_stored(stream, entry, rows)
        entry.holds.setdefault(WHOLE_STREAM, "")
        follow_few(entry, self._deliveries)
        self._audience.restore(stream, entry)
        self._fan_out.offer_cold(entry)

    async def _learn(
        self, stream: StreamId, entry: StreamEntry, rows: Sequence[SubscriptionRow]
    ) -> None:
        for part in parts(rows, AT_ONCE):
            self._audience.add_stored(stream, entry, part)
            await asyncio.sleep(0)
        entry.holds.setdefault(WHOLE_STREAM, "")
        await follow_stream(entry, self._deliveries)
        self._audience.restore(stream, entry)
        self._fan_out.offer_cold(entry)
        self._progressed()
        self._dispatch.pump()
