"""Crashes that an event may have caused: counted once, for the right event, for a limited time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.streams.agent import stepping
from tests.streams.agent.cursors import append, delivery_at
from tests.streams.agent.stepping import RAISED, A

from millstream.streams import (
    Backoff,
    CacheLimits,
    DeliveryOptions,
    OwnershipOptions,
    QueueMessage,
    Token,
)
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.deaths import Deaths, Fate
from millstream.streams.agent.delivery.delivery import FATE_WAIT_S, Delivery, Tries
from millstream.streams.agent.delivery.steps import (
    CallReply,
    DeliveryState,
    Died,
    Failure,
    FailureKind,
    GiveUp,
    Unreachable,
    WaitUntil,
)
from millstream.streams.agent.progress.wary import DEATHS_MIN, SUSPECTS_MAX, WARY_EVENTS_MAX, Wary
from millstream.streams.ownership import record as records
from millstream.streams.ownership.decision import Acquire, Situation, Unowned, decide
from millstream.streams.ownership.record import (
    ListedSubscription,
    QueueRecord,
    QueueState,
    Suspect,
    after_death,
    lowest_of,
    with_progress,
)

KEY = (A, "s")
LOST = Unreachable("gone", 0.0, 0.5, "silo-1")


class Silos:
    def __init__(self) -> None:
        self.fates: dict[str, Fate] = {}

    def fate(self, silo: str) -> Fate:
        return self.fates.get(silo, Fate.LIVES)


def delivery_of(messages: int = 4, retries: int = 3) -> Delivery:
    cache = QueueCache(CacheLimits())
    slots = [
        append(cache, QueueMessage(A, Token(1, seq), [b"x"])) for seq in range(1, messages + 1)
    ]
    options = DeliveryOptions(retries=retries, backoff=Backoff(1.0, 2, 8.0))
    delivery = delivery_at(LaggingCursors(cache, is_used=True), slots[0], options)
    for slot in slots:
        cache.release(slot)
    return delivery


def send(delivery: Delivery, count: int) -> None:
    assert len(stepping.send(delivery).items) == count


def again(delivery: Delivery) -> None:
    """End the wait for the next attempt."""
    delivery.tick(1e9)
    delivery.check()


# -- one delivery


def test_what_was_in_one_call_when_its_silo_was_lost_is_tried_one_by_one() -> None:
    delivery = delivery_of()
    send(delivery, 4)
    delivery.unreachable(LOST)
    assert not delivery.is_feared
    again(delivery)
    for _ in range(4):
        send(delivery, 1)
        delivery.on_reply(CallReply(1, None, 0.0, 0.0))
    assert delivery.state is DeliveryState.IDLE


def test_an_event_with_two_deaths_runs_alone_and_without_any_does_not() -> None:
    delivery = delivery_of()
    send(delivery, 4)
    delivery.unreachable(LOST)
    delivery.on_death(Died(sent=4))
    assert (delivery.tries.deaths, delivery.attempts, delivery.is_feared) == (1, 1, False)
    again(delivery)
    send(delivery, 1)
    delivery.unreachable(LOST)
    assert delivery.is_feared, "this may be the second"
    again(delivery)
    send(delivery, 1)
    delivery.on_reply(CallReply(1, None, 0.0, 0.0))
    assert (delivery.tries.deaths, delivery.attempts, delivery.is_feared) == (0, 0, False)


def test_it_is_given_up_once_it_has_died_alone_and_often_enough() -> None:
    delivery = delivery_of(retries=1)
    delivery.on_death(Died())
    delivery.on_death(Died())
    assert delivery.attempts == 2 and delivery.is_feared
    send(delivery, 1)  # never alone before
    (wait,) = delivery.unreachable(LOST)
    assert wait == WaitUntil(FATE_WAIT_S), "it is not sent before its fate is known"
    (action,) = delivery.on_death(Died(is_alone=True))
    assert isinstance(action, GiveUp) and action.attempts == 3
    assert action.error.kind is FailureKind.DEATH and "crashed 3 times" in action.error.text
    delivery.check()


def test_what_waits_for_the_fate_of_a_silo_goes_on_once_that_is_known() -> None:
    delivery = delivery_of(retries=0)
    send(delivery, 4)
    (wait,) = delivery.unreachable(LOST)
    assert wait == WaitUntil(FATE_WAIT_S)
    assert delivery.on_death(Died(sent=4)) == () and delivery.state is DeliveryState.READY
    send(delivery, 1)
    delivery.unreachable(LOST)
    (action,) = delivery.on_death(Died(is_alone=True))
    assert isinstance(action, GiveUp) and action.attempts == 2


def test_what_is_hopeless_when_it_is_found_is_not_sent() -> None:
    delivery = delivery_of(retries=1)
    delivery.on_death(Died(2, is_alone=True))
    (action,) = delivery.wake()
    assert isinstance(action, GiveUp) and action.attempts == 2


def test_deaths_and_failures_are_attempts_together() -> None:
    delivery = delivery_of(retries=1)
    delivery.on_death(Died())
    send(delivery, 1)
    (action,) = delivery.on_reply(CallReply(0, RAISED, 0.0, 0.0))
    assert isinstance(action, GiveUp) and (action.attempts, action.error) == (2, RAISED)


def test_a_death_that_is_known_while_a_try_is_out_does_not_make_that_try_the_last() -> None:
    delivery = delivery_of(retries=1)
    send(delivery, 4)
    delivery.unreachable(LOST)
    again(delivery)
    send(delivery, 1)  # like a first attempt
    delivery.on_death(Died(sent=4))
    (wait,) = delivery.on_reply(CallReply(0, RAISED, 0.0, 0.0))
    assert isinstance(wait, WaitUntil) and (delivery.tries.deaths, delivery.attempts) == (0, 1)
    again(delivery)
    assert stepping.send(delivery).attempt == 2
    (action,) = delivery.on_reply(CallReply(0, RAISED, 0.0, 0.0))
    assert isinstance(action, GiveUp) and (action.attempts, action.error) == (2, RAISED)


def test_a_death_that_is_known_while_a_try_is_out_counts_if_that_is_lost_too() -> None:
    delivery = delivery_of(retries=3)
    send(delivery, 4)
    delivery.unreachable(LOST)
    again(delivery)
    send(delivery, 1)
    delivery.on_death(Died(sent=4))
    delivery.unreachable(LOST)
    delivery.on_death(Died())
    assert (delivery.tries.deaths, delivery.attempts) == (2, 2)


def test_what_is_done_in_the_call_in_which_another_fails_leaves_that_no_deaths() -> None:
    delivery = delivery_of(retries=1)
    delivery.on_death(Died())
    send(delivery, 1)
    delivery.on_reply(CallReply(1, None, 0.0, 0.0))
    send(delivery, 3)
    delivery.on_death(Died(sent=3))
    (wait,) = delivery.on_reply(CallReply(1, RAISED, 0.0, 0.0))
    assert isinstance(wait, WaitUntil) and (delivery.tries.deaths, delivery.attempts) == (0, 1)


def test_what_its_handler_calls_hopeless_is_given_up_whatever_the_retries() -> None:
    final = Failure(FailureKind.HANDLER, "ValueError: no", is_final=True)
    assert Tries().on_failure(final).is_hopeless(1, 3)
    assert not Tries().on_failure(RAISED).is_hopeless(1, 3)


@pytest.mark.parametrize(
    ("deaths", "more", "tried", "is_feared"),
    [
        (0, 0, 4, False),  # it has failed often, and crashed no silo
        (1, 0, 3, False),
        (1, 0, 4, True),  # its last attempt
        (0, 1, 4, True),
        (1, 1, 1, True),
    ],
)
def test_an_event_is_feared_for_deaths_only(
    deaths: int, more: int, tried: int, is_feared: bool
) -> None:
    assert Tries(deaths=deaths).is_feared(more, tried, 3) is is_feared


# -- affected calls


def lost(deaths: Deaths, delivery: Delivery) -> None:
    one: Any = None
    deaths.on_lost("silo-1", one, delivery, Died())


def in_doubt() -> Delivery:
    delivery = delivery_of()
    send(delivery, 4)
    delivery.unreachable(LOST)
    return delivery


def test_a_death_counts_once_it_is_known_and_only_once() -> None:
    silos, delivery = Silos(), in_doubt()
    deaths = Deaths(silos.fate)
    lost(deaths, delivery)
    assert list(deaths.iter_judged()) == []
    silos.fates["silo-1"] = Fate.DIED
    assert [one for _, one, _ in deaths.iter_judged()] == [delivery]
    assert list(deaths.iter_judged()) == []


def test_a_silo_that_stopped_in_order_is_nobodys_fault() -> None:
    silos, delivery = Silos(), in_doubt()
    deaths = Deaths(silos.fate)
    assert deaths.may_have_died("silo-1") and not deaths.may_have_died("")
    lost(deaths, delivery)
    silos.fates["silo-1"] = Fate.LEFT
    assert not deaths.may_have_died("silo-1")
    assert list(deaths.iter_judged()) == []
    silos.fates["silo-1"] = Fate.DIED
    assert list(deaths.iter_judged()) == []


def test_what_has_been_heard_of_since_is_not_blamed() -> None:
    silos, delivery = Silos(), in_doubt()
    deaths = Deaths(silos.fate)
    lost(deaths, delivery)
    again(delivery)
    send(delivery, 1)
    delivery.on_reply(CallReply(0, RAISED, 0.0, 0.0))  # the same event, and its silo lives
    silos.fates["silo-1"] = Fate.DIED
    assert list(deaths.iter_judged()) == []


def test_a_delivery_that_is_idle_by_now_is_not_blamed() -> None:
    silos, delivery = Silos(), in_doubt()
    deaths = Deaths(silos.fate)
    lost(deaths, delivery)
    again(delivery)
    for _ in range(4):
        send(delivery, 1)
        delivery.on_reply(CallReply(1, None, 0.0, 0.0))
    assert delivery.state is DeliveryState.IDLE
    silos.fates["silo-1"] = Fate.DIED
    assert list(deaths.iter_judged()) == []


# -- the record


def suspect(seq: int, deaths: int, *, is_out: bool = False) -> Suspect:
    return Suspect(*A, "s", Token(1, seq), deaths, is_out)


def owned(**rest: Any) -> QueueRecord:
    return QueueRecord("silo-1", 4, QueueState.OWNED, **rest)


def acquired(record: QueueRecord, live: frozenset[str]) -> Acquire:
    situation = Situation(record, 0.0, 100.0, "silo-0", live, True, Unowned())
    decision = decide(situation, OwnershipOptions())
    assert isinstance(decision, Acquire)
    return decision


def test_who_takes_a_dead_owners_queue_counts_its_death_and_what_was_out() -> None:
    record = owned(deaths=1, suspects=(suspect(3, 1), suspect(5, 0, is_out=True)))
    decision = acquired(record, frozenset({"silo-0"}))
    assert decision.record.deaths == decision.progress.deaths == 2
    assert decision.progress.suspects == (suspect(3, 1), suspect(5, 1))
    assert decision.record.suspects == decision.progress.suspects


@pytest.mark.parametrize(
    "record",
    [
        owned(deaths=1, lease_s=1.0),  # its owner lives, but its lease ran out
        QueueRecord("", 4, QueueState.FREE, deaths=1),
        QueueRecord("silo-0", 4, QueueState.OWNED, deaths=1),  # a write without an answer
    ],
    ids=["lease", "free", "own write"],
)
def test_no_other_hand_over_counts(record: QueueRecord) -> None:
    decision = acquired(record, frozenset({"silo-0", "silo-1"}))
    assert decision.record.deaths == 1


def test_deaths_go_with_the_progress() -> None:
    at = records.QueueProgress(Token(1, 9), deaths=2)
    record = owned(upto=Token(1, 9), deaths=2)
    assert with_progress(record, at) is record
    assert with_progress(record, records.QueueProgress(Token(1, 9))).deaths == 0
    older = records.QueueProgress(Token(1, 8))
    assert with_progress(record, older) is record, "the frontier never goes back"


def test_what_is_lowest_counts_those_behind() -> None:
    behind = (ListedSubscription(*A, "s", Token(1, 3)), ListedSubscription(*A, "t", Token(1, 5)))
    assert lowest_of(records.QueueProgress(Token(1, 9), behind)) == Token(1, 3)
    assert lowest_of(records.QueueProgress(Token(1, 9))) == Token(1, 9)
    assert lowest_of(records.QueueProgress(None, behind)) is None
    assert lowest_of(records.QueueProgress(Token(1, 9), behind, Token(1, 2))) == Token(1, 3)
    assert lowest_of(records.QueueProgress(Token(1, 9), behind, Token(1, 4))) == Token(1, 4)


# -- caution


def progress(deaths: int = 0, *suspects: Suspect, at: int = 9) -> records.QueueProgress:
    return records.QueueProgress(Token(1, at), deaths=deaths, suspects=suspects)


def test_an_agent_is_wary_after_two_deaths_or_with_a_suspect() -> None:
    assert not Wary(progress(DEATHS_MIN - 1), is_used=True).is_on
    assert Wary(progress(DEATHS_MIN), is_used=True).is_on
    assert Wary(progress(0, suspect(9, 1)), is_used=True).is_on
    unused = Wary(progress(9, suspect(9, 1)), is_used=False)
    assert not unused.is_on and not unused.matters
    assert unused.note_in(progress()) == progress()


def test_nothing_is_noted_in_normal_operation() -> None:
    wary = Wary(progress(), is_used=True)
    assert not wary.matters and not wary.is_waiting
    assert wary.note_in(progress(at=50)) == progress(at=50)


def test_the_first_progress_of_an_owner_forgets_a_death() -> None:
    wary = Wary(progress(1), is_used=True)
    assert wary.note_in(progress()) == progress(1)
    moved = wary.note_in(progress(at=10))
    assert moved == progress(0, at=10)
    assert wary.matters
    wary.on_stored(moved)
    assert not wary.matters


def test_an_event_is_sent_once_the_record_names_it() -> None:
    wary = Wary(progress(DEATHS_MIN), is_used=True)
    assert not wary.may_send(KEY, Token(1, 10), 0) and wary.is_waiting
    noted = wary.note_in(progress())
    assert noted.suspects == (suspect(10, 0, is_out=True),)
    assert not wary.may_send(KEY, Token(1, 10), 0)
    wary.on_stored(noted)
    assert wary.may_send(KEY, Token(1, 10), 0) and not wary.is_waiting
    wary.on_done(KEY, Token(1, 10))
    assert not wary.is_waiting
    assert not wary.may_send(KEY, Token(1, 11), 0)
    assert wary.note_in(progress()).suspects == (suspect(11, 0, is_out=True),)


def test_a_suspect_keeps_its_deaths_while_others_run() -> None:
    wary = Wary(progress(DEATHS_MIN, suspect(20, 2)), is_used=True)
    assert wary.deaths_of(KEY, Token(1, 20)) == 2 and wary.deaths_of(KEY, Token(1, 10)) == 0
    wary.may_send(KEY, Token(1, 10), 0)
    assert set(wary.note_in(progress()).suspects) == {suspect(20, 2), suspect(10, 0, is_out=True)}
    wary.may_send(KEY, Token(1, 20), 2)
    assert wary.note_in(progress()).suspects == (suspect(20, 2, is_out=True),)


def test_a_note_that_was_overtaken_lets_nothing_through() -> None:
    wary = Wary(progress(DEATHS_MIN), is_used=True)
    wary.may_send(KEY, Token(1, 10), 0)
    first = wary.note_in(progress())
    wary.may_send(KEY, Token(1, 11), 0)
    wary.on_stored(first)
    assert not wary.may_send(KEY, Token(1, 11), 0) and wary.is_waiting


def test_caution_ends_and_is_bounded() -> None:
    wary = Wary(progress(DEATHS_MIN, suspect(9, 1)), is_used=True)
    for seq in range(WARY_EVENTS_MAX):
        assert not wary.is_tired
        wary.may_send(KEY, Token(2, seq), 1)
    assert wary.is_tired
    assert len(wary.note_in(progress()).suspects) == SUSPECTS_MAX
    assert wary.note_in(progress(at=50)).deaths == DEATHS_MIN, "they count for as long as it lasts"
    wary.end()
    assert not wary.is_on and not wary.is_waiting
    assert wary.note_in(progress()) == progress()


def test_what_is_done_waits_no_longer_and_what_waits_is_not_done_by_another() -> None:
    wary = Wary(progress(DEATHS_MIN), is_used=True)
    wary.may_send(KEY, Token(1, 10), 0)
    wary.on_done(KEY, Token(1, 11))
    assert wary.is_waiting
    wary.on_done(KEY, Token(1, 10))
    assert not wary.is_waiting


def test_an_event_that_the_record_no_longer_names_is_not_sent() -> None:
    wary = Wary(progress(DEATHS_MIN), is_used=True)
    wary.may_send(KEY, Token(1, 10), 0)
    wary.on_stored(wary.note_in(progress()))
    wary.on_stored(progress(DEATHS_MIN, suspect(10, 0)))
    assert wary.is_waiting and not wary.may_send(KEY, Token(1, 10), 0)


def test_the_record_matters_while_it_has_deaths_or_suspects_or_the_agent_is_wary() -> None:
    calm = Wary(progress(), is_used=True)
    for stored, matters in (
        (progress(1), True),
        (progress(), False),
        (progress(0, suspect(9, 1)), True),
        (progress(), False),
    ):
        calm.on_stored(stored)
        assert calm.matters is matters
    wary = Wary(progress(DEATHS_MIN), is_used=True)
    wary.on_stored(progress())
    assert wary.matters


def test_a_death_of_nothing_that_was_out_is_nobodys() -> None:
    assert after_death(owned(suspects=(suspect(1, 1),))).suspects == (suspect(1, 1),)
