"""Calls between silos on loopback: single activation, placement, limits, and silos that leave."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from tests.conditions import until
from tests.runtime.pinned import pin

from millstream.runtime import (
    HASHED,
    LEAST_ACTIVATIONS,
    PREFER_LOCAL,
    RANDOM,
    CallError,
    ClusterError,
    ConfigError,
    Contract,
    Grain,
    GrainError,
    LocalCluster,
    MembershipOptions,
    MemoryMembershipTable,
    NotHosted,
    NotInCluster,
    Role,
    Runtime,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    Status,
    connect,
    grain,
    one_way,
    open_to,
    with_options,
)
from millstream.runtime.extending import SystemTarget

LOG: list[str] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
ACTIVATED: Counter[str] = Counter()

QUICK = MembershipOptions(
    probe_every_s=0.05,
    probe_timeout_s=0.2,
    missed_probes_max=2,
    refresh_s=0.5,
    heartbeat_s=0.2,
)


@pytest.fixture(autouse=True)
def fresh_board() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    ACTIVATED.clear()
    yield


class Seat(Grain):
    async def on_activate(self) -> None:
        ACTIVATED[self.key] += 1

    async def where(self) -> str:
        return self.context.silo

    async def stay(self, name: str) -> str:
        LOG.append(f"+{name}")
        await GATES[name].wait()
        LOG.append(f"-{name}")
        return self.context.silo

    async def pause(self) -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.context.silo

    async def size(self, data: bytes) -> int:
        return len(data)

    async def give(self, size: int) -> bytes:
        return bytes(size)

    async def fail_big(self, size: int) -> None:
        raise ValueError("x" * size)

    async def pass_on(self, key: str) -> str:
        return await self.grain(Seat, key).where()

    @one_way
    async def note(self, name: str) -> None:
        LOG.append(name)


@grain(placement=PREFER_LOCAL)
class Near(Seat):
    pass


@grain(placement=HASHED)
class Fixed(Seat):
    pass


@grain(placement=LEAST_ACTIVATIONS)
class Balanced(Seat):
    pass


@grain(placement=RANDOM)
class Anywhere(Seat):
    pass


@grain(name="Nobody")
class NobodyHosts(Contract):
    async def where(self) -> str:
        raise NotImplementedError


@grain(name="Near")
class NearWithMore(Contract):
    async def missing(self) -> str:
        raise NotImplementedError


GRAINS: list[type[Grain]] = [Seat, Near, Fixed, Balanced, Anywhere]


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(silos=3, grains=GRAINS) as started:
        yield started


def host_count(cluster: LocalCluster, kind: str, key: str) -> int:
    return sum(key in silo.assembly.catalog.of(kind) for silo in cluster.silos)


# --- one activation ------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Seat, Near])
async def test_many_first_calls_from_every_side_make_one_activation(
    cluster: LocalCluster, cls: type[Seat]
) -> None:
    runtimes: list[Any] = [*cluster.silos, cluster.client]
    calls = [
        runtimes[i % len(runtimes)].grain(cls, key).where()
        for key in ("a", "b", "c")
        for i in range(300)
    ]
    found = await asyncio.gather(*calls)
    for at, key in enumerate(("a", "b", "c")):
        assert len(set(found[at * 300 : (at + 1) * 300])) == 1
        assert ACTIVATED[key] == 1
        assert host_count(cluster, cls.__name__, key) == 1


async def test_a_call_finds_the_grain_wherever_it_is(cluster: LocalCluster) -> None:
    for silo in cluster.silos:
        key = f"at {silo.address}"
        assert await silo.grain(Near, key).where() == silo.address
        others: list[Runtime] = [*cluster.silos, cluster]
        for other in others:
            assert await other.grain(Near, key).where() == silo.address


async def test_a_grain_that_moved_is_found_again(cluster: LocalCluster) -> None:
    one, two, three = cluster.silos
    assert await one.grain(Near, "a").where() == one.address
    # three remembers the location from here
    assert await three.grain(Near, "a").where() == one.address
    activation = one.assembly.catalog.of("Near")["a"]
    from millstream.runtime import DeactivationReason

    one.assembly.catalog.deactivate(activation, DeactivationReason.REQUESTED)
    await until(lambda: "a" not in one.assembly.catalog.of("Near"))
    assert await two.grain(Near, "a").where() == two.address
    assert await three.grain(Near, "a").where() == two.address
    assert await cluster.client.grain(Near, "a").where() == two.address
    assert host_count(cluster, "Near", "a") == 1


async def test_a_one_way_call_to_a_grain_that_moved_arrives(cluster: LocalCluster) -> None:
    one, two, three = cluster.silos
    await one.grain(Near, "a").where()
    await three.grain(Near, "a").where()
    from millstream.runtime import DeactivationReason

    activation = one.assembly.catalog.of("Near")["a"]
    one.assembly.catalog.deactivate(activation, DeactivationReason.REQUESTED)
    await until(lambda: "a" not in one.assembly.catalog.of("Near"))
    assert await two.grain(Near, "a").where() == two.address
    await three.grain(Near, "a").note("arrived")
    await until(lambda: LOG == ["arrived"])
    assert host_count(cluster, "Near", "a") == 1


async def test_grains_call_each_other_over_silos(cluster: LocalCluster) -> None:
    one, two, _ = cluster.silos
    await two.grain(Near, "far").where()

    @grain(placement=PREFER_LOCAL)
    class Unused(Grain):
        async def ok(self) -> str:
            return "ok"

    assert await one.grain(Near, "here").where() == one.address
    assert await cluster.grain(Seat, "x").pass_on("y") in {s.address for s in cluster.silos}


# --- placement -----------------------------------------------------------------------------------


async def test_prefer_local_places_where_the_call_is_made(cluster: LocalCluster) -> None:
    for silo in cluster.silos:
        for i in range(5):
            assert await silo.grain(Near, f"{silo.address} {i}").where() == silo.address


async def test_hashed_placement_depends_on_the_key_only(cluster: LocalCluster) -> None:
    keys = [f"{i}" for i in range(30)]
    places = [await cluster.silos[0].grain(Fixed, key).where() for key in keys]
    assert len(set(places)) == 3
    async with LocalCluster(silos=1, grains=GRAINS):
        pass
    again = [await cluster.silos[2].grain(Fixed, key).where() for key in keys]
    assert again == places


async def test_random_placement_uses_every_silo(cluster: LocalCluster) -> None:
    places = {await cluster.silos[0].grain(Anywhere, f"{i}").where() for i in range(60)}
    assert len(places) == 3


async def test_least_activations_prefers_the_empty_silos(cluster: LocalCluster) -> None:
    one = cluster.silos[0]
    for silo in cluster.silos:
        one.assembly.loads.learn(silo.address, 1000 if silo is one else 0)
    places = Counter([await one.grain(Balanced, f"{i}").where() for i in range(60)])
    assert places[one.address] < 20 and len(places) >= 2


async def test_a_silo_that_does_not_host_a_type_places_it_at_one_that_does() -> None:
    table = MemoryMembershipTable()
    async with Silo(grains=[Near], membership=table) as hosting:
        async with Silo(grains=[], membership=table) as bare:
            assert await bare.grain(Near, "a").where() == hosting.address
            async with connect(bare.gateway) as client:
                assert await client.grain(Near, "b").where() == hosting.address


# --- refusals ------------------------------------------------------------------------------------


async def test_a_type_that_nobody_hosts_is_refused_by_name(cluster: LocalCluster) -> None:
    for runtime in (cluster.silos[0], cluster.client):
        with pytest.raises(NotHosted, match="'Nobody'.*Near"):
            await runtime.grain(NobodyHosts, "a").where()


async def test_a_method_that_does_not_exist_is_refused_by_name(cluster: LocalCluster) -> None:
    with pytest.raises(NotHosted, match="Near.*'missing'"):
        await cluster.client.grain(NearWithMore, "a").missing()
    assert await cluster.client.grain(Near, "a").where()


class Clerk(SystemTarget):
    target_name = "$clerk"

    async def file(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("instance", "method", "words"),
    [
        ("evening", "file", r"\$clerk/evening .*file.*it has: \$clerk/morning, \$clerk/noon$"),
        ("", "file", r"\$clerk .*file.*it has: \$clerk/morning, \$clerk/noon$"),
        ("noon", "lose", r"\$clerk/noon has no method 'lose'; it has: file$"),
    ],
)
async def test_a_system_target_that_is_not_there_is_named_with_those_that_are(
    cluster: LocalCluster, instance: str, method: str, words: str
) -> None:
    silo = cluster.silos[0]
    for name in ("noon", "morning"):
        silo.assembly.targets.add(Clerk(), name)
    calls = cluster.client.gateway
    pin(cluster.client, silo.gateway)
    spec = Clerk.target_specs["file"]
    if method != "file":
        spec = type(spec)("Clerk", method, Clerk.file, [])
        spec.wire_name = method
    with pytest.raises(NotHosted, match=words):
        await calls.ask("x", "$clerk", instance, spec, ())


class Scribe(SystemTarget):
    """Writes a call's number at once unless the call may wait."""

    target_name = "$scribe"

    def __init__(self) -> None:
        self.written: list[tuple[int, bool]] = []  # each with whether it was written in a task

    def write_together(self, calls: Sequence[tuple[int, bool]]) -> list[object]:
        """Write the numbers up to the first call that may wait."""
        waits = [may_wait for _, may_wait in calls]
        end = waits.index(True) if True in waits else len(calls)
        results = [self._write(number) for number, _ in calls[:end]]
        return [*results, *[NotImplemented] * (len(calls) - end)]

    def _write(self, number: int) -> object:
        if number < 0:
            return ValueError(f"{number} is no number")
        self.written.append((number, asyncio.current_task() is not None))
        return number

    together = MappingProxyType({"write": write_together})

    @open_to(Role.CLIENT)
    async def write(self, number: int, may_wait: bool) -> int:
        self.written.append((number, asyncio.current_task() is not None))
        return number


