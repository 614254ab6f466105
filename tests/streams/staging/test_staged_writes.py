"""Staged writes through a cluster: silos crash, the store fails, answers are lost, drivers vanish.

Each committed message is stored once and in order. Other messages are never seen, and leave no
rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.streams.staging.staged_world import StagedWorld, expected, in_cluster, rows_of

from millstream.runtime import (
    CallTimeout,
    ConfigError,
    NotHosted,
    NotInCluster,
    QueueFull,
    SiloUnavailable,
    StreamError,
)
from millstream.streams import StreamOptions
from millstream.streams.extending import WriterStatus
from millstream.streams.publishing.split import PublishLimits
from millstream.streams.staging import coordinator
from millstream.streams.staging.batch import Batch, Manifest
from millstream.streams.staging.coordinator import SWEEP_AFTER_S, Gone, OpenAttempt, WriterState
from millstream.streams.staging.finder import FIND_EVERY_S
from millstream.streams.staging.rows import StagedRows
from millstream.streams.staging.stager import StagedWriterName
from millstream.streams.staging.target import FORM, StagingTarget
from millstream.streams.staging.writer import LOOK_S

LEFT_S = 2 * (SWEEP_AFTER_S + LOOK_S + FIND_EVERY_S)  # a crash of a silo starts the count again
BATCHES = 2
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shorten the silence after which an attempt ends."""
    monkeypatch.setattr(coordinator, "SILENT_S", 200.0)
    return 200.0


async def write_all(world: StagedWorld) -> None:
    for batch in range(BATCHES):
        await world.write_batch(batch)


async def assert_swept(world: StagedWorld, within_s: float = LEFT_S) -> None:
    """Wait until no chunk is left, and check that none comes back."""
    async with asyncio.timeout(within_s):
        while world.store.staged("chunk"):
            await asyncio.sleep(LOOK_S)
    await asyncio.sleep(FIND_EVERY_S + LOOK_S)
    assert world.store.staged("chunk") == []


@pytest.mark.spare
def test_a_batch_is_seen_when_it_is_committed_whole_and_in_order() -> None:
    async def main(world: StagedWorld) -> None:
        manifests = [await world.on_host(world.write_part(0, part)) for part in (0, 1)]
        assert world.items() == {} and len(world.store.staged("chunk")) == 6
        found = [one for one in manifests if one is not None]
        assert await world.on_host(world.batch(0).commit(found)) == 42
        assert world.items() == expected(1)
        await assert_swept(world)

    in_cluster(main)


def test_a_repeated_batch_is_not_written_again() -> None:
    async def main(world: StagedWorld) -> None:
        await world.on_host(write_all(world))
        await asyncio.sleep(LOOK_S)  # the accepted chunks are deleted
        writes = world.store.writes
        assert await world.on_host(world.write_batch(BATCHES - 1)) == 42
        assert await world.on_host(world.write_batch(0)) == -1
        assert world.store.writes == writes
        assert world.items() == expected(BATCHES)

    in_cluster(main)


def killed(victim: str, at: int, when: str) -> int:
    """Crash a silo at one write of staged rows; return the number of writes."""

    async def main(world: StagedWorld) -> int:
        def kill(number: int, moment: str, key: str) -> None:
            if (number, moment) != (at, when):
                return
            host = world.coordinator() if victim == "coordinator" else "silo-0"
            if host:
                world.crash(host)

        world.store.on_write = kill
        await world.on_host(write_all(world))
        assert world.items() == expected(BATCHES)
        await assert_swept(world)
        assert world.items() == expected(BATCHES)
        return world.store.writes

    return in_cluster(main, seed=at)


SOME, MORE = (3, 12, 18), range(1, 45, 6)
STEPS = [SOME, pytest.param(MORE, marks=pytest.mark.slow)]


