"""Real silos on copied or moved data of a cluster, while and after the original runs."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from millstream.runtime import ClusterError, Grain, MillstreamError, connect, grain
from millstream.runtime.run import SiloProcess, SiloProcesses

pytestmark = pytest.mark.real

FACTORY = "copied_silo:make"
MODULE = """
from millstream.runtime import Grain, MembershipOptions, Silo, grain, state

@grain(name="CopyCounter")
class Counter(Grain):
    count = state(int)
    async def add(self) -> int:
        self.count.value += 1
        await self.count.write()
        return self.count.value

@grain(name="CopyIdle")
class Idle(Grain):
    async def where(self) -> str:
        return self.context.silo

def make(directory, has_state, address="127.0.0.1:0"):
    text = f"sqlite:{directory}"
    options = MembershipOptions(
        probe_every_s=0.2, probe_timeout_s=1.0, missed_probes_max=2, heartbeat_s=1.0, refresh_s=1.0
    )
    return Silo(
        grains=[Counter, Idle] if has_state else [Idle], address=address, membership=text,
        stores={"default": text} if has_state else None, membership_options=options,
    )
"""
GRAINS = 40
RECOVERED_S = 20.0
COPY_REFUSED = r"is a copy of the table of 127\.0\.0\.1:\d+@\d+, which is running"


@grain(name="CopyCounter")
class Counter(Grain):
    async def add(self) -> int:
        raise NotImplementedError


@grain(name="CopyIdle")
class Idle(Grain):
    async def where(self) -> str:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copied_silo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))


def silo(tmp_path: Path, name: str, data: str = "data", **arguments: Any) -> SiloProcess:
    arguments = {"directory": str(tmp_path / data), "has_state": True, **arguments}
    return SiloProcess(FACTORY, arguments, tmp_path / f"{name}.log")


def copy(tmp_path: Path, name: str = "copy") -> None:
    subprocess.run(["cp", "-r", str(tmp_path / "data"), str(tmp_path / name)], check=True)


async def all_grains_answer(gateway: str) -> set[str]:
    """Call every grain until it answers, and return the silos of the grains."""
    async with connect(gateway) as client, asyncio.timeout(RECOVERED_S):

        async def where(key: str) -> str:
            while True:
                try:
                    return await client.grain(Idle, key).where()
                except MillstreamError:
                    await asyncio.sleep(0.1)

        return set(await asyncio.gather(*(where(f"{key}") for key in range(GRAINS))))


@pytest.mark.parametrize("has_state", [True, False])
async def test_a_silo_on_a_copy_is_refused_and_the_live_silos_still_follow_their_own_table(
    tmp_path: Path, has_state: bool
) -> None:
    silos = [silo(tmp_path, f"silo-{number}", has_state=has_state) for number in range(2)]
    async with SiloProcesses(silos) as (first, second):
        assert await all_grains_answer(first.gateway) == {first.address, second.address}
        copy(tmp_path)
        stray = silo(tmp_path, "stray", "copy", has_state=has_state)
        with pytest.raises(ClusterError, match=COPY_REFUSED):
            await stray.start()
        assert str(tmp_path / "copy") in (tmp_path / "stray.log").read_text()
        await second.kill()
        assert await all_grains_answer(first.gateway) == {first.address}


async def test_a_backup_is_restored_once_the_old_silos_are_gone(tmp_path: Path) -> None:
    async with SiloProcesses([silo(tmp_path, f"old-{number}") for number in range(2)]) as old:
        async with connect(old[0].gateway) as client:
            assert await client.grain(Counter, "a").add() == 1
        copy(tmp_path, "backup")
        await old.kill()
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "backup").rename(tmp_path / "data")
    async with SiloProcesses([silo(tmp_path, "new")]) as (new,):
        async with connect(new.gateway) as client:
            assert await client.grain(Counter, "a").add() == 2


async def test_the_data_of_stopped_silos_may_be_moved(tmp_path: Path) -> None:
    async with SiloProcesses([silo(tmp_path, "old")]) as (old,):
        async with connect(old.gateway) as client:
            assert await client.grain(Counter, "a").add() == 1
    (tmp_path / "data").rename(tmp_path / "moved")
    silos = [silo(tmp_path, f"new-{number}", "moved") for number in range(2)]
    async with SiloProcesses(silos) as new:
        async with connect(new[1].gateway) as client:
            assert await client.grain(Counter, "a").add() == 2


async def test_a_symbolic_link_leads_to_the_same_table(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    silos = [silo(tmp_path, "one"), silo(tmp_path, "two", "link")]
    async with SiloProcesses(silos) as (first, second):
        assert await all_grains_answer(first.gateway) == {first.address, second.address}


MOUNTED = """
import asyncio, sys
from millstream.providers.sqlite import SqliteMembershipTable

async def main() -> None:
    table = SqliteMembershipTable(sys.argv[1])
    print(await table.identity())
    await table.aclose()

asyncio.run(main())
"""


def test_a_bind_mount_leads_to_the_same_table_and_a_copy_does_not(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    run_in = [sys.executable, "-c", MOUNTED]

    def identity(name: str, *around: str) -> str:
        command = [*around, *run_in, str(tmp_path / name)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    here = identity("data")
    copy(tmp_path)
    assert identity("copy") != here
    script = f'mount --bind {tmp_path / "data"} {tmp_path / "mounted"} && exec "$@"'
    around = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script)
    try:
        subprocess.run([*around, "-", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this user may not make a bind mount in a user namespace: {error}")
    assert identity("mounted", *around, "-") == here