class JoiningScribe(Scribe):
    """Records the calls of each frame."""

    target_name = "$joining"

    def __init__(self) -> None:
        super().__init__()
        self.joined: list[list[int]] = []

    def write_together(self, calls: Sequence[tuple[int, bool]]) -> list[object]:
        self.joined.append([number for number, _ in calls])
        if self.joined[-1] == [13, 13]:
            raise ValueError("13 twice")
        return super().write_together(calls)

    together = MappingProxyType({"write": write_together})

    @open_to(Role.CLIENT)
    async def read(self) -> list[int]:
        return [number for number, _ in self.written]


class Verbose(SystemTarget):
    """A wrong declaration of a scribe's method."""

    target_name = "$verbose"

    @open_to(Role.CLIENT)
    async def write(self, number: str, may_wait: bool) -> int:
        raise NotImplementedError


async def test_a_plain_method_of_a_target_answers_in_no_task_and_overtakes_nothing(
    cluster: LocalCluster,
) -> None:
    silo, calls, scribe = cluster.silos[0], cluster.client.gateway, Scribe()
    silo.assembly.targets.add(scribe)
    pin(cluster.client, silo.gateway)
    spec = Scribe.target_specs["write"]

    async def write(number: int, may_wait: bool) -> Any:
        return await calls.ask("x", "$scribe", "", spec, (number, may_wait))

    assert await write(1, False) == 1
    assert await write(2, True) == 2
    assert scribe.written == [(1, False), (2, True)]
    scribe.written.clear()
    waiting = [n % 3 == 1 for n in range(9)]
    assert await asyncio.gather(*map(write, range(9), waiting)) == list(range(9))
    assert [number for number, _ in scribe.written] == list(range(9))
    assert not scribe.written[0][1] and all(in_task for _, in_task in scribe.written[1:])
    with pytest.raises(ValueError, match="-1 is no number"):
        await write(-1, False)