@pytest.mark.parametrize("steps", STEPS, ids=["some", "more"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("victim", ["coordinator", "gateway"])
@pytest.mark.one_in(4)
def test_a_silo_that_dies_at_any_write_loses_and_doubles_nothing(
    victim: str, when: str, steps: Sequence[int]
) -> None:
    assert all(killed(victim, at, when) for at in steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_silos_that_stop_one_after_the_other_cost_time_alone(seed: int) -> None:
    async def main(world: StagedWorld) -> None:
        writing = world.simulation.spawn(world.host, write_all(world))
        rng = world.simulation.rng
        while not writing.done():
            await asyncio.sleep(rng.uniform(0.0, 0.03))
            await world.cluster.stop_silo(world.coordinator() or "silo-0")
            await asyncio.sleep(rng.uniform(0.0, 3.0))
        await writing
        assert world.items() == expected(BATCHES)

    in_cluster(main, seed=seed)


@pytest.mark.spare
def test_what_is_decided_arrives_when_driver_and_coordinator_die_at_once() -> None:
    """Nobody asks any more; a finder finds the row, and its batch is delivered."""

    async def main(world: StagedWorld) -> None:
        def die(number: int, when: str, key: str) -> None:
            if when == "after" and world.is_decided():
                world.store.on_write = lambda *_: None
                world.crash(world.coordinator())
                world.simulation.crash("spark")

        parts = [await world.on_host(world.write_part(0, part)) for part in (0, 1)]
        world.store.on_write = die
        commit = world.batch(0).commit([one for one in parts if one is not None])
        world.simulation.spawn(world.host, commit)
        await asyncio.sleep(60 + 2 * FIND_EVERY_S)
        assert world.items() == expected(1)
        await assert_swept(world)

    in_cluster(main, is_client_lost=True)


@pytest.mark.spare
def test_of_a_driver_that_dies_nothing_is_seen_and_all_is_swept(short: float) -> None:
    async def main(world: StagedWorld) -> None:
        await world.on_host(world.write_part(0, 0))
        await world.on_host(world.write_part(0, 1, writer="other"))
        assert len(world.store.staged("chunk")) == 6
        world.crash(world.coordinator())
        await asyncio.sleep(short + LEFT_S)
        await assert_swept(world, 60.0)
        assert world.items() == {}
        assert world.coordinator() == ""  # the grain is idle, and collected

    in_cluster(main)


def test_a_batch_that_is_aborted_is_swept_and_may_be_written_again() -> None:
    async def main(world: StagedWorld) -> None:
        await world.on_host(world.write_part(0, 0))
        await world.on_host(world.batch(0).abort())
        await assert_swept(world)
        await world.on_host(world.write_batch(0))
        assert world.items() == expected(1)

    in_cluster(main)


def test_an_attempt_that_was_not_chosen_is_not_seen() -> None:
    async def main(world: StagedWorld) -> None:
        for chunks in (1, 2):
            await world.on_host(world.write_part(0, 0, chunks))  # failed half way
        late = world.attempt(0, 0)
        await world.on_host(late.begin())
        await world.on_host(world.write_batch(0))
        with pytest.raises(StreamError, match="its batch was decided or aborted meanwhile"):
            await world.on_host(late.stage(rows_of(0, 0, 0)))
            await world.on_host(late.finish())
        assert world.items() == expected(1)
        await assert_swept(world)

    in_cluster(main)


def test_two_drivers_of_one_writer_commit_each_batch_once() -> None:
    async def main(world: StagedWorld) -> None:
        async def insist() -> None:
            for batch in range(BATCHES):
                while True:
                    try:
                        await world.write_batch(batch)
                        break
                    except StreamError:
                        continue  # the other driver was quicker

        await asyncio.gather(world.on_host(insist()), world.on_host(insist()))
        assert world.items() == expected(BATCHES)
        await assert_swept(world)

    in_cluster(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_fails_now_and_then_costs_time_alone(seed: int) -> None:
    async def main(world: StagedWorld) -> None:
        world.store.rate = 0.2
        await world.on_host(write_all(world))
        world.store.rate = 0.0
        assert world.items() == expected(BATCHES)
        await assert_swept(world)

    in_cluster(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_that_are_lost_are_asked_for_again(seed: int) -> None:
    async def main(world: StagedWorld) -> None:
        writing = world.simulation.spawn(world.host, write_all(world))
        network, rng = world.simulation.network, world.simulation.rng
        while not writing.done():
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            for name in world.cluster.names:
                network.partition("spark", name)
            await asyncio.sleep(rng.uniform(0.0, 6.0))
            network.repair()
            await asyncio.sleep(0.1)
        await writing
        assert world.items() == expected(BATCHES)
        await assert_swept(world)

    in_cluster(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.spare
def test_a_coordinator_that_is_cut_off_and_replaced_doubles_nothing(seed: int) -> None:
    """It reaches the store, not the cluster: two activations of one writer run for a while."""

    async def main(world: StagedWorld) -> None:
        writing = world.simulation.spawn(world.host, write_all(world))
        network, rng = world.simulation.network, world.simulation.rng
        for _ in range(3):
            await asyncio.sleep(rng.uniform(0.0, 0.1))
            cut = world.coordinator()
            for name in world.cluster.names:
                if cut and name != cut:
                    network.partition(cut, name)
            await asyncio.sleep(rng.uniform(5.0, 40.0))
            network.repair()
            await world.cluster.until_active(120)
        await writing
        assert world.items() == expected(BATCHES)
        await assert_swept(world)

    in_cluster(main, seed=seed)


def test_a_writer_waits_for_room_and_says_what_there_is_none_of() -> None:
    async def main(world: StagedWorld) -> None:
        await world.on_host(world.write_part(0, 0, 2))
        with pytest.raises(QueueFull, match="bytes that one writer has staged; staged_bytes_max"):
            await world.on_host(world.write_part(0, 1, 2, patience_s=5.0))
        await world.on_host(world.batch(0).abort())
        await world.on_host(world.write_part(0, 0, 2, patience_s=LEFT_S))

    in_cluster(main, options=StreamOptions(staged_bytes_max=600))


def test_what_is_accepted_makes_room_at_once() -> None:
    """Each batch fills the limit of a writer's staged bytes."""

    async def main(world: StagedWorld) -> None:
        began_s = asyncio.get_running_loop().time()
        for batch in range(5):
            await world.on_host(world.write_batch(batch))
        assert world.items() == expected(5)
        assert asyncio.get_running_loop().time() - began_s < SWEEP_AFTER_S / 2
        assert world.store.staged("writer")

    in_cluster(main, options=StreamOptions(staged_bytes_max=1500))


@pytest.mark.spare
def test_the_row_of_a_writer_that_has_one_batch_is_removed(short: float) -> None:
    async def main(world: StagedWorld) -> None:
        await world.on_host(world.write_batch(0, once=True, writer="w"))
        await asyncio.sleep(short / 2)
        assert await world.on_host(world.write_batch(0, once=True)) == 42  # still known
        await asyncio.sleep(short + LEFT_S)
        assert world.store.staged("writer") == []

    in_cluster(main)


def test_a_gateway_that_stops_is_one_that_cannot_be_reached() -> None:
    class Stopped:
        async def abort(self, batch: int) -> None:
            raise NotInCluster("the silo has stopped")

    async def main(world: StagedWorld) -> None:
        writer: Any = Stopped()
        limits = PublishLimits()
        target = StagingTarget(
            StagedRows(world.store, "default"), lambda name: writer, str, limits, ""
        )
        with pytest.raises(SiloUnavailable, match="has stopped"):
            await target.abort("rows", "w", 0)

    in_cluster(main, silos=1)


def test_a_writer_that_does_not_answer_is_listed_as_its_row_says() -> None:
    class Silent:
        async def status(self) -> WriterStatus:
            raise CallTimeout("no answer")

    async def main(world: StagedWorld) -> None:
        rows = StagedRows(world.store, "default")
        batch = Batch(3, [Manifest("u", 0, ["q0"], [[2]])], {"q0": 0})
        waits = WriterState(last=3, messages=2, next={"q0": 2}, delivering=batch)
        waits.open["u"] = OpenAttempt(3, 0, 10)
        await rows.write("4:rows/w", waits, None)
        await rows.write("4:rows/x", WriterState(last=1), None)
        writer: Any = Silent()
        target = StagingTarget(rows, lambda name: writer, str, PublishLimits(), "")
        first, second = await target.writers("", 10)
        assert (first.name, first.waiting, first.messages) == (("rows", "w"), 3, 2)
        assert (second.name, second.waiting, second.last) == (("rows", "x"), None, 1)

    in_cluster(main, silos=1)


def test_bad_input_is_one_clear_error() -> None:
    async def main(world: StagedWorld) -> None:
        call = world.client.gateway.call
        target, begin = world.name().target, StagingTarget.begin

        async def refused(error: type[Exception], text: str, *args: object) -> None:
            with pytest.raises(error, match=text):
                await world.on_host(call("x", target, *args))  # type: ignore[arg-type]

        await refused(
            ConfigError, "form 9 .* cluster uses form 2", begin, 9, "r", "w", 0, 0, "u", False
        )
        await refused(ValueError, "writer .* has 0 bytes", begin, FORM, "r", "", 0, 0, "u", False)
        await refused(
            ValueError, "batch is -1; it must be", begin, FORM, "r", "w", -1, 0, "u", False
        )
        await refused(
            ValueError, "letters, digits and hyph", begin, FORM, "r", "w", 0, 0, "../u", False
        )
        stage = StagingTarget.stage
        await refused(ValueError, "CHUNKS_MAX is 10000", stage, "r", "w", "u", 10_000, [])
        await refused(ValueError, "limit is 0", StagingTarget.writers, "", 0)
        await refused(LookupError, "no writer w in r", StagingTarget.status, "r", "w")
        await refused(LookupError, "does not wait", StagingTarget.abandon, "r", "w", 0, 1.0)
        odd = [Manifest("u", 0, ["q0"], [[1, 2]])]
        committing = call("x", target, StagingTarget.commit, "r", "w", 0, odd, 1.0)
        assert await world.on_host(committing) == Gone(["u"])
        with pytest.raises(NotHosted, match=r"\$staging/lake"):
            lake = StagedWriterName("lake", "rows", "w")
            await world.on_host(world.begin_as(lake))

    in_cluster(main)
