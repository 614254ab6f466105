"""Receivers that count, lease or release single messages wrongly."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from tests.contract.broken.fault import refused_by
from tests.contract.reference import ReferenceReceiver, Stored

from millstream.streams import QueueMessage, Token

Tokens = Sequence[Token]


class KeepsWhatIsReleased(ReferenceReceiver):
    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None: ...


refused_by("what_is_released_is_read_again", "leases")(KeepsWhatIsReleased)
refused_by("what_is_released_is_read_again", "tags")(KeepsWhatIsReleased)


@refused_by("what_is_released_is_read_again", "leases")
class ReleasesAll(ReferenceReceiver):
    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        held = [one.token for one in self.shelf.stored]
        await super().release(held, delay_s, has_run)


@refused_by("a_released_message_waits_for_its_delay", "tags")
class ReleasesAtOnce(ReferenceReceiver):
    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        await super().release(tokens, 0.0, has_run)


@refused_by("a_released_message_waits_for_its_delay", "leases")
class DelaysForAnHour(ReferenceReceiver):
    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        await super().release(tokens, delay_s * 3600, has_run)


class CutsDelays(ReferenceReceiver):
    """Cuts delays by less than half."""

    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        await super().release(tokens, delay_s * 0.7, has_run)


class LimitsDelays(ReferenceReceiver):
    """Limits delays, like a broker with a maximum."""

    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        await super().release(tokens, min(delay_s, 1.5), has_run)


class RoundsDelaysDown(ReferenceReceiver):
    """Rounds delays down, like a broker that counts in seconds."""

    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        await super().release(tokens, int(delay_s), has_run)


for sooner in (CutsDelays, LimitsDelays, RoundsDelaysDown):
    refused_by("a_released_message_waits_for_its_delay", "leases")(sooner)
    refused_by("a_released_message_waits_for_its_delay", "tags")(sooner)


@refused_by("a_long_list_is_released_whole", "leases")
class ReleasesTenAtMost(ReferenceReceiver):
    """Releases ten messages at most, like an adapter that sends one request for a list of any
    length."""

    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        await super().release(tokens[:10], delay_s, has_run)


@refused_by("a_long_list_is_acknowledged_whole", "tags")
class AcknowledgesTenAtMost(ReferenceReceiver):
    async def ack(self, upto: Token | None, also: Tokens = (), /) -> None:
        await super().ack(upto, also[:10])


@refused_by("what_has_failed_is_over", "leases")
class KeepsWhatHasFailed(ReferenceReceiver):
    async def fail(self, tokens: Tokens, reason: str, /) -> None: ...


@refused_by("what_has_failed_is_over", "tags")
class FailsTenAtMost(ReferenceReceiver):
    async def fail(self, tokens: Tokens, reason: str, /) -> None:
        await self.ack(None, tokens[:10])


@refused_by("what_has_failed_is_over", "leases")
class FailsTwiceOddly(ReferenceReceiver):
    async def fail(self, tokens: Tokens, reason: str, /) -> None:
        if any(one.is_done for one in self.named(tokens)):
            raise KeyError(reason)
        await self.ack(None, tokens)


@refused_by("releasing_what_is_done_changes_nothing", "leases")
class RevivesWhatIsDone(ReferenceReceiver):
    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        for one in self.named(tokens):
            one.is_done, one.ready_s = False, 0.0


@refused_by("releasing_what_is_done_changes_nothing", "tags")
class ChokesOnUnknownTokens(ReferenceReceiver):
    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        by_token = {one.token: one for one in self.shelf.stored}
        await super().release([by_token[one].token for one in tokens], delay_s, has_run)


@refused_by("only_what_has_run_counts_as_an_attempt", "leases")
class CountsEveryRelease(ReferenceReceiver):
    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        await super().release(tokens, delay_s, True)


@refused_by("only_what_has_run_counts_as_an_attempt", "leases")
class CountsNoRelease(ReferenceReceiver):
    async def release(self, tokens: Tokens, delay_s: float, has_run: bool, /) -> None:
        await super().release(tokens, delay_s, False)


@refused_by("only_what_has_run_counts_as_an_attempt", "tags")
class ClosingCounts(ReferenceReceiver):
    async def aclose(self) -> None:
        for one in self.shelf.stored:
            one.attempt += one.holder is self
        await super().aclose()


@refused_by("a_message_says_what_is_left_of_its_lease", "leases")
class HidesLeases(ReferenceReceiver):
    def give(self, one: Stored) -> QueueMessage:
        return replace(super().give(one), lease_s=0.0)


@refused_by("a_lease_that_runs_out_gives_the_message_back", "leases")
class LeasesForever(ReferenceReceiver):
    def give(self, one: Stored) -> QueueMessage:
        found = super().give(one)
        one.ready_s = 1e9
        return found


@refused_by("a_lease_that_runs_out_gives_the_message_back", "leases")
class LeasesForLess(ReferenceReceiver):
    def give(self, one: Stored) -> QueueMessage:
        return replace(super().give(one), lease_s=1.0)


@refused_by("a_silent_owner_does_not_keep_messages", "leases")
class LeasesAreForItself(ReferenceReceiver):
    def readable(self) -> list[Stored]:
        return [one for one in super().readable() if one.holder in (None, self)]


@refused_by("extending_holds_a_message", "leases")
class ExtendsNothing(ReferenceReceiver):
    async def extend(self, tokens: Tokens, lease_s: float, /) -> Tokens:
        return ()


@refused_by("extending_lasts_as_long_as_was_asked", "leases")
class ExtendsByHalf(ReferenceReceiver):
    async def extend(self, tokens: Tokens, lease_s: float, /) -> Tokens:
        return await super().extend(tokens, lease_s / 2)


@refused_by("extending_lasts_as_long_as_was_asked", "leases")
class LimitsExtensions(ReferenceReceiver):
    async def extend(self, tokens: Tokens, lease_s: float, /) -> Tokens:
        return await super().extend(tokens, min(lease_s, 1.5))


@refused_by("extending_lasts_as_long_as_was_asked", "leases")
class ExtendsForAnHour(ReferenceReceiver):
    async def extend(self, tokens: Tokens, lease_s: float, /) -> Tokens:
        return await super().extend(tokens, 3600)


@refused_by("a_long_list_is_extended_whole", "leases")
class ExtendsTenAtMost(ReferenceReceiver):
    async def extend(self, tokens: Tokens, lease_s: float, /) -> Tokens:
        return await super().extend(tokens[:10], lease_s)


@refused_by("extending_says_what_is_lost", "leases")
class LosesNothing(ReferenceReceiver):
    async def extend(self, tokens: Tokens, lease_s: float, /) -> Tokens:
        await super().extend(tokens, lease_s)
        return ()


@refused_by("extending_says_what_is_lost", "leases")
class LosesAll(ReferenceReceiver):
    async def extend(self, tokens: Tokens, lease_s: float, /) -> Tokens:
        lost = await super().extend(tokens, lease_s)
        return tokens if lost else ()


@refused_by("a_lease_that_another_owner_has_is_lost", "leases")
class ExtendsWhatOthersHave(ReferenceReceiver):
    def mine(self, tokens: Tokens) -> list[Stored]:
        return [one for one in self.named(tokens) if not one.is_done]


@refused_by("closing_gives_back_at_once", "leases")
class ClosesWithoutGivingBack(ReferenceReceiver):
    async def aclose(self) -> None:
        self.is_closed = True
        self.shelf.ring()


@refused_by("closing_gives_back_at_once", "leases")
class ClosingAcknowledges(ReferenceReceiver):
    async def aclose(self) -> None:
        for one in self.shelf.stored:
            one.is_done = one.is_done or one.holder is self
        await super().aclose()


@refused_by("neighbours_are_read_while_one_is_out", "leases")
class OneAtATime(ReferenceReceiver):
    def readable(self) -> list[Stored]:
        is_held = any(one.ready_s > self.now and not one.is_done for one in self.shelf.stored)
        return [] if is_held else super().readable()


@refused_by("a_token_of_a_former_receiver_settles_nothing_else", "tags")
class ForgetsTheSession(ReferenceReceiver):
    """Uses tags as tokens, which each receiver counts from 1."""

    def tags(self) -> dict[int, Stored]:
        found: dict[int, Stored] = self.__dict__.setdefault("given", {})
        return found

    def give(self, one: Stored) -> QueueMessage:
        self.tags()[len(self.tags()) + 1] = one
        return replace(super().give(one), token=Token(1, len(self.tags())))

    def named(self, tokens: Tokens) -> list[Stored]:
        return [self.tags()[token.seq] for token in tokens if token.seq in self.tags()]
