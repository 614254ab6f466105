"""`millstream run`: a silo as a program, its signals and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import Grain, Status, connect, grain

pytestmark = pytest.mark.real

APP = """
import asyncio
import time
from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, MembershipOptions, Metrics, RuntimeOptions, Silo, grain
from millstream.runtime.extending import SiloPart
from millstream.streams import PersistentStreams

@grain(name="RunEcho")
class Echo(Grain):
    async def echo(self, text: str) -> str:
        return text

class NeverStops(SiloPart):
    async def stop(self) -> None:
        print("the provider waits", flush=True)
        await asyncio.Event().wait()

def make(**options):
    return Silo(grains=[Echo], membership_options=MembershipOptions(refresh_s=0.2), **options)

def make_measured(**options):
    return Silo(grains=[Echo], parts={"metrics": Metrics()}, **options)

def make_streams(**options):
    streams = {"default": PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())}
    return Silo(grains=[Echo], streams=streams, **options)

def make_ledger(**options):
    streams = {"default": PersistentStreams(LedgerQueues("ledger"), balancer=DeploymentBalancer())}
    return Silo(grains=[Echo], streams=streams, **options)

class Stubborn(Grain):
    async def swallow(self) -> None:
        print("the turn waits", flush=True)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    async def block(self) -> None:
        print("the turn waits", flush=True)
        await asyncio.to_thread(time.sleep, 1000)

    async def on_deactivate(self, reason, /) -> None:
        if self.key == "in its end":
            await self.swallow()

    async def ok(self) -> None:
        print("the turn waits", flush=True)

def make_stubborn(**options):
    return Silo(grains=[Stubborn], options=RuntimeOptions(drain_s=1), **options)

def make_stuck(**options):
    return Silo(grains=[Echo], streams={"default": NeverStops()}, **options)
"""
UNGUARDED = """
import asyncio
from pathlib import Path
from millstream.runtime import Silo
from millstream.runtime.run.launcher import SiloProcess

def make():
    return Silo(grains=[])

async def main():
    print("the program runs", flush=True)
    silo = SiloProcess("unguarded:make", {}, Path("silo.log"))
    await silo.start()
    await silo.stop()

asyncio.run(main())
"""


@grain(name="RunEcho")
class Echo(Grain):
    async def echo(self, text: str) -> str:
        raise NotImplementedError


class Running:
    """A program under test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.told = ""

    async def until(self, pattern: str) -> re.Match[str]:
        """Read the program's standard error until a line matches."""
        assert self.process.stderr is not None
        while True:
            found = re.search(pattern, self.told)
            if found:
                return found
            line = await self.process.stderr.readline()
            assert line, f"ended before {pattern!r}: {self.told}"
            self.told += line.decode()

    async def ended(self) -> int:
        assert self.process.stderr is not None
        self.told += (await self.process.stderr.read()).decode()
        return await self.process.wait()