async def test_calls_of_one_frame_are_answered_together_and_each_has_its_own_answer(
    cluster: LocalCluster,
) -> None:
    silo, calls, scribe = cluster.silos[0], cluster.client.gateway, JoiningScribe()
    silo.assembly.targets.add(scribe)
    pin(cluster.client, silo.gateway)
    spec, reading = JoiningScribe.target_specs["write"], JoiningScribe.target_specs["read"]

    async def write(number: int, may_wait: bool = False) -> Any:
        return await calls.ask("x", "$joining", "", spec, (number, may_wait))

    async def read() -> Any:
        return await calls.ask("x", "$joining", "", reading, ())

    async def many(*calls: Any) -> list[Any]:
        return await asyncio.gather(*calls, return_exceptions=True)

    assert await write(0) == 0
    assert scribe.joined == [[0]]  # the call was alone in its frame
    found = await many(write(1), write(-2), write(3))
    assert found[::2] == [1, 3] and str(found[1]) == "-2 is no number"
    assert scribe.joined == [[0], [1, -2, 3]]
    # no call overtakes another
    assert await many(write(4), read(), write(5)) == [4, [0, 1, 3, 4], 5]
    assert await many(write(6), write(7, True), write(8)) == [6, 7, 8]
    assert [number for number, _ in scribe.written] == [0, 1, 3, 4, 5, 6, 7, 8]
    assert [number for number, in_task in scribe.written if in_task] == [5, 7, 8]
    assert (await many(write(14), write(15, True), read()))[2][-2:] == [14, 15]
    found = await many(write(13), write(13))
    assert [str(error) for error in found] == ["13 twice"] * 2
    wrong = calls.ask("x", "$joining", "", Verbose.target_specs["write"], ("ten", False))
    right, refused = await many(write(9), wrong)
    assert (right, type(refused)) == (9, TypeError) and "argument `number`" in str(refused)


