"""Access to a silo: its listening address, the proof of other silos, and the targets of clients."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.conditions import until
from tests.operators import operator_of
from tests.runtime.wire.pair import FakeLink, Waits, call, raw

from millstream.runtime import (
    Client,
    ConfigError,
    Env,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    NotAllowed,
    Role,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    connect,
    one_way,
    open_to,
    operator_secret,
    timeout,
)
from millstream.runtime.cluster.directory.directory import DirectoryTarget
from millstream.runtime.cluster.gateways import GatewayTarget
from millstream.runtime.cluster.member import MemberTarget
from millstream.runtime.extending import SystemTarget, ask_gateway
from millstream.runtime.silo.visitors import NEWCOMERS_MAX
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.handshake import Identity, hello_of


class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo


# --- the listening address ------------------------------------------------------------------------


async def test_a_silo_for_other_machines_is_refused_before_anything_is_opened_or_written() -> None:
    table = MemoryMembershipTable()
    before = table.view()
    with pytest.raises(
        ConfigError, match=r"Silo\(address=\.\.\.\): .* 0\.0\.0\.0:0, .*insecure=True"
    ):
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
        assert [peer for peer in silo.assembly.visitors.inbound if peer.writer.is_ready] == []


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
    """A client's `gossip` with an empty view would end a silo."""
    async with LocalCluster(silos=2, grains=[Desk]) as cluster:
        with pytest.raises(
            NotAllowed, match=r"is open to silos of the cluster only, not to clients"
        ):
            await ask_gateway(cluster.client, "", target.target_name, method, *arguments)
        assert await cluster.grain(Desk, "a").where()
        assert len(cluster.silos[0].members()) == 2


async def test_a_client_cannot_call_an_extension_of_a_grain() -> None:
    async with Silo(grains=[Desk]) as silo, Client([silo.gateway]) as client:
        wait, (peer, *_) = Waits(), client.engine.peers.list_known()
        silo.assembly.add_extension("drawer", Drawer, lambda activation: Drawer())
        peer.writer.send_call(call(method="drawer.empty"), wait)
        await until(lambda: bool(wait.told))
        ((kind, answer),) = wait.told
        assert kind == "failure" and b"Desk.drawer.empty is open to silos" in answer
        assert "a" not in silo.assembly.catalog.of("Desk")


class Drawer:
    async def empty(self) -> None:
        raise AssertionError("nobody may call this")


class Safe(Grain):
    """A program's grain with methods for each role."""

    async def look(self) -> str:
        return self.context.silo

    @open_to(Role.OPERATOR)
    async def unlock(self) -> str:
        return self.context.silo

    @open_to(Role.SILO)
    async def refill(self) -> str:
        return self.context.silo

    @open_to(Role.OPERATOR)
    @one_way
    async def ring(self) -> None:
        RINGS.append(self.key)

    async def refill_other(self, key: str) -> str:
        return await self.grain(Safe, key).refill()


class Vault(Safe):
    @timeout(5)
    async def unlock(self) -> str:
        return await super().unlock()


RINGS: list[str] = []


async def test_methods_are_open_by_role_wherever_the_grain_is() -> None:
    """A gateway relays a call to the grain's silo, and the call keeps its role."""
    async with LocalCluster(silos=3, grains=[Safe]) as cluster:
        gateway, keys = cluster.silos[0], [f"{number}" for number in range(60)]
        async with connect(gateway.gateway) as client:
            found = {await client.grain(Safe, key).look() for key in keys}
            assert len(found) == 3  # some grains are in other silos
            for key in keys:
                with pytest.raises(
                    NotAllowed, match=r"Safe\.unlock is open to operators.*--operator"
                ):
                    await client.grain(Safe, key).unlock()
                with pytest.raises(
                    NotAllowed, match=r"Safe\.refill is open to silos of the cluster"
                ):
                    await client.grain(Safe, key).refill()
                assert await cluster.grain(Safe, key).unlock() in found
                with pytest.raises(
                    NotAllowed, match=r"Safe\.refill is open to silos of the cluster"
                ):
                    await cluster.grain(Safe, key).refill()
                assert await gateway.grain(Safe, key).refill() in found
                other = key + "0"
                assert await client.grain(Safe, key).refill_other(other) in found
            fresh = [f"fresh {number}" for number in range(12)]
            for key in fresh:  # no silo has these grains yet
                with pytest.raises(NotAllowed):
                    await client.grain(Safe, key).unlock()
                await client.grain(Safe, key).ring()
                await client.grain(Safe, key).look()
            assert not RINGS
            for key in fresh:
                await cluster.grain(Safe, key).ring()
            await until(lambda: sorted(RINGS) == sorted(fresh))


async def test_an_override_does_not_open_what_its_base_has_closed() -> None:
    async with Silo(grains=[Vault]) as silo, connect(silo.gateway) as client:
        with pytest.raises(NotAllowed, match=r"Vault\.unlock is open to operators"):
            await client.grain(Vault, "a").unlock()


async def test_a_client_that_claims_a_role_in_its_calls_does_not_get_it() -> None:
    async with Silo(grains=[Safe]) as silo, Client([silo.gateway]) as client:
        for is_here in (False, True):
            wait, (peer, *_) = Waits(), client.engine.peers.list_known()
            forged = call(kind="Safe", method="refill")
            assert forged.role == Role.SILO
            peer.writer.send_call(forged, wait)
            await until(lambda wait=wait: bool(wait.told))  # type: ignore[misc]
            ((kind, answer),) = wait.told
            assert kind == "failure" and b"Safe.refill is open to silos" in answer
            assert is_here == ("a" in silo.assembly.catalog.of("Safe"))
            await client.grain(Safe, "a").look()


