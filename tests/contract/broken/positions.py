"""Adapters that report a loss that did not happen, hide one, or name a wrong first position."""

from __future__ import annotations

from tests.contract.broken.fault import refused_by
from tests.contract.reference import NOWHERE, ReferenceReader, ReferenceReceiver

from millstream.runtime import CursorTooOld
from millstream.streams import Page, StreamId, Token

Streams = frozenset[StreamId] | None


class Names(ReferenceReceiver):
    """Chooses the first position of its report."""

    def says(self, first: Token, after: Token) -> Token | None:
        return first

    def check_kept(self, after: Token | None) -> None:
        try:
            super().check_kept(after)
        except CursorTooOld as error:
            first = self.says(error.first, after or NOWHERE)
            raise CursorTooOld("gone", first=first) from None


@refused_by("a_queue_that_lost_everything_says_so", "log")
class NamesTheLastThatIsGone(Names):
    def says(self, first: Token, after: Token) -> Token | None:
        return self.shelf.lost


@refused_by("a_position_that_is_gone_is_said", "log")
class NamesWhatWasAskedFor(Names):
    def says(self, first: Token, after: Token) -> Token | None:
        return after._replace(seq=after.seq + 1)


@refused_by("a_position_that_is_gone_is_said")
class NamesTheOneBehind(Names):
    def says(self, first: Token, after: Token) -> Token | None:
        return first._replace(seq=first.seq + 1)


@refused_by("a_position_that_is_gone_is_said", "log")
class NamesAnItemOfTheLast(Names):
    def says(self, first: Token, after: Token) -> Token | None:
        return self.shelf.lost._replace(index=1)


@refused_by("a_position_that_is_gone_is_said", "log")
class NamesAnOffset(Names):
    def says(self, first: Token, after: Token) -> Token | None:
        return first.seq  # type: ignore[return-value]


@refused_by("a_queue_that_lost_everything_says_so")
class NamesOneThatIsToCome(Names):
    def says(self, first: Token, after: Token) -> Token | None:
        return first if self.shelf.stored else first._replace(seq=first.seq + 1)


@refused_by("a_queue_that_lost_everything_says_so", "log")
class HidesThatAllIsGone(ReferenceReceiver):
    def check_kept(self, after: Token | None) -> None:
        if self.shelf.stored:
            super().check_kept(after)


@refused_by("what_is_gone_and_was_done_is_no_gap", "log")
class ComparesWithOneTooMany(ReferenceReceiver):
    def check_kept(self, after: Token | None) -> None:
        if after is not None and self.shelf.lost != NOWHERE and self.at <= self.shelf.lost:
            raise CursorTooOld("gone", first=self.shelf.first)


class CountsNumbers(ReferenceReceiver):
    """Takes each number for a message: a skipped number counts as a loss."""

    def check_kept(self, after: Token | None) -> None:
        following = (one.token for one in self.shelf.stored if one.token > self.at)
        first = next(following, self.shelf.first)
        if after is not None and first.era == self.at.era and first.seq > self.at.seq + 1:
            raise CursorTooOld("gone", first=first)


class CountsToTheOldest(ReferenceReceiver):
    """Knows the beginning of its log, and takes the number before it for a message."""

    def check_kept(self, after: Token | None) -> None:
        first = self.shelf.first
        if after is not None and first.era == self.at.era and first.seq > self.at.seq + 1:
            raise CursorTooOld("gone", first=first)


refused_by("a_hole_in_the_numbers_is_no_gap", "log")(CountsNumbers)
refused_by("a_hole_in_the_numbers_is_no_gap")(CountsNumbers)
refused_by("a_hole_behind_what_is_gone_is_no_gap", "log")(CountsToTheOldest)
refused_by("a_hole_behind_what_is_gone_is_no_gap", "memory")(CountsToTheOldest)


@refused_by("a_seal_is_no_gap")
class TakesAnotherEraForALoss(ReferenceReceiver):
    def check_kept(self, after: Token | None) -> None:
        super().check_kept(after)
        following = (one.token for one in self.shelf.stored if one.token > self.at)
        first = next(following, self.at)
        if after is not None and first.era > after.era:
            raise CursorTooOld("gone", first=first)


@refused_by("a_page_before_what_is_kept_is_refused")
class PagesNameTheOneBehind(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        try:
            return await super().read_from(position, max_events, max_bytes, streams)
        except CursorTooOld as error:
            first = error.first._replace(seq=error.first.seq + 1)
            raise CursorTooOld("gone", first=first) from None


@refused_by("a_page_of_a_queue_that_lost_everything_is_refused")
class PagesNameTheLastThatIsGone(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        try:
            return await super().read_from(position, max_events, max_bytes, streams)
        except CursorTooOld as error:
            first = error.first if self.shelf.stored else self.shelf.lost
            raise CursorTooOld("gone", first=first) from None


@refused_by("a_page_of_a_queue_that_lost_everything_is_refused")
class GivesPagesOfNothing(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        if not self.shelf.stored:
            return Page([], self.shelf.first, True)
        return await super().read_from(position, max_events, max_bytes, streams)


@refused_by("pages_go_over_holes_in_the_numbers")
class KnowsMessagesOnly(ReferenceReader):
    """Takes a position without a message for a deleted one."""

    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        first = next((one.token for one in self.shelf.stored if one.token >= position), None)
        if first is not None and first != position:
            raise CursorTooOld("gone", first=first)
        return await super().read_from(position, max_events, max_bytes, streams)


@refused_by("pages_go_over_holes_in_the_numbers")
class WaitsForTheLastNumber(ReferenceReader):
    """Takes the last number for the end, which a page before unused numbers never reaches."""

    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        page = await super().read_from(position, max_events, max_bytes, streams)
        return page._replace(at_end=page.next.seq > self.shelf.seq)


@refused_by("a_page_in_a_hole_behind_what_is_gone_is_given")
class ComparesWithTheOldest(ReferenceReader):
    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Streams, /
    ) -> Page:
        if self.shelf.lost != NOWHERE and position < self.shelf.first:
            raise CursorTooOld("gone", first=self.shelf.first)
        return await super().read_from(position, max_events, max_bytes, streams)