async def test_a_kind_of_system_target_that_is_not_there_is_named(cluster: LocalCluster) -> None:
    spec = Clerk.target_specs["file"]
    with pytest.raises(
        NotHosted, match=r"no system target \$clerk/noon .*it has: \$client, \$directory, "
    ):
        await cluster.client.gateway.ask("x", "$clerk", "noon", spec, ())


async def test_a_wrong_cluster_name_is_a_mistake_that_names_both(cluster: LocalCluster) -> None:
    gateways = [silo.gateway for silo in cluster.silos[:2]]
    with pytest.raises(ConfigError, match=f"{gateways[1]}: .* is in cluster 'dev', not 'other'"):
        async with connect(*gateways, cluster="other"):
            pass
    async with connect(gateways[0]) as client:
        assert await client.grain(Seat, "a").where()


async def test_a_wrong_cluster_name_beside_a_gateway_that_is_away_may_be_tried_again(
    cluster: LocalCluster,
) -> None:
    with pytest.raises(SiloUnavailable, match="'dev'.*'other'.*127.0.0.1:1"):
        async with connect(cluster.silos[0].gateway, "127.0.0.1:1", cluster="other"):
            pass


async def test_a_gateway_of_another_cluster_does_not_hide_the_right_one(
    cluster: LocalCluster,
) -> None:
    async with Silo(grains=[], cluster="other") as other:
        async with connect(other.gateway, cluster.silos[0].gateway) as client:
            assert await client.grain(Seat, "a").where()


async def test_a_gateway_that_is_not_there_is_named() -> None:
    with pytest.raises(SiloUnavailable, match="127.0.0.1:1"):
        async with connect("127.0.0.1:1"):
            pass
    with pytest.raises(ConfigError, match="host:port"):
        connect("nonsense")
    with pytest.raises(ConfigError):
        connect()


async def test_a_second_silo_at_one_address_does_not_start(cluster: LocalCluster) -> None:
    with pytest.raises(ClusterError, match="the port is in use"):
        async with Silo(grains=[], address=cluster.silos[0].gateway):
            pass
    assert await cluster.grain(Seat, "a").where()