@asynccontextmanager
async def started(folder: Path, *words: str, **options: Any) -> AsyncIterator[Running]:
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stderr=asyncio.subprocess.PIPE,
        **options,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def run(folder: Path, *words: str, **options: Any) -> Any:
    return started(folder, "-m", "millstream.console", "run", *words, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run_app.py").write_text(textwrap.dedent(APP))
    (tmp_path / "unguarded.py").write_text(textwrap.dedent(UNGUARDED))
    return tmp_path


ACTIVE = r"silo (\S+) is active at (\S+)@\d+, cluster (\S+), millstream \S+; grains: (.*); parts"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_silo_tells_that_it_is_active_serves_and_stops_on_a_signal(
    folder: Path, number: signal.Signals
) -> None:
    words = ("run_app:make_streams", "--name", "one", "--cluster", "c", "--listen", "127.0.0.1:0")
    async with run(folder, *words) as program:
        name, gateway, cluster, grains = (await program.until(ACTIVE)).groups()
        assert (name, cluster, grains) == ("one", "c", "RunEcho")
        assert "parts: default" in program.told
        async with connect(gateway, cluster="c") as client:
            assert await client.grain(Echo, "a").echo("hello") == "hello"
        program.process.send_signal(number)
        assert await program.ended() == 0
        assert f"received {number.name}: the silo stops" in program.told
        assert "was asked to stop" in program.told


def ignore_hangups() -> None:
    """Ignore SIGHUP, as `nohup` does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def test_a_silo_that_was_started_under_nohup_goes_on_when_its_terminal_goes(
    folder: Path,
) -> None:
    async with run(folder, "run_app:make", preexec_fn=ignore_hangups) as program:
        _, gateway, *_ = (await program.until(ACTIVE)).groups()
        program.process.send_signal(signal.SIGHUP)
        async with connect(gateway) as client:
            assert await client.grain(Echo, "a").echo("hello") == "hello"
        program.process.send_signal(signal.SIGTERM)
        assert await program.ended() == 0
        assert "SIGHUP" not in program.told


async def test_a_terminal_that_goes_does_not_cut_a_stop_short(folder: Path) -> None:
    options = {"stdout": asyncio.subprocess.PIPE}
    async with run(folder, "run_app:make_stuck", **options) as program:
        await program.until(ACTIVE)
        program.process.send_signal(signal.SIGINT)
        assert program.process.stdout is not None
        assert await program.process.stdout.readline() == b"the provider waits\n"
        program.process.send_signal(signal.SIGHUP)
        program.process.send_signal(signal.SIGTERM)
        assert await program.ended() == -signal.SIGTERM


async def test_a_silo_serves_its_metrics_where_the_option_says(folder: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
    words = ("run_app:make", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    async with run(folder, *words) as program:
        _, gateway, *_ = (await program.until(ACTIVE)).groups()
        (at,) = (await program.until(r"serves metrics and health at http://(\S+)")).groups()
        async with connect(gateway) as client:
            for _ in range(3):
                await client.grain(Echo, "a").echo("hello")
        host, port = at.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        series = 'millstream_calls_total{grain_type="RunEcho",method="echo",outcome="ok"} 3.0'
        assert series in text
        program.process.send_signal(signal.SIGTERM)
        assert await program.ended() == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("run_app:make", "--metrics", "nowhere"), "--metrics: 'nowhere'"),
        (("run_app:make_measured", "--metrics", "127.0.0.1:0"), "a part named 'metrics' already"),
    ],
)
async def test_metrics_that_cannot_be_are_an_error_of_one_line(
    folder: Path, words: tuple[str, ...], text: str
) -> None:
    async with run(folder, *words) as program:
        assert await program.ended() == 2
        assert text in program.told
        assert "Traceback" not in program.told


async def test_a_silo_logs_json_if_the_option_says_so(folder: Path) -> None:
    words = ("run_app:make", "--listen", "127.0.0.1:0", "--name", "one", "--log-format", "json")
    async with run(folder, *words) as program:
        await program.until("is active at")
        program.process.send_signal(signal.SIGTERM)
        assert await program.ended() == 0
        found = [msgspec.json.decode(line) for line in program.told.splitlines()]
        (active,) = [one for one in found if "is active at" in one["message"]]
        assert (active["level"], active["logger"]) == ("INFO", "millstream.silo")
        assert active["silo"].startswith("127.0.0.1:")


async def test_a_log_format_that_does_not_exist_is_refused(folder: Path) -> None:
    async with run(folder, "run_app:make", "--log-format", "xml") as program:
        assert await program.ended() == 2
        assert "--log-format: 'xml' is not valid: write text or json" in program.told


async def test_a_bookie_runs_beside_the_silo_that_has_the_grains(folder: Path) -> None:
    shared = ("run_app:make_ledger", "--membership", "sqlite:data", "--store", "sqlite:data")
    async with run(folder, *shared, "--bookie", "--name", "shelf") as bookie:
        _, gateway, _, grains = (await bookie.until(ACTIVE)).groups()
        assert grains == "none" and "runs here, boot number 1" in bookie.told
        async with run(folder, *shared) as whole:
            await whole.until(ACTIVE)
            async with connect(gateway) as client:
                assert await client.grain(Echo, "a").echo("hello") == "hello"
            assert "runs here" not in whole.told
            bookie.process.send_signal(signal.SIGTERM)
            assert await bookie.ended() == 0
            await whole.until("runs here, boot number 2")


def close_stdin() -> None:
    os.close(0)


@pytest.mark.parametrize(
    "options", [{"stdin": asyncio.subprocess.DEVNULL}, {"preexec_fn": close_stdin}]
)
async def test_a_silo_does_not_care_for_standard_input(
    folder: Path, options: dict[str, Any]
) -> None:
    async with run(folder, "run_app:make", **options) as program:
        _, gateway, *_ = (await program.until(ACTIVE)).groups()
        async with connect(gateway) as client:
            assert await client.grain(Echo, "a").echo("hello") == "hello"
        program.process.send_signal(signal.SIGTERM)
        assert await program.ended() == 0


class Stubborn(Grain):
    async def swallow(self) -> None: ...
    async def block(self) -> None: ...
    async def ok(self) -> None: ...


@pytest.mark.parametrize(
    ("method", "key"), [("swallow", "a"), ("block", "a"), ("ok", "in its end")]
)
async def test_a_silo_ends_with_exit_code_1_although_a_turn_or_its_thread_does_not(
    folder: Path, method: str, key: str
) -> None:
    options = {"stdout": asyncio.subprocess.PIPE}
    async with run(folder, "run_app:make_stubborn", **options) as program:
        _, gateway, *_ = (await program.until(ACTIVE)).groups()
        async with connect(gateway) as client:
            calling = asyncio.ensure_future(getattr(client.grain(Stubborn, key), method)())
            assert program.process.stdout is not None
            assert await program.process.stdout.readline() == b"the turn waits\n"
            program.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(25):
                assert await program.ended() == 1
            await asyncio.gather(calling, return_exceptions=True)
    assert "did not end within 0.5 s: the process ends anyway" in program.told


@pytest.mark.slow
async def test_a_silo_that_does_not_stop_ends_with_exit_code_1(folder: Path) -> None:
    async with run(folder, "run_app:make_stuck") as program:
        await program.until(ACTIVE)
        program.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(25):
            assert await program.ended() == 1
    assert "did not stop within 17.5 s, and ends without telling" in program.told


async def test_a_second_signal_ends_the_process_at_once(folder: Path) -> None:
    options = {"stdout": asyncio.subprocess.PIPE}
    async with run(folder, "run_app:make_stuck", **options) as program:
        await program.until(ACTIVE)
        program.process.send_signal(signal.SIGTERM)
        assert program.process.stdout is not None
        assert await program.process.stdout.readline() == b"the provider waits\n"
        program.process.send_signal(signal.SIGINT)
        assert await program.ended() == -signal.SIGINT


async def test_a_taken_port_is_named_with_exit_code_1(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        async with run(folder, "run_app:make", "--listen", at) as program:
            assert await program.ended() == 1
    assert f"ClusterError: cannot listen on {at}: the port is in use" in program.told
    assert "Traceback" not in program.told


async def test_an_unknown_host_is_named_with_exit_code_1(folder: Path) -> None:
    async with run(
        folder, "run_app:make", "--listen", "no.such.invalid:0", "--insecure"
    ) as program:
        assert await program.ended() == 1
    assert (
        "cannot listen on no.such.invalid:0: cannot resolve host 'no.such.invalid'" in program.told
    )


async def test_what_other_machines_could_reach_is_refused_before_a_port_is_opened(
    folder: Path,
) -> None:
    async with run(folder, "run_app:make", "--listen", "0.0.0.0:0") as program:
        assert await program.ended() == 2
    assert "other machines can reach 0.0.0.0:0" in program.told
    assert " is active at " not in program.told


async def test_an_evicted_silo_ends_with_exit_code_3(folder: Path) -> None:
    words = ("run_app:make", "--membership", "sqlite:data", "--store", "sqlite:data")
    async with run(folder, *words) as program:
        await program.until(ACTIVE)
        table = SqliteMembershipTable(folder / "data")
        view = await table.read()
        dead = msgspec.structs.replace(view.rows[0], status=Status.DEAD)
        assert await table.write(dead, view.version)
        await table.aclose()
        assert await program.ended() == 3
    assert "ended without a signal: evicted" in program.told


async def test_a_program_that_starts_silos_when_it_is_imported_is_found_out(folder: Path) -> None:
    options = {"stdout": asyncio.subprocess.PIPE}
    async with started(folder, "unguarded.py", **options) as program:
        assert program.process.stdout is not None
        printed = await program.process.stdout.read()
        assert await program.ended() == 1
    assert printed.count(b"the program runs") == 1
    assert 'under `if __name__ == "__main__":`' in program.told
    assert (folder / "silo.log").read_text().count("the program runs") == 1


async def test_such_a_program_is_found_out_by_millstream_run_too(folder: Path) -> None:
    async with run(folder, "unguarded:make") as program:
        assert await program.ended() == 2
    assert "importing 'unguarded' starts a silo process" in program.told
