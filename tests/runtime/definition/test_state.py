"""Persistent state: loading, writing, conflicts, coalescing, cancellation, fence."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.msgpack import decode, encode
from tests.conditions import spin, until

from millstream.runtime import (
    PREFER_LOCAL,
    ConfigError,
    Conflict,
    DeactivationReason,
    Etag,
    Grain,
    LocalCluster,
    MemoryStateStore,
    Row,
    Silo,
    State,
    StorageUnavailable,
    always_interleave,
    grain,
    one_way,
    state,
    with_options,
)

LOG: list[str] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@pytest.fixture(autouse=True)
def fresh_board() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    yield


class SlowStore(MemoryStateStore):
    """A store that counts its calls, and whose reads and writes wait for a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, Etag | None, int]] = []
        self.reads: list[str] = []
        self.gate: asyncio.Event | None = None
        self.fail_next: Exception | None = None
        self.lose_reply = False

    async def read(self, key: str, /) -> Row | None:
        self.reads.append(key)
        return await super().read(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        self.writes.append((key, expect, fence))
        if self.gate is not None:
            await self.gate.wait()
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            if self.lose_reply:
                await super().write(key, data, expect, fence)
            raise error
        return await super().write(key, data, expect, fence)


@dataclass
class Tally:
    count: int = 0
    names: list[str] = field(default_factory=list)


@grain(placement=PREFER_LOCAL)
class Counter(Grain):
    tally = state(Tally)

    async def on_activate(self) -> None:
        LOG.append(f"activate with {self.tally.value.count}")

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LOG.append(reason.name)

    async def add(self, by: int) -> int:
        self.tally.value.count += by
        return self.tally.value.count

    async def add_and_write(self, by: int) -> int:
        self.tally.value.count += by
        await self.tally.write()
        return self.tally.value.count

    async def add_and_write_in_children(self, times: int) -> int:
        async def one() -> None:
            self.tally.value.count += 1
            await self.tally.write()

        await asyncio.gather(*(one() for _ in range(times)))
        return self.tally.value.count

    async def get(self) -> int:
        return self.tally.value.count

    async def about(self) -> tuple[bool, str | None]:
        return self.tally.exists, self.tally.etag

    async def read_again(self) -> int:
        await self.tally.read()
        return self.tally.value.count

    async def clear(self) -> int:
        await self.tally.clear()
        return self.tally.value.count

    async def assign_the_field(self) -> None:
        name = "tally"
        setattr(self, name, Tally(5))

    async def put_wrong_value(self) -> None:
        self.tally.value = Tally("x")  # type: ignore[arg-type]
        await self.tally.write()

    async def swallow_conflict(self, by: int) -> str:
        self.tally.value.count += by
        try:
            await self.tally.write()
        except Conflict as error:
            return type(error).__name__
        return "no conflict"

    async def write_and_stay(self, by: int) -> int:
        self.tally.value.count += by
        await self.tally.write()
        LOG.append("written")
        return self.tally.value.count

    @always_interleave
    async def bump_and_write(self) -> None:
        self.tally.value.count += 1
        await self.tally.write()

    @one_way
    async def leave(self) -> None:
        self.context.deactivate_when_idle()

    async def go(self) -> None:
        self.context.deactivate_when_idle()

    async def where(self) -> str:
        return self.context.silo


@grain(placement=PREFER_LOCAL)
class EachTurn(Grain):
    tally = state(Tally, write="turn")
    other = state(Tally, name="second", write="turn")

    async def add(self, by: int) -> int:
        self.tally.value.count += by
        return self.tally.value.count

    async def get(self) -> int:
        return self.tally.value.count

    async def mutate_inside(self, name: str) -> None:
        self.tally.value.names.append(name)

    async def add_and_fail(self, by: int) -> None:
        self.tally.value.count += by
        raise ValueError("after the change")

    async def go(self) -> None:
        self.context.deactivate_when_idle()


class Several(Grain):
    first = state(Tally)
    second = state(Tally, name="renamed")
    elsewhere = state(Tally, store="other")

    async def write_all(self) -> None:
        for kept in (self.first, self.second, self.elsewhere):
            kept.value.count += 1
            await kept.write()


class FailsToLoad(Grain):
    tally = state(Tally, store="broken")

    async def get(self) -> int:
        return self.tally.value.count


class BrokenStore(MemoryStateStore):
    broken = True

    async def read(self, key: str, /) -> Row | None:
        if self.broken:
            raise StorageUnavailable(f"{key}: the disk is away")
        return await super().read(key)


GRAINS: Sequence[type[Grain]] = [Counter, EachTurn]


def gone(silo: Silo, cls: type[Grain], key: str) -> bool:
    return key not in silo.assembly.catalog.of(cls.__name__)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


def silo_with(store: Any, grains: Sequence[type[Grain]] = GRAINS) -> Silo:
    return Silo(grains=grains, stores={"default": store})


# --- values --------------------------------------------------------------------------------------


async def test_the_first_value_is_the_default_and_nothing_is_stored(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        assert await ref.get() == 0
        assert await ref.about() == (False, None)
    assert store.writes == [] and await store.scan("", "", 10) == []


async def test_each_activation_has_a_default_of_its_own(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        assert await silo.grain(Counter, "a").add(5) == 5
        assert await silo.grain(Counter, "b").get() == 0


async def test_a_written_value_is_there_after_deactivation(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        assert await ref.add_and_write(5) == 5
        assert await ref.add(100) == 105  # not written, so it is lost
        await ref.go()
        assert await ref.get() == 5
        exists, etag = await ref.about()
        assert exists and etag is not None
    assert LOG == ["activate with 0", "REQUESTED", "activate with 5", "SILO_STOPS"]


async def test_a_written_value_is_there_in_the_next_silo(store: SlowStore) -> None:
    for expected in (1, 2, 3):
        async with silo_with(store) as silo:
            assert await silo.grain(Counter, "a").add_and_write(1) == expected


async def test_state_is_loaded_before_on_activate(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        await silo.grain(Counter, "a").add_and_write(7)
        await silo.grain(Counter, "a").go()
        await silo.grain(Counter, "a").get()
    assert "activate with 7" in LOG


async def test_read_takes_back_what_was_not_written(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.add_and_write(5)
        await ref.add(100)
        assert await ref.read_again() == 5


async def test_clear_gives_the_default_and_a_write_after_it_works(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        assert await ref.clear() == 0  # nothing was stored
        await ref.add_and_write(5)
        assert await ref.clear() == 0
        assert (await ref.about())[0] is False
        await ref.go()
        assert await ref.get() == 0
        assert await ref.add_and_write(2) == 2
        await ref.go()
        assert await ref.get() == 2


async def test_assigning_to_the_field_is_refused_with_advice(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        with pytest.raises(AttributeError, match=r"self\.tally\.value"):
            await silo.grain(Counter, "a").assign_the_field()


async def test_a_value_of_another_type_is_refused_and_the_stored_one_stays(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.add_and_write(1)
        with pytest.raises(TypeError, match="Counter/a/tally"):
            await ref.put_wrong_value()
        await ref.go()
        assert await ref.get() == 1  # readable, so no wrong value was stored


async def test_states_have_keys_and_stores_of_their_own() -> None:
    first, other = SlowStore(), SlowStore()
    async with Silo(grains=[Several], stores={"default": first, "other": other}) as silo:
        await silo.grain(Several, "a").write_all()
    assert [key for key, _, _ in first.writes] == ["Several/a/first", "Several/a/renamed"]
    assert [key for key, _, _ in other.writes] == ["Several/a/elsewhere"]


async def test_a_store_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'other'"):
        async with Silo(grains=[Several]) as silo:
            await silo.grain(Several, "a").write_all()


async def test_a_store_that_cannot_be_read_fails_the_call_and_the_next_one_tries_again() -> None:
    broken = BrokenStore()
    async with Silo(grains=[FailsToLoad], stores={"broken": broken}) as silo:
        ref = silo.grain(FailsToLoad, "a")
        for _ in range(2):
            with pytest.raises(StorageUnavailable, match="the disk is away"):
                await ref.get()
        broken.broken = False
        assert await ref.get() == 0


async def test_state_is_the_fields_own_on_the_class() -> None:
    assert Counter.tally is Counter.__dict__["tally"]
    annotated: State[Tally] | None = None
    assert annotated is None


# --- writes --------------------------------------------------------------------------------------


async def test_writes_asked_for_meanwhile_share_one_write(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.get()
        store.gate = asyncio.Event()
        first = asyncio.create_task(ref.bump_and_write())
        await until(lambda: len(store.writes) == 1)
        others = [asyncio.create_task(ref.bump_and_write()) for _ in range(9)]
        await spin()
        assert not any(task.done() for task in others)
        store.gate.set()
        await asyncio.gather(first, *others)
        assert len(store.writes) == 2
        await ref.go()
        assert await ref.get() == 10  # the second write had the latest state


async def test_many_writes_at_once_store_the_last_value(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        assert await ref.add_and_write_in_children(20) == 20
        assert len(store.writes) <= 2
        await ref.go()
        assert await ref.get() == 20


async def test_a_cancelled_caller_does_not_break_the_bookkeeping_of_a_write(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.get()
        store.gate = asyncio.Event()
        task = asyncio.create_task(ref.write_and_stay(5))
        await until(lambda: len(store.writes) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.gate.set()
        store.gate = None
        await spin()
        # no conflict, because the etag of the first write is known
        assert await ref.add_and_write(1) == 6
        assert "written" not in LOG
        await ref.go()
        assert await ref.get() == 6


async def test_a_cancelled_writer_does_not_fail_those_who_share_its_write(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.get()
        store.gate = asyncio.Event()
        running = asyncio.create_task(ref.bump_and_write())
        await until(lambda: len(store.writes) == 1)
        sharing = [asyncio.create_task(ref.bump_and_write()) for _ in range(3)]
        await spin()
        sharing[0].cancel()
        await spin()
        store.gate.set()
        await asyncio.gather(running, *sharing[1:])
        assert sharing[0].cancelled()
        await ref.go()
        assert await ref.get() == 4


async def test_a_failed_write_fails_its_caller_and_a_later_one_works(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        store.fail_next = StorageUnavailable("the disk is full")
        with pytest.raises(StorageUnavailable, match="the disk is full"):
            await ref.add_and_write(5)
        assert await ref.add_and_write(1) == 6


async def test_a_write_whose_reply_was_lost_ends_in_a_conflict_and_a_reload(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        store.fail_next, store.lose_reply = StorageUnavailable("no reply"), True
        with pytest.raises(StorageUnavailable):
            await ref.add_and_write(5)
        with pytest.raises(Conflict):
            await ref.add_and_write(1)
        assert await ref.get() == 5


# --- conflicts -----------------------------------------------------------------------------------


async def foreign_write(store: MemoryStateStore, key: str, count: int) -> None:
    """Write as another process would: the same row with another value."""
    name = f"Counter/{key}/tally"
    row = store.get(name)
    value, cursors = ({"count": 0, "names": []}, {}) if row is None else decode(row.data)
    value["count"] += count
    etag, fence = (None, 1) if row is None else (row.etag, row.fence)
    store.put(name, encode([value, cursors]), etag, fence)


async def test_a_conflict_reaches_the_caller_and_the_next_call_reads_again(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.add_and_write(1)
        await foreign_write(store, "a", 10)
        LOG.clear()
        with pytest.raises(Conflict, match="Counter/a/tally"):
            await ref.add_and_write(1)
        assert await ref.get() == 11
        assert LOG == ["STATE_CONFLICT", "activate with 11"]
        assert await ref.add_and_write(1) == 12


async def test_a_conflict_ends_only_the_activation_that_had_it(store: SlowStore) -> None:
    class Caller(Grain):
        async def ask(self) -> str:
            try:
                await self.grain(Counter, "a").add_and_write(1)
            except Conflict:
                LOG.append("caught")
            return "alive"

        async def on_deactivate(self, reason: DeactivationReason, /) -> None:
            LOG.append(f"caller {reason.name}")

    async with silo_with(store, [Counter, Caller]) as silo:
        await silo.grain(Counter, "a").add_and_write(1)
        await foreign_write(store, "a", 10)
        LOG.clear()
        assert await silo.grain(Caller, "c").ask() == "alive"
        assert await silo.grain(Counter, "a").get() == 11
        assert LOG == ["caught", "STATE_CONFLICT", "activate with 11"]


async def test_a_conflict_that_the_method_swallows_ends_the_activation_too(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.add_and_write(1)
        await foreign_write(store, "a", 10)
        assert await ref.swallow_conflict(1) == "Conflict"
        assert await ref.get() == 11


async def test_calls_queued_behind_a_conflict_run_on_the_next_activation(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.add_and_write(1)
        await foreign_write(store, "a", 10)
        store.gate = asyncio.Event()
        first = asyncio.create_task(ref.add_and_write(1))
        await until(lambda: len(store.writes) == 2)
        queued = [asyncio.create_task(ref.get()) for _ in range(3)]
        await spin()
        store.gate.set()
        with pytest.raises(Conflict):
            await first
        assert await asyncio.gather(*queued) == [11, 11, 11]


async def test_a_stale_write_after_another_process_cleared_the_row_fails(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.add_and_write(1)
        row = store.get("Counter/a/tally")
        assert row is not None
        store.put("Counter/a/tally", encode([None, {}]), row.etag, row.fence)
        with pytest.raises(Conflict):
            await ref.add_and_write(1)
        assert await ref.add_and_write(3) == 3


# --- write="turn" --------------------------------------------------------------------------------


async def test_write_turn_stores_after_each_turn_that_changed_the_value(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(EachTurn, "a")
        assert await ref.get() == 0
        assert store.writes == []
        assert await ref.add(5) == 5
        assert [key for key, _, _ in store.writes] == ["EachTurn/a/tally"]
        assert await ref.get() == 5 and await ref.add(0) == 5
        assert len(store.writes) == 1  # nothing changed
        await ref.mutate_inside("x")
        assert len(store.writes) == 2
        await ref.go()
        assert await ref.get() == 5


async def test_write_turn_answers_only_after_the_write(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(EachTurn, "a")
        await ref.get()
        store.gate = asyncio.Event()
        call = asyncio.create_task(ref.add(5))
        after = asyncio.create_task(ref.get())
        await until(lambda: len(store.writes) == 1)
        await spin()
        assert not call.done() and not after.done()
        store.gate.set()
        assert await call == 5 and await after == 5


async def test_write_turn_holds_for_calls_from_elsewhere(store: SlowStore) -> None:
    async with LocalCluster(silos=2, grains=GRAINS, stores={"default": store}) as cluster:
        await cluster.silos[0].grain(EachTurn, "a").get()
        assert await cluster.silos[1].grain(EachTurn, "a").add(2) == 2
        assert await cluster.client.grain(EachTurn, "a").add(2) == 4
        assert len(store.writes) == 2


async def test_write_turn_fails_the_call_whose_write_failed(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(EachTurn, "a")
        await ref.get()
        store.fail_next = StorageUnavailable("the disk is full")
        with pytest.raises(StorageUnavailable):
            await ref.add(5)
        store.fail_next = Conflict("EachTurn/a/tally: someone else")
        with pytest.raises(Conflict):
            await ref.add(5)
        assert await ref.get() == 0


# --- fence ---------------------------------------------------------------------------------------


async def test_a_write_carries_the_version_of_the_registration_as_its_fence(
    store: SlowStore,
) -> None:
    async with silo_with(store) as silo:
        await silo.grain(Counter, "a").add_and_write(1)
        version = silo.assembly.membership.view.version
    ((_, expect, fence),) = store.writes
    assert expect is None and 0 < fence <= version


async def test_a_lower_fence_is_refused_though_the_etag_is_right(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.add_and_write(1)
        row = await store.read("Counter/a/tally")
        assert row is not None
        # A later registration wrote the row, and this activation read it before it knew.
        store._rows["Counter/a/tally"] = Row(row.data, row.etag, row.fence + 1000)
        with pytest.raises(Conflict, match="fence"):
            await ref.add_and_write(1)


async def test_two_activations_of_one_grain_cannot_both_write(store: SlowStore) -> None:
    async with silo_with(store) as one, silo_with(store) as two:  # two clusters, by mistake
        a, b = one.grain(Counter, "a"), two.grain(Counter, "a")
        await a.get()
        await b.get()
        assert await a.add_and_write(1) == 1
        with pytest.raises(Conflict):
            await b.add_and_write(1)
        assert await b.add_and_write(1) == 2
        with pytest.raises(Conflict):
            await a.add_and_write(1)


async def test_a_deadline_during_a_write_leaves_the_grain_usable(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.get()
        store.gate = asyncio.Event()
        with pytest.raises(TimeoutError):
            await with_options(ref, timeout=0.05).add_and_write(1)
        store.gate.set()
        store.gate = None
        assert await ref.add_and_write(1) == 2


async def test_an_evicted_or_killed_silo_writes_nothing_more(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        ref = silo.grain(Counter, "a")
        await ref.add_and_write(1)
        activation = silo.assembly.catalog.of("Counter")["a"]
        held = activation.grain
        await silo.kill()
        with pytest.raises(Exception):  # noqa: B017  # whatever it is, it is no success
            await held.tally.write()
        assert len(store.writes) == 1


async def test_deactivation_never_writes_by_itself(store: SlowStore) -> None:
    async with silo_with(store) as silo:
        await silo.grain(Counter, "a").add(5)
        await silo.grain(Counter, "a").leave()
        await until(lambda: gone(silo, Counter, "a"))
    assert store.writes == []
