"""Receivers that read, wait or acknowledge wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace
from tests.contract.broken.fault import refused_by
from tests.contract.reference import NOWHERE, ReferenceAdapter, ReferenceReceiver, Stored

from millstream.runtime import CursorTooOld
from millstream.streams import QueueMessage, Token

Messages = Sequence[QueueMessage]


@refused_by("messages_are_read_in_order_with_rising_tokens", "log")
class ReadsBackwards(ReferenceReceiver):
    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        return (await super().read(max_events, max_bytes, wait_s))[::-1]


@refused_by("messages_are_read_in_order_with_rising_tokens")
class OneTokenForAll(ReferenceReceiver):
    def give(self, one: Stored) -> QueueMessage:
        return replace(super().give(one), token=Token(1, 1))


@refused_by("tokens_rise_from_read_to_read", "log")
class NumbersEachReadAnew(ReferenceReceiver):
    """Numbers the messages of each read from 1; tokens rise only within a read."""

    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        found = await super().read(max_events, max_bytes, wait_s)
        return [replace(one, token=Token(1, number)) for number, one in enumerate(found, 1)]


@refused_by("tokens_rise_over_epochs")
class CountsFromItsStart(ReferenceReceiver):
    count = 0

    def give(self, one: Stored) -> QueueMessage:
        self.count += 1
        return replace(super().give(one), token=Token(1, self.count))


@refused_by("a_message_is_read_once", "log")
class ReadsTheLastAgain(ReferenceReceiver):
    def give(self, one: Stored) -> QueueMessage:
        before = self.at
        found = super().give(one)
        self.at = before
        return found


@refused_by("an_empty_queue_reads_as_nothing")
class WaitsAsItLikes(ReferenceReceiver):
    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        return await super().read(max_events, max_bytes, wait_s + 3.0)


@refused_by("an_empty_queue_reads_as_nothing", "leases")
class NeverReturns(ReferenceReceiver):
    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        return await super().read(max_events, max_bytes, 1e9)


@refused_by("an_empty_queue_reads_as_nothing", "tags")
class ReturnsNone(ReferenceReceiver):
    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        return (await super().read(max_events, max_bytes, wait_s)) or None  # type: ignore[return-value]


@refused_by("an_empty_queue_reads_as_nothing", "log")
class CancelsItself(ReferenceReceiver):
    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        raise asyncio.CancelledError


@refused_by("a_read_that_finds_nothing_has_waited")
class DoesNotWait(ReferenceReceiver):
    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        return await super().read(max_events, max_bytes, 0.0)


class SleepsThroughTheBell(ReferenceReceiver):
    async def wait(self, bell: asyncio.Event, end_s: float) -> None:
        await asyncio.sleep(max(0.0, end_s - self.now))


refused_by("a_read_that_waits_is_woken")(SleepsThroughTheBell)
refused_by("closing_a_receiver_ends_a_read_that_waits")(SleepsThroughTheBell)


@refused_by("max_events_counts_events")
class CountsMessages(ReferenceReceiver):
    def within(self, ones: list[Stored], max_events: int, max_bytes: int) -> list[Stored]:
        return super().within(ones, 10**6, max_bytes)[:max_events]


@refused_by("max_events_bounds_single_events", "tags")
class ReadsAll(ReferenceReceiver):
    def within(self, ones: list[Stored], max_events: int, max_bytes: int) -> list[Stored]:
        return ones


@refused_by("max_events_counts_events", "log")
class DropsWhatIsTooMuch(ReferenceReceiver):
    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        found = await super().read(10**6, max_bytes, wait_s)
        return found[: max(1, max_events // 3)]


@refused_by("max_bytes_bounds_a_read", "leases")
class ForgetsBytes(ReferenceReceiver):
    def within(self, ones: list[Stored], max_events: int, max_bytes: int) -> list[Stored]:
        return super().within(ones, max_events, 10**9)


@refused_by("max_bytes_bounds_a_read")
class CannotReadBigOnes(ReferenceReceiver):
    def within(self, ones: list[Stored], max_events: int, max_bytes: int) -> list[Stored]:
        found = super().within(ones, max_events, max_bytes)
        return found if found and found[0].size_bytes <= max_bytes else []


@refused_by("calls_go_beside_a_read_that_waits")
class OneCallAtATime(ReferenceReceiver):
    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.lock = asyncio.Lock()

    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        async with self.lock:
            return await super().read(max_events, max_bytes, wait_s)

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        async with self.lock:
            await super().ack(upto, also)


@refused_by("calls_go_beside_a_read_that_waits", "leases")
class AcknowledgingEndsReading(ReferenceReceiver):
    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        await super().ack(upto, also)
        self.is_closed = True
        self.shelf.ring()


class SwallowsCancellation(ReferenceReceiver):
    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        while True:
            try:
                return await super().read(max_events, max_bytes, 1e6)
            except asyncio.CancelledError:
                continue


refused_by("a_cancelled_read_ends_and_nothing_is_lost")(SwallowsCancellation)
refused_by("an_empty_queue_reads_as_nothing")(SwallowsCancellation)


class TakesBeforeItWaits(ReferenceReceiver):
    """Loses the messages that a cancelled read had taken."""

    async def read(self, max_events: int, max_bytes: int, wait_s: float, /) -> Messages:
        found = await super().read(max_events, max_bytes, wait_s)
        for message in found:
            for one in self.named([message.token]):
                self.shelf.stored.remove(one)
        await asyncio.sleep(0)
        return found

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        self.check_fence()


refused_by("a_cancelled_read_ends_and_nothing_is_lost", "tags")(TakesBeforeItWaits)
refused_by("a_read_cancelled_while_it_waits_loses_nothing", "leases")(TakesBeforeItWaits)
refused_by("what_is_not_acknowledged_is_read_again", "tags")(TakesBeforeItWaits)


@refused_by("what_is_not_acknowledged_is_read_again", "leases")
class NumbersReadings(ReferenceReceiver):
    def give(self, one: Stored) -> QueueMessage:
        one.token = Token(self.epoch, one.token.seq)
        return super().give(one)


class StartsAtTheOldest(ReferenceReceiver):
    async def start(self, after: Token | None, /) -> None:
        await super().start(None)


refused_by("what_is_acknowledged_is_not_read_again", "log")(StartsAtTheOldest)
refused_by("start_begins_behind_a_position", "log")(StartsAtTheOldest)
refused_by("start_begins_at_the_later_position")(StartsAtTheOldest)
refused_by("without_a_position_of_its_own_start_begins_where_it_is_told", "log")(StartsAtTheOldest)


@refused_by("start_begins_behind_a_position", "log")
class StartsAtThePosition(ReferenceReceiver):
    async def start(self, after: Token | None, /) -> None:
        await super().start(after)
        if after is not None:
            self.at = after._replace(seq=after.seq - 1)


@refused_by("start_begins_at_the_later_position")
class StartsWhereItIsTold(ReferenceReceiver):
    async def start(self, after: Token | None, /) -> None:
        await super().start(after)
        self.at = after or self.at


@refused_by("start_acknowledges_nothing")
class AcksWhereItStarts(ReferenceReceiver):
    async def start(self, after: Token | None, /) -> None:
        await super().start(after)
        self.shelf.own = self.at


@refused_by("start_behind_the_last_message_reads_what_comes_next", "log")
class BeginsAnewAtTheEnd(ReferenceReceiver):
    async def start(self, after: Token | None, /) -> None:
        await super().start(after)
        if self.at == self.shelf.last:
            self.at = NOWHERE


@refused_by("what_is_acknowledged_is_not_read_again")
class TheLastAckCounts(ReferenceReceiver):
    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        await super().ack(upto, also)
        self.shelf.own = upto or NOWHERE


@refused_by("single_messages_are_acknowledged", "leases")
class AcksTheFirstToo(ReferenceReceiver):
    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        upto_also = max(also, default=NOWHERE)
        await super().ack(upto, [one.token for one in self.shelf.stored if one.token <= upto_also])


@refused_by("single_messages_are_acknowledged", "tags")
class ForgetsSingleAcks(ReferenceReceiver):
    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        await super().ack(upto)


class KeepsDoneInASilo(ReferenceAdapter):
    async def aclose(self) -> None:
        await super().aclose()
        for shelf in self.broker.shelves.values():
            shelf.own = NOWHERE
            for one in shelf.stored:
                one.is_done = False


refused_by("single_acknowledgements_survive_reopening", "leases")(KeepsDoneInASilo)
refused_by("its_own_position_survives_reopening")(KeepsDoneInASilo)


@refused_by("its_own_position_is_known_in_every_silo")
class KeepsItsPosition(ReferenceReceiver):
    async def start(self, after: Token | None, /) -> None:
        await super().start(after)
        self.at = after or self.adapter.__dict__.get("own", NOWHERE)

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        await super().ack(upto, also)
        self.adapter.__dict__["own"] = upto


@refused_by("a_position_that_is_gone_is_said", "log")
class HidesGaps(ReferenceReceiver):
    def check_kept(self, after: Token | None) -> None: ...


@refused_by("a_position_that_is_gone_is_said")
class NamesNoFirst(ReferenceReceiver):
    def check_kept(self, after: Token | None) -> None:
        try:
            super().check_kept(after)
        except CursorTooOld:
            raise CursorTooOld("gone") from None


@refused_by("a_receiver_is_replaced_in_its_epoch")
class AnEpochIsForOne(ReferenceReceiver):
    async def start(self, after: Token | None, /) -> None:
        await super().start(after)
        self.shelf.epoch = self.epoch + 1


@refused_by("an_older_epoch_is_fenced")
class FencesNobody(ReferenceReceiver):
    def check_fence(self) -> None: ...


@refused_by("an_older_epoch_is_fenced", "leases")
class FencesTooLate(ReferenceReceiver):
    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        for one in self.named(also):
            one.is_done = True
        self.check_fence()


@refused_by("an_older_epoch_is_fenced", "memory")
class FencesAtStartOnly(ReferenceReceiver):
    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        self.shelf.own = max(self.shelf.own, upto or NOWHERE)


@refused_by("what_was_acknowledged_before_the_fence_counts")
class AcknowledgesLater(ReferenceReceiver):
    """Answers before it stores, and stores with the next acknowledgement."""

    late = NOWHERE

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        await super().ack(self.late, also)
        self.late = upto or NOWHERE


@refused_by("the_fence_survives_reopening")
class ForgetsEpochs(ReferenceAdapter):
    async def aclose(self) -> None:
        await super().aclose()
        for shelf in self.broker.shelves.values():
            shelf.epoch = 0


@refused_by("the_fence_is_of_one_queue")
class FencesAllQueues(ReferenceReceiver):
    def check_fence(self) -> None:
        for shelf in self.adapter.broker.shelves.values():
            self.shelf.epoch = max(self.shelf.epoch, shelf.epoch)
        super().check_fence()


@refused_by("a_receiver_does_nothing_before_start")
class FencesWhenMade(ReferenceReceiver):
    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.shelf.epoch = max(self.shelf.epoch, self.epoch)


@refused_by("closing_twice_is_harmless")
class ClosesOnce(ReferenceReceiver):
    async def aclose(self) -> None:
        if self.is_closed:
            raise RuntimeError("it is closed already")
        await super().aclose()


@refused_by("closing_one_silo_leaves_the_others_alone")
class ClosesEverySilo(ReferenceAdapter):
    def receiver(self, queue: str, epoch: int, /) -> ReferenceReceiver:
        found = super().receiver(queue, epoch)
        self.broker.__dict__.setdefault("receivers", []).append(found)
        return found

    async def aclose(self) -> None:
        for receiver in self.broker.__dict__.get("receivers", []):
            await receiver.aclose()


@refused_by("closing_twice_is_harmless", "log")
class ClosingHangs(ReferenceReceiver):
    async def aclose(self) -> None:
        await asyncio.get_running_loop().create_future()
