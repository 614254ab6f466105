"""Adapters that do not retain the messages that they should."""

from __future__ import annotations

from collections.abc import Mapping

from tests.contract.broken.fault import refused_by
from tests.contract.reference import ReferenceAdapter, Shelf, Stored

from millstream.streams import Token


@refused_by("what_is_retained_is_told")
class TellsOnlyItsOwn(ReferenceAdapter):
    mine: frozenset[str] = frozenset()

    async def retain(self, queue: str, reader: str, position: Token | None, /) -> None:
        self.mine |= {reader}
        await super().retain(queue, reader, position)

    async def list_retained(self, queue: str, /) -> Mapping[str, Token]:
        found = await super().list_retained(queue)
        return {name: token for name, token in found.items() if name in self.mine}


@refused_by("what_is_retained_is_told")
class TakesQueuesForOne(ReferenceAdapter):
    async def retain(self, queue: str, reader: str, position: Token | None, /) -> None:
        for one in ("queue-0", "queue-1"):
            await super().retain(one, reader, position)


@refused_by("what_is_retained_is_told")
class TellsTheLastDone(ReferenceAdapter):
    async def list_retained(self, queue: str, /) -> Mapping[str, Token]:
        found = await super().list_retained(queue)
        return {name: token._replace(seq=token.seq - 1) for name, token in found.items()}


@refused_by("a_retained_position_never_goes_back")
class GoesBack(ReferenceAdapter):
    async def retain(self, queue: str, reader: str, position: Token | None, /) -> None:
        if position is not None:
            await self.let_go(queue, reader)
        await super().retain(queue, reader, position)


@refused_by("a_retained_position_never_goes_back")
class BeginsAnewWithoutAPosition(ReferenceAdapter):
    async def retain(self, queue: str, reader: str, position: Token | None, /) -> None:
        if position is None:
            await self.let_go(queue, reader)
        await super().retain(queue, reader, position)


@refused_by("a_reader_without_a_position_retains_all_that_is_there")
class RetainsWhatComes(ReferenceAdapter):
    async def retain(self, queue: str, reader: str, position: Token | None, /) -> None:
        shelf = self.broker.shelf(queue)
        await super().retain(queue, reader, position or Token(shelf.era, shelf.seq + 1))


@refused_by("a_reader_without_a_position_retains_all_that_is_there")
class RetainsBehindTheNext(ReferenceAdapter):
    async def retain(self, queue: str, reader: str, position: Token | None, /) -> None:
        shelf = self.broker.shelf(queue)
        behind = None if shelf.stored else Token(shelf.era, shelf.seq + 2)
        await super().retain(queue, reader, position or behind)


@refused_by("who_is_let_go_retains_nothing")
class LetsNobodyGo(ReferenceAdapter):
    async def let_go(self, queue: str, reader: str, /) -> None: ...


@refused_by("who_is_let_go_retains_nothing")
class LetsAllGo(ReferenceAdapter):
    async def let_go(self, queue: str, reader: str, /) -> None:
        self.broker.shelf(queue).retained.clear()


@refused_by("who_is_let_go_retains_nothing")
class LetsGoOnce(ReferenceAdapter):
    async def let_go(self, queue: str, reader: str, /) -> None:
        del self.broker.shelf(queue).retained[reader]


@refused_by("who_is_let_go_retains_nothing")
class RemembersWhoWasLetGo(ReferenceAdapter):
    async def let_go(self, queue: str, reader: str, /) -> None:
        await super().retain(queue, f"past {reader}", None)
        await super().let_go(queue, reader)

    async def list_retained(self, queue: str, /) -> Mapping[str, Token]:
        found = await super().list_retained(queue)
        return {name: token for name, token in found.items() if f"past {name}" not in found}


@refused_by("what_is_retained_outlives_every_silo")
class ForgetsWithItsSilo(ReferenceAdapter):
    async def aclose(self) -> None:
        for shelf in self.broker.shelves.values():
            shelf.retained.clear()
        await super().aclose()


@refused_by("what_is_retained_is_kept")
class KeepsNothing(ReferenceAdapter):
    def keeps(self, shelf: Shelf, one: Stored) -> bool:
        return False


@refused_by("what_is_retained_is_kept")
class KeepsWhatIsBehind(ReferenceAdapter):
    def keeps(self, shelf: Shelf, one: Stored) -> bool:
        return any(one.token > position for position in shelf.retained.values())


@refused_by("what_is_retained_is_kept")
class KeepsForEver(ReferenceAdapter):
    first: Token | None = None

    def keeps(self, shelf: Shelf, one: Stored) -> bool:
        self.first = self.first or min(shelf.retained.values())
        return one.token >= self.first
