"""Grains that move to another silo, in virtual time: what goes along, and what happens if it fails.

The cases are those of MigrationTests of Orleans.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from millstream.runtime import (
    PREFER_LOCAL,
    ConfigError,
    Conflict,
    DeactivationReason,
    Grain,
    MemoryStateStore,
    Rejected,
    ResultsAborted,
    Row,
    RuntimeOptions,
    Silo,
    grain,
    state,
    timer,
)
from millstream.runtime.testing import SimCluster, Simulation, check_one_activation, run

LOG: list[str] = []
FAULTS: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    FAULTS.clear()
    yield


@dataclass
class Board:
    """The value in memory of a game."""

    moves: list[str] = field(default_factory=list)


@grain(placement=PREFER_LOCAL)
class Game(Grain):
    score = state(int)

    def __init__(self) -> None:
        self.board = Board()
        self._ticks = 0

    async def on_activate(self) -> None:
        LOG.append(f"activated with {self.score.value} and {len(self.board.moves)} moves")
        if "slow start" in FAULTS:
            await asyncio.sleep(3.0)

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        LOG.append(f"deactivated: {reason.value}")
        if "leave in hook" in FAULTS:
            FAULTS.clear()
            self.context.migrate_when_idle()
        if "conflict in hook" in FAULTS:
            FAULTS.clear()
            with pytest.raises(Conflict):
                await self.score.write()
        if "stuck" in FAULTS:
            await asyncio.sleep(1_000)
        if "slow end" in FAULTS:
            await asyncio.sleep(2.0)

    def on_dehydrate(self) -> Board:
        if "dehydrate" in FAULTS:
            raise RuntimeError("cannot pack")
        if "large" in FAULTS:
            return Board(["x" * 3_000])
        return self.board

    def on_rehydrate(self, value: Board) -> None:
        self.board = value
        if "rehydrate" in FAULTS:
            raise RuntimeError("cannot unpack")

    async def play(self, move: str, seconds: float = 0.0) -> int:
        await asyncio.sleep(seconds)
        self.board.moves.append(move)
        return len(self.board.moves)

    async def add(self, by: int) -> int:
        self.score.value += by
        await self.score.write()
        return self.score.value

    async def add_unsaved(self, by: int) -> None:
        self.score.value += by

    async def see(self) -> tuple[str, int, list[str]]:
        return self.context.silo, self.score.value, self.board.moves

    async def leave(self, to: str | None = None) -> None:
        self.context.migrate_when_idle(to=to)

    async def end(self) -> None:
        self.context.deactivate_when_idle()

    async def start_timer(self) -> None:
        self.context.timer(self._note, every=1.0)

    async def _note(self) -> None:
        LOG.append("run-time tick")

    @timer(every=1.0)
    async def tick(self) -> None:
        self._ticks += 1

    async def ticks(self) -> int:
        return self._ticks

    async def start_task(self) -> None:
        self.context.create_task(self._wait())

    async def _wait(self) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            LOG.append("task ended")

    async def rows(self) -> AsyncGenerator[int, None]:
        for number in range(100):
            await asyncio.sleep(1.0)
            yield number


class CountingStore(MemoryStateStore):
    """A store that counts reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    async def read(self, key: str, /) -> Row | None:
        self.counts["reads"] += 1
        return await super().read(key)


class World:
    """A cluster of three silos with the grain `Game/g` in the first one."""

    def __init__(self, sim: Simulation, cluster: SimCluster) -> None:
        self.sim, self.cluster = sim, cluster
        self.first, self.second, self.third = cluster.names

    def silo(self, name: str) -> Silo:
        silo = self.cluster.silo(name)
        assert silo is not None
        return silo

    def game(self, name: str = "", key: str = "g") -> Game:
        return self.silo(name or self.first).grain(Game, key)

    async def at(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        async def program() -> Any:
            return await work()

        return await self.sim.call(self.sim.host(name), program())

    async def see(self, name: str = "", key: str = "g") -> tuple[str, int, list[str]]:
        found: tuple[str, int, list[str]] = await self.at(
            name or self.second, lambda: self.game(name or self.second, key).see()
        )
        return found

    def address(self, name: str) -> str:
        return self.silo(name).address


def play(
    main: Callable[[World], Awaitable[None]], options: RuntimeOptions | None = None
) -> list[str]:
    """Run a test; `main` runs outside of the hosts. Returns what the grains have noted."""

    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=3, grains=[Game], options=options) as cluster:
            world = World(sim, cluster)

            async def begin() -> None:
                await world.game().play("e4")
                await world.game().add(5)

            await world.at(world.first, begin)
            LOG.clear()
            await main(world)
            assert not check_one_activation(sim.history)

    run(driver, seed=1)
    return LOG


