"""Observers of clients that lose, leave and change their gateway, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.runtime.observer_world import (
    GATES,
    Match,
    Viewer,
    World,
    clear_world,
    in_world,
    noted,
)

from millstream.runtime import (
    CallTimeout,
    Client,
    ClientUnavailable,
    Rejected,
    RuntimeOptions,
    Silo,
)
from millstream.runtime.cluster.client_leases import SECRET_BYTES
from millstream.runtime.extending import SystemTarget

LEASE_S = 60.0


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    clear_world()
    yield


def gateways_of(world: World) -> list[int]:
    """Return the silos at which a client is connected and attached."""
    silos = [(name, world.cluster.silo(name)) for name in world.cluster.names]
    found = [name for name, silo in silos if silo and silo.assembly.clients._connected]
    return [int(name.partition("-")[2]) for name in found]


async def rest(world: World, seconds: float) -> None:
    await asyncio.sleep(seconds)


async def score_everywhere(
    world: World, scorer: str, expected: str, *, breaks: bool = False
) -> None:
    """Let grains on all silos call the viewer.

    If connections break, a call that was sent before ends with SiloUnavailable and is repeated.
    """
    for number in range(len(world.cluster.names)):
        if world.cluster.silo(f"silo-{number}") is not None:
            found = await world.score(scorer, number, f"key-{number}")
            if breaks and found == ["SiloUnavailable"]:
                found = await world.score(scorer, number, f"key-{number}")
            assert found == [expected], number


async def watch_everywhere(world: World, viewer: Viewer) -> None:
    for number in range(len(world.cluster.names)):
        await world.watch(viewer, f"key-{number}", number)


class Watcher:
    """A program with one viewer that grains on all silos call."""

    def __init__(self, world: World, name: str = "ann", host: str = "client") -> None:
        self.world = world
        self.name = name
        self.host = host
        self.ready = asyncio.Event()
        self.done = asyncio.Event()
        self.client: Client | None = None

    async def start(self) -> Watcher:
        self.task = self.world.start(self.program, self.host)
        await self.ready.wait()
        return self

    async def program(self, client: Client) -> None:
        self.client = client
        async with client.observe(Viewer(self.name)) as viewer:
            await watch_everywhere(self.world, viewer)
            self.ready.set()
            await self.done.wait()

    async def stop(self) -> None:
        self.done.set()
        await self.task

    @property
    def gateway(self) -> int:
        (number,) = gateways_of(self.world)
        return number


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_grains_on_all_silos_call_the_observer(seed: int) -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        await score_everywhere(world, "Ada", "ann saw Ada")
        await rest(world, 5 * LEASE_S)  # the lease is renewed
        await score_everywhere(world, "Bob", "ann saw Bob")
        await watcher.stop()
        await score_everywhere(world, "Eve", "ClientUnavailable")

    in_world(main, silos=4, seed=seed)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("is_silent", [False, True])
def test_calls_wait_while_the_client_changes_from_a_crashed_gateway(
    seed: int, is_silent: bool
) -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway = watcher.gateway
        world.sim.crash(f"silo-{gateway}", is_silent=is_silent)
        await score_everywhere(world, "Ada", "ann saw Ada", breaks=True)
        await score_everywhere(world, "Bob", "ann saw Bob")
        await watcher.stop()

    in_world(main, silos=4, seed=seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_calls_go_on_while_the_gateway_stops(seed: int) -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway, answers = watcher.gateway, []
        other = (gateway + 1) % 3

        async def keep_calling() -> None:
            for number in range(60):
                answers.extend(await world.score(str(number), other, f"key-{other}"))
                await asyncio.sleep(0.05)

        calling = asyncio.create_task(keep_calling())
        await asyncio.sleep(0.5)
        await world.cluster.remove_silo(f"silo-{gateway}")
        await calling
        assert answers == [f"ann saw {number}" for number in range(60)]
        assert watcher.gateway != gateway
        await watcher.stop()

    in_world(main, silos=3, seed=seed)


def test_a_call_that_runs_when_the_gateway_crashes_has_an_unknown_outcome() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway = watcher.gateway
        other = (gateway + 1) % 3

        async def stay(silo: Silo) -> str:
            match = silo.grain(Match, f"key-{other}")
            return str(await match.call_many("stay", ["a"]))

        call = asyncio.create_task(world.on_silo(stay, other))
        await asyncio.sleep(1)
        world.sim.crash(f"silo-{gateway}")
        assert await call == "['SiloUnavailable']"
        await asyncio.sleep(1)
        assert noted() == ["ann: +a", "ann: cancelled a"]
        assert await world.score("Ada", other, f"key-{other}") == ["ann saw Ada"]
        await watcher.stop()

    in_world(main, silos=3)


def test_a_crashed_client_is_gone_when_its_lease_has_run_out() -> None:
    async def main(world: World) -> None:
        await Watcher(world).start()
        world.sim.crash("client")
        await asyncio.sleep(1)
        with pytest.raises(CallTimeout):  # the call waits for the client until its deadline
            await world.score("Ada", 1, "key-1")
        await asyncio.sleep(LEASE_S)
        begun = world.now()
        await score_everywhere(world, "Bob", "ClientUnavailable")
        assert world.now() - begun < 1

    in_world(main, silos=3)


@pytest.mark.parametrize("lease_s", [8.0, LEASE_S])
def test_a_client_that_was_paused_for_longer_than_its_lease_comes_back(lease_s: float) -> None:
    """With the shorter lease, its connection outlives the pause."""

    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        world.sim.pause("client")
        await asyncio.sleep(lease_s + 1)
        await score_everywhere(world, "Ada", "ClientUnavailable")
        world.sim.resume("client")
        await asyncio.sleep(lease_s / 2)
        await score_everywhere(world, "Bob", "ann saw Bob")
        assert noted() == [f"ann: {name}" for name in ["Bob"] * 3]
        (row,) = world.silo(watcher.gateway).assembly.clients.all()
        assert row.id > 1  # an attachment of its own: the removal of the first row may be late
        await watcher.stop()

    in_world(main, silos=3, options=RuntimeOptions(client_lease_s=lease_s))


def test_a_client_that_is_cut_off_from_its_gateway_uses_another_one() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway = watcher.gateway
        world.sim.network.partition("client", f"silo-{gateway}")
        await asyncio.sleep(LEASE_S / 2)
        await score_everywhere(world, "Ada", "ann saw Ada")
        world.sim.repair()
        await asyncio.sleep(LEASE_S)
        await score_everywhere(world, "Bob", "ann saw Bob")
        await watcher.stop()

    in_world(main, silos=4)


def test_a_gateway_that_is_cut_off_from_the_cluster_loses_its_client() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway = watcher.gateway
        for number in range(4):
            if number != gateway:
                world.sim.network.partition(f"silo-{gateway}", f"silo-{number}")
        world.sim.network.partition(f"silo-{gateway}", "table")
        await asyncio.sleep(LEASE_S)
        world.sim.repair()
        await world.cluster.until_active()
        await asyncio.sleep(LEASE_S / 2)
        for number in range(4):
            if number != gateway:
                assert await world.score("Ada", number, f"key-{number}") == ["ann saw Ada"]
        await watcher.stop()

    in_world(main, silos=4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_row_of_a_client_moves_with_its_range_of_the_directory(seed: int) -> None:
    async def main(world: World) -> None:
        watchers = [await Watcher(world, f"v{at}", f"client-{at}").start() for at in range(5)]
        for _ in range(3):
            world.cluster.add_silo()
        await world.cluster.until_active()
        for number in range(5):
            expected = [f"v{at} saw Ada" for at in range(5)]
            assert await world.score("Ada", number % 2, f"key-{number % 2}") == expected
        for number in (2, 3, 4):
            await world.cluster.remove_silo(f"silo-{number}")
            assert await world.score("Bob", 0, "key-0") == [f"v{at} saw Bob" for at in range(5)]
        for watcher in watchers:
            await watcher.stop()

    in_world(main, silos=2, seed=seed)


def test_a_client_that_does_not_read_meets_the_limit_in_bytes() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        assert watcher.client is not None
        gateway, other = watcher.gateway, 1 - watcher.gateway
        world.sim.pause("client")
        text = "x" * 10_000

        async def flood(silo: Silo) -> list[str]:
            match = silo.grain(Match, "flood")
            await match.watch(silo.assembly.references.grain_of("~Viewer", Viewer, KEYS[0]))
            return await match.call_many("goal", [text] * 400)

        KEYS[:] = [next(iter(watcher.client._observers._here))]
        for number in (gateway, other):
            task = asyncio.create_task(world.on_silo(flood, number))
            await asyncio.sleep(2)
            held = world.silo(gateway).assembly.turns.waiting_bytes.used
            peer = next(iter(world.silo(gateway).assembly.clients._names))
            assert peer.writer.unwritten_bytes <= 1_100_000 and held <= 4_500_000
            FLOODS.append(task)
        world.sim.resume("client")
        for task in FLOODS:
            answers = await task
            assert answers.count("Overloaded") > 100, set(answers)
            assert answers.count("Overloaded") < 400
        assert await world.score("Ada", other, f"key-{other}") == ["ann saw Ada"]
        await watcher.stop()

    FLOODS.clear()
    in_world(main, silos=2, options=RuntimeOptions(observer_bytes_max=1_000_000))


def client_target(world: World) -> SystemTarget:
    found = world.silo().assembly.targets.find("$client")
    assert found is not None
    return found


FLOODS: list[asyncio.Task[list[str]]] = []
KEYS: list[str] = []


@pytest.mark.parametrize("is_at_gateway", [True, False])
def test_calls_that_wait_for_a_client_meet_the_limit_in_bytes(is_at_gateway: bool) -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        number = watcher.gateway if is_at_gateway else 1 - watcher.gateway
        world.sim.crash("client")
        await asyncio.sleep(1)

        async def flood(silo: Silo) -> list[str]:
            return await silo.grain(Match, f"key-{number}").call_many("goal", ["x" * 10_000] * 150)

        task = asyncio.create_task(world.on_silo(flood, number))
        await asyncio.sleep(1)
        held = [silo.assembly.client_searches._held_bytes for silo in world.cluster.silos()]
        assert max(sum(bytes_.values()) for bytes_ in held) <= 1_000_000
        with pytest.raises(CallTimeout):
            await task
        await asyncio.sleep(2)
        assert not any(held)  # callers that gave up hold nothing
        assert not any(silo.assembly.turns.waiting_bytes.used for silo in world.cluster.silos())

    in_world(main, silos=2, options=RuntimeOptions(observer_bytes_max=1_000_000))


def test_calls_that_were_not_sent_when_the_connection_broke_are_sent_again() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway, other = watcher.gateway, 1 - watcher.gateway
        world.sim.pause("client")

        async def flood(silo: Silo) -> list[str]:
            return await silo.grain(Match, f"key-{other}").call_many("goal", ["x" * 10_000] * 200)

        task = asyncio.create_task(world.on_silo(flood, other))
        await asyncio.sleep(1)
        clients = world.silo(gateway).assembly.clients
        (peer,) = clients._names

        async def close(silo: Silo) -> None:
            peer.close("test")

        await world.on_silo(close, gateway)
        world.sim.resume("client")
        answers = await task
        assert "SiloUnavailable" in answers and len(set(answers)) == 2, set(answers)
        assert answers.count("SiloUnavailable") < 150
        await watcher.stop()

    in_world(main, silos=2)


def test_a_call_that_waits_to_be_written_when_the_connection_breaks_is_sent_again() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway, other = watcher.gateway, 1 - watcher.gateway
        (peer,) = world.silo(gateway).assembly.clients._names
        peer.writer.is_writable = False  # the link is full
        call = asyncio.create_task(world.score("Ada", other, f"key-{other}"))
        await asyncio.sleep(0.5)
        assert peer.writer.unwritten_bytes > 0

        async def close(silo: Silo) -> None:
            peer.close("test")

        await world.on_silo(close, gateway)
        assert await call == ["ann saw Ada"]
        assert noted() == ["ann: Ada"]
        await watcher.stop()

    in_world(main, silos=2)


def test_a_silo_learns_the_present_gateway_from_a_redirect() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        assert watcher.client is not None
        gateway, name = watcher.gateway, watcher.client.address
        asker, stale = [number for number in range(3) if number != gateway]
        locations = world.silo(asker).assembly.directory.locations
        locations.learn("$client", name, world.silo(stale).address)
        assert await world.score("Ada", asker, f"key-{asker}") == ["ann saw Ada"]
        assert locations.get("$client", name) == world.silo(gateway).address
        await watcher.stop()

    in_world(main, silos=3)


def test_a_client_leaves_a_gateway_that_stops_before_its_last_turn_has_ended() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway = watcher.gateway

        async def stay(silo: Silo) -> list[str]:
            return await silo.grain(Match, f"key-{gateway}").call_many("stay", ["a"])

        staying = asyncio.create_task(world.on_silo(stay, gateway))
        await asyncio.sleep(1)
        stopping = asyncio.create_task(world.cluster.stop_silo(f"silo-{gateway}"))
        await asyncio.sleep(2)
        assert not stopping.done()  # its turn waits for the observer
        assert [number for number in gateways_of(world) if number != gateway]
        GATES["a"].set()
        assert await staying == ["a"]
        await stopping
        await watcher.stop()

    in_world(main, silos=3)


@pytest.mark.parametrize("meanwhile", ["closes", "attaches again", "loses its connection"])
def test_an_attachment_that_is_overtaken_has_no_effect(meanwhile: str) -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        assert watcher.client is not None
        name, secret = watcher.client.address, watcher.client._attachment._secret
        clients = world.silo().assembly.clients
        directory: Any = world.silo().assembly.directory
        register, (peer,) = directory.register, clients._names

        async def register_late(row: Any) -> Any:
            await GATES["register"].wait()
            return await register(row)

        async def attach(silo: Silo) -> None:
            await clients.attach(peer, secret, 2)

        async def overtake(silo: Silo) -> None:
            if meanwhile == "closes":
                clients.detach(secret, 2)
            elif meanwhile == "attaches again":
                await clients.attach(peer, secret, 3)
            else:
                peer.close("test")

        directory.register = register_late
        late = asyncio.create_task(world.on_silo(attach))
        await asyncio.sleep(0.1)
        directory.register = register
        await world.on_silo(overtake)
        before = clients.connection(name)
        GATES["register"].set()
        with pytest.raises(Rejected, match="has attached again or closed since"):
            await late
        assert clients.connection(name) is before
        assert [row.id for row in clients.all()] == [3 if meanwhile == "attaches again" else 2]
        watcher.done.set()
        await watcher.task

    in_world(main)


def test_two_clients_on_one_connection_are_refused() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()

        async def hijack(client: Client) -> None:
            attachment = client._attachment
            peer = await attachment._choose()
            assert peer is not None
            async with client.observe(Viewer("bob")):
                attachment._secret = bytes(SECRET_BYTES)
                attach = client_target(world).target_specs["attach"]
                with pytest.raises(Rejected, match="has attached another client"):
                    await attachment._call(peer, attach)
                attachment._secret = b"short"
                with pytest.raises(Rejected, match="has 32 bytes, not 5"):
                    await attachment._call(peer, attach)

        await world.start(hijack, "other")
        await score_everywhere(world, "Ada", "ann saw Ada")
        await watcher.stop()

    in_world(main)


def test_a_client_of_the_same_name_does_not_get_the_calls() -> None:
    """The name in a handshake proves nothing: only the secret attaches."""

    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        assert watcher.client is not None
        name = watcher.client.address

        async def pretend(client: Client) -> None:
            end = client.engine.end
            end.identity = end.identity._replace(address=name)
            for peer in client.engine.peers.list_known():
                peer.close("test")
            await asyncio.sleep(1)
            async with client.observe(Viewer("thief")):
                await score_everywhere(world, "Ada", "ann saw Ada")

        await world.start(pretend, "other")
        await watcher.stop()
        assert noted() == ["ann: Ada"]

    in_world(main)


def test_a_client_that_is_gone_is_named() -> None:
    async def main(world: World) -> None:
        async def program(client: Client) -> None:
            async with client.observe(Viewer()) as viewer:
                text = str(viewer)
            KEYS[:] = [text.partition("/")[2], client.address]

        await world.start(program)

        async def call(silo: Silo) -> None:
            viewer = silo.assembly.references.grain_of("~Viewer", Viewer, KEYS[0])
            with pytest.raises(ClientUnavailable, match="was closed") as caught:
                await viewer.goal("Ada")
            assert caught.value.client == KEYS[1]
            await asyncio.sleep(LEASE_S + 1)
            with pytest.raises(ClientUnavailable, match=r"is gone: .*client_lease_s"):
                await viewer.goal("Ada")
            assert not silo.assembly.clients.all()

        for number in range(2):
            await world.on_silo(call, number)

    in_world(main, silos=2)


def test_a_row_that_is_outdated_is_removed_when_a_call_finds_it() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        assert watcher.client is not None
        gateway, name = watcher.gateway, watcher.client.address
        world.sim.crash("client")
        await asyncio.sleep(1)
        clients = world.silo(gateway).assembly.clients
        clients._rows.pop(name)
        clients._leases.drop(name)  # as if it ran out and the removal of the row failed
        assert await world.score("Ada", 1 - gateway, f"key-{1 - gateway}") == ["ClientUnavailable"]

    in_world(main, silos=2)


def test_the_observers_of_a_client_share_one_lease() -> None:
    async def main(world: World) -> None:
        async def program(client: Client) -> None:
            async with client.observe(Viewer("a")) as first, client.observe(Viewer("b")) as second:
                rows = [row for one in world.cluster.silos() for row in one.assembly.clients.all()]
                assert len(rows) == 1
                assert await first.goal("x") == "a saw x"
                assert await second.goal("x") == "b saw x"

        await world.start(program)

    in_world(main, silos=3)


def test_calls_of_one_sender_keep_their_order_across_a_change_of_gateway() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        gateway = watcher.gateway
        other = (gateway + 1) % 3

        async def send(silo: Silo) -> None:
            for number in range(40):
                try:
                    await silo.grain(Match, f"key-{other}").call("goal", text=str(number))
                except Exception as error:
                    assert type(error).__name__ == "SiloUnavailable"
                await asyncio.sleep(0.02)

        sending = asyncio.create_task(world.on_silo(send, other))
        await asyncio.sleep(0.4)
        world.sim.crash(f"silo-{gateway}")
        await sending
        numbers = [int(what.partition(": ")[2]) for what in noted()]
        assert numbers == sorted(set(numbers)) and len(numbers) >= 39
        await watcher.stop()

    in_world(main, silos=3)


def test_a_client_whose_only_silo_restarts_attaches_to_the_next_one() -> None:
    async def main(world: World) -> None:
        watcher = await Watcher(world).start()
        await world.cluster.stop_silo("silo-0")
        await world.cluster.until_active()
        assert watcher.client is not None
        await asyncio.sleep(15)
        key = next(iter(watcher.client._observers._here))

        async def call(silo: Silo) -> str:
            return await silo.assembly.references.grain_of("~Viewer", Viewer, key).goal("Ada")

        assert await world.on_silo(call) == "ann saw Ada"
        await watcher.stop()

    in_world(main, silos=1)


def test_gates_are_fresh() -> None:
    assert not GATES