# --- limits of size ------------------------------------------------------------------------------

SMALL = RuntimeOptions(frame_bytes_max=16_384)


@pytest.fixture
async def small() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(silos=2, grains=[Near], options=SMALL) as started:
        await started.silos[0].grain(Near, "a").where()
        yield started


@pytest.mark.parametrize("where", ["silo", "client"])
async def test_arguments_that_are_too_big_are_refused_and_the_connection_goes_on(
    small: LocalCluster, where: str
) -> None:
    runtime = small.silos[1] if where == "silo" else small.client
    ref = runtime.grain(Near, "a")
    other = asyncio.create_task(ref.stay("s"))
    await until(lambda: "+s" in LOG)
    with pytest.raises(Exception, match="frame_bytes_max 16384") as caught:
        await runtime.grain(Near, "a").size(bytes(20_000))
    assert not isinstance(caught.value, SiloUnavailable)
    GATES["s"].set()
    assert await other == small.silos[0].address
    assert await ref.size(bytes(8_000)) == 8_000


@pytest.mark.parametrize("where", ["silo", "client"])
async def test_a_result_that_is_too_big_is_refused_and_the_connection_goes_on(
    small: LocalCluster, where: str
) -> None:
    runtime = small.silos[1] if where == "silo" else small.client
    ref = with_options(runtime.grain(Near, "a"), timeout=5)
    with pytest.raises(Exception, match="frame_bytes_max 16384") as caught:
        await ref.give(20_000)
    assert not isinstance(caught.value, SiloUnavailable)
    for size in (16_384, 16_350, 16_300, 16_200, 12_000):  # around the limit: an error or the bytes
        try:
            assert len(await ref.give(size)) == size
        except SiloUnavailable:
            pytest.fail(f"a result of {size} bytes closed the connection")
        except Exception as error:
            assert "frame_bytes_max" in str(error)


@pytest.mark.parametrize("where", ["silo", "client"])
async def test_an_error_that_is_too_big_arrives_shortened_and_the_connection_goes_on(
    small: LocalCluster, where: str
) -> None:
    runtime = small.silos[1] if where == "silo" else small.client
    ref = with_options(runtime.grain(Near, "a"), timeout=5)
    other = asyncio.create_task(ref.stay("s"))
    await until(lambda: "+s" in LOG)
    second = asyncio.create_task(with_options(runtime.grain(Near, "b"), timeout=5).fail_big(50_000))
    with pytest.raises((ValueError, CallError)) as caught:
        await second
    assert len(str(caught.value)) < 50_000
    GATES["s"].set()
    assert await other == small.silos[0].address


@pytest.mark.parametrize("where", ["silo", "client"])
async def test_a_long_key_or_header_is_refused_and_the_connection_goes_on(
    small: LocalCluster, where: str
) -> None:
    runtime = small.silos[1] if where == "silo" else small.client
    ref = with_options(runtime.grain(Near, "a"), timeout=5)
    other = asyncio.create_task(ref.stay("s"))
    await until(lambda: "+s" in LOG)
    with pytest.raises(Exception, match="frame_bytes_max") as caught:
        await with_options(runtime.grain(Near, "a"), headers={"h": "x" * 20_000}, timeout=5).where()
    assert not isinstance(caught.value, SiloUnavailable)
    if where == "client":
        with pytest.raises(Exception, match="frame_bytes_max") as caught:
            await with_options(runtime.grain(Near, "k" * 20_000), timeout=5).where()
        assert not isinstance(caught.value, SiloUnavailable)
    GATES["s"].set()
    assert await other == small.silos[0].address


async def test_many_calls_at_once_stay_below_the_limit_of_a_frame(small: LocalCluster) -> None:
    ref = small.silos[1].grain(Near, "a")
    sizes = await asyncio.gather(*(ref.size(bytes(1_000)) for _ in range(100)))
    assert sizes == [1_000] * 100
    given = await asyncio.gather(*(ref.give(1_000) for _ in range(100)))
    assert all(len(data) == 1_000 for data in given)


