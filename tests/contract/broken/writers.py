"""Adapters that store too much, too little, or other messages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from msgspec.structs import replace
from tests.contract.broken.fault import refused_by
from tests.contract.reference import PromptAdapter, ReferenceAdapter, Shelf

from millstream.runtime import EnqueueFailed, PublishUnknown, QueueFull, StreamError
from millstream.streams import MessageLimits, OutMessage, ProducerMark, StreamId, Token

Messages = Sequence[OutMessage]
Tokens = Sequence[Token | None]


@refused_by("messages_are_read_as_they_were_enqueued")
class LosesHeaders(ReferenceAdapter):
    def store(self, shelf: Shelf, message: OutMessage) -> Token:
        return super().store(shelf, replace(message, headers={}))


@refused_by("messages_are_read_as_they_were_enqueued", "leases")
class DropsEmptyItems(ReferenceAdapter):
    def store(self, shelf: Shelf, message: OutMessage) -> Token:
        return super().store(shelf, replace(message, items=[one for one in message.items if one]))


@refused_by("messages_are_read_as_they_were_enqueued", "log")
class MixesUpStreams(ReferenceAdapter):
    def store(self, shelf: Shelf, message: OutMessage) -> Token:
        stream = StreamId(message.stream.key, message.stream.namespace)
        return super().store(shelf, replace(message, stream=stream))


@refused_by("messages_are_read_as_they_were_enqueued", "tags")
class NumbersItems(ReferenceAdapter):
    def store(self, shelf: Shelf, message: OutMessage) -> Token:
        token = super().store(shelf, message)
        shelf.stored[-1].token = token._replace(index=1)
        return token


@refused_by("a_list_is_stored_whole")
class StoresTheFirst(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        first = await super().enqueue(queue, messages[:1], mapper_epoch)
        return [*first, *[None] * (len(messages) - 1)]


@refused_by("a_list_is_stored_whole", "log")
class StoresBackwards(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        return await super().enqueue(queue, messages[::-1], mapper_epoch)


@refused_by("the_largest_message_is_stored")
class SaysMoreBytesThanItTakes(ReferenceAdapter):
    largest = MessageLimits(bytes_max=4_095, items_max=70)


@refused_by("the_largest_message_is_stored", "leases")
class SaysMoreItemsThanItTakes(ReferenceAdapter):
    largest = MessageLimits(bytes_max=4_096, items_max=69)


@refused_by("a_list_is_stored_whole", "leases")
class AnswersOnce(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        return (await super().enqueue(queue, messages, mapper_epoch))[:1]


@refused_by("a_list_is_stored_whole", "tags")
class AnswersNothing(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        await super().enqueue(queue, messages, mapper_epoch)
        return None  # type: ignore[return-value]


@refused_by("tokens_that_enqueue_tells_are_those_that_are_read")
class TellsOtherTokens(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        await super().enqueue(queue, messages, mapper_epoch)
        return [Token(1, number) for number in range(len(messages))]


@refused_by("queues_are_independent", "tags")
class HasOneQueue(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        return await super().enqueue("queue-0", messages, mapper_epoch)


@refused_by("two_silos_may_enqueue_at_the_same_time")
class CountsByItself(ReferenceAdapter):
    """Reads the last number once, and later writes the next one without a check."""

    mine = 0

    def store(self, shelf: Shelf, message: OutMessage) -> Token:
        shelf.seq = self.mine
        self.mine += 1
        return super().store(shelf, message)


@refused_by("a_full_queue_has_stored_a_prefix")
class GoesOnBehindAFailure(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        try:
            return await super().enqueue(queue, messages, mapper_epoch)
        except EnqueueFailed as error:
            self.store(self.broker.shelf(queue), messages[-1])
            raise error


@refused_by("a_full_queue_has_stored_a_prefix", "log")
class HidesThePrefix(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        try:
            return await super().enqueue(queue, messages, mapper_epoch)
        except EnqueueFailed as error:
            raise QueueFull("nothing is stored") from error


@refused_by("a_full_queue_has_stored_a_prefix", "tags")
class AcceptsAllAndFails(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        try:
            return await super().enqueue(queue, messages, mapper_epoch)
        except EnqueueFailed as error:
            raise EnqueueFailed([None] * len(messages), error.cause) from error


@refused_by("a_full_queue_has_stored_a_prefix", "memory")
class KnowsWhatItRefused(ReferenceAdapter):
    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        try:
            return super().accept(shelf, message, mapper_epoch)
        finally:
            if message.mark is not None:
                shelf.known[message.mark.producer] = message.mark.seq


@refused_by("a_repeated_sequence_is_stored_once", "leases")
class KnowsNothing(ReferenceAdapter):
    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        return super().accept(shelf, replace(message, mark=None), mapper_epoch)


@refused_by("a_repeated_sequence_is_stored_once")
class TakesZeroForNone(ReferenceAdapter):
    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        mark = message.mark if message.mark is not None and message.mark.seq else None
        return super().accept(shelf, replace(message, mark=mark), mapper_epoch)


@refused_by("a_repeated_sequence_is_stored_once", "memory")
class RefusesWhatIsKnown(ReferenceAdapter):
    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        token = super().accept(shelf, message, mapper_epoch)
        if token is None:
            raise StreamError("known")
        return token


@refused_by("each_producer_has_its_own_sequences")
class KnowsOneProducer(ReferenceAdapter):
    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        mark = message.mark and ProducerMark("everybody", message.mark.seq)
        return super().accept(shelf, replace(message, mark=mark), mapper_epoch)


@refused_by("a_sequence_is_known_per_queue")
class KnowsAcrossQueues(ReferenceAdapter):
    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        for other in self.broker.shelves.values():
            shelf.known.update(other.known)
        return super().accept(shelf, message, mapper_epoch)


class KnowsInItsSilo(ReferenceAdapter):
    """Remembers the messages of producers in one adapter only."""

    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        mine = self.__dict__.setdefault("known", {}).setdefault(id(shelf), {})
        shelf.known = mine
        return super().accept(shelf, message, mapper_epoch)


refused_by("a_sequence_is_known_in_every_silo")(KnowsInItsSilo)
refused_by("a_sequence_is_known_after_reopening")(KnowsInItsSilo)


@refused_by("a_sequence_is_known_when_its_message_is_done")
class KnowsWhatIsStillThere(ReferenceAdapter):
    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        if all(self.is_done(shelf, one) for one in shelf.stored):
            shelf.known.clear()
        return super().accept(shelf, message, mapper_epoch)


@refused_by("messages_survive_reopening", "log")
class ForgetsWhenClosed(ReferenceAdapter):
    async def aclose(self) -> None:
        await super().aclose()
        for shelf in self.broker.shelves.values():
            shelf.stored.clear()


@refused_by("tokens_rise_over_reopening")
class CountsAnewWhenEmpty(ReferenceAdapter):
    async def aclose(self) -> None:
        await super().aclose()
        for shelf in self.broker.shelves.values():
            shelf.seq, shelf.own = 0, Token(0, 0)
            shelf.stored.clear()


@refused_by("a_list_is_stored_whole", "memory")
class RaisesOddly(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        raise KeyError(queue)


@refused_by("messages_survive_reopening")
class KnowsNoOutcome(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        raise EnqueueFailed((), PublishUnknown("who knows"))


@refused_by("two_queues_may_be_enqueued_to_at_the_same_time", "tags")
class RemembersOneQueue(ReferenceAdapter):
    queue = ""

    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        self.queue = queue
        await asyncio.sleep(0)
        return await super().enqueue(self.queue, messages, mapper_epoch)


@refused_by("what_is_declared_is_there")
class HasNoReader(ReferenceAdapter):
    reader = None  # type: ignore[assignment]


@refused_by("what_is_declared_is_there")
class CannotSeal(ReferenceAdapter):
    seal = None  # type: ignore[assignment]


class DrawsLots:
    """A mapper that returns another queue each time."""

    epoch = 1

    def __init__(self) -> None:
        self.turn = itertools.count()

    def queues(self) -> Sequence[str]:
        return ("queue-0", "queue-1")

    def queue_for(self, stream: StreamId, /) -> str:
        return f"queue-{next(self.turn) % 2}"


@refused_by("queues_of_its_own_mapper_are_sound", "log")
class BringsLots(ReferenceAdapter):
    def mapper(self, changed: Callable[[], None], /) -> DrawsLots:
        return DrawsLots()


@refused_by("a_list_that_was_cancelled_can_be_repeated", "memory")
class KnowsBeforeItStores(ReferenceAdapter):
    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        return super().accept(shelf, replace(message, mark=None), mapper_epoch)

    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        known = self.broker.shelf(queue).known
        new = [one for one in messages if one.mark and one.mark.seq > known.get("p", -1)]
        known.update({one.mark.producer: one.mark.seq for one in new if one.mark})
        await super().enqueue(queue, new, mapper_epoch)
        return [None] * len(messages)


@refused_by("a_list_that_was_cancelled_can_be_repeated", "leases")
class StoresInSpiteOfAll(ReferenceAdapter):
    async def enqueue(self, queue: str, messages: Messages, mapper_epoch: int, /) -> Tokens:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue


@refused_by("a_list_is_stored_whole")
class StoresAPrefixAtOnceAndAgain(PromptAdapter):
    def enqueue_at_once(
        self, queue: str, messages: Messages, mapper_epoch: int, /
    ) -> Tokens | None:
        super().enqueue_at_once(queue, messages[:2], mapper_epoch)
        return None


@refused_by("a_list_is_stored_whole", "tags")
class StoresAtOnceAndThenFails(PromptAdapter):
    def enqueue_at_once(
        self, queue: str, messages: Messages, mapper_epoch: int, /
    ) -> Tokens | None:
        super().enqueue_at_once(queue, messages, mapper_epoch)
        raise QueueFull("after all")


@refused_by("messages_are_read_as_they_were_enqueued")
class ForgetsWhatItStoresAtOnce(PromptAdapter):
    def enqueue_at_once(
        self, queue: str, messages: Messages, mapper_epoch: int, /
    ) -> Tokens | None:
        return [None] * len(messages)


@refused_by("a_list_is_stored_whole")
class TellsTooFewTokensAtOnce(PromptAdapter):
    def enqueue_at_once(
        self, queue: str, messages: Messages, mapper_epoch: int, /
    ) -> Tokens | None:
        tokens = super().enqueue_at_once(queue, messages, mapper_epoch)
        return None if tokens is None else tokens[1:]


@refused_by("messages_are_read_as_they_were_enqueued")
class RaisesSomethingAtOnce(PromptAdapter):
    def enqueue_at_once(
        self, queue: str, messages: Messages, mapper_epoch: int, /
    ) -> Tokens | None:
        raise KeyError(queue)


@refused_by("each_producer_has_its_own_sequences")
class MixesUpProducersAtOnce(PromptAdapter):
    def enqueue_at_once(
        self, queue: str, messages: Messages, mapper_epoch: int, /
    ) -> Tokens | None:
        mark = messages[0].mark
        if mark is not None and mark.seq <= max(
            self.broker.shelf(queue).known.values(), default=-1
        ):
            return [None] * len(messages)
        return super().enqueue_at_once(queue, messages, mapper_epoch)
