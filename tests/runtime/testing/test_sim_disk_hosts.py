"""Simulated disks under programs: threads in virtual time, processes of one machine, scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import Grain
from millstream.runtime.extending import (
    Disk,
    DiskFile,
    DiskFull,
    SiloPart,
    SiloServices,
    SyncFailed,
    read_file,
    replace_file,
)
from millstream.runtime.testing import (
    DISK_VERBS,
    VERBS,
    SimCluster,
    SimDisk,
    Simulation,
    SimulationFailed,
    make_random,
    make_script,
    parse_script,
    run,
)

# -- A log that acknowledges too early must fail here.

RECORDS = 200


class ToyLog:
    """Appends numbered records of one size to a file, several at a time."""

    record = 300

    def __init__(self, disk: Disk, acknowledged: list[int]) -> None:
        self.disk, self.acknowledged = disk, acknowledged

    async def run(self) -> None:
        self.disk.make_dir("/log")
        self.file = self.disk.create("/log/1")
        self.file.preallocate(RECORDS * self.record)
        self.sync_names()
        self.thread = self.disk.start_thread("log")
        for first in range(0, RECORDS, 4):
            parts = [self.of(number) for number in range(first, first + 4)]
            await self.append(first * self.record, parts)
            self.acknowledged.extend(range(first, first + 4))

    def sync_names(self) -> None:
        self.disk.sync_dir("/log")

    def of(self, number: int) -> bytes:
        return bytes([1 + number % 250]) * self.record

    async def append(self, offset: int, parts: list[bytes]) -> None:
        await self.thread.flush(self.file, offset, parts)


class Hasty(ToyLog):
    """Acknowledges writes first, and syncs afterwards."""

    async def append(self, offset: int, parts: list[bytes]) -> None:
        await self.thread.run(self.file.write_at, offset, *parts)
        self.thread.flush(self.file, offset, parts)


class Nameless(ToyLog):
    """Syncs the file but not its directory."""

    def sync_names(self) -> None:
        pass


class Retrying(ToyLog):
    """Trusts the second answer of a sync."""

    async def append(self, offset: int, parts: list[bytes]) -> None:
        try:
            await super().append(offset, parts)
        except SyncFailed:
            assert isinstance(self.disk, SimDisk)
            self.disk.sync_failure_chance = 0.0  # the second sync succeeds
            self.file = self.disk.open("/log/1")
            await self.thread.run(self.file.datasync)


class Steady(ToyLog):
    """Ends when a sync fails."""

    async def append(self, offset: int, parts: list[bytes]) -> None:
        try:
            await super().append(offset, parts)
        except SyncFailed:
            await asyncio.Event().wait()


def lose_power(log: type[ToyLog], end: Callable[[Simulation], None], failing: bool = False) -> Any:
    async def main(sim: Simulation) -> int:
        disk, acknowledged = sim.disk("a"), list[int]()
        sim.spawn(sim.host("a"), log(disk, acknowledged).run())
        await asyncio.sleep(0)
        disk.sync_failure_chance = 0.1 if failing else 0.0
        await asyncio.sleep(sim.rng.uniform(0, 0.08))
        end(sim)
        if acknowledged:
            found = read_file(disk, "/log/1", 1 << 20)
            size = ToyLog.record
            for number in acknowledged:
                want = bytes([1 + number % 250]) * size
                assert found[number * size : (number + 1) * size] == want, number
        return len(acknowledged)

    return main


def failures(log: type[ToyLog], end: Callable[[Simulation], None], failing: bool = False) -> int:
    failed, done = 0, 0
    for seed in range(30):
        try:
            done += run(lose_power(log, end, failing), seed).result
        except SimulationFailed as failure:
            assert isinstance(failure.__cause__, AssertionError | FileNotFoundError), failure
            failed += 1
    assert done > 100 or failed
    return failed


def cut(sim: Simulation) -> None:
    sim.cut_power("a")


def kill(sim: Simulation) -> None:
    sim.kill("a")


def kill_and_cut(sim: Simulation) -> None:
    sim.kill("a")
    sim.restart("a")
    sim.cut_power("a")


def test_a_log_that_waits_for_its_sync_loses_nothing() -> None:
    assert failures(ToyLog, cut) == 0
    assert failures(Steady, cut, failing=True) == 0


@pytest.mark.parametrize("log", [Hasty, Nameless])
def test_a_log_that_acknowledges_too_early_fails(log: type[ToyLog]) -> None:
    assert failures(log, cut) > 5
    assert failures(log, kill_and_cut) > 5


def test_a_log_that_tries_a_failed_sync_again_fails() -> None:
    assert failures(Retrying, cut, failing=True) > 5


@pytest.mark.parametrize("log", [ToyLog, Hasty, Nameless])
def test_a_kill_of_the_process_proves_nothing(log: type[ToyLog]) -> None:
    assert failures(log, kill) == 0


# -- Time.


def timed(steps: Callable[[SimDisk, DiskFile], Coroutine[Any, Any, None]]) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk("a")
        disk.set_latency(0.01, 0.01)
        await sim.call(sim.host("a"), steps(disk, disk.create("/log")))

    run(main, 1)


def test_a_flush_takes_as_long_as_its_sync_and_is_durable_only_then() -> None:
    async def steps(disk: SimDisk, file: DiskFile) -> None:
        loop, thread = asyncio.get_running_loop(), disk.start_thread("log")
        disk.stall(5.0)
        start_s = loop.time()
        first, second = thread.flush(file, 0, [b"a"]), thread.flush(file, 1, [b"b"])
        await asyncio.sleep(4.9)
        assert file.read_at(0, 9) == b"a" and not first.done()
        await first
        assert loop.time() - start_s == pytest.approx(5.0)
        await second
        assert loop.time() - start_s == pytest.approx(5.01)

    timed(steps)


def test_a_job_costs_its_syncs() -> None:
    async def steps(disk: SimDisk, file: DiskFile) -> None:
        loop, thread = asyncio.get_running_loop(), disk.start_thread("log")
        file.sync()  # blocks the loop, so it does not count for the job
        start_s = loop.time()
        await thread.run(replace_file, disk, "/id", b"x")
        assert loop.time() - start_s == pytest.approx(0.02)
        assert await thread.run(lambda: 1) == 1
        assert loop.time() - start_s == pytest.approx(0.02)

    timed(steps)


def test_a_job_that_fails_fails_late_too() -> None:
    async def steps(disk: SimDisk, file: DiskFile) -> None:
        loop, thread = asyncio.get_running_loop(), disk.start_thread("log")
        disk.fill_up()
        with pytest.raises(DiskFull):
            await thread.flush(file, 0, [b"x"])
        disk.make_room()
        disk.fail_sync()
        start_s = loop.time()
        with pytest.raises(SyncFailed):
            await thread.flush(file, 0, [b"x"])
        assert loop.time() - start_s == pytest.approx(0.01)

    timed(steps)


# -- Processes and machines.


def test_a_killed_process_leaves_what_it_wrote_and_no_lock() -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk("a")

        async def program() -> None:
            assert disk.lock("/") is not None
            disk.create("/log").write_at(0, b"x")
            await asyncio.Event().wait()

        async def next_one() -> None:
            assert disk.lock("/") is not None

        sim.spawn(sim.host("a"), program())
        await asyncio.sleep(1)
        assert disk.lock("/") is None
        sim.kill("a")
        assert not sim.is_up("a") and read_file(disk, "/log", 1) == b"x"
        await sim.call(sim.restart("a"), next_one())

    for seed in range(5):
        run(main, seed)


def test_files_of_a_dead_process_are_dead_and_those_of_its_neighbour_live() -> None:
    async def main(sim: Simulation) -> None:
        sim.share_disk("a", "b")
        files: list[DiskFile] = []

        async def program(name: str) -> None:
            files.append(sim.disk(name).create(f"/{name}"))

        for name in ("a", "b"):
            await sim.call(sim.host(name), program(name))
        files[0].write_at(0, b"of a")
        sim.crash("a")
        with pytest.raises(OSError, match="crashed"):
            files[0].read_at(0, 1)
        files[1].write_at(0, b"of b")
        assert read_file(sim.disk("b"), "/a", 9) == b"of a"

    for seed in range(5):
        run(main, seed)


def test_one_of_a_machines_processes_has_the_lock_until_it_dies() -> None:
    async def main(sim: Simulation) -> list[str]:
        names = ["a", "b", "c"]
        sim.share_disk(*names)
        held: list[str] = []

        async def program(name: str) -> None:
            while sim.disk(name).lock("/") is None:
                await asyncio.sleep(0.1)
            held.append(name)
            await asyncio.Event().wait()

        for name in names:
            sim.spawn(sim.host(name), program(name))
        for _ in names:
            await asyncio.sleep(1)
            sim.crash(held[-1])
        return held

    assert sorted(run(main, 1).result) == ["a", "b", "c"]


def test_a_power_cut_takes_all_hosts_of_a_machine_and_what_was_not_synced() -> None:
    async def main(sim: Simulation) -> bytes:
        sim.share_disk("a", "b")
        for name in ("a", "b", "c"):
            sim.host(name)
        replace_file(sim.disk("a"), "/log", b"o")
        sim.disk("a").open("/log").write_at(0, b"n")
        sim.cut_power("b")
        assert [sim.is_up(name) for name in ("a", "b", "c")] == [False, False, True]
        return read_file(sim.disk("b"), "/log", 9)

    assert {run(main, seed).result for seed in range(20)} == {b"o", b"n"}


def test_sharing_a_disk_that_was_used_is_refused() -> None:
    async def main(sim: Simulation) -> None:
        sim.disk("b")
        with pytest.raises(ValueError, match="b used a disk already"):
            sim.share_disk("a", "b")

    run(main, 1)


# -- Scripts.


@given(st.integers(0, 100_000))
@settings(max_examples=examples(50))
def test_a_script_with_disks_prints_parses_and_can_be_played(seed: int) -> None:
    names = ["a", "b", "c"]
    verbs = [*VERBS, *DISK_VERBS]
    script = make_script(
        make_random(seed), names, duration_s=30, troubles=12, verbs=verbs, steady=["c"]
    )
    text = "\n".join(map(str, script))
    assert [str(step) for step in parse_script(text)] == text.splitlines()
    assert not [s for s in script if s.verb.startswith("disk_") and s.words[0] == "c"]

    async def main(sim: Simulation) -> None:
        async def program(name: str) -> None:
            while True:
                number = len(sim.disk(name).list("/"))
                sim.disk(name).create(f"/{number}-{sim.host(name).incarnation}")
                await asyncio.sleep(5)

        def start(name: str) -> None:
            sim.spawn(sim.restart(name), program(name))

        for name in names:
            sim.spawn(sim.host(name), program(name))
        await sim.nemesis(script, start)
        assert all(sim.is_up(name) for name in names)
        assert not [error for error in sim.errors if not isinstance(error, FileExistsError)]

    run(main, seed)


def test_scripts_are_what_they_were_without_disks() -> None:
    script = make_script(make_random(1), ["a", "b", "c"])
    assert not any(step.verb in DISK_VERBS for step in script)


def test_disk_steps_do_what_they_say() -> None:
    text = """
        1 disk_full a 3
        2 disk_room a
        3 disk_slow a 0.5 0.5
        4 disk_stall a 7
        5 disk_copy a
        6 disk_sync_fails a
        7 reboot a
        8 disk_rollback a
        9 disk_damage a bit
        10 disk_damage a sector
        11 kill a
    """

    async def main(sim: Simulation) -> None:
        disk, restarted = sim.disk("a"), list[str]()
        sim.host("a")
        replace_file(disk, "/log", bytes(8))

        def restart(name: str) -> None:
            restarted.append(name)
            sim.restart(name)

        playing = sim.nemesis(parse_script(text), restart)
        await asyncio.sleep(1.5)
        assert disk.free_bytes("/") == 3
        await asyncio.sleep(1)
        assert disk.free_bytes("/") > 1_000
        await asyncio.sleep(2)
        assert [disk.sync_s(), disk.sync_s()] == [7, 0.5]
        await asyncio.sleep(1)
        replace_file(disk, "/log", b"later")
        await asyncio.sleep(1)
        with pytest.raises(SyncFailed):
            disk.sync_dir("/")
        await asyncio.sleep(1)
        assert restarted == ["a"] and read_file(disk, "/log", 9) == b"later"
        await asyncio.sleep(1)
        assert restarted == ["a", "a"] and read_file(disk, "/log", 9) == bytes(8)
        await asyncio.sleep(1)
        assert sum(byte.bit_count() for byte in read_file(disk, "/log", 9)) == 1
        await playing
        with pytest.raises(OSError):
            read_file(disk, "/log", 9)
        assert restarted == ["a", "a", "a"]

    run(main, 1)


def test_a_machine_whose_power_was_cut_starts_as_a_whole() -> None:
    async def main(sim: Simulation) -> list[str]:
        sim.share_disk("a", "b")
        restarted: list[str] = []

        def restart(name: str) -> None:
            restarted.append(name)
            sim.restart(name)

        for name in ("a", "b", "c"):
            sim.host(name)
        playing = sim.nemesis(parse_script("0 power_cut a 0\n2 restart a"), restart)
        await asyncio.sleep(1)
        with pytest.raises(OSError):
            sim.disk("b").create("/x")
        assert not sim.is_up("a") and not sim.is_up("b")
        await playing
        return restarted

    assert run(main, 1).result == ["a", "b"]


@pytest.mark.parametrize(
    "text", ["0 disk_full a much", "0 disk_damage a all", "0 disk_rollback a", "0 disk_none a"]
)
def test_a_disk_step_that_makes_no_sense_fails_the_run(text: str) -> None:
    async def main(sim: Simulation) -> None:
        sim.host("a")
        await sim.nemesis(parse_script(text), sim.restart)

    with pytest.raises(SimulationFailed) as caught:
        run(main, 1)
    assert text[2:] in caught.value.report


# -- Parts of silos.


class Keeper(SiloPart):
    """Counts the starts of its silo in a file of the machine."""

    async def open(self, services: SiloServices, name: str, /) -> None:
        thread = services.disk.start_thread("keeper")
        try:
            count = len(read_file(services.disk, "/starts", 99))
        except FileNotFoundError:
            count = 0
        await thread.run(replace_file, services.disk, "/starts", b"x" * (count + 1))
        thread.close()


class Idle(Grain):
    pass


def test_a_part_of_a_simulated_silo_has_the_disk_of_its_host() -> None:
    async def main(sim: Simulation) -> list[bytes]:
        async with SimCluster(sim, silos=2, grains=[Idle], parts={"keeper": Keeper}) as cluster:
            sim.crash("silo-1")
            cluster.boot("silo-1")
            await cluster.until_settled(calm_s=1.0)
            return [read_file(sim.disk(name), "/starts", 99) for name in cluster.names]

    assert run(main, 1).result == [b"x", b"xx"]