async def test_a_big_payload_below_the_limit_passes(cluster: LocalCluster) -> None:
    await cluster.silos[0].grain(Near, "a").where()
    for runtime in (cluster.silos[1], cluster.client):
        assert await runtime.grain(Near, "a").size(bytes(3_000_000)) == 3_000_000
        assert len(await runtime.grain(Near, "a").give(3_000_000)) == 3_000_000


# --- silos that leave ----------------------------------------------------------------------------


@pytest.mark.parametrize("from_client", [False, True])
async def test_a_graceful_stop_under_load_fails_no_call(from_client: bool) -> None:
    async with LocalCluster(silos=3, grains=[Seat], membership_options=QUICK) as cluster:
        leaving = cluster.silos[2]
        runtime = cluster.client if from_client else cluster.silos[0]
        running = True
        served: Counter[str] = Counter()

        async def load(worker: int) -> None:
            turn = 0
            while running:
                turn += 1
                served[await runtime.grain(Seat, f"{(worker * 7 + turn) % 40}").pause()] += 1

        workers = [asyncio.create_task(load(i)) for i in range(16)]
        await until(lambda: sum(served.values()) > 500)
        assert served[leaving.address] > 0
        await leaving.stop()
        before = sum(served.values())
        await until(lambda: sum(served.values()) > before + 500)
        running = False
        await asyncio.gather(*workers)  # raises the workers' errors


async def test_the_silo_that_stops_lets_the_calls_end_that_it_relays() -> None:
    async with LocalCluster(silos=2, grains=[Near], membership_options=QUICK) as cluster:
        staying, leaving = cluster.silos
        await staying.grain(Near, "a").where()
        async with connect(leaving.gateway) as client:
            pin(client, leaving.gateway)
            call = asyncio.create_task(client.grain(Near, "a").stay("s"))
            await until(lambda: "+s" in LOG)
            stopping = asyncio.create_task(leaving.stop())
            await until(
                lambda: (
                    staying.assembly.membership.view.row(leaving.address).status  # type: ignore[union-attr]
                    is not Status.ACTIVE
                )
            )
            GATES["s"].set()
            assert await call == staying.address
            await stopping


async def test_a_stop_moves_the_grains_and_nothing_is_active_twice() -> None:
    async with LocalCluster(silos=3, grains=[Seat], membership_options=QUICK) as cluster:
        keys = [f"{i}" for i in range(60)]
        for key in keys:
            await cluster.grain(Seat, key).where()
        leaving = cluster.silos[1]
        await leaving.stop()
        places = [await cluster.silos[0].grain(Seat, key).where() for key in keys]
        assert leaving.address not in places and len(set(places)) == 2
        again = [await cluster.silos[2].grain(Seat, key).where() for key in keys]
        assert again == places
        left = [s for s in cluster.silos if s is not leaving]
        for key in keys:
            assert sum(key in s.assembly.catalog.of("Seat") for s in left) == 1


@pytest.mark.real  # the test measures real time
async def test_a_killed_silo_fails_its_calls_fast_and_its_grains_come_up_elsewhere() -> None:
    async with LocalCluster(silos=3, grains=[Near], membership_options=QUICK) as cluster:
        one, two, dying = cluster.silos
        for i in range(10):
            assert await dying.grain(Near, f"{i}").where() == dying.address
        callers: list[Runtime] = [one, two, cluster.client]
        stuck = [
            asyncio.create_task(caller.grain(Near, f"{i}").stay(f"s{i}"))
            for i, caller in enumerate(callers)
        ]
        await until(lambda: len(LOG) == 3)
        queued = [asyncio.create_task(caller.grain(Near, "0").where()) for caller in callers]
        box = dying.assembly.catalog.of("Near")["0"].ensure_mailbox()
        await until(lambda: len(box.waiting) == 3)
        loop = asyncio.get_running_loop()
        killed_at = loop.time()
        await dying.kill()
        for task in stuck:
            async with asyncio.timeout(5):
                with pytest.raises(SiloUnavailable):
                    await task
        assert loop.time() - killed_at < 2
        for task in queued:  # their callers cannot know whether these calls had begun
            async with asyncio.timeout(5):
                try:
                    assert await task in (one.address, two.address)
                except SiloUnavailable:
                    pass

        def is_evicted(silo: Silo) -> bool:
            row = silo.assembly.membership.view.row(dying.address)
            return row is None or row.status is Status.DEAD

        await until(lambda: is_evicted(one) and is_evicted(two))
        for i in range(10):
            place = await one.grain(Near, f"{i}").where()
            assert place in (one.address, two.address)
            assert await two.grain(Near, f"{i}").where() == place
            assert await cluster.client.grain(Near, f"{i}").where() == place


