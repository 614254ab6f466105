"""Silos in their own processes: start, stop, kill, and the death of the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from millstream.runtime import ClusterError, Grain, SiloUnavailable, connect, grain
from millstream.runtime.run import SiloProcess, SiloProcesses

pytestmark = pytest.mark.real


@grain(name="LauncherEcho")
class Echo(Grain):
    async def echo(self, text: str) -> str:
        return text

    async def pid(self) -> int:
        return os.getpid()


FACTORY = "launched_silo:make"
MODULE = """
import asyncio
import os
from millstream.runtime import Grain, Silo, grain
from millstream.runtime.extending import SiloPart

@grain(name="LauncherEcho")
class Echo(Grain):
    async def echo(self, text: str) -> str:
        print("x" * 200_000)
        return text
    async def pid(self) -> int:
        return os.getpid()

class NeverStarts(SiloPart):
    async def start(self, host, name, /) -> None:
        print("the stream provider waits", flush=True)
        await asyncio.Event().wait()
    async def stop(self) -> None: ...

def make(**arguments):
    if arguments.get("fail"):
        raise RuntimeError("no silo today")
    streams = {"default": NeverStarts()} if arguments.get("hang") else {}
    return Silo(grains=[Echo], streams=streams)
"""
PARENT = """
import asyncio, os, sys
from pathlib import Path
from millstream.runtime.run.launcher import SiloProcess

async def main():
    process = SiloProcess("launched_silo:make", {}, Path(sys.argv[1]))
    await process.start()
    print(process.pid, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "launched_silo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    return FACTORY


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_silo_process_serves_and_stops_with_exit_code_0(
    factory: str, tmp_path: Path
) -> None:
    process = SiloProcess(factory, {}, tmp_path / "log")
    await process.start()
    async with connect(process.gateway) as client:
        assert await client.grain(Echo, "a").pid() == process.pid != os.getpid()
    await process.stop()
    await process.stop()
    assert await process.wait() == 0
    assert not is_alive(process.pid) and not process.is_running


async def test_a_silo_process_may_print_as_much_as_it_likes(factory: str, tmp_path: Path) -> None:
    process = SiloProcess(factory, {}, tmp_path / "log")
    await process.start()
    async with connect(process.gateway) as client:
        for _ in range(3):
            assert await client.grain(Echo, "a").echo("hello") == "hello"
    await process.stop()
    assert "x" * 200_000 in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_a_silo_process_gracefully(
    factory: str, tmp_path: Path, number: signal.Signals
) -> None:
    process = SiloProcess(factory, {}, tmp_path / "log")
    await process.start()
    os.kill(process.pid, number)
    assert await process.wait() == 0


async def test_a_killed_process_makes_calls_fail_fast(factory: str, tmp_path: Path) -> None:
    process = SiloProcess(factory, {}, tmp_path / "log")
    await process.start()
    async with connect(process.gateway) as client:
        assert await client.grain(Echo, "a").echo("hello") == "hello"
        await process.kill()
        assert await process.wait() == -signal.SIGKILL
        with pytest.raises(SiloUnavailable):
            await client.grain(Echo, "a").echo("again")


async def test_a_process_that_cannot_start_says_why(factory: str, tmp_path: Path) -> None:
    process = SiloProcess(factory, {"fail": True}, tmp_path / "log")
    with pytest.raises(ClusterError, match="no silo today"):
        await process.start()
    assert not process.is_running


async def test_a_process_that_is_not_active_in_time_is_ended(
    factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.runtime.run.launcher.START_S", 2.0)
    process = SiloProcess(factory, {"hang": True}, tmp_path / "log")
    with pytest.raises(ClusterError, match="not active within 2 s"):
        await process.start()
    assert not is_alive(process.pid)


async def test_one_that_cannot_start_takes_the_others_with_it(factory: str, tmp_path: Path) -> None:
    good = SiloProcess(factory, {}, tmp_path / "good")
    bad = SiloProcess(factory, {"fail": True}, tmp_path / "bad")
    with pytest.raises(ClusterError, match="no silo today"):
        async with SiloProcesses([good, bad]):
            raise AssertionError("one of them has failed")
    assert good.pid and not is_alive(good.pid)


async def test_several_processes_start_and_stop_together(factory: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with SiloProcesses([SiloProcess(factory, {}, log) for _ in range(2)]) as processes:
        assert len({process.gateway for process in processes}) == 2
    assert [await process.wait() for process in processes] == [0, 0]


async def test_one_that_was_killed_is_replaced_and_stops_with_the_others(
    factory: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with SiloProcesses([SiloProcess(factory, {}, log) for _ in range(2)]) as processes:
        first = processes[1]
        await first.kill()
        await processes.replace(1, SiloProcess(factory, {}, log))
        assert processes[1] is not first and processes[1].is_running
        # replacing a running process kills it
        await processes.replace(0, SiloProcess(factory, {}, log))
        with pytest.raises(ClusterError, match="no silo today"):
            await processes.replace(0, SiloProcess(factory, {"fail": True}, log))
        assert not processes[0].is_running
    assert await processes[1].wait() == 0


def test_a_silo_process_ends_with_its_parent(factory: str, tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    parent = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "log")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=60,
    )
    child = int(parent.stdout)
    subprocess.run(["tail", f"--pid={child}", "-f", "/dev/null"], timeout=30, check=True)
    assert not is_alive(child)
