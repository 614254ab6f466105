"""The door of a silo: where it listens, who is taken for a silo, and what clients reach."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.conditions import until
from tests.runtime.wire.pair import FakeLink, Waits, call, raw

from millstream.runtime import (
    Client,
    ConfigError,
    DefinitionError,
    Env,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    NotHosted,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    connect,
)
from millstream.runtime.cluster.directory.directory import DirectoryTarget
from millstream.runtime.cluster.gateways import GatewayTarget
from millstream.runtime.cluster.member import MemberTarget
from millstream.runtime.extending import SystemTarget, ask_gateway
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.greeting import Identity, hello_of


class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo


# --- where it listens -----------------------------------------------------------------------------


async def test_a_silo_for_other_machines_is_refused_before_anything_is_opened_or_written() -> None:
    table = MemoryMembershipTable()
    before = table.view()
    with pytest.raises(ConfigError, match=r"Silo\(address=\.\.\.\): 0\.0\.0\.0:0 .*insecure=True"):
        Silo(grains=[Desk], address="0.0.0.0:0", membership=table)
    assert table.view() == before
    async with Silo(grains=[Desk], address="0.0.0.0:0", insecure=True) as silo:
        assert silo.gateway.startswith("0.0.0.0:")


async def test_a_cluster_runs_on_ipv6() -> None:
    table = MemoryMembershipTable()
    async with (
        Silo(grains=[Desk], address="[::1]:0", membership=table) as one,
        Silo(grains=[Desk], address="[::1]:0", membership=table) as two,
        connect(one.gateway) as client,
    ):
        assert one.gateway.startswith("[::1]:")
        places = {await client.grain(Desk, f"{number}").where() for number in range(20)}
        assert places == {one.address, two.address}
        assert await one.assembly.targets.call(
            two.address, "$member", MemberTarget.probe_for, one.address
        )


# --- silos ----------------------------------------------------------------------------------------


async def test_a_silo_with_another_secret_is_told_so_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = MemoryMembershipTable()
    async with Silo(grains=[Desk], membership=table) as silo:
        monkeypatch.setenv("MILLSTREAM_SECRET", "another secret of theirs")
        stranger = Silo(grains=[Desk], membership=table)
        caplog.clear()
        with pytest.raises(
            ConfigError,
            match=rf"cannot join {silo.address}.*127\.0\.0\.1:\d+@\d+ does not know the secret "
            r"of cluster 'dev': set MILLSTREAM_SECRET .*\(millstream\.secret\)",
        ):
            await asyncio.wait_for(stranger.start(), 5)  # join_timeout_s is 60 s
        closed = [one for one in caplog.messages if "closed" in one]
        assert 1 <= len(closed) <= 2, closed  # one at each side
        assert [peer for peer in silo.assembly.visitors.inbound if peer.is_ready] == []


async def test_silos_find_the_secret_in_the_directory_of_their_table(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    stores: dict[str, Any] = {"default": f"sqlite:{folder}"}
    async with (
        Silo(grains=[Desk], membership=f"sqlite:{folder}", stores=stores) as one,
        Silo(grains=[Desk], membership=f"sqlite:{folder}", stores=stores) as two,
    ):
        assert (folder / "millstream.secret").stat().st_mode & 0o777 == 0o600
        for number in range(10):
            assert await one.grain(Desk, f"{number}").where() in (one.address, two.address)


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "method", "arguments"),
    [
        (MemberTarget, MemberTarget.gossip, (1 << 60,)),
        (MemberTarget, MemberTarget.greet, ("x:1@1", 1 << 60)),
        (DirectoryTarget, DirectoryTarget.lookup, ("Desk", "a", 1)),
        (GatewayTarget, GatewayTarget.load, ("x:1@1", 5)),
    ],
    ids=lambda value: getattr(value, "__name__", "arguments"),
)
async def test_a_client_cannot_call_what_is_for_silos(
    target: type[SystemTarget], method: Any, arguments: tuple[Any, ...]
) -> None:
    """One `gossip` of an empty view ended a silo."""
    async with LocalCluster(silos=2, grains=[Desk]) as cluster:
        with pytest.raises(NotHosted, match="for silos of the cluster, not for clients such as"):
            await ask_gateway(cluster.client, "", target.target_name, method, *arguments)
        assert await cluster.grain(Desk, "a").where()
        assert len(cluster.silos[0].members()) == 2


async def test_a_client_cannot_call_an_extension_of_a_grain() -> None:
    async with Silo(grains=[Desk]) as silo, Client([silo.gateway]) as client:
        wait, (peer, *_) = Waits(), client.engine.peers.known()
        peer.send_call(call(method="streams.deliver"), wait)
        await until(lambda: bool(wait.told))
        ((kind, answer),) = wait.told
        assert kind == "failure" and b"'streams.deliver' is for silos" in answer
        assert "a" not in silo.assembly.catalog.of("Desk")


def test_a_target_opens_methods_that_it_has() -> None:
    with pytest.raises(DefinitionError, match="there is no method 'lost'"):

        class Wrong(SystemTarget):
            target_name = "$wrong"
            open_to_clients = frozenset({"lost"})


# --- how many -------------------------------------------------------------------------------------


async def test_strangers_from_one_machine_are_one_line_of_the_log_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Silo(grains=[Desk]) as silo:
        for _ in range(20):
            reader, writer = await asyncio.open_connection(*silo.gateway.split(":"))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            while await reader.read(1024):
                pass
            writer.close()
    assert sum("connection with" in one for one in caplog.messages) == 1


async def test_visitors_above_the_limit_are_refused_with_a_line_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Silo(grains=[Desk], options=RuntimeOptions(connections_max=2)) as silo:
        async with Client([silo.gateway]), Client([silo.gateway]) as second:
            with caplog.at_level(logging.WARNING, "millstream.silo"):
                for _ in range(3):
                    with pytest.raises(SiloUnavailable):
                        async with Client([silo.gateway]):
                            pass
            lines = [r.getMessage() for r in caplog.records if "connections_max" in r.getMessage()]
            assert len(lines) == 1 and "connections_max is 2" in lines[0]
            assert await second.grain(Desk, "a").where()
        visitors = silo.assembly.visitors
        await until(lambda: not visitors.inbound)
        async with Client([silo.gateway]) as third:
            assert await third.grain(Desk, "a").where()


async def test_a_client_that_vanished_is_noticed() -> None:
    """Its machine is gone, and no packet says so."""
    options = RuntimeOptions(ping_every_s=0.01, silent_after_s=0.03)
    async with Silo(grains=[Desk], options=options) as silo:
        visitors, link = silo.assembly.visitors, FakeLink()
        peer = Peer(silo.assembly.engine.end, "", lambda peer: None)
        peer.attach(link)
        identity = Identity("dev", "client-x", False)
        peer.received(raw(hello_of(identity, options, Env())))
        assert peer.name in visitors.clients
        await until(lambda: link.ended == "aborted")


def test_a_client_that_is_there_is_left_alone_though_it_asks_for_nothing() -> None:
    async def main(simulation: Simulation) -> None:
        options = RuntimeOptions(ping_every_s=1.0, silent_after_s=3.0)
        async with SimCluster(simulation, silos=1, grains=[Desk], options=options) as cluster:
            [silo] = cluster.silos()
            host = simulation.host("outside")

            async def program() -> None:
                async with cluster.client(host) as client:
                    known = dict(silo.assembly.visitors.clients)
                    assert len(known) == 1
                    await asyncio.sleep(10 * options.silent_after_s)
                    assert silo.assembly.visitors.clients == known
                    assert await client.grain(Desk, "a").where()

            await simulation.call(host, program())

    run(main, 1)
