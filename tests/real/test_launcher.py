"""Silos in processes of their own: start, stop, kill, and the parent's death."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from millstream.runtime import ClusterError, Grain, SiloUnavailable, connect, grain
from millstream.runtime.launcher import SiloProcess

pytestmark = pytest.mark.real


@grain(name="LauncherEcho")
class Echo(Grain):
    async def echo(self, text: str) -> str:
        return text

    async def pid(self) -> int:
        return os.getpid()


FACTORY = "launched_silo:make"
MODULE = """
import os
from millstream.runtime import Grain, Silo, grain

@grain(name="LauncherEcho")
class Echo(Grain):
    async def echo(self, text: str) -> str:
        return text
    async def pid(self) -> int:
        return os.getpid()

def make(**arguments):
    if arguments.get("fail"):
        raise RuntimeError("no silo today")
    return Silo(grains=[Echo])
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "launched_silo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    return FACTORY


async def test_a_silo_process_serves_and_stops(factory: str, tmp_path: Path) -> None:
    process = SiloProcess(factory, {}, tmp_path / "log")
    await process.start()
    async with connect(process.gateway) as client:
        assert await client.grain(Echo, "a").echo("hello") == "hello"
        assert await client.grain(Echo, "a").pid() == process.pid != os.getpid()
    await process.stop()
    assert not Path(f"/proc/{process.pid}").exists()


async def test_a_killed_process_makes_calls_fail_fast(factory: str, tmp_path: Path) -> None:
    process = SiloProcess(factory, {}, tmp_path / "log")
    await process.start()
    async with connect(process.gateway) as client:
        assert await client.grain(Echo, "a").echo("hello") == "hello"
        await process.kill()
        with pytest.raises(SiloUnavailable):
            await client.grain(Echo, "a").echo("again")


async def test_a_process_that_cannot_start_says_why(factory: str, tmp_path: Path) -> None:
    process = SiloProcess(factory, {"fail": True}, tmp_path / "log")
    with pytest.raises(ClusterError, match="no silo today"):
        await process.start()


def test_a_silo_process_ends_with_its_parent(factory: str, tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from millstream.runtime.launcher import SiloProcess\n"
        "async def main():\n"
        f"    process = SiloProcess({FACTORY!r}, {{}}, Path({str(tmp_path / 'log')!r}))\n"
        "    await process.start()\n"
        "    print(process.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    parent = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=60,
    )
    child = int(parent.stdout)
    subprocess.run(["tail", f"--pid={child}", "-f", "/dev/null"], timeout=30, check=True)
    assert not Path(f"/proc/{child}").exists()


def test_the_class_here_and_there_have_one_name() -> None:
    assert Echo.__millstream_type__.name == "LauncherEcho"