def test_a_role_is_a_role() -> None:
    with pytest.raises(ConfigError, match=r"open_to\('everyone'\): pass a Role"):
        open_to("everyone")  # type: ignore[arg-type]


# --- operators ------------------------------------------------------------------------------------


async def test_an_operator_finds_its_secret_in_the_directory_of_the_silos(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    async with Silo(grains=[Safe], membership=f"sqlite:{folder}") as silo:
        kept = folder / "millstream.operator"
        assert kept.stat().st_mode & 0o777 == 0o600
        assert operator_secret(folder) == operator_secret(kept)
        async with connect(silo.gateway, operator_secret=operator_secret(folder)) as operator:
            assert await operator.grain(Safe, "a").unlock() == silo.address
        assert (folder / "millstream.secret").read_text() != kept.read_text()
        kept.chmod(0o644)
        with pytest.raises(ConfigError, match="other users can read it"):
            operator_secret(folder)
    with pytest.raises(
        ConfigError, match=r"does not exist: pass the membership directory of silos"
    ):
        operator_secret(tmp_path)


async def test_the_operators_secret_may_be_set_for_silos_and_operators(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MILLSTREAM_OPERATOR_SECRET", "a secret of operators")
    async with Silo(grains=[Safe], membership=f"sqlite:{tmp_path}") as silo:
        assert not (tmp_path / "millstream.operator").exists()
        async with connect(silo.gateway, operator_secret="a secret of operators") as operator:
            assert await operator.grain(Safe, "a").unlock() == silo.address
    monkeypatch.setenv("MILLSTREAM_OPERATOR_SECRET", "too short")
    with pytest.raises(ConfigError, match="MILLSTREAM_OPERATOR_SECRET has 9 characters") as caught:
        await Silo(grains=[Safe]).start()
    assert "too short" not in str(caught.value)
    with pytest.raises(ConfigError, match="operator_secret=.* has 9 characters"):
        connect("127.0.0.1:7700", operator_secret="too short")


async def test_who_does_not_know_the_operators_secret_is_told_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guess = "a guess of a stranger"
    async with Silo(grains=[Safe]) as silo:
        with pytest.raises(
            ConfigError, match=r"does not know the operator's secret .*millstream\.operator"
        ) as caught:
            async with connect(silo.gateway, operator_secret=guess):
                pass
        assert guess not in str(caught.value) + caplog.text
        secret = silo.assembly.engine.end.secrets.operator.decode()
        assert secret not in str(caught.value) + caplog.text
        async with operator_of(silo) as operator:
            assert await operator.grain(Safe, "a").unlock() == silo.address


# --- numbers of connections -----------------------------------------------------------------------


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


async def test_strangers_and_clients_do_not_keep_a_silo_out() -> None:
    """Connections that send nothing must not keep a silo from joining."""
    table, options = MemoryMembershipTable(), RuntimeOptions(connections_max=40)
    async with Silo(grains=[Desk], membership=table, options=options) as silo:
        visitors = silo.assembly.visitors
        host, port = silo.gateway.split(":")
        strangers = [await asyncio.open_connection(host, port) for _ in range(60)]
        await until(lambda: len(visitors.inbound) == 40)
        async with AsyncExitStack() as clients:
            for _ in range(40):
                await clients.enter_async_context(Client([silo.gateway]))
            assert len(visitors.clients) == 40 and len(visitors.inbound) <= 40 + NEWCOMERS_MAX
            strangers += [await asyncio.open_connection(host, port) for _ in range(60)]
            with pytest.raises(SiloUnavailable):
                async with Client([silo.gateway]):
                    pass
            async with Silo(grains=[Desk], membership=table) as other:
                found = {await other.grain(Desk, f"{number}").where() for number in range(20)}
                assert found == {silo.address, other.address}
                assert len(visitors.clients) == 40, "no client had to go for that"
                assert len(visitors.inbound) <= 40 + NEWCOMERS_MAX + 1
        for _, writer in strangers:
            writer.close()
        await until(lambda: not visitors.inbound)
        assert visitors.newcomers == {} and visitors._silo_count == 0


async def test_clients_of_one_name_count_each() -> None:
    async with Silo(grains=[Desk], options=RuntimeOptions(connections_max=3)) as silo:
        end, visitors, links = silo.assembly.engine.end, silo.assembly.visitors, []
        for _ in range(10):
            links.append(link := FakeLink())
            visitors.accept(link)
            identity = Identity("dev", "client-x", False)
            link.receiver.on_received(raw(hello_of(identity, end.options, Env())))
        assert [bool(link.ended) for link in links] == [False] * 3 + [True] * 7


async def test_a_client_that_vanished_is_noticed() -> None:
    """The client's machine is gone, and no packet says so."""
    options = RuntimeOptions(ping_every_s=0.01, silent_after_s=0.03)
    async with Silo(grains=[Desk], options=options) as silo:
        visitors, link = silo.assembly.visitors, FakeLink()
        peer = Peer(silo.assembly.engine.end, "", lambda peer: None)
        peer.attach(link)
        identity = Identity("dev", "client-x", False)
        peer.on_received(raw(hello_of(identity, options, Env())))
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