async def test_a_client_goes_on_through_another_gateway() -> None:
    async with LocalCluster(silos=3, grains=[Near], membership_options=QUICK) as cluster:
        one, two, dying = cluster.silos
        for i in range(12):
            await one.grain(Near, f"{i}").where()
        async with connect(dying.gateway) as client:  # the client learns the other gateways
            for i in range(12):
                assert await client.grain(Near, f"{i}").where() == one.address
            await dying.kill()
            for i in range(12):
                call = with_options(client.grain(Near, f"{i}"), timeout=5)
                try:
                    place = await call.where()
                except SiloUnavailable:  # the call was on its way through the killed gateway
                    place = await call.where()
                assert place == one.address


@pytest.mark.spare
async def test_a_client_whose_gateways_are_all_gone_fails_fast_and_by_name() -> None:
    async with LocalCluster(silos=1, grains=[Near]) as cluster:
        async with connect(cluster.silos[0].gateway) as client:
            await client.grain(Near, "a").where()
            gateway = cluster.silos[0].gateway
            await cluster.silos[0].kill()
            async with asyncio.timeout(5):
                with pytest.raises(SiloUnavailable, match=gateway):
                    await client.grain(Near, "a").where()
                with pytest.raises(SiloUnavailable):
                    await client.grain(Near, "a").where()


async def test_a_new_silo_takes_over_its_part_and_every_grain_stays_single() -> None:
    async with LocalCluster(silos=1, grains=[Seat], membership_options=QUICK) as cluster:
        keys = [f"{i}" for i in range(100)]
        first = [await cluster.grain(Seat, key).where() for key in keys]
        added = await cluster.start_silo()
        third = await cluster.start_silo()
        assert [await added.grain(Seat, key).where() for key in keys] == first
        assert [await third.grain(Seat, key).where() for key in keys] == first
        assert max(ACTIVATED.values()) == 1
        places = {await third.grain(Seat, f"new {i}").where() for i in range(60)}
        assert len(places) == 3


async def test_calls_before_start_and_after_the_end_are_refused() -> None:
    cluster = LocalCluster(silos=1, grains=[Seat])
    with pytest.raises(NotInCluster):
        cluster.grain(Seat, "a")
    async with cluster:
        ref = cluster.grain(Seat, "a")
        assert await ref.where()
    with pytest.raises(NotInCluster):
        await ref.where()


async def test_a_cluster_without_silos_is_refused() -> None:
    with pytest.raises(ConfigError, match="silos=0"):
        LocalCluster(silos=0, grains=[])


class NoAnswer(BaseException):
    pass


class Abrupt(Grain):
    async def end(self, way: str) -> None:
        raise GeneratorExit if way == "generator" else NoAnswer("odd")

    async def ping(self) -> str:
        return "here"


@pytest.mark.parametrize("way", ["base", "generator"])
async def test_a_method_that_raises_what_is_no_exception_is_answered_and_leaves_its_turn(
    way: str,
) -> None:
    async with LocalCluster(silos=2, grains=[Abrupt]) as cluster:
        abrupt = cluster.grain(Abrupt, "a")
        with pytest.raises(GrainError):
            await abrupt.end(way)
        assert await abrupt.ping() == "here"
