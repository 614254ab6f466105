"""The pure cores of the cluster: votes, views, the ring, the partition and placement."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import (
    HASHED,
    LEAST_ACTIVATIONS,
    PREFER_LOCAL,
    RANDOM,
    ConfigError,
    Env,
    MemberRow,
    MembershipOptions,
    MemoryMembershipTable,
    Placement,
    RuntimeOptions,
    Status,
    TableView,
    TcpTransport,
)
from millstream.runtime.cluster.changes import tell_changes, what_happened
from millstream.runtime.cluster.directory.partition import Entry, Partition
from millstream.runtime.cluster.member import Member
from millstream.runtime.cluster.placement import HostedTypes, choose_silo, placement_in
from millstream.runtime.cluster.ring import HASH_MAX, Ring, covers, find_gained, hash_of
from millstream.runtime.cluster.votes import (
    declare_dead,
    find_superseded,
    suspect,
    votes_needed,
    without,
)
from millstream.runtime.extending import Tasks
from millstream.runtime.wire.address import endpoint_of, generation_of

OPTIONS = MembershipOptions()
NOW = 1_000_000.0
silo_names = st.integers(0, 9).map(lambda i: f"10.0.0.{i}:7700@{i + 1}")
silo_sets = st.sets(silo_names, max_size=7).map(sorted)


def row(silo: str, status: Status = Status.ACTIVE, **fields: Any) -> MemberRow:
    return MemberRow(silo, status, alive_s=fields.pop("alive_s", NOW), **fields)


def view(*rows: MemberRow, version: int = 5) -> TableView:
    return TableView(version, rows)


def cluster(count: int) -> TableView:
    return view(*(row(f"s{i}:1@1") for i in range(count)))


# --- votes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("live", "needed"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (10, 2)])
def test_two_votes_evict_where_three_or_more_live_and_one_below(live: int, needed: int) -> None:
    assert votes_needed(cluster(live), NOW, OPTIONS) == needed


def test_silos_that_do_not_stamp_their_rows_do_not_count_as_live() -> None:
    stale = NOW - OPTIONS.stale_after_s - 1
    rows = [row("a:1@1"), row("b:1@1"), row("c:1@1", alive_s=stale), row("d:1@1", Status.JOINING)]
    assert votes_needed(view(*rows), NOW, OPTIONS) == 1


@pytest.mark.parametrize(("age_s", "needed"), [(10.0, 2), (10.5, 1)])
def test_a_row_is_stale_once_it_is_older_than_its_time(age_s: float, needed: int) -> None:
    options = MembershipOptions(stale_after_s=10.0)
    rows = [row("a:1@1"), row("b:1@1"), row("c:1@1", alive_s=NOW - age_s)]
    assert votes_needed(view(*rows), NOW, options) == needed


def test_one_vote_alone_evicts_nobody_in_a_cluster_of_three() -> None:
    three = cluster(3)
    once = suspect(three, three.rows[0], ("s1:1@1",), NOW, OPTIONS)
    assert once.status is Status.ACTIVE and once.suspicions == (("s1:1@1", NOW),)
    again = suspect(three, once, ("s1:1@1",), NOW + 1, OPTIONS)
    assert again.status is Status.ACTIVE and again.suspicions == (("s1:1@1", NOW + 1),)


def test_a_second_voter_or_an_intermediary_evicts() -> None:
    three = cluster(3)
    once = suspect(three, three.rows[0], ("s1:1@1",), NOW, OPTIONS)
    assert suspect(three, once, ("s2:1@1",), NOW + 1, OPTIONS).status is Status.DEAD
    both = suspect(three, three.rows[0], ("s1:1@1", "s2:1@1"), NOW, OPTIONS)
    assert both.status is Status.DEAD


def test_in_a_cluster_of_two_one_vote_evicts() -> None:
    two = cluster(2)
    assert suspect(two, two.rows[0], ("s1:1@1",), NOW, OPTIONS).status is Status.DEAD


def test_votes_older_than_their_time_do_not_count() -> None:
    three = cluster(3)
    once = suspect(three, three.rows[0], ("s1:1@1",), NOW, OPTIONS)
    later = NOW + OPTIONS.vote_expires_s + 1
    fresh = view(*(row(r.silo, alive_s=later) for r in three.rows))
    found = suspect(fresh, once, ("s2:1@1",), later, OPTIONS)
    assert found.status is Status.ACTIVE and found.suspicions == (("s2:1@1", later),)


def test_a_voter_with_a_slow_clock_does_not_make_old_votes_fresh() -> None:
    options = MembershipOptions(votes_for_death=3)
    late = NOW + options.vote_expires_s + 1
    many = view(*(row(f"s{i}:1@1", alive_s=late) for i in range(7)))
    target = suspect(many, many.rows[0], ("s1:1@1",), NOW, options)
    target = suspect(many, target, ("s2:1@1",), late, options)
    assert target.suspicions == (("s2:1@1", late),)
    old = row("s0:1@1", suspicions=(("s2:1@1", late), ("s1:1@1", NOW)))
    found = suspect(many, old, ("s3:1@1",), NOW + 1, options)  # the clock of s3 lags
    assert found.status is Status.ACTIVE
    assert dict(found.suspicions).keys() == {"s2:1@1", "s3:1@1"}


@given(st.lists(st.tuples(st.integers(1, 6), st.floats(0, 1000)), max_size=20))
def test_a_row_dies_only_by_enough_fresh_voters(votes: list[tuple[int, float]]) -> None:
    seven = view(*(row(f"s{i}:1@1", alive_s=NOW + 1000) for i in range(7)))
    target, cast = seven.rows[0], dict[str, float]()
    for voter, after_s in sorted(votes, key=lambda vote: vote[1]):
        if target.status is Status.DEAD:
            break
        now = NOW + after_s
        cast[f"s{voter}:1@1"] = now
        fresh = [v for v, at in cast.items() if now - at <= OPTIONS.vote_expires_s]
        target = suspect(seven, target, (f"s{voter}:1@1",), now, OPTIONS)
        assert (target.status is Status.DEAD) == (len(fresh) >= 2)
        assert len(target.suspicions) <= OPTIONS.votes_for_death


def test_only_older_generations_at_the_same_address_are_superseded() -> None:
    rows = [
        row("h:1@5"),
        row("h:1@6", Status.DEAD),
        row("h:1@7", Status.JOINING),
        row("h:1@9"),
        row("h:2@1"),
        row("g:1@1"),
    ]
    found = find_superseded(view(*rows), "h:1@8")
    assert [r.silo for r in found] == ["h:1@5", "h:1@7"]


def test_a_silo_is_declared_dead_once_and_keeps_the_rest_of_its_row() -> None:
    seen = view(row("a:1@1", suspicions=(("b:1@1", NOW),)), row("b:1@1", Status.DEAD))
    dead = row("a:1@1", Status.DEAD, suspicions=(("b:1@1", NOW),))
    assert declare_dead(seen, "a:1@1") == dead
    assert declare_dead(seen, "b:1@1") is None and declare_dead(seen, "c:1@1") is None


def test_a_view_without_some_silos_keeps_its_version_and_the_other_rows() -> None:
    seen = view(row("a:1@1"), row("b:1@1"), row("c:1@1"), version=7)
    assert without(seen, {"a:1@1", "c:1@1"}) == view(row("b:1@1"), version=7)


def test_addresses_come_apart() -> None:
    assert endpoint_of("10.0.0.1:7700@123") == "10.0.0.1:7700"
    assert generation_of("10.0.0.1:7700@123") == 123


# --- the table -----------------------------------------------------------------------------------


async def test_two_writers_from_one_version_cannot_both_succeed() -> None:
    table = MemoryMembershipTable(7)
    version = (await table.read()).version
    assert await table.write(row("a:1@1"), version)
    assert not await table.write(row("b:1@1"), version)
    assert (await table.read()).version == version + 1
    assert await table.write(row("b:1@1"), version + 1)
    assert len((await table.read()).rows) == 2


async def test_a_heartbeat_changes_the_stamp_and_no_version() -> None:
    table = MemoryMembershipTable(7)
    await table.write(row("a:1@1"), 7)
    await table.heartbeat("a:1@1", NOW + 5)
    await table.heartbeat("nobody:1@1", NOW + 5)
    found = await table.read()
    assert found.version == 8 and len(found.rows) == 1
    assert found.rows[0].alive_s == NOW + 5


def test_with_status_is_sorted() -> None:
    rows = [row("c:1@1"), row("a:1@1"), row("b:1@1", Status.STOPPING)]
    assert view(*rows).with_status(Status.ACTIVE) == ("a:1@1", "c:1@1")
    assert view(*rows).with_status(Status.ACTIVE, Status.STOPPING) == ("a:1@1", "b:1@1", "c:1@1")


# --- views of a member ---------------------------------------------------------------------------


class Seen:
    """A member that records its notifications."""

    def __init__(self) -> None:
        self.evictions: list[str] = []
        self.views: list[int] = []
        loop, env = asyncio.get_running_loop(), Env(1)
        targets: Any = SimpleNamespace(add=lambda target: None)
        self.member = Member(
            row("me:1@1"),
            MemoryMembershipTable(),
            options=OPTIONS,
            targets=targets,
            transport=TcpTransport(),
            env=env,
            tasks=Tasks(loop, env.new_context),
            lag_s=lambda: 0.0,
            refusals={},
            table_id="00112233aabbccdd",
            evicted=self.evictions.append,
        )
        self.member.watch(lambda seen: self.views.append(seen.version))


async def test_an_older_view_never_replaces_a_newer_one() -> None:
    seen = Seen()
    seen.member.take(view(row("me:1@1"), row("a:1@1"), version=5))
    seen.member.take(view(row("me:1@1"), version=4))
    assert seen.member.view.version == 5 and seen.views == [5]
    assert seen.member.is_live("a:1@1")


async def test_an_equal_version_can_only_refresh_heartbeats() -> None:
    seen = Seen()
    seen.member.take(view(row("me:1@1"), row("a:1@1"), version=5))
    seen.member.take(view(row("me:1@1"), row("a:1@1", alive_s=NOW + 9), version=5))
    found = seen.member.view.row("a:1@1")
    assert found is not None and found.alive_s == NOW + 9
    seen.member.take(view(row("me:1@1"), row("a:1@1", Status.DEAD), version=5))
    assert seen.member.is_live("a:1@1")  # the version is the same, so no status can differ
    assert seen.views == [5]


async def test_a_heartbeat_never_runs_backwards_in_a_view_of_the_same_version() -> None:
    seen = Seen()
    seen.member.take(view(row("me:1@1"), row("a:1@1", alive_s=NOW + 9), version=5))
    seen.member.take(view(row("me:1@1"), row("a:1@1", alive_s=NOW), version=5))
    found = seen.member.view.row("a:1@1")
    assert found is not None and found.alive_s == NOW + 9


@pytest.mark.parametrize("own", [None, Status.DEAD])
async def test_a_member_that_reads_itself_dead_or_missing_is_evicted(own: Status | None) -> None:
    rows = [row("a:1@1")] if own is None else [row("a:1@1"), row("me:1@1", own)]
    seen = Seen()
    seen.member.take(view(*rows, version=6))  # before it joined, so the row is not its own
    assert not seen.evictions
    seen.member._joined = True
    seen.member.take(view(*rows, version=7))
    assert len(seen.evictions) == 1


async def test_a_member_that_leaves_ignores_that_it_is_dead() -> None:
    seen = Seen()
    seen.member._joined, seen.member.is_leaving = True, True
    seen.member.take(view(row("me:1@1", Status.DEAD), version=6))
    assert not seen.evictions


async def test_a_silo_that_is_not_in_the_view_counts_as_dead() -> None:
    seen = Seen()
    seen.member.take(view(row("me:1@1"), row("a:1@2"), version=5))
    assert seen.member.is_dead("a:1@1") and not seen.member.is_dead("a:1@2")


async def test_a_listener_that_fails_does_not_keep_the_others_from_hearing() -> None:
    seen = Seen()
    heard: list[int] = []

    def fails(_: TableView) -> None:
        raise ValueError("listener")

    stop = seen.member.watch(fails)
    seen.member.watch(lambda v: heard.append(v.version))
    seen.member.take(view(row("me:1@1"), version=5))
    stop()
    stop()
    assert heard == [5]


async def joined(*others: str) -> Seen:
    """Return a member that is active in its table beside others."""
    seen = Seen()
    table: Any = seen.member._table._table
    for silo in ("me:1@1", *others):
        table.replace_row(row(silo, alive_s=Env().wall_s()), table.view().version)
    seen.member._joined = True
    seen.member.take(table.view())
    return seen


def table_of(seen: Seen) -> MemoryMembershipTable:
    table: Any = seen.member._table._table
    assert isinstance(table, MemoryMembershipTable)
    return table


async def test_a_vote_that_was_cast_is_not_written_again_and_again() -> None:
    seen = await joined("a:1@1", "b:1@1", "c:1@1")
    await seen.member.vote("a:1@1")
    once = table_of(seen).view().version
    await seen.member.vote("a:1@1")
    assert table_of(seen).view().version == once
    await seen.member.vote("a:1@1", "b:1@1")
    assert seen.member.is_dead("a:1@1")


async def test_a_silo_that_stamped_its_row_while_it_was_judged_is_not_voted_against() -> None:
    seen = await joined("a:1@1", "b:1@1", "c:1@1")
    before = table_of(seen).view().version
    seen.member.prober.may_accuse = lambda silo: False  # type: ignore[method-assign]
    await seen.member.vote("a:1@1")
    assert table_of(seen).view().version == before


async def test_the_dead_stay_dead_whatever_they_were_about_to_say() -> None:
    seen = await joined("a:1@1")
    table = table_of(seen)
    table.replace_row(row("me:1@1", Status.DEAD), table.view().version)
    for status in (Status.STOPPING, Status.ACTIVE):
        await seen.member.leave(status)
        found = table.view().row("me:1@1")
        assert found is not None and found.status is Status.DEAD


async def test_who_leaves_votes_against_nobody() -> None:
    seen = await joined("a:1@1")
    seen.member.is_leaving = True
    before = table_of(seen).view().version
    await seen.member.vote("a:1@1")
    assert table_of(seen).view().version == before


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (None, row("a:1@1", Status.JOINING), ""),
        (None, row("a:1@1"), "joined the cluster"),
        (Status.JOINING, row("a:1@1"), "joined the cluster"),
        (Status.ACTIVE, row("a:1@1"), ""),
        (Status.ACTIVE, row("a:1@1", Status.STOPPING), "is stopping"),
        (Status.STOPPING, row("a:1@1", Status.DEAD), "left the cluster"),
        (None, row("a:1@1", Status.DEAD), ""),
        (
            Status.ACTIVE,
            row("a:1@1", Status.DEAD, suspicions=(("b:1@1", NOW), ("c:1@1", NOW))),
            "was evicted, suspected by b:1@1, c:1@1",
        ),
        (Status.ACTIVE, row("d:1@1", Status.DEAD), "was replaced by d:1@2"),
    ],
)
def test_what_happened_to_a_member_in_words(
    before: Status | None, after: MemberRow, words: str
) -> None:
    assert what_happened(before, after, view(after, row("d:1@2"), row("b:1@1"))) == words


# --- ring ----------------------------------------------------------------------------------------

places = st.integers(0, HASH_MAX)


@given(silo_sets, silo_sets, st.lists(places, max_size=30), st.data())
def test_gained_covers_exactly_the_hashes_whose_owner_changed_to_me(
    before: list[str], after: list[str], more: list[int], data: st.DataObject
) -> None:
    old, new = Ring(before), Ring(after)
    me = data.draw(silo_names)
    segments = find_gained(old, new, me)
    edges = [p for segment in segments for p in segment]
    edges += [*old.points()[:40], *new.points()[:40], 0, HASH_MAX]
    nearby = {max(0, min(HASH_MAX, p + d)) for p in edges for d in (-1, 0, 1)}
    for place in (*nearby, *more):
        changed = new.owner(place) == me and old.owner(place) != me
        assert covers(segments, place) == changed
    assert segments == sorted(segments)
    assert all(low <= high for low, high in segments)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(segments))


@given(silo_sets, places)
def test_every_hash_has_one_owner_whatever_the_order_of_the_silos(
    silos: list[str], place: int
) -> None:
    owner = Ring(silos).owner(place)
    assert owner == Ring(list(reversed(silos))).owner(place)
    assert (owner in silos) if silos else owner is None


@given(silo_sets, silo_names, places)
def test_a_silo_that_joins_takes_hashes_from_others_and_moves_none_between_them(
    silos: list[str], joiner: str, place: int
) -> None:
    others = [silo for silo in silos if silo != joiner]
    before, after = Ring(others).owner(place), Ring([*others, joiner]).owner(place)
    assert after in (before, joiner)


def test_nothing_is_gained_from_an_equal_ring_and_everything_from_an_empty_one() -> None:
    ring = Ring(["a:1@1", "b:1@1"])
    assert find_gained(ring, ring, "a:1@1") == []
    assert find_gained(Ring([]), Ring(["a:1@1"]), "a:1@1") == [(0, HASH_MAX)]
    assert find_gained(Ring(["a:1@1"]), Ring([]), "a:1@1") == []


def test_the_ring_is_frozen() -> None:
    """Silos of different versions must agree. Another value here breaks running clusters."""
    assert hash_of("Airport/BOS") == 3_800_714_226_127_682_373
    ring = Ring(["a:1@1", "b:1@1", "c:1@1"])
    assert len(ring.points()) == 90
    owners = [ring.owner(hash_of(f"k{i}")) or "?" for i in range(24)]
    assert "".join(owner[0] for owner in owners) == "aabbabaaccccccacbcacbcbb"
    shares = [sum(ring.owner(hash_of(f"k{i}")) == s for i in range(3000)) for s in ring.silos]
    assert min(shares) > 400


@given(silo_sets.filter(lambda s: len(s) > 1), st.integers(1, 10))
def test_successors_are_distinct_others_and_as_many_as_there_are(
    silos: list[str], count: int
) -> None:
    ring = Ring(silos)
    for silo in silos:
        found = ring.successors(silo, count)
        assert silo not in found and len(set(found)) == len(found)
        assert len(found) == min(count, len(silos) - 1)


@given(silo_sets.filter(lambda s: len(s) > 1))
def test_every_silo_is_watched_by_somebody(silos: list[str]) -> None:
    ring = Ring(silos)
    watched = {found for silo in silos for found in ring.successors(silo, 10)}
    assert watched == set(silos)


# --- partition -----------------------------------------------------------------------------------

entries = st.builds(Entry, st.sampled_from(["a", "b", "c"]), st.integers(1, 5), st.integers(1, 5))


@given(st.lists(st.tuples(entries, st.booleans()), max_size=20))
def test_a_registration_wins_only_over_nothing_the_dead_or_its_own_silo(
    tries: list[tuple[Entry, bool]],
) -> None:
    partition = Partition()
    current: Entry | None = None
    for entry, others_dead in tries:
        stored = partition.register("K", "k", entry, lambda _: others_dead)  # noqa: B023
        assert stored == partition.lookup("K", "k")
        if current is None or (current.silo != entry.silo and others_dead):
            assert stored == entry
        elif current.silo != entry.silo:
            assert stored == current
        else:
            assert stored.silo == entry.silo
            assert stored.activation_id == max(current.activation_id, entry.activation_id)
        current = stored


def test_an_activation_that_registers_again_has_the_version_of_the_later_registration() -> None:
    partition = Partition()
    for version in (3, 4):
        entry = Entry("a:1@1", 7, version)
        assert partition.register("K", "k", entry, lambda _: False) == entry
        assert partition.lookup("K", "k") == entry


@given(st.lists(entries, max_size=10), entries)
def test_an_entry_is_removed_only_by_the_activation_that_it_names(
    removals: list[Entry], stored: Entry
) -> None:
    partition = Partition()
    partition.register("K", "k", stored, lambda _: False)
    for removal in removals:
        before = partition.lookup("K", "k")
        partition.unregister("K", "k", removal.silo, removal.activation_id)
        is_it = (removal.silo, removal.activation_id) == (stored.silo, stored.activation_id)
        assert partition.lookup("K", "k") == (None if is_it else before)


@given(st.lists(entries, min_size=1, max_size=6), st.randoms())
def test_recovery_ends_with_the_same_entry_whatever_the_order_of_the_answers(
    answers: list[Entry], rng: Any
) -> None:
    winners = set()
    for _ in range(4):
        partition = Partition()
        shuffled = list(answers)
        rng.shuffle(shuffled)
        losers = [partition.recover("K", "k", entry) for entry in shuffled]
        winner = partition.lookup("K", "k")
        assert winner is not None
        winners.add(winner)
        told = {loser.silo for loser in losers if loser is not None}
        assert {entry.silo for entry in answers} - {winner.silo} <= told
    assert len(winners) == 1
    (winner,) = winners
    assert winner.version == max(entry.version for entry in answers)


def test_dropping_forgets_what_is_foreign_and_keeps_the_rest() -> None:
    partition = Partition()
    for kind, key, silo in [("K", "a", "x"), ("K", "b", "y"), ("L", "a", "x")]:
        partition.register(kind, key, Entry(silo, 1, 1), lambda _: False)
    for kind, keys in partition.keys():
        partition.drop(kind, keys, lambda kind, key, entry: entry.silo == "x" and kind == "K")
    assert partition.keys() == [("K", ["b"]), ("L", ["a"])]
    partition.unregister("Nothing", "a", "x", 1)
    assert partition.lookup("Nothing", "a") is None


# --- placement -----------------------------------------------------------------------------------

candidate_sets = st.sets(silo_names, min_size=1).map(sorted)


@given(st.sampled_from(Placement), candidate_sets, silo_names, st.text(), st.integers())
def test_the_choice_is_always_a_candidate(
    placement: Placement, candidates: list[str], local: str, grain: str, seed: int
) -> None:
    randrange = random.Random(seed).randrange
    assert choose_silo(placement, candidates, local, grain, {}, randrange) in candidates


@given(candidate_sets, silo_names, st.text())
def test_hashed_needs_no_chance_and_prefer_local_none_where_it_can(
    candidates: list[str], local: str, grain: str
) -> None:
    def no_chance(_: int) -> int:
        raise AssertionError("rolled")

    first = choose_silo(HASHED, candidates, local, grain, {}, no_chance)
    assert first == choose_silo(HASHED, candidates, "elsewhere", grain, {"x": 5}, no_chance)
    if local in candidates:
        assert choose_silo(PREFER_LOCAL, candidates, local, grain, {}, no_chance) == local


@given(candidate_sets, st.data())
def test_least_activations_takes_the_emptier_of_two(
    candidates: list[str], data: st.DataObject
) -> None:
    loads = {silo: data.draw(st.integers(0, 100)) for silo in candidates}
    drawn: list[int] = []

    def roll(count: int) -> int:
        drawn.append(data.draw(st.integers(0, count - 1)))
        return drawn[-1]

    chosen = choose_silo(LEAST_ACTIVATIONS, candidates, "x", "g", loads, roll)
    first = candidates[drawn[0]]
    second = ([silo for silo in candidates if silo != first] or [first])[drawn[1]]
    assert loads[chosen] == min(loads[first], loads[second])


def rolls_of(*rolls: int) -> Callable[[int], int]:
    left = iter([*rolls, 0])
    return lambda _: next(left)


def test_least_activations_never_draws_one_silo_twice() -> None:
    """Two draws of one silo would choose the fuller of two silos in a quarter of all cases."""
    for first in (0, 1):
        chosen = choose_silo(
            LEAST_ACTIVATIONS, ["a", "b"], "x", "g", {"a": 9, "b": 1}, rolls_of(first)
        )
        assert chosen == "b"


def test_random_uses_the_roll_it_is_given() -> None:
    assert choose_silo(RANDOM, ["a", "b", "c"], "a", "g", {}, lambda n: n - 1) == "c"


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_options_that_are_not_positive_are_refused_by_name(value: float) -> None:
    with pytest.raises(ConfigError, match="call_timeout_s"):
        RuntimeOptions(call_timeout_s=value)
    with pytest.raises(ConfigError, match="probe_every_s"):
        MembershipOptions(probe_every_s=value)


def test_a_silo_does_not_supersede_itself() -> None:
    assert find_superseded(view(row("h:1@8"), row("h:1@7")), "h:1@8") == [row("h:1@7")]


def test_a_vote_counts_up_to_the_very_end_of_its_time() -> None:
    once = suspect(cluster(4), cluster(4).rows[0], ("s1:1@1",), NOW, OPTIONS)
    at_the_end = suspect(cluster(4), once, ("s2:1@1",), NOW + OPTIONS.vote_expires_s, OPTIONS)
    assert {voter for voter, _ in at_the_end.suspicions} == {"s1:1@1", "s2:1@1"}


@pytest.mark.parametrize(("load", "chosen"), [(1, "b"), (0, "a")])
def test_a_silo_that_has_not_told_its_load_counts_as_empty(load: int, chosen: str) -> None:
    found = choose_silo(LEAST_ACTIVATIONS, ["a", "b"], "", "g", {"a": load}, lambda n: 0)
    assert found == chosen


def hosting(silo: str, strategy: str, kind: str = "K", status: Status = Status.ACTIVE) -> MemberRow:
    return row(silo, status, grain_types=(kind,), placements=(("K", strategy),))


def test_the_first_active_host_of_a_type_says_how_it_is_placed() -> None:
    hosts = [
        hosting("d:1@1", RANDOM.value),
        hosting("a:1@1", HASHED.value, status=Status.STOPPING),
        hosting("b:1@1", HASHED.value, kind="other"),
        hosting("c:1@1", LEAST_ACTIVATIONS.value),
    ]
    assert placement_in(view(*hosts), "K") is LEAST_ACTIVATIONS
    assert placement_in(view(*hosts[:3]), "K") is RANDOM
    assert placement_in(view(), "K") is RANDOM


def test_a_strategy_that_is_not_named_or_not_known_is_random() -> None:
    assert placement_in(view(hosting("a:1@1", "of a later version")), "K") is RANDOM
    assert placement_in(view(row("a:1@1", grain_types=("K",))), "K") is RANDOM


class OldRow(msgspec.Struct, frozen=True, array_like=True):
    """A row as versions without labels know it."""

    silo: str
    status: Status
    name: str = ""
    probe_port: int = 0
    is_gateway: bool = True
    can_own_queues: bool = True
    grain_types: tuple[str, ...] = ()
    started_s: float = 0.0
    alive_s: float = 0.0
    suspicions: tuple[tuple[str, float], ...] = ()
    declarations: tuple[tuple[str, bytes], ...] = ()
    placements: tuple[tuple[str, str], ...] = ()
    agreement: tuple[tuple[str, str], ...] = ()


def test_rows_with_and_without_labels_are_read_by_both_versions() -> None:
    new = row(
        "a:1@1",
        grain_types=("K",),
        agreement=(("x", "1"),),
        labels=(("zone", "a"),),
        requirements=(("K", (("zone", ("a",)),)),),
    )
    encode = msgspec.msgpack.encode
    old = msgspec.msgpack.decode(encode(new), type=OldRow)
    assert (old.silo, old.grain_types, old.agreement) == ("a:1@1", ("K",), (("x", "1"),))
    read = msgspec.msgpack.decode(encode(old), type=MemberRow)
    assert (read.labels, read.requirements) == ((), ())
    assert msgspec.msgpack.decode(encode(new), type=MemberRow) == new


def test_labels_choose_candidates_by_the_row_of_the_first_host() -> None:
    needs = (("K", (("zone", ("b", "c")),)),)
    rows = [
        row("b:1@1", grain_types=("K",), labels=(("zone", "b"),)),
        row("a:1@1", grain_types=("K",), labels=(("zone", "a"),), requirements=needs),
        row("c:1@1", grain_types=("K",), labels=(("zone", "c"),), requirements=needs),
        row("d:1@1", grain_types=("L",), labels=(("zone", "c"),)),
        row("e:1@1", Status.JOINING, grain_types=("K",), labels=(("zone", "c"),)),
    ]
    found = HostedTypes(view(*rows)).of("K", None)
    assert found is not None
    assert found.silos == ("b:1@1", "c:1@1") and found.requires == needs[0][1]
    assert [one.silo for one in found.hosts] == ["a:1@1", "b:1@1", "c:1@1"]


def test_a_row_names_the_strategy_of_stateless_workers() -> None:
    found = HostedTypes(view(hosting("a:1@1", "stateless_worker"))).of("K", None)
    assert found is not None and found.is_worker and found.silos == ("a:1@1",)
    old = HostedTypes(view(row("a:1@1", grain_types=("K",)))).of("K", None)
    assert old is not None and not old.is_worker
    assert HostedTypes(view()).of("K", None) is None
    # a version without workers, which reads this row, places calls at random
    assert placement_in(view(hosting("a:1@1", "stateless_worker")), "K") is RANDOM


@pytest.mark.parametrize(
    ("status", "voters", "level"),
    [
        (Status.DEAD, ("b:1@1",), logging.WARNING),
        (Status.DEAD, (), logging.INFO),
        (Status.STOPPING, ("b:1@1",), logging.INFO),
    ],
)
def test_only_an_eviction_is_a_warning(
    caplog: pytest.LogCaptureFixture, status: Status, voters: tuple[str, ...], level: int
) -> None:
    after = row("a:1@1", status, suspicions=tuple((voter, NOW) for voter in voters))
    with caplog.at_level(logging.INFO):
        tell_changes("me:1@1", view(row("a:1@1"), row("b:1@1")), view(after, row("b:1@1")))
    (record,) = caplog.records
    assert record.levelno == level


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("shop", "a:1@1 (shop) is stopping (version 5)"),
        ("a:1@1", "a:1@1 is stopping (version 5)"),
        ("", "a:1@1 is stopping (version 5)"),
    ],
)
def test_a_member_is_told_by_its_name_if_it_has_one_of_its_own(
    caplog: pytest.LogCaptureFixture, name: str, line: str
) -> None:
    after = row("a:1@1", Status.STOPPING, name=name)
    with caplog.at_level(logging.INFO):
        tell_changes("me:1@1", view(row("a:1@1")), view(after, version=5))
    assert caplog.messages == [line]


def test_what_was_so_before_the_first_view_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        tell_changes("me:1@1", view(version=0), view(row("a:1@1")))
    assert not caplog.records