async def leave(world: World, to: str | None = None) -> None:
    await world.at(world.first, lambda: world.game().leave(to))
    await asyncio.sleep(1.0)


def test_a_grain_moves_with_its_value_and_its_states() -> None:
    async def main(world: World) -> None:
        await leave(world)
        assert LOG == ["deactivated: migrating", "activated with 5 and 1 moves"]
        silo, score, moves = await world.see()
        assert silo in (world.address(world.second), world.address(world.third))
        assert (score, moves) == (5, ["e4"])
        assert await world.see(world.first) == (silo, score, moves)
        assert await world.see(world.third) == (silo, score, moves)
        assert await world.at(world.first, lambda: world.game().add(2)) == 7

    play(main)


@pytest.mark.parametrize("target", [1, 2])
def test_a_grain_moves_to_the_silo_that_it_names(target: int) -> None:
    async def main(world: World) -> None:
        to = world.address(world.cluster.names[target])
        await leave(world, to)
        assert (await world.see())[0] == to
        back = world.address(world.first)
        await world.at(world.second, lambda: world.game(world.second).leave(back))
        await asyncio.sleep(1.0)
        assert await world.see() == (back, 5, ["e4"])

    play(main)


def test_a_grain_that_names_no_suitable_silo_is_told() -> None:
    async def main(world: World) -> None:
        for wrong in ("silo-9:7000@1", ""):
            with pytest.raises(ConfigError, match=r"no other active silo .* suitable: silo-1"):
                await world.at(world.first, lambda to=wrong: world.game().leave(to))  # type: ignore[misc]
        await world.at(world.first, lambda: world.game().leave(world.address(world.first)))
        await asyncio.sleep(1.0)
        assert LOG == []

    play(main)


def test_a_grain_stays_where_it_is_if_no_other_silo_can_host_it() -> None:
    async def main(world: World) -> None:
        for name in (world.second, world.third):
            await world.cluster.remove_silo(name)
        await world.at(world.first, lambda: world.game().leave())
        await asyncio.sleep(1.0)
        assert LOG == []
        assert (await world.see(world.first))[0] == world.address(world.first)

    play(main)


def test_the_states_are_not_read_again_and_keep_their_etags() -> None:
    async def driver(sim: Simulation) -> None:
        store = CountingStore()
        async with SimCluster(sim, silos=2, grains=[Game], stores={"default": store}) as cluster:
            first, second = cluster.names

            async def program() -> None:
                silo = cluster.silo(first)
                assert silo is not None
                game = silo.grain(Game, "g")
                await game.add(5)
                await game.add_unsaved(2)
                store.counts.clear()
                await game.leave()
                await asyncio.sleep(1.0)
                assert (await game.see())[1] == 7
                assert store.counts["reads"] == 0
                assert await game.add(1) == 8
                await game.end()
                await asyncio.sleep(1.0)
                assert (await game.see())[1] == 8

            await sim.call(sim.host(first), program())

    run(driver, seed=1)


def test_calls_that_wait_follow_in_their_order() -> None:
    async def main(world: World) -> None:
        async def calls(name: str) -> list[int]:
            game = world.game(name)
            await asyncio.sleep(0.1)
            counts = await asyncio.gather(*(game.play(f"{name} {at}") for at in range(5)))
            return list(counts)

        busy = asyncio.ensure_future(
            world.at(world.first, lambda: world.game().play("slow", seconds=2.0))
        )
        await asyncio.sleep(0.05)
        waiting = [
            asyncio.ensure_future(world.at(name, lambda name=name: calls(name)))  # type: ignore[misc]
            for name in world.cluster.names
        ]
        await asyncio.sleep(1.0)
        first = world.cluster.silo(world.first)
        assert first is not None
        activation = first.assembly.catalog.find("Game", "g")
        assert activation is not None
        first.assembly.catalog.move(activation, None)
        counts = [await one for one in waiting]
        assert await busy == 2
        assert sorted(number for some in counts for number in some) == list(range(3, 18))
        assert all(some == sorted(some) for some in counts)
        silo, _, moves = await world.see()
        assert silo != world.address(world.first)
        assert moves[:2] == ["e4", "slow"]
        for name in world.cluster.names:
            own = [move for move in moves if move.startswith(name)]
            assert own == [f"{name} {at}" for at in range(5)]

    play(main)


