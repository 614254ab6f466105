"""Readers and seals that break the contract."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime

from tests.contract.broken.fault import refused_by
from tests.contract.reference import ReferenceAdapter, ReferenceReader

from millstream.runtime import StaleMapper
from millstream.streams import OutMessage, Page, StreamId, Token

Streams = frozenset[StreamId] | None
Bounds = tuple[Token | None, Token | None]


@refused_by("bounds_are_the_first_and_the_last_message")
class BoundsOfNothing(ReferenceReader):
    async def bounds(self) -> Bounds:
        low, high = await super().bounds()
        return low or Token(1, 0), high or Token(1, 0)


@refused_by("bounds_are_the_first_and_the_last_message")
class BoundsTheNextOne(ReferenceReader):
    async def bounds(self) -> Bounds:
        low, high = await super().bounds()
        return low, high and high._replace(seq=high.seq + 1)


@refused_by("messages_are_read_again_from_a_position")
class BeginsBehindThePosition(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        behind = position._replace(seq=position.seq + 1)
        return await super().read_from(behind, max_events, max_bytes, streams)


@refused_by("pages_follow_each_other")
class PagesOverlap(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        page = await super().read_from(position, max_events, max_bytes, streams)
        return page._replace(next=page.messages[-1].token) if page.messages else page


@refused_by("pages_follow_each_other")
class PagesAreWhole(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        return await super().read_from(position, 10**6, max_bytes, streams)


@refused_by("pages_are_of_the_streams_that_were_asked_for")
class GivesEveryStream(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        return await super().read_from(position, max_events, max_bytes, None)


@refused_by("pages_are_of_the_streams_that_were_asked_for")
class AnEmptyPageIsTheEnd(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        page = await super().read_from(position, max_events, 1, streams)
        return page if page.messages else page._replace(at_end=True)


@refused_by("max_bytes_bounds_what_is_looked_at")
class LooksAtAll(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        return await super().read_from(position, max_events, 10**9, streams)


@refused_by("max_bytes_bounds_what_is_looked_at")
class LooksAtNothing(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        if max_bytes < 100:
            return Page((), position, False)
        return await super().read_from(position, max_events, max_bytes, streams)


class LagsBehind(ReferenceReader):
    """Sees all stored messages except the last one."""

    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        kept, self.shelf.stored = self.shelf.stored, self.shelf.stored[:-1]
        try:
            return await super().read_from(position, max_events, max_bytes, streams)
        finally:
            self.shelf.stored = kept


refused_by("a_reader_sees_what_read_has_returned")(LagsBehind)
refused_by("a_reader_of_another_silo_sees_the_queue")(LagsBehind)


@refused_by("a_reader_goes_on_at_the_end")
class TheEndIsFinal(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        page = await super().read_from(position, max_events, max_bytes, streams)
        return page._replace(next=Token(1 << 31, 0)) if page.at_end else page


@refused_by("readers_disturb_nobody")
class ReadingTakes(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        page = await super().read_from(position, max_events, max_bytes, streams)
        self.shelf.stored.clear()
        return page


@refused_by("seek_finds_the_first_message_at_or_after_a_time")
class SeeksBackwards(ReferenceReader):
    async def seek(self, when: datetime, /) -> Token | None:
        before = [one for one in self.shelf.stored if one.enqueued_s <= when.timestamp()]
        return before[-1].token if before else self.shelf.stored[0].token


@refused_by("seek_finds_the_first_message_at_or_after_a_time")
class LeavesOutTheVeryTime(ReferenceReader):
    async def seek(self, when: datetime, /) -> Token | None:
        times = ((one.enqueued_s, one.token) for one in self.shelf.stored)
        return next((token for at_s, token in times if at_s > when.timestamp()), None)


@refused_by("seek_finds_the_first_message_at_or_after_a_time")
class FindsTheLastOfATime(ReferenceReader):
    async def seek(self, when: datetime, /) -> Token | None:
        stamps = [one.enqueued_s for one in self.shelf.stored]
        at = bisect_left(stamps, when.timestamp())
        if at == len(stamps):
            return None
        return self.shelf.stored[bisect_right(stamps, stamps[at]) - 1].token


@refused_by("seek_finds_the_first_message_at_or_after_a_time")
class ForgetsTheZone(ReferenceReader):
    async def seek(self, when: datetime, /) -> Token | None:
        return await super().seek(datetime.fromtimestamp(when.timestamp() - 7200, UTC))


class ReadsOverGaps(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        kept = self.shelf.stored
        first = max(position, kept[0].token) if kept else position
        return await super().read_from(first, max_events, max_bytes, streams)


refused_by("a_page_before_what_is_kept_is_refused")(ReadsOverGaps)


@refused_by("a_sealed_queue_refuses_older_mappers")
class SealsNothing(ReferenceAdapter):
    async def seal(self, queue: str, mapper_epoch: int, era: int, /) -> Token | None:
        return self.broker.shelf(queue).last


@refused_by("a_sealed_queue_refuses_older_mappers")
class SealsForAll(ReferenceAdapter):
    async def seal(self, queue: str, mapper_epoch: int, era: int, /) -> Token | None:
        barrier = await super().seal(queue, mapper_epoch, era)
        self.broker.shelf(queue).mapper_epoch += 1
        return barrier


@refused_by("the_barrier_is_the_last_message_before_the_seal")
class MovesTheBarrier(ReferenceAdapter):
    async def seal(self, queue: str, mapper_epoch: int, era: int, /) -> Token | None:
        await super().seal(queue, mapper_epoch, era)
        return self.broker.shelf(queue).last


@refused_by("messages_behind_a_seal_have_its_era")
class KeepsItsEra(ReferenceAdapter):
    async def seal(self, queue: str, mapper_epoch: int, era: int, /) -> Token | None:
        shelf = self.broker.shelf(queue)
        before = shelf.era, shelf.seq
        barrier = await super().seal(queue, mapper_epoch, era)
        shelf.era, shelf.seq = before
        return barrier


@refused_by("a_known_sequence_is_accepted_behind_a_seal")
class TheSealComesFirst(ReferenceAdapter):
    def accept(self, shelf: object, message: OutMessage, mapper_epoch: int) -> Token | None:
        found = self.broker.shelf("queue-0")
        if mapper_epoch < found.mapper_epoch:
            raise StaleMapper("too old")
        return super().accept(found, message, mapper_epoch)


@refused_by("a_seal_is_of_one_queue")
class SealsEveryQueue(ReferenceAdapter):
    async def seal(self, queue: str, mapper_epoch: int, era: int, /) -> Token | None:
        await super().seal("queue-1", mapper_epoch, era)
        return await super().seal(queue, mapper_epoch, era)


@refused_by("a_seal_survives_reopening")
class ForgetsSeals(ReferenceAdapter):
    async def aclose(self) -> None:
        await super().aclose()
        for shelf in self.broker.shelves.values():
            shelf.mapper_epoch = 0
