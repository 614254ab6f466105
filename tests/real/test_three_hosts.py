"""Three silos, a database and a client on hosts of their own, while the network between them fails.

The hosts are network namespaces. Connections use TLS, states and membership are in PostgreSQL, and
events are in ledgers with a replica on each silo's host.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.conditions import until
from tests.imports import ROOT
from tests.real.hosts import Hosts, require_hosts
from tests.real.postgres_server import PostgresServer, require_postgres
from tests.real.three_host_silo import NUMBERS, Account

from millstream.console.main import main
from millstream.runtime import Client, MillstreamError, RuntimeOptions, Status, Tls, connect

pytestmark = pytest.mark.real

SILOS, DATABASE, CLIENT = (0, 1, 2), 3, 4
PORT = 7700
CLUSTER = "hosts"
KEYS = [f"key-{number}" for number in range(6)]
ENDS_S = 60.0
AWAY_S = 8.0
EVICTED = 3
BRIEF = RuntimeOptions(call_timeout_s=5.0)


class World:
    """The hosts, and the processes on them."""

    def __init__(self, directory: Path, hosts: Hosts, database: PostgresServer) -> None:
        self.hosts = hosts
        self._directory = directory
        self._url = f"{database.url}/postgres"
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        assert main(["certs", "init", str(directory / "certs"), "--cluster", CLUSTER]) == 0

    @property
    def gateways(self) -> list[str]:
        return [f"{self.hosts[at].address}:{PORT}" for at in SILOS]

    @property
    def tls(self) -> Tls:
        return Tls.in_directory(self._directory / "certs" / "client")

    def log(self, at: int) -> str:
        return (self._directory / f"silo-{at}.log").read_text()

    def start(self, at: int) -> None:
        """Start the silo of a host."""
        words = [sys.executable, "-m", "millstream.console", "run"]
        words += ["tests.real.three_host_silo:make", "--name", f"silo-{at}", "--cluster", CLUSTER]
        words += ["--listen", self.gateways[at], "--tls", str(self._directory / "certs" / "silo")]
        words += ["--membership", self._url, "--store", self._url]
        environment = {**os.environ, "LEDGER": str(self._directory / "ledger")}

        def run() -> subprocess.Popen[bytes]:
            with (self._directory / f"silo-{at}.log").open("ab") as log:
                return subprocess.Popen(
                    words, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
                )

        self.processes[at] = self.hosts[at].run(run)

    def wait_active(self) -> None:
        """Wait until the silo of each host has said that it is active."""
        end_s = time.monotonic() + ENDS_S
        for at, process in self.processes.items():
            while " is active at " not in self.log(at):
                assert process.poll() is None and time.monotonic() < end_s, self.log(at)
                time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait(ENDS_S)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    require_hosts()
    require_postgres()
    with ExitStack() as stack:
        hosts = Hosts(5)
        stack.callback(hosts.close)
        there = hosts[DATABASE]
        database = there.run(lambda: PostgresServer(there.address, connections_max=60))
        stack.callback(database.close)
        made = World(tmp_path, hosts, database)
        stack.callback(made.close)
        for at in SILOS:
            made.start(at)
        yield made


class Load:
    """Calls and publishes for each key without a pause, and remembers what was acknowledged."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.added = dict.fromkeys(KEYS, 0)
        self.unclear = dict.fromkeys(KEYS, 0)
        self.accepted: dict[str, list[int]] = {key: [] for key in KEYS}
        self._tasks = [asyncio.create_task(self._call(key)) for key in KEYS]
        self._tasks += [asyncio.create_task(self._publish(key)) for key in KEYS]
        self._is_over = False

    async def _call(self, key: str) -> None:
        while not self._is_over:
            try:
                await self._client.grain(Account, key).add()
                self.added[key] += 1
            except MillstreamError:
                self.unclear[key] += 1
            await asyncio.sleep(0.02)

    async def _publish(self, key: str) -> None:
        number = 0
        while not self._is_over:
            number += 1
            with suppress(MillstreamError):
                await self._client.stream(NUMBERS, key).publish(number)
                self.accepted[key].append(number)
            await asyncio.sleep(0.02)

    async def has_more(self, count: int) -> None:
        """Wait until each key has as many more acknowledged calls and events."""
        calls = {key: self.added[key] + count for key in KEYS}
        events = {key: len(self.accepted[key]) + count for key in KEYS}
        await until(lambda: all(self.added[key] >= calls[key] for key in KEYS), ENDS_S)
        await until(lambda: all(len(self.accepted[key]) >= events[key] for key in KEYS), ENDS_S)

    async def check(self) -> None:
        """End, and check that nothing that was acknowledged is lost."""
        self._is_over = True
        await asyncio.gather(*self._tasks)
        for key in KEYS:
            account = self._client.grain(Account, key)
            async with asyncio.timeout(ENDS_S):
                while not set(self.accepted[key]) <= set((await account.see())[1]):
                    await asyncio.sleep(0.2)
            count, heard = await account.see()
            assert self.added[key] <= count <= self.added[key] + self.unclear[key]
            assert len(heard) == len(set(heard)), "no event twice"
            acknowledged = set(self.accepted[key])
            assert [one for one in heard if one in acknowledged] == self.accepted[key], "in order"


async def until_members(client: Client, count: int) -> None:
    """Wait until as many silos are active."""
    async with asyncio.timeout(ENDS_S):
        while True:
            with suppress(MillstreamError):
                found = await client.members()
                if sum(one.status is Status.ACTIVE for one in found) == count == len(found):
                    return
            await asyncio.sleep(0.1)


async def cut_a_silo(world: World, client: Client, load: Load) -> None:
    """The others go on, and the silo ends itself when it hears that it was evicted."""
    world.hosts[2].cut()
    await until_members(client, 2)
    await load.has_more(20)
    world.hosts[2].heal()
    await until(lambda: world.processes[2].poll() is not None, ENDS_S)
    assert world.processes[2].returncode == EVICTED
    world.start(2)
    await until_members(client, 3)
    await load.has_more(20)


async def drop_packets(world: World, client: Client, load: Load) -> None:
    """A fifth of the packets to a silo are lost."""
    world.hosts[0].drop(0.2)
    await load.has_more(20)
    world.hosts[0].heal()
    await load.has_more(20)


async def cut_the_database(world: World, client: Client, load: Load) -> None:
    """No silo is evicted, and calls that store nothing go on."""
    before = {at: process.pid for at, process in world.processes.items()}
    quiet = [client.grain(Account, f"quiet-{number}") for number in range(6)]
    for account in quiet:
        await account.echo("")  # its state is read now
    world.hosts[DATABASE].cut()
    end_s = asyncio.get_running_loop().time() + AWAY_S
    while asyncio.get_running_loop().time() < end_s:
        for account in quiet:
            assert await account.echo("here") == "here"
        await asyncio.sleep(0.05)
    world.hosts[DATABASE].heal()
    await load.has_more(20)
    assert {at: process.pid for at, process in world.processes.items()} == before
    assert all(process.poll() is None for process in world.processes.values())


def test_nothing_acknowledged_is_lost_while_the_network_between_hosts_fails(world: World) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(world.wait_active)
        async with connect(
            *world.gateways, cluster=CLUSTER, tls=world.tls, options=BRIEF
        ) as client:
            await until_members(client, 3)
            load = Load(client)
            await load.has_more(20)
            for trouble in (cut_a_silo, drop_packets, cut_the_database):
                await trouble(world, client, load)
            await load.check()

    world.hosts[CLIENT].run(lambda: asyncio.run(scenario()))