@pytest.mark.parametrize("is_taken", [True, False])
def test_the_old_silo_knows_the_new_one_only_if_the_grain_has_moved(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(world: World) -> None:
        if not is_taken:
            monkeypatch.setattr("millstream.runtime.cluster.migrations.MIGRATIONS_MAX", 0)
        to = world.address(world.second)
        await leave(world, to)
        known = world.silo(world.first).assembly.router.silo_of("Game", "g")
        assert known == (to if is_taken else "")

    play(main)


def test_a_package_of_the_largest_size_is_sent_and_no_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(world: World) -> None:
        mover = world.silo(world.first).assembly.catalog.mover
        monkeypatch.setattr(mover, "_is_taken", AsyncMock(return_value=True))
        for key, size in (("fits", 2_000), ("large", 2_001)):
            made = "millstream.runtime.turns.catalog.pack"
            monkeypatch.setattr(made, lambda _, size=size: b"x" * size)
            await world.at(world.first, lambda key=key: world.game(key=key).leave())  # type: ignore[misc]
            await asyncio.sleep(1.0)
            known = world.silo(world.first).assembly.router.silo_of("Game", key)
            assert bool(known) == (key == "fits")

    play(main, RuntimeOptions(migration_bytes_max=2_000))


def test_a_silo_takes_a_limited_number_of_packages_of_a_limited_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.runtime.cluster.migrations.MIGRATIONS_MAX", 2)

    async def main(world: World) -> None:
        catalog = world.silo(world.second).assembly.catalog
        mover: Any = catalog.mover
        gate = asyncio.Event()

        async def receive(*_: object) -> bool:
            await gate.wait()
            return True

        def take(name: str, size: int) -> asyncio.Future[bool]:
            taken: asyncio.Future[bool] = asyncio.ensure_future(
                mover.take(name, "x", ("silo-9:7000@1", 1), b"x" * size)
            )
            return taken

        monkeypatch.setattr(catalog, "receive", receive)
        assert not await take("Unknown", 5)
        assert not await take("Game", 2_001)
        first, second = take("Game", 2_000), take("Game", 5)
        await asyncio.sleep(0.1)
        assert not await take("Game", 5)
        gate.set()
        assert await first and await second and await take("Game", 5)

    play(main, RuntimeOptions(migration_bytes_max=2_000))


def test_a_silo_that_refuses_a_package_with_an_error_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "millstream.migrations")

    async def main(world: World) -> None:
        mover = world.silo(world.second).assembly.catalog.mover
        monkeypatch.setattr(mover, "take", AsyncMock(side_effect=Rejected("not today")))
        await leave(world, world.address(world.second))
        assert world.silo(world.first).assembly.router.silo_of("Game", "g") == ""
        assert (await world.see(world.third))[1:] == (5, [])

    play(main)
    assert any("Game/g did not move to silo-1:7000" in line for line in caplog.messages)


def test_a_package_may_lack_the_value_and_have_an_extension_that_the_silo_does_not_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = "millstream.runtime.turns.catalog.pack"
    pack = sys.modules["millstream.runtime.turns.catalog"].pack

    def other(activation: Any) -> bytes:
        states, _, extensions, *_ = msgspec.msgpack.decode(pack(activation))
        return msgspec.msgpack.encode([states, None, {**extensions, "unknown": b"content"}])

    async def main(world: World) -> None:
        await world.at(world.first, lambda: world.game().add_unsaved(2))
        monkeypatch.setattr(made, other)
        await leave(world)
        assert LOG == ["deactivated: migrating", "activated with 7 and 0 moves"]

    play(main)
    assert not any("starts from its store" in line for line in caplog.messages)


def test_a_silo_sends_nothing_once_its_time_for_moves_is_over() -> None:
    async def main(world: World) -> None:
        world.silo(world.first).assembly.catalog.mover.until_s = 0.0
        await leave(world)
        assert LOG == ["deactivated: migrating"]
        assert (await world.see())[1:] == (5, [])

    play(main)


