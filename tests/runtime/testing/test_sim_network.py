"""Links, probes, back-pressure, and the operations that disturb them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.runtime import Address, Link, SiloUnavailable, Transport
from millstream.runtime.testing import Host, Simulation, SimulationFailed, current_host, run

SERVER = Address("server", 7000)
PROBE = Address("server", 7001)
HIGH_WATER_BYTES = 64 * 1024  # as in a transport of asyncio


class Peer:
    """A receiver that records data, times and hosts, and echoes with `is_echo`."""

    def __init__(self, link: Link, is_echo: bool = False) -> None:
        self.link = link
        self.is_echo = is_echo
        self.data = b""
        self.times: list[float] = []
        self.writables: list[bool] = []
        self.reasons: list[str] = []
        self.hosts: set[Host | None] = set()
        link.start(self)

    def on_received(self, data: bytes, /) -> None:
        assert not self.reasons, "received after closed"
        self.data += data
        self.times.append(asyncio.get_running_loop().time())
        self.hosts.add(current_host())
        if self.is_echo:
            self.link.write(data)

    def writable(self, is_writable: bool, /) -> None:
        self.writables.append(is_writable)

    def on_closed(self, reason: str, /) -> None:
        self.reasons.append(reason)


class Pair:
    """A client linked to a server that records its accepted peers."""

    def __init__(self, sim: Simulation, is_echo: bool = True) -> None:
        self.sim = sim
        self.client, self.server = sim.host("client"), sim.host("server")
        self.is_echo = is_echo
        self.accepted: list[Peer] = []
        self.accepted_on: set[Host | None] = set()

    @property
    def far(self) -> Peer:
        return self.accepted[-1]

    def accept(self, link: Link) -> None:
        self.accepted.append(Peer(link, self.is_echo))
        self.accepted_on.add(current_host())

    async def listen(self) -> None:
        transport = self.sim.transport(self.sim.host("server"))
        await transport.listen(SERVER, self.accept)
        transport.listen_probe(PROBE, lambda: b"age 0")

    async def connect(self) -> Peer:
        return Peer(await self.sim.transport(self.client).connect(SERVER))

    async def probe(self, timeout_s: float = 2.5) -> bytes:
        return await self.sim.transport(self.client).probe(PROBE, timeout_s)


Scenario = Callable[[Pair], Coroutine[Any, Any, None]]


def play(scenario: Scenario, seed: int = 1, is_echo: bool = True) -> None:
    """Run a scenario with a listening server."""

    async def main(sim: Simulation) -> None:
        pair = Pair(sim, is_echo)
        await sim.call(pair.server, pair.listen())
        await scenario(pair)
        sim.network.check()

    run(main, seed)


def test_transport_is_the_runtime_contract() -> None:
    async def main(sim: Simulation) -> Transport:
        return sim.transport(sim.host("a"))

    assert run(main, 1).result is not None


@pytest.mark.parametrize("seed", range(5))
def test_bytes_of_a_link_arrive_in_order_and_whole(seed: int) -> None:
    async def scenario(pair: Pair) -> None:
        pair.sim.network.set_latency(0.0, 2.0)
        near = await pair.connect()
        sent = [b"%d," % number for number in range(500)]
        for data in sent:
            near.link.write(data)
            await asyncio.sleep(0.01)
        await asyncio.sleep(10)
        assert pair.far.data == near.data == b"".join(sent)
        assert near.times == sorted(near.times) and len(near.times) > len(sent)

    play(scenario, seed)


def test_callbacks_run_in_the_context_of_their_own_host() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        near.link.write(b"x")
        await asyncio.sleep(1)
        assert pair.accepted_on == pair.far.hosts == {pair.server} and near.hosts == {pair.client}

    play(scenario)


def test_latency_is_that_of_the_pair() -> None:
    async def scenario(pair: Pair) -> None:
        pair.sim.network.set_latency(0.5, 0.5, "client", "server")
        near = await pair.connect()
        assert pair.sim.loop.time() == 1.0
        near.link.write(b"x")
        await asyncio.sleep(2)
        assert (pair.far.times[0], near.times[0]) == (1.5, 2.0)

    play(scenario)


def test_loss_delays_and_breaks_links_but_never_reorders() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        pair.sim.network.loss("client", "server", 0.5, reset_chance=0.0)
        for number in range(20):
            near.link.write(b"%02d" % number)
        await asyncio.sleep(30)
        whole = b"".join(b"%02d" % number for number in range(20))
        assert whole.startswith(pair.far.data) and max(pair.far.times) > 0.2
        pair.sim.network.loss("client", "server", 1.0)
        near.link.write(b"lost")
        await asyncio.sleep(1)
        assert near.reasons == pair.far.reasons == ["connection reset: too many losses"]
        with pytest.raises(SiloUnavailable, match="timed out"):
            await pair.connect()

    play(scenario, seed=3)


def test_partition_keeps_bytes_until_repair_and_refuses_connects() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        pair.sim.network.partition("client", "server")
        near.link.write(b"held")
        started_s = pair.sim.loop.time()
        with pytest.raises(SiloUnavailable, match="server:7000: timed out after 5 s"):
            await pair.connect()
        assert pair.sim.loop.time() == started_s + 5.0
        with pytest.raises(TimeoutError):
            await pair.probe()
        assert near.data == pair.far.data == b""
        pair.sim.network.repair()
        await asyncio.sleep(1)
        assert near.data == b"held" and await pair.probe() == b"age 0"

    play(scenario)


def test_partition_that_lasts_breaks_only_the_end_that_writes() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        pair.sim.network.partition("client", "server")
        near.link.write(b"held")
        await asyncio.sleep(61)
        assert near.reasons == ["timed out: 4 bytes unconfirmed for 60 s"]
        assert pair.far.reasons == []
        pair.sim.network.repair()
        pair.far.link.write(b"anybody there?")
        await asyncio.sleep(1)
        assert pair.far.reasons == ["connection reset by peer"]

    play(scenario)


def test_oneway_partition_stops_one_direction_and_connecting() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        pair.sim.network.partition_oneway("server", "client")
        near.link.write(b"x")
        await asyncio.sleep(1)
        assert pair.far.data == b"x" and near.data == b""
        with pytest.raises(SiloUnavailable, match="timed out"):
            await pair.connect()
        pair.sim.network.repair("client", "server")
        await asyncio.sleep(1)
        assert near.data == b"x"

    play(scenario)


def test_hold_keeps_everything_in_order_until_release() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        pair.sim.network.hold("client", "server")
        near.link.write(b"1")
        near.link.write(b"2")
        near.link.close()
        connecting = asyncio.create_task(pair.connect())
        await asyncio.sleep(3)
        assert pair.far.data == b"" and not connecting.done()
        pair.sim.network.release("client", "server")
        await asyncio.sleep(1)
        assert pair.accepted[0].data == b"12" and connecting.done()
        assert pair.accepted[0].reasons == ["closed by peer"] and near.reasons == ["closed"]

    play(scenario)


def test_clog_lets_so_many_bytes_through_per_second() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        pair.sim.network.clog("client", "server", 100)
        for _ in range(10):
            near.link.write(b"x" * 100)
        await asyncio.sleep(5.5)
        assert 400 <= len(pair.far.data) <= 600
        pair.sim.network.repair()
        await asyncio.sleep(0.1)
        assert len(pair.far.data) == 1000

    play(scenario, is_echo=False)


def test_isolate_cuts_a_host_off_from_all() -> None:
    async def scenario(pair: Pair) -> None:
        pair.sim.host("third")
        pair.sim.network.isolate("server")
        for name in ("client", "third"):
            with pytest.raises(TimeoutError):
                await pair.sim.transport(pair.sim.host(name)).probe(PROBE, 1)

    play(scenario)


def test_writer_is_told_to_stop_and_to_go_on() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        pair.sim.network.hold("client", "server")
        near.link.write(b"x" * HIGH_WATER_BYTES)
        assert near.writables == []
        near.link.write(b"x")
        assert near.writables == [False]
        pair.sim.network.check()
        pair.sim.network.release("client", "server")
        await asyncio.sleep(1)
        assert near.writables == [False, True]
        assert len(pair.far.data) == HIGH_WATER_BYTES + 1

    play(scenario, is_echo=False)


def test_peer_that_does_not_read_stops_the_writer_and_delays_close_but_not_abort() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        near.link.write(b"a")
        await asyncio.sleep(1)
        pair.far.link.reading(False)
        near.link.write(b"x" * (HIGH_WATER_BYTES + 1))
        near.link.close()
        await asyncio.sleep(100)
        assert pair.far.data == b"a" and near.writables == [False] and near.reasons == []
        near.link.abort()
        await asyncio.sleep(1)
        assert near.reasons == ["aborted"]
        pair.far.link.reading(True)
        await asyncio.sleep(1)
        assert pair.far.reasons == ["connection reset by peer"]

    play(scenario, is_echo=False)


def test_close_delivers_what_was_written_and_is_told_once() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        near.link.write(b"last words")
        near.link.close()
        near.link.close()
        near.link.write(b"too late")
        await asyncio.sleep(1)
        assert pair.far.data == b"last words" and near.data == b""
        assert (near.reasons, pair.far.reasons) == (["closed"], ["closed by peer"])

    play(scenario)


def test_link_that_ends_before_start_tells_it_after_start() -> None:
    async def scenario(pair: Pair) -> None:
        link = await pair.sim.transport(pair.client).connect(SERVER)
        await asyncio.sleep(0.1)
        pair.far.link.write(b"early")
        pair.far.link.close()
        await asyncio.sleep(1)
        near = Peer(link)
        await asyncio.sleep(1)
        assert near.data == b"early" and near.reasons == ["closed by peer"]

    play(scenario)


def test_link_aborted_before_start_tells_it_after_start() -> None:
    async def scenario(pair: Pair) -> None:
        link = await pair.sim.transport(pair.client).connect(SERVER)
        link.abort()
        await asyncio.sleep(1)
        near = Peer(link)
        assert near.reasons == []
        await asyncio.sleep(1)
        assert near.reasons == ["aborted"]

    play(scenario)


def test_nobody_listening_is_refused_after_the_latency() -> None:
    async def scenario(pair: Pair) -> None:
        pair.sim.network.set_latency(0.1, 0.1)
        for port in (1, PROBE.port):
            with pytest.raises(SiloUnavailable, match="refused"):
                await pair.sim.transport(pair.client).connect(Address("server", port))
        assert pair.sim.loop.time() == pytest.approx(0.4)
        with pytest.raises(ConnectionRefusedError):
            await pair.sim.transport(pair.client).probe(SERVER, 1)

    play(scenario)


def test_port_0_is_replaced_and_a_taken_address_refused() -> None:
    async def scenario(pair: Pair) -> None:
        transport = pair.sim.transport(pair.server)
        first = await transport.listen(Address("server", 0), pair.accept)
        second = transport.listen_probe(Address("server", 0), bytes)
        assert 0 < first.address.port != second.address.port > 0
        with pytest.raises(OSError, match="in use"):
            await transport.listen(first.address, pair.accept)
        first.close()
        await transport.listen(first.address, pair.accept)

    play(scenario)


def test_crash_resets_the_links_of_a_host_and_refuses_new_ones() -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        pair.sim.crash(pair.server)
        assert near.reasons == []
        await asyncio.sleep(1)
        assert near.reasons == ["connection reset: server is gone"]
        assert pair.far.reasons == []
        with pytest.raises(SiloUnavailable, match="refused"):
            await pair.connect()
        with pytest.raises(ConnectionRefusedError):
            await pair.probe()

    play(scenario)


def test_silent_crash_is_found_out_by_time_outs_and_ended_by_a_restart() -> None:
    async def scenario(pair: Pair) -> None:
        first, second = await pair.connect(), await pair.connect()
        pair.sim.crash(pair.server, is_silent=True)
        first.link.write(b"x")
        with pytest.raises(SiloUnavailable, match="timed out"):
            await pair.connect()
        with pytest.raises(TimeoutError):
            await pair.probe()
        await asyncio.sleep(60)
        assert first.reasons == ["timed out: 1 bytes unconfirmed for 60 s"]
        second.link.write(b"x")
        await asyncio.sleep(1)
        assert second.reasons == []
        await pair.sim.call(pair.sim.restart("server"), pair.listen())
        await asyncio.sleep(1)
        assert second.reasons == ["connection reset by peer"]
        assert await pair.probe() == b"age 0"
        (await pair.connect()).link.write(b"again")
        await asyncio.sleep(1)
        assert pair.far.data == b"again"

    play(scenario)


@pytest.mark.parametrize("is_reset_seen", [True, False])
def test_restart_resets_bytes_that_were_under_way_at_a_silent_crash(is_reset_seen: bool) -> None:
    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        near.link.write(b"x")
        pair.sim.crash(pair.server, is_silent=True)
        pair.sim.restart("server")
        if not is_reset_seen:
            pair.sim.network.partition_oneway("server", "client")
        await asyncio.sleep(1)
        assert near.reasons == (["connection reset by peer"] if is_reset_seen else [])

    play(scenario)


def test_crash_cuts_off_a_last_part_of_what_is_under_way() -> None:
    arrived = set()

    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        for number in range(6):
            near.link.write(b"%d" % number)
        pair.sim.crash(pair.client)
        await asyncio.sleep(1)
        assert b"012345".startswith(pair.far.data)
        assert pair.far.reasons == ["connection reset: client is gone"]
        arrived.add(pair.far.data)

    for seed in range(12):
        play(scenario, seed, is_echo=False)
    assert len(arrived) > 3


def test_silent_crash_may_cut_off_all_that_is_under_way() -> None:
    arrived = set()

    async def scenario(pair: Pair) -> None:
        near = await pair.connect()
        near.link.write(b"x")
        pair.sim.crash(pair.client, is_silent=True)
        pair.sim.network.check()
        await asyncio.sleep(1)
        arrived.add(pair.far.data)

    for seed in range(12):
        play(scenario, seed, is_echo=False)
    assert arrived == {b"", b"x"}


def test_receiver_that_raises_breaks_its_link_and_fails_the_run() -> None:
    class Broken(Peer):
        def on_received(self, data: bytes, /) -> None:
            raise ZeroDivisionError("broken receiver")

    async def scenario(pair: Pair) -> None:
        near = Broken(await pair.sim.transport(pair.client).connect(SERVER))
        near.link.write(b"x")
        await asyncio.sleep(1)
        assert near.reasons == ["aborted"] and pair.far.reasons == ["connection reset by peer"]

    with pytest.raises(SimulationFailed) as caught:
        play(scenario)
    assert "broken receiver" in caught.value.report


def test_connect_given_up_half_way_leaves_no_half_open_link() -> None:
    async def scenario(pair: Pair) -> None:
        pair.sim.network.set_latency(1.0, 1.0)
        connecting = asyncio.create_task(pair.connect())
        await asyncio.sleep(1.5)
        connecting.cancel()
        await asyncio.sleep(3)
        assert pair.far.reasons == ["connection reset by peer"]

    play(scenario)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda network: network.set_latency(2, 1), "not a range"),
        (lambda network: network.clog("a", "b", 0), "above 0"),
    ],
)
def test_verb_refuses_values_that_mean_nothing(call: Callable[[Any], None], text: str) -> None:
    async def main(sim: Simulation) -> None:
        with pytest.raises(ValueError, match=text):
            call(sim.network)

    run(main, 1)
