"""Lost events of a queue are reported to each affected subscription, in order."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import until
from tests.streams.agent.test_behind import Faults as ReaderFaults
from tests.streams.agent.test_behind import FaultyQueues
from tests.streams.agent.test_contained import LOG_CAPABILITIES, Faults, Queues

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import CursorTooOld, Grain, LocalCluster
from millstream.streams import (
    Backoff,
    CacheLimits,
    DeliveryOptions,
    Event,
    Gap,
    HashRingMapper,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    StreamOptions,
    Token,
    on_gap,
    subscribe,
    why,
)
from millstream.streams import DeliveryOptions as Options
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.agent.losses import (
    LOSSES_MAX,
    TOLD_MAX,
    Loss,
    Losses,
    spanning,
    with_loss,
)
from millstream.streams.contracts.item import Item
from millstream.streams.ownership.record import QueueRecord
from millstream.streams.ownership.store import OwnershipStore

LINES = StreamNamespace("lines", int, subscriptions="implicit")
NOTES = StreamNamespace("notes", int, subscriptions="explicit")
LINE_ID = "implicit/lines/Reader/on_line"
SEEN: dict[str, list[Any]] = defaultdict(list)
BAD: list[str] = []
GATE: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    BAD.clear()
    GATE[:] = [asyncio.Event()]


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        if self.key.startswith("slow"):
            await GATE[0].wait()
        SEEN[self.key].append(event.item)

    @on_gap(LINES)
    async def lost(self, gap: Gap) -> None:
        SEEN[self.key].append(gap)
        if self.key in BAD:
            raise ValueError("cannot be told")


class Listener(Grain):
    async def listen(self, key: str) -> None:
        await self.stream(NOTES, key).subscribe(self._on_note)

    async def _on_note(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)

    @on_gap(NOTES)
    async def lost(self, gap: Gap) -> None:
        SEEN[self.key].append(gap)


# --- the cores


def token(seq: int) -> Token:
    return Token(1, seq)


def items(*seqs: int) -> list[Item]:
    return [Item(token(seq), b"") for seq in seqs]


def subscriber() -> Subscriber:
    stream = StreamId("lines", "k")
    return Subscriber(
        "s", stream, "Reader", "k", "on", Options(), keeps_dead_letters=True, is_explicit=False
    )


def seqs(found: Any) -> list[int]:
    return [one.token.seq for one in found]


def test_a_call_has_no_events_from_before_and_behind_a_gap() -> None:
    one = subscriber()
    assert seqs(one.upto_gap(items(1, 2, 9))) == [1, 2, 9]
    one.lose(Loss(token(4), token(8)))
    assert seqs(one.upto_gap(items(1, 2, 9))) == [1, 2]
    assert seqs(one.upto_gap(items(1, 4))) == [1, 4]
    assert seqs(one.upto_gap(items(8, 9))) == [8, 9]
    assert not one.gaps_before(token(4)) and one.gaps_before(token(8)) == one.gaps
    one.lose(Loss(None, token(10)))
    assert seqs(one.upto_gap(items(1, 11))) == [1, 11] and one.gaps == (Loss(None, token(10)),)


def test_each_of_several_gaps_is_told_before_what_follows_it() -> None:
    one, first, second = subscriber(), Loss(token(1), token(2)), Loss(token(3), token(6))
    one.lose(second)
    one.lose(first)
    assert one.gaps_before(token(2)) == (first,) and one.gaps_before(token(6)) == (first, second)
    assert seqs(one.upto_gap(items(1, 2, 3, 6))) == [1]
    assert seqs(one.upto_gap(items(2, 3, 6))) == [2, 3]
    one.on_told(one.gaps_before(token(2)))
    assert one.gaps_before(token(3)) == () and one.gaps_before(token(6)) == (second,)


def test_what_was_told_is_counted_and_how_much_went_at_most_as_far_as_it_is_known() -> None:
    one = subscriber()
    assert (one.gaps_told, one.gone_max) == (0, 0)
    one.on_told((Loss(token(4), token(8)), Loss(token(9), token(10))))
    assert (one.gaps_told, one.gone_max) == (2, 3)
    one.on_told(())
    assert (one.gaps_told, one.gone_max) == (2, 3)
    for unknown in (Loss(None, token(8)), Loss(token(8), None), Loss(token(8), Token(2, 1))):
        assert unknown.messages_max is None
    assert Loss(token(8), token(8)).messages_max == 0
    one.on_told((Loss(None, token(30)),))
    one.on_told((Loss(token(31), token(33)),))
    assert (one.gaps_told, one.gone_max) == (4, None)


def test_what_is_told_is_over_unless_more_was_lost_meanwhile() -> None:
    one, more = subscriber(), Loss(token(20), token(30))
    one.lose(Loss(token(4), token(8)))
    sent = one.gaps
    one.lose(more)
    one.on_told(sent)
    assert one.gaps == (more,)
    one.lose(Loss(token(29), token(40)))  # adjacent to the other loss
    one.on_told((more,))
    assert one.gaps == (Loss(token(20), token(40)),)
    one.on_told(one.gaps)
    assert not one.gaps


@st.composite
def losses(draw: st.DrawFn) -> Loss:
    after, size = draw(st.none() | st.integers(1, 60)), draw(st.integers(1, 9))
    return Loss(None if after is None else token(after), token((after or 0) + size))


def known(found: Sequence[Loss]) -> tuple[Loss, ...]:
    so_far: tuple[Loss, ...] = ()
    for loss in found:
        so_far = with_loss(so_far, loss)
    return so_far


@given(st.lists(losses(), min_size=1, max_size=6), st.randoms())
def test_losses_are_the_same_in_whatever_order_they_are_found(found: list[Loss], rng: Any) -> None:
    kept = known(found)
    assert known([*found, *kept]) == known(kept) == kept
    assert known(rng.sample(found, len(found))) == kept
    assert all(a.is_apart(b) for a, b in itertools.pairwise(kept))
    for loss in found:  # each loss is within one of them
        assert any(spanning((one, loss)) == one for one in kept)


def test_where_a_loss_ends_is_not_known_it_is_apart_from_what_begins_later() -> None:
    open_ended = Loss(token(1), None)
    assert known([open_ended, open_ended]) == (open_ended,)
    assert known([Loss(token(1), token(5)), open_ended]) == (open_ended,)
    assert known([open_ended, Loss(token(4), token(6))])[0] == open_ended
    assert known([open_ended, Loss(None, token(6))]) == (Loss(None, None),)
    assert known([Loss(None, None), Loss(token(4), token(6))]) == (Loss(None, None),)


def test_losses_are_apart_if_the_first_event_behind_one_is_the_last_before_the_other() -> None:
    losses = (Loss(token(1), token(5)), Loss(token(5), token(9)))
    assert known(losses) == losses
    oldest = (Loss(None, Token(0, 0)), Loss(Token(0, 0), Token(0, 2)))
    assert known(oldest) == oldest


@given(st.permutations(range(LOSSES_MAX + 5)))
def test_at_most_so_many_losses_are_kept_apart_and_none_is_left_out(order: list[int]) -> None:
    gaps = known([])
    for number in order:
        gaps = with_loss(gaps, Loss(token(10 * number + 1), token(10 * number + 5)))
        assert len(gaps) <= LOSSES_MAX
    assert gaps[0].after == token(1) and gaps[-1].first == token(10 * (LOSSES_MAX + 4) + 5)
    assert all(a.is_apart(b) for a, b in itertools.pairwise(gaps))
    for number in order:
        assert any(g.after <= token(10 * number + 1) < g.first for g in gaps if g.after and g.first)


def test_a_stream_that_is_met_again_is_told_once_of_each_loss() -> None:
    losses, first, second = Losses(), StreamId("a", "1"), StreamId("a", "2")
    assert losses.of(first) == () and losses.covers(())
    losses.forget(first, is_told=True)
    losses.add(loss := Loss(token(1), token(5)), 0.0)
    assert losses.of(first) == losses.of(second) == (loss,)
    assert losses.covers((loss,)) and losses.covers((Loss(token(2), token(3)),))
    assert not losses.covers((loss, Loss(token(0), token(3))))
    losses.forget(first, is_told=True)
    losses.forget(second, is_told=False)
    assert losses.of(first) == () and losses.of(second) == (loss,)
    losses.add(more := Loss(token(7), token(9)), 0.0)
    assert losses.of(first) == (loss, more)


def test_at_most_so_many_streams_are_remembered_as_told() -> None:
    losses = Losses()
    losses.add(Loss(None, token(5)), 0.0)
    for number in range(TOLD_MAX + 1):
        losses.forget(StreamId("a", str(number)), is_told=True)
    assert losses.of(StreamId("a", "0")) and not losses.of(StreamId("a", "1"))


# --- in a cluster


def cluster_of(queues: Any = None, retries: int = 5) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            queues or MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.01),
            options=StreamOptions(
                cache=CacheLimits(events_max=40, stream_events_max=6),
                read_retry_s=0.01,
                delivery=DeliveryOptions(retries=retries, backoff=Backoff(0.001, 2, 0.01)),
            ),
        )

    return LocalCluster(silos=1, grains=[Reader, Listener], streams={"default": provider})


def provider_of(cluster: LocalCluster) -> PersistentStreams:
    provider = cluster.silos[0].services.part("default")
    assert isinstance(provider, PersistentStreams)
    return provider


async def record_of(cluster: LocalCluster) -> QueueRecord:
    provider, store = provider_of(cluster), cluster.silos[0].services.store("default")
    (agent,) = provider.manager.agents()
    stored = await OwnershipStore(store, "default").read(agent.queue)
    assert stored is not None
    return stored.record


def gaps_of(key: str) -> list[Gap]:
    return [one for one in SEEN[key] if isinstance(one, Gap)]


def lines(*seqs: int, key: str = "k") -> list[Any]:
    return [seq for seq in SEEN[key] if seq in seqs]


class Troubled:
    """A queue that can lose messages while it is read."""

    def __init__(self, retries: int = 5) -> None:
        self.faults = Faults()
        self.cluster = cluster_of(Queues(self.faults, LOG_CAPABILITIES), retries)

    def agent(self) -> Any:
        return provider_of(self.cluster).manager.agents()[0]

    async def publish(self, key: str, *numbers: int) -> None:
        for number in numbers:
            await self.cluster.stream(LINES, key).publish(number)

    async def lose(self, first: int) -> None:
        """Let the receiver fail; the next one finds that messages before `first` are lost."""
        count = self.agent().findings.gap_count
        self.faults.coming["start"] = [CursorTooOld("gone", first=token(first))]
        self.faults.coming["read"] = [ValueError("odd")]
        await until(lambda: self.agent().findings.gap_count > count)


async def test_a_loss_is_told_once_to_each_subscription_with_its_next_event() -> None:
    queue = Troubled()
    async with queue.cluster as cluster:
        await cluster.grain(Listener, "ear").listen("n")
        await queue.publish("a", 1)
        await cluster.stream(NOTES, "n").publish(1)
        await until(lambda: SEEN["a"] == SEEN["ear"] == [1])
        await queue.lose(first=3)
        await queue.publish("a", 2, 3)
        await queue.publish("b", 1)  # it is not known whether the stream is new
        await cluster.stream(NOTES, "n").publish(2)
        await until(lambda: all(len(SEEN[key]) == n for key, n in (("a", 4), ("b", 2), ("ear", 3))))
        assert [gap.first for key in ("a", "b", "ear") for gap in gaps_of(key)] == [token(3)] * 3
        assert [SEEN[key][-2] for key in ("b", "ear")] == [gaps_of("b")[0], gaps_of("ear")[0]]
        assert SEEN["a"] == [1, Gap(StreamId("lines", "a"), LINE_ID, token(1), token(3)), 2, 3]
        # it did not exist at the time of the loss
        await cluster.grain(Listener, "late").listen("n")
        await cluster.stream(NOTES, "n").publish(3)
        await until(lambda: SEEN["late"] == [3])


async def test_what_waits_from_before_a_gap_is_delivered_before_it_is_told() -> None:
    queue = Troubled()
    async with queue.cluster:
        await queue.publish("slow", 1, 2, 3)
        await until(lambda: queue.agent().reader.core.read_count == 3)
        await queue.lose(first=4)
        await queue.publish("slow", 4, 5)
        await until(lambda: queue.agent().reader.core.read_count == 5)
        GATE[0].set()
        await until(lambda: len(SEEN["slow"]) == 6)
        (gap,) = gaps_of("slow")
        assert SEEN["slow"] == [1, 2, 3, gap, 4, 5]


async def test_gaps_that_wait_are_told_one_by_one_each_before_what_follows_it() -> None:
    queue = Troubled()
    async with queue.cluster:
        await queue.publish("slow", 1)
        await until(lambda: queue.agent().reader.core.read_count == 1)
        await queue.lose(first=2)
        await queue.publish("slow", 2, 3)
        await until(lambda: queue.agent().reader.core.read_count == 3)
        await queue.lose(first=4)
        await queue.publish("slow", 4)
        await until(lambda: queue.agent().reader.core.read_count == 4)
        GATE[0].set()
        await until(lambda: len(SEEN["slow"]) == 6)
        one, two = gaps_of("slow")
        assert SEEN["slow"] == [1, one, 2, 3, two, 4]
        assert [one.after, one.first, two.after, two.first] == [token(seq) for seq in (1, 2, 3, 4)]
        found = await why(queue.cluster, queue.cluster.stream(LINES, "slow"))
        reports = found.reports[1].subscriptions
        assert reports is not None and [(one.gaps, one.gone_max) for one in reports] == [(2, 0)]
        told = "had 2 gaps, in which at most 0 messages of the queue were lost."
        assert found.check == "nothing" and str(found).endswith(told)


async def test_a_gap_handler_that_always_fails_costs_the_event_behind_it_and_no_other() -> None:
    queue = Troubled(retries=1)
    BAD.append("k")
    async with queue.cluster:
        await queue.publish("k", 1)
        await until(lambda: SEEN["k"] == [1])
        await queue.lose(first=2)
        await queue.publish("k", 2, 3)
        await until(lambda: 3 in SEEN["k"])
        assert len(gaps_of("k")) == 2 and lines(2, 3) == [3]
        (stats,) = provider_of(queue.cluster).stats()
        assert stats.given_up == 1


async def test_a_loss_of_one_that_is_behind_is_told_to_it_alone_and_before_what_follows() -> None:
    faults = ReaderFaults(CursorTooOld("gone", first=token(51)))
    async with cluster_of(FaultyQueues(faults)) as cluster:
        for number in range(100):
            await cluster.stream(LINES, "slow").publish(number)
            await cluster.stream(LINES, "slow-too").publish(number)
        agent = provider_of(cluster).manager.agents()[0]
        await until(lambda: agent.reader.core.read_count == 200)
        GATE[0].set()
        await until(lambda: all(SEEN[key] and SEEN[key][-1] == 99 for key in ("slow", "slow-too")))
        assert agent.findings.gap_count >= 1
        first = min(gap.first for key in ("slow", "slow-too") for gap in gaps_of(key))
        async with asyncio.timeout(20):  # any later owner of the queue can report it
            while (record := await record_of(cluster)).lost is None:
                await asyncio.sleep(0)
        assert [part[1] for part in record.lost.parts] == [first]
        for key in ("slow", "slow-too"):
            found = SEEN[key]
            for gap in gaps_of(key):
                assert gap.first == token(51)
                before, after = found[found.index(gap) - 1], found[found.index(gap) + 1]
                assert after - before > 1 and gap.after is not None and gap.after < gap.first
            events = [one for one in found if not isinstance(one, Gap)]
            holes = sum(b - a > 1 for a, b in itertools.pairwise(events))
            assert holes == len(gaps_of(key)) and events == sorted(events)


def test_a_token_in_place_of_the_text_is_refused() -> None:
    """Otherwise the runtime would believe that no message is kept, and would skip all of them."""
    with pytest.raises(TypeError, match=r"CursorTooOld\(text, first="):
        CursorTooOld(token(3))  # type: ignore[arg-type]
    assert CursorTooOld("gone", first=token(3)).first == token(3)