def test_a_cluster_that_closes_moves_nothing() -> None:
    async def main(world: World) -> None:
        await world.cluster.close()
        assert LOG == ["deactivated: silo_stops"]

    play(main)


def test_many_grains_move_at_once() -> None:
    async def main(world: World) -> None:
        keys = [f"key-{number}" for number in range(300)]

        async def begin() -> None:
            for key in keys:
                await world.game(key=key).play(key)
            await asyncio.gather(*(world.game(key=key).leave() for key in keys))

        await world.at(world.first, begin)
        await asyncio.sleep(2.0)
        silos: Counter[str] = Counter()
        for key in keys:
            silo, _, moves = await world.see(key=key)
            assert moves == [key]
            silos[silo] += 1
        assert silos.keys() == {world.address(world.second), world.address(world.third)}

    play(main)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("dehydrate", "does not move to another silo; it ends as usual"),
        ("large", "its package has"),
        ("rehydrate", "cannot continue where it was in another silo; it starts from its store"),
    ],
)
def test_a_grain_whose_package_fails_starts_from_its_store(
    fault: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        FAULTS.add(fault)
        await leave(world)
        silo, score, moves = await world.see()
        assert (score, moves) == (5, [])
        assert await world.at(world.first, lambda: world.game().add(1)) == 6
        assert (silo == world.address(world.second)) or fault == "rehydrate"

    play(main, RuntimeOptions(migration_bytes_max=2_000))
    assert any(text in line for line in caplog.messages)


def test_a_package_of_another_version_of_the_class_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        for package in (b"\x93\x80\xc0\x80", b"garbage", b""):
            made = "millstream.runtime.turns.catalog.pack"
            monkeypatch.setattr(made, lambda _, package=package: package)
            where, _, _ = await world.see()
            name = next(one for one in world.cluster.names if world.address(one) == where)
            await world.at(name, lambda name=name: world.game(name).leave())  # type: ignore[misc]
            await asyncio.sleep(1.0)
            assert (await world.see())[1:] == (5, [])

    play(main)
    assert sum("it starts from its store" in line for line in caplog.messages) >= 3


@pytest.mark.parametrize("fault", ["crash", "partition", "full", "already here"])
def test_a_grain_whose_new_silo_fails_starts_from_its_store(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(world: World) -> None:
        to = world.address(world.second)
        if fault == "partition":
            world.sim.network.partition(world.first, world.second)
        if fault == "full":
            monkeypatch.setattr("millstream.runtime.cluster.migrations.MIGRATIONS_MAX", 0)
        moving = asyncio.ensure_future(world.at(world.first, lambda: world.game().leave(to)))
        if fault == "crash":
            world.sim.crash(world.second)
        if fault == "already here":
            assembly = world.silo(world.second).assembly
            kind = assembly.references.kind_named("Game")
            monkeypatch.setattr(assembly.catalog, "find", lambda *_: object())
            assert kind.hosted is not None
        await asyncio.sleep(0.5)
        monkeypatch.undo()
        await moving
        await asyncio.sleep(10.0)
        world.sim.network.repair()
        await asyncio.sleep(5.0)
        _, score, moves = await world.see(world.third)
        assert score == 5
        if fault == "partition":
            assert moves in ([], ["e4"])  # it has moved if only the answer was lost
        else:
            assert moves == []

    play(main)


def test_a_grain_may_decide_to_move_while_it_ends() -> None:
    async def main(world: World) -> None:
        FAULTS.add("leave in hook")
        await world.at(world.first, lambda: world.game().end())
        await asyncio.sleep(1.0)
        assert LOG == ["deactivated: requested", "activated with 5 and 1 moves"]
        assert (await world.see())[2] == ["e4"]

    play(main)


def test_an_activation_with_an_outdated_state_does_not_move() -> None:
    async def main(world: World) -> None:
        FAULTS.add("conflict in hook")
        store = world.silo(world.first).assembly.store("default")

        async def write() -> None:
            row = await store.read("Game/g/score")
            assert row is not None
            await store.write("Game/g/score", b"\x92\x09\x80", row.etag, 2**53)

        await world.at(world.first, write)
        await leave(world)
        assert LOG == ["deactivated: migrating"]
        assert (await world.see())[1:] == (9, [])

    play(main)


def test_a_hook_that_hangs_ends_the_move() -> None:
    async def main(world: World) -> None:
        FAULTS.add("stuck")
        await leave(world)
        FAULTS.clear()
        await asyncio.sleep(5.0)
        assert (await world.see())[1] == 5

    play(main, RuntimeOptions(deactivation_timeout_s=2.0))


def test_tasks_timers_and_generators_end_and_marked_timers_start_again() -> None:
    async def main(world: World) -> None:
        async def consume() -> int:
            got = 0
            with pytest.raises(ResultsAborted, match="migrating"):
                async for _ in world.game().rows():
                    got += 1
            return got

        await world.at(world.first, lambda: world.game().start_timer())
        await world.at(world.first, lambda: world.game().start_task())
        consuming = asyncio.ensure_future(world.at(world.first, consume))
        await asyncio.sleep(3.5)
        assert LOG.count("run-time tick") == 3
        await leave(world)
        assert await consuming == 3
        assert "task ended" in LOG
        await asyncio.sleep(3.2)
        assert LOG.count("run-time tick") == 3
        assert await world.at(world.second, lambda: world.game(world.second).ticks()) == 4

    play(main)


def test_calls_wait_for_the_start_at_the_new_silo() -> None:
    async def main(world: World) -> None:
        FAULTS.add("slow start")
        await leave(world)
        assert (await world.see())[1:] == (5, ["e4"])
        assert world.sim.loop.time() > 3.0

    play(main)


def test_a_silo_that_stops_moves_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.runtime.turns.catalog.MOVED_AT_STOP_MAX", 3)

    async def main(world: World) -> None:
        keys = [f"key-{number}" for number in range(5)]

        async def begin() -> None:
            for key in keys:
                await world.game(key=key).play(key)
            FAULTS.add("slow end")

        await world.at(world.first, begin)
        began_s = world.sim.loop.time()
        await world.cluster.remove_silo(world.first)
        assert world.sim.loop.time() - began_s < 3.0  # all end at the same time
        moved = [(await world.see(key=key))[2] == [key] for key in keys]
        assert moved == [True, True, False, False, False]  # `Game/g` was the first

    play(main)


def test_packages_are_made_when_there_is_a_place_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.runtime.cluster.migrations.MIGRATIONS_MAX", 2)
    waiting, most = set[int](), 0

    async def main(world: World) -> None:
        nonlocal most
        pack = sys.modules["millstream.runtime.turns.catalog"].pack

        def counted(activation: Any) -> Any:
            nonlocal most
            waiting.add(activation.id)
            most = max(most, len(waiting))
            return pack(activation)

        def count_arrivals(mover: Any) -> None:
            take = mover.take

            async def taken(name: str, key: str, former: Any, data: bytes) -> bool:
                waiting.discard(former.activation_id)
                moved: bool = await take(name, key, former, data)
                return moved

            monkeypatch.setattr(mover, "take", taken)

        monkeypatch.setattr("millstream.runtime.turns.catalog.pack", counted)
        for silo in world.cluster.silos():
            count_arrivals(silo.assembly.catalog.mover)
        keys = [f"key-{number}" for number in range(40)]

        async def begin() -> None:
            for key in keys:
                await world.game(key=key).play(key)
            await asyncio.gather(*(world.game(key=key).leave() for key in keys))

        await world.at(world.first, begin)
        await asyncio.sleep(2.0)
        assert all([(await world.see(key=key))[2] == [key] for key in keys])

    play(main)
    assert 0 < most <= 2


@pytest.mark.parametrize("drain_s", [10.0, 0.2])
def test_a_silo_that_stops_moves_what_its_time_allows(
    drain_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.runtime.cluster.migrations.MIGRATIONS_MAX", 2)

    async def main(world: World) -> None:
        keys = [f"key-{number}" for number in range(400)]

        async def begin() -> None:
            for key in keys:
                await world.game(key=key).play(key)
                await world.game(key=key).add(1)

        await world.at(world.first, begin)
        LOG.clear()
        await world.cluster.remove_silo(world.first)
        assert LOG.count("deactivated: silo_stops") == 401
        moved = 0
        for key in keys:
            _, score, moves = await world.see(key=key)
            assert score == 1
            moved += moves == [key]
        assert moved == 400 if drain_s > 1 else 0 < moved < 400

    play(main, RuntimeOptions(drain_s=drain_s))
