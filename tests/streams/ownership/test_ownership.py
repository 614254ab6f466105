"""Queue ownership: each record in each local state, and the store of records."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.runtime import ConfigError, Conflict, MemoryStateStore, StorageError
from millstream.runtime.extending import unseal
from millstream.streams import OwnershipOptions, Token
from millstream.streams.ownership.decision import (
    Acquire,
    Decision,
    FirstSeen,
    Free,
    Keep,
    Left,
    Local,
    Owned,
    Pause,
    Pausing,
    Renew,
    Situation,
    Unowned,
    Wait,
    decide,
    is_stored,
)
from millstream.streams.ownership.record import (
    Handoff,
    ListedSubscription,
    QueueProgress,
    QueueRecord,
    QueueState,
    StoredRecord,
    hand_over,
    with_progress,
)
from millstream.streams.ownership.store import OwnershipStore

ME, OTHER, GONE = "me:1@1", "other:1@1", "gone:1@1"
NOW_S = 100.0
OPTIONS = OwnershipOptions(max_handoff_s=3, poll_s=1, force_after_s=2)
FREE, OWNED, PAUSING = QueueState.FREE, QueueState.OWNED, QueueState.PAUSING
TEN = Token(0, 10)
LATE = ListedSubscription("notes", "a", "sub", Token(0, 3))


def situation(
    record: QueueRecord | None,
    local: Local,
    *,
    is_wanted: bool = True,
    seen_s: float = NOW_S,
    progress: QueueProgress | None = None,
    in_flight: int = 0,
) -> Situation:
    live = frozenset({ME, OTHER})
    return Situation(record, seen_s, NOW_S, ME, live, is_wanted, local, progress, in_flight)


def record(owner: str, epoch: int = 4, state: QueueState = OWNED, **rest: Any) -> QueueRecord:
    return QueueRecord(owner, epoch, state, **rest)


# name: the record, and the time when this version was first seen
RECORDS: dict[str, tuple[QueueRecord | None, float]] = {
    "none": (None, NOW_S),
    "free": (record("", state=FREE), NOW_S),
    "mine": (record(ME), 1.0),
    "mine_older": (record(ME, 3), 1.0),
    "mine_newer": (record(ME, 5), 1.0),
    "mine_pausing": (record(ME, state=PAUSING, drain_by_s=3.0), 1.0),
    "mine_lease_fresh": (record(ME, lease_s=9.0), 97.1),
    "mine_lease_due": (record(ME, lease_s=9.0), 97.0),
    "mine_lease_over": (record(ME, lease_s=9.0), 91.0),
    "other": (record(OTHER), 1.0),
    "other_same_epoch": (record(OTHER, 4), 1.0),
    "other_dead": (record(GONE), NOW_S),
    "other_dead_pausing": (record(GONE, state=PAUSING, drain_by_s=99.0), NOW_S),
    "other_lease_fresh": (record(OTHER, lease_s=10.0), 90.1),
    "other_lease_over": (record(OTHER, lease_s=10.0), 90.0),
    "other_draining": (record(OTHER, state=PAUSING, drain_by_s=3.0), 95.1),
    "other_overdue": (record(OTHER, state=PAUSING, drain_by_s=3.0), 95.0),
    "other_pausing_lease_over": (record(OTHER, state=PAUSING, drain_by_s=9.0, lease_s=5.0), 95.0),
}
LET_GO = record("", state=FREE, upto=TEN, handoff=Handoff(True, 0))
# name: the local state in epoch 4, whether the queue is wanted, deliveries in flight
LOCALS: dict[str, tuple[Local, bool, int]] = {
    "unowned_wanted": (Unowned(), True, 0),
    "unowned": (Unowned(), False, 0),
    "owned_wanted": (Owned(4), True, 7),
    "owned": (Owned(4), False, 7),
    "pausing_wanted": (Pausing(4, 102.0), True, 7),
    "pausing_idle": (Pausing(4, 102.0), False, 0),
    "pausing_busy": (Pausing(4, 102.0), False, 7),
    "pausing_late": (Pausing(4, 100.0), False, 7),
    "left_wanted": (Left(4, LET_GO), True, 0),
    "left": (Left(4, LET_GO), False, 0),
}
ALL_LOST = " ".join(["OwnershipLost"] * 8)
# columns: the local states above; "Force" is an Acquire without consent
MATRIX = {
    "none": f"Acquire Keep {ALL_LOST}",
    "free": f"Acquire Keep {ALL_LOST}",
    "mine": "Force Free Keep Pause Renew Free Pause Free Acquire Free",
    "mine_older": f"Force Free {ALL_LOST}",
    "mine_newer": f"Force Free {ALL_LOST}",
    "mine_pausing": "Force Free Renew Pause Renew Free Wait Free Acquire Free",
    "mine_lease_fresh": "Force Free Keep Pause Renew Free Pause Free Acquire Free",
    "mine_lease_due": "Force Free Renew Pause Renew Free Pause Free Acquire Free",
    "mine_lease_over": f"Force Free {ALL_LOST}",
    "other": f"Wait Keep {ALL_LOST}",
    "other_same_epoch": f"Wait Keep {ALL_LOST}",
    "other_dead": f"Force Keep {ALL_LOST}",
    "other_dead_pausing": f"Force Keep {ALL_LOST}",
    "other_lease_fresh": f"Wait Keep {ALL_LOST}",
    "other_lease_over": f"Force Keep {ALL_LOST}",
    "other_draining": f"Wait Keep {ALL_LOST}",
    "other_overdue": f"Force Keep {ALL_LOST}",
    "other_pausing_lease_over": f"Force Keep {ALL_LOST}",
}
CELLS = [
    (name, local, cell)
    for name, row in MATRIX.items()
    for local, cell in zip(LOCALS, row.split(), strict=True)
]


def decided(name: str, local: str) -> Decision:
    stored, seen_s = RECORDS[name]
    state, is_wanted, in_flight = LOCALS[local]
    return decide(
        situation(stored, state, is_wanted=is_wanted, seen_s=seen_s, in_flight=in_flight), OPTIONS
    )


def test_matrix_covers_every_record() -> None:
    assert set(MATRIX) == set(RECORDS)


@pytest.mark.parametrize(("name", "local", "cell"), CELLS)
def test_ownership_decides_for_every_record_in_every_state(
    name: str, local: str, cell: str
) -> None:
    decision = decided(name, local)
    is_forced = isinstance(decision, Acquire) and decision.is_forced
    assert ("Force" if is_forced else type(decision).__name__) == cell


def test_the_first_owner_of_a_queue_begins_with_nothing() -> None:
    decision = decided("none", "unowned_wanted")
    assert isinstance(decision, Acquire)
    assert decision.record == QueueRecord(ME, 1, OWNED, lease_s=OPTIONS.lease_s)


@pytest.mark.parametrize(("seen_s", "is_written"), [(97.0, True), (97.1, False)])
def test_who_drains_keeps_its_lease_at_a_third_of_it(seen_s: float, is_written: bool) -> None:
    stored = record(ME, state=PAUSING, drain_by_s=3.0, lease_s=9.0)
    draining = situation(stored, Pausing(4, 102.0), is_wanted=False, seen_s=seen_s, in_flight=1)
    assert isinstance(decide(draining, OPTIONS), Pause if is_written else Wait)


def test_a_silo_that_is_not_in_its_own_view_is_not_taken_for_dead() -> None:
    late = Situation(record(ME, deaths=1), 1.0, NOW_S, ME, frozenset({OTHER}), True, Unowned())
    decision = decide(late, OPTIONS)
    assert isinstance(decision, Acquire) and decision.record.deaths == 1


@pytest.mark.parametrize(("name", "local", "cell"), CELLS)
def test_every_write_keeps_or_raises_the_epoch_and_names_its_owner(
    name: str, local: str, cell: str
) -> None:
    stored, decision = RECORDS[name][0], decided(name, local)
    epoch = 0 if stored is None else stored.epoch
    match decision:
        case Acquire(new):
            assert (new.owner, new.epoch, new.state) == (ME, epoch + 1, OWNED)
        case Renew(new):
            assert (new.owner, new.epoch, new.state, new.drain_by_s) == (ME, epoch, OWNED, 0)
        case Pause(new):
            assert (new.owner, new.epoch, new.state) == (ME, epoch, PAUSING)
        case Free(new):
            assert (new.owner, new.epoch, new.state) == ("", epoch, FREE)
        case _:
            assert cell in ("Keep", "Wait", "OwnershipLost")


def test_acquiring_keeps_the_progress_and_clears_the_hand_off() -> None:
    free = record("", state=FREE, upto=TEN, listed=(LATE,), handoff=Handoff(True, 0))
    decision = decide(situation(free, Unowned()), OwnershipOptions(lease_s=30.0))
    new = record(ME, 5, upto=TEN, listed=(LATE,), lease_s=30.0)
    assert decision == Acquire(new, is_forced=False, progress=QueueProgress(TEN, (LATE,)))


def test_who_takes_a_queue_without_consent_knows_who_is_behind() -> None:
    dead = record(GONE, upto=TEN, listed=(LATE,))
    decision = decide(situation(dead, Unowned()), OPTIONS)
    assert isinstance(decision, Acquire) and decision.progress == QueueProgress(
        TEN, (LATE,), deaths=1
    )
    assert (decision.record.upto, decision.record.listed) == (TEN, (LATE,))


@pytest.mark.parametrize("name", ["mine", "other_dead", "other_overdue", "other_lease_over"])
def test_who_takes_a_queue_without_consent_may_repeat_events(name: str) -> None:
    decision = decided(name, "unowned_wanted")
    assert isinstance(decision, Acquire) and decision.is_forced and decision.may_repeat


@pytest.mark.parametrize(
    ("name", "rival"),
    [("mine", ""), ("other_dead", ""), ("other_overdue", OTHER), ("other_lease_over", OTHER)],
)
def test_a_living_owner_that_lost_its_queue_by_force_is_noted(name: str, rival: str) -> None:
    decision = decided(name, "unowned_wanted")
    assert isinstance(decision, Acquire) and decision.record.rival == rival
    assert decision.has_rival is (rival != "")


@pytest.mark.parametrize(("rival", "noted"), [(OTHER, OTHER), (GONE, ""), ("", "")])
@pytest.mark.parametrize("owner", [GONE, ME, ""])
def test_a_rival_is_noted_until_it_is_dead(owner: str, rival: str, noted: str) -> None:
    state = OWNED if owner else FREE
    before = record(owner, state=state, rival=rival)
    decision = decide(situation(before, Unowned()), OPTIONS)
    assert isinstance(decision, Acquire) and decision.record.rival == noted


@pytest.mark.parametrize(
    ("handoff", "may_repeat"),
    [
        (None, True),
        (Handoff(False, 2), True),
        (Handoff(True, 0), False),
        (Handoff(False, 2, is_told=True), False),
    ],
)
def test_who_takes_a_free_queue_repeats_nothing_after_a_clean_hand_off(
    handoff: Handoff | None, may_repeat: bool
) -> None:
    decision = decide(situation(record("", state=FREE, handoff=handoff), Unowned()), OPTIONS)
    assert isinstance(decision, Acquire) and decision.may_repeat is may_repeat


def test_what_an_owner_left_is_said_until_the_record_has_it() -> None:
    left = situation(record(ME, lease_s=9.0), Left(4, LET_GO), is_wanted=False, seen_s=NOW_S)
    assert decide(left, OPTIONS) == Free(LET_GO)
    back = decide(msgspec.structs.replace(left, is_wanted=True), OPTIONS)
    assert back == Acquire(record(ME, 5, upto=TEN), False, False, QueueProgress(TEN))


def test_a_record_without_an_agent_is_freed_as_not_clean() -> None:
    """Its agent is gone, so the deliveries in flight at its end are not known."""
    freed = decide(situation(record(ME), Unowned(), is_wanted=False), OPTIONS)
    assert isinstance(freed, Free) and freed.record.handoff == Handoff(clean=False, in_flight=0)


@pytest.mark.parametrize(("seen_s", "is_written"), [(95.0, True), (95.5, False)])
def test_progress_is_written_when_its_time_has_come(seen_s: float, is_written: bool) -> None:
    options = OwnershipOptions(checkpoint_every_s=5.0)
    moved = situation(record(ME), Owned(4), seen_s=seen_s, progress=QueueProgress(TEN))
    written = Renew(record(ME, upto=TEN))
    assert decide(moved, options) == (written if is_written else Keep())


def test_pausing_says_how_long_the_owner_drains() -> None:
    paused = decide(
        situation(record(ME), Owned(4), is_wanted=False, progress=QueueProgress(TEN)), OPTIONS
    )
    assert paused == Pause(record(ME, state=PAUSING, drain_by_s=3.0, upto=TEN))


def test_renewing_a_lease_does_not_lengthen_the_drain_time() -> None:
    stored = record(ME, state=PAUSING, drain_by_s=3.0, lease_s=3.0)
    local = Pausing(4, 101.25)
    again = decide(situation(stored, local, is_wanted=False, seen_s=98.5, in_flight=1), OPTIONS)
    assert again == Pause(record(ME, state=PAUSING, drain_by_s=1.25, lease_s=3.0))


@pytest.mark.parametrize(("in_flight", "deadline_s"), [(0, 999.0), (3, NOW_S)])
def test_freeing_leaves_progress_and_hand_off(in_flight: int, deadline_s: float) -> None:
    stored = record(ME, state=PAUSING, drain_by_s=3.0, upto=Token(0, 2), lease_s=60.0)
    freed = decide(
        situation(
            stored,
            Pausing(4, deadline_s),
            is_wanted=False,
            progress=QueueProgress(TEN),
            in_flight=in_flight,
        ),
        OPTIONS,
    )
    handoff = Handoff(clean=in_flight == 0, in_flight=in_flight)
    assert freed == Free(record("", state=FREE, upto=TEN, handoff=handoff))


@pytest.mark.parametrize(
    ("name", "until_s"),
    [("other", 101.0), ("other_lease_fresh", 100.1), ("other_draining", 100.1)],
)
def test_waiting_ends_at_the_next_poll_or_when_the_queue_may_be_taken(
    name: str, until_s: float
) -> None:
    decision = decided(name, "unowned_wanted")
    assert isinstance(decision, Wait) and decision.until_s == pytest.approx(until_s)


def test_draining_owner_waits_no_longer_than_its_deadline() -> None:
    stored = record(ME, state=PAUSING, drain_by_s=3.0)
    busy = situation(stored, Pausing(4, 100.4), is_wanted=False, in_flight=1)
    assert decide(busy, OPTIONS) == Wait(100.4)


def test_the_frontier_never_goes_back_and_takes_who_is_behind_along() -> None:
    stored = record(ME, upto=TEN, listed=(LATE,))
    assert with_progress(stored, None) is stored
    assert with_progress(stored, QueueProgress(Token(0, 9))) is stored
    assert with_progress(stored, QueueProgress(None)) is stored
    assert with_progress(stored, QueueProgress(TEN, (LATE,))) is stored
    assert with_progress(stored, QueueProgress(TEN)) == record(ME, upto=TEN)
    later = ListedSubscription("notes", "a", "sub", Token(0, 7))
    moved = with_progress(stored, QueueProgress(Token(1, 0), (later,)))
    assert moved == record(ME, upto=Token(1, 0), listed=(later,))


def test_somebody_who_waits_for_the_record_does_not_wait_for_the_next_write() -> None:
    moved = situation(record(ME), Owned(4), seen_s=NOW_S, progress=QueueProgress(TEN))
    urgent = msgspec.structs.replace(moved, is_urgent=True)
    assert decide(moved, OPTIONS) == Keep()
    assert decide(urgent, OPTIONS) == Renew(record(ME, upto=TEN))
    assert decide(msgspec.structs.replace(urgent, progress=None), OPTIONS) == Keep()


def test_progress_is_stored_where_it_was_read_or_written() -> None:
    progress, old = QueueProgress(TEN, (LATE,)), StoredRecord(record(ME), "1")
    same = StoredRecord(record(ME, upto=TEN, listed=(LATE,)), "1")
    assert is_stored(progress, same, Keep()) and not is_stored(progress, old, Keep())
    assert is_stored(progress, old, Renew(same.record))
    assert not is_stored(progress, old, Renew(record(ME, upto=TEN)))
    assert not is_stored(progress, None, Keep())


@pytest.mark.parametrize(
    ("progress", "is_acked", "is_clean"),
    [
        (QueueProgress(TEN), True, True),
        # the record has acknowledgements that the provider did not get
        (QueueProgress(TEN), False, True),
        (QueueProgress(None), False, False),
        (None, True, True),
        (None, False, False),
    ],
)
def test_a_queue_that_is_let_go_says_all_that_its_owner_knows(
    progress: QueueProgress | None, is_acked: bool, is_clean: bool
) -> None:
    if progress is not None:
        progress = msgspec.structs.replace(progress, is_told=True)
    free = record("", state=FREE, handoff=Handoff(True, 0))
    new = hand_over(free, progress, is_acked=is_acked)
    assert new.handoff == Handoff(is_clean, 0, progress is not None and is_clean)
    assert new.upto == (None if progress is None else progress.upto)


async def test_a_record_of_an_older_version_is_read() -> None:
    rows = MemoryStateStore()
    old = {
        "owner": ME,
        "epoch": 7,
        "state": "owned",
        "drain_by_s": 0.0,
        "checkpoint": [1, 2, 3],
        "handoff": {"clean": True, "in_flight": 0},
        "lease_s": 0.0,
    }
    await rows.write("queue/orders/q-0", msgspec.msgpack.encode(old), None, 0)
    stored = await OwnershipStore(rows, "orders").read("q-0")
    assert stored is not None
    assert stored.record == record(
        ME, 7, upto=Token(1, 2, 3), floor=Token(1, 2, 3), handoff=Handoff(True, 0)
    )


def test_first_seen_is_kept_per_version_and_queue() -> None:
    seen = FirstSeen()
    assert [seen.saw("q-0", "a", 1.0), seen.saw("q-0", "a", 2.0)] == [1.0, 1.0]
    assert [seen.saw("q-1", "a", 3.0), seen.saw("q-0", "b", 4.0)] == [3.0, 4.0]
    assert [seen.saw("q-0", "b", 5.0), seen.saw("q-2", None, 6.0)] == [4.0, 6.0]
    assert seen.saw("q-2", None, 7.0) == 6.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_handoff_s": -1.0},
        {"poll_s": 0.0},
        {"force_after_s": float("nan")},
        {"lease_s": 2.9},
    ],
)
def test_ownership_options_refuse_what_cannot_work(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        OwnershipOptions(**wrong)


async def test_store_gives_back_what_was_written_under_its_key() -> None:
    rows = MemoryStateStore()
    store = OwnershipStore(rows, "orders")
    assert await store.read("q-0") is None
    full = record(
        ME, 2**64 - 1, PAUSING, drain_by_s=1.5, upto=Token(1, 2**64 - 1, 3),
        handoff=Handoff(False, 2), lease_s=9.0,
    )  # fmt: skip
    etag = await store.write("q-0", full, None)
    assert await store.read("q-0") == StoredRecord(full, etag)
    ((key, row),) = await rows.scan("", "", 10)
    assert (key, row.fence) == ("queue/orders/q-0", 0)
    content = unseal(key, row.data).content
    assert msgspec.msgpack.decode(content)["upto"] == [1, 2**64 - 1, 3]


async def test_store_refuses_a_write_that_expects_another_version() -> None:
    store = OwnershipStore(MemoryStateStore(), "orders")
    etag = await store.write("q-0", record(ME), None)
    with pytest.raises(Conflict):
        await store.write("q-0", record(OTHER), None)
    await store.write("q-0", record(ME, 5), etag)
    with pytest.raises(Conflict):
        await store.write("q-0", record(OTHER, 5), etag)


async def test_store_names_a_row_that_is_no_record() -> None:
    rows = MemoryStateStore()
    await rows.write("queue/orders/q-0", b"\xc1", None, 0)
    with pytest.raises(StorageError, match="queue/orders/q-0"):
        await OwnershipStore(rows, "orders").read("q-0")
