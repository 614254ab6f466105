"""Queues in Redis while the server crashes, hangs, loses connections or has a wrong
configuration."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.providers.priority.set_clock import Clock
from tests.real.redis_server import DURABLE, RedisServer, require_redis

from millstream.providers.priority import OwnerLost, QueueSettings, State
from millstream.providers.priority.core.commands import (
    Complete,
    Depth,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Get,
    Page,
)
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.redis import RedisOptions, RedisStore
from millstream.providers.priority.redis.keys import lane_keys, lane_of, queue_keys
from millstream.providers.priority.redis.server import Server
from millstream.providers.priority.store.contract import OwnedQueue
from millstream.runtime import ConfigError, StorageError, StorageUnavailable

pytestmark = pytest.mark.real

SIMPLE = QueueSettings()
KEYS = queue_keys("millstream", "q")
Servers = Callable[..., RedisServer]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    require_redis()
    made: list[RedisServer] = []

    def make(*options: str) -> RedisServer:
        directory = tmp_path / f"redis{len(made)}"
        directory.mkdir()
        made.append(RedisServer(directory, *options))
        return made[-1]

    yield make
    for server in made:
        server.kill()


@asynccontextmanager
async def opened(
    server: RedisServer | str, *, events: bool = True, **options: Any
) -> AsyncIterator[RedisStore]:
    address = server if isinstance(server, str) else server.address
    store = RedisStore(address, events=events, options=RedisOptions(**options))
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


async def states(queue: OwnedQueue) -> dict[str, State]:
    found: dict[str, State] = {}
    after = 0
    while views := await queue.look(Page(1_000, after)):
        found |= {view.id: view.state for view in views}
        after = views[-1].sequence
    return found


# -- the server crashes


class Work:
    """Producers and workers that record the answers to their requests until their owner is lost."""

    def __init__(self, queue: OwnedQueue, name: str) -> None:
        self.queue = queue
        self.name = name
        self.put: list[str] = []
        self.leased: list[str] = []
        self.done: list[str] = []

    async def run(self) -> None:
        await asyncio.gather(
            *(self._produce(f"{self.name}{n}") for n in range(3)), self._work("a"), self._work("b")
        )

    async def _produce(self, name: str) -> None:
        for number in range(10_000):
            try:
                await self.queue.do(Enqueue(f"{name}-{number}", bytes(number % 3_000), number))
            except (OwnerLost, StorageUnavailable):
                return
            self.put.append(f"{name}-{number}")

    async def _work(self, name: str) -> None:
        while True:
            try:
                for lease in (await self.queue.do(Dequeue(name, 3))).leases:
                    self.leased.append(lease.id)
                    await self.queue.do(Complete(lease.id, lease.token))
                    self.done.append(lease.id)
            except (OwnerLost, StorageUnavailable):
                return


async def test_what_was_answered_is_there_after_the_server_was_killed(servers: Servers) -> None:
    server, rng = servers(), Random(1)
    works: list[Work] = []
    async with opened(server) as store:
        for round_ in range(3):
            work = Work(await store.acquire("q", SIMPLE), f"r{round_}-")
            works.append(work)
            task = asyncio.create_task(work.run())
            while len(work.done) < 30 + rng.randrange(30):
                await asyncio.sleep(0.01)
            server.kill()
            await asyncio.wait_for(task, 30)
            server.start()
        found = await states(await store.acquire("q", None))
        for work in works:
            assert all(id in found for id in work.put), "an enqueue was lost"
            assert all(found[id] >= State.RUNNING for id in work.leased), "a lease was lost"
            assert all(found[id] is State.COMPLETED for id in work.done)
        done = [id for work in works for id in work.done]
        assert len(done) == len(set(done)) > 90
        versions: dict[str, int] = {}
        for position, event in await store.events(lane_of("q"), 0, 1_000_000):
            assert event.version == versions.get(event.id, 0) + 1, f"a gap at {position}"
            versions[event.id] = event.version
        assert set(versions) == set(found)


@pytest.mark.parametrize("torn", [1, 200, 600])
async def test_half_a_commit_in_the_file_is_none(servers: Servers, torn: int) -> None:
    """A disk may keep part of a commit that was not synced. Such a commit was never answered."""
    server = servers()
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(Enqueue("a", b"x", 1))
        await queue.do(EnqueueMany(tuple(Enqueue(f"m{n}", bytes(90), n) for n in range(9))))
        server.kill()
        server.tear(torn)
        server.start()
        await asyncio.sleep(0.1)  # so that the loop notices the closed connection
        queue = await store.acquire("q", None)
        assert list(await states(queue)) == ["a"]
        assert [one.event.id for one in await store.events(lane_of("q"), 0, 99)] == ["a"]
        await queue.do(Enqueue("b", b"x", 1))
        assert list(await states(await store.acquire("q", None))) == ["a", "b"]


async def test_an_owner_goes_on_over_a_server_that_was_stopped_and_started(
    servers: Servers,
) -> None:
    """No request was under way, so no outcome is unknown. The store sends the script again."""
    server = servers()
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(Enqueue("a", b"x", 1))
        server.kill()
        server.start()
        await asyncio.sleep(0.1)
        await queue.do(Enqueue("b", b"x", 1))
        assert list(await states(queue)) == ["a", "b"] and not queue.is_lost


async def test_a_server_that_reads_its_data_yet_says_so(servers: Servers) -> None:
    """While the server loads its file, it looks at its connections after each 1,024 commands."""
    server = servers()
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        for name in "abcdefghijklmnop":
            many = tuple(Enqueue(f"{name}{number}", b"x", 1) for number in range(1_000))
            await queue.do(EnqueueMany(many))
        server.kill()
        server.start(*DURABLE, "--key-load-delay", "100", waits=False)
        text = "cannot be reached"
        while "cannot be reached" in text:  # the server does not listen yet
            with pytest.raises(StorageUnavailable) as caught:
                await store.acquire("q", None)
            text = str(caught.value)
        assert "is reading its data after a start: try again later" in text
        server.wait()
        assert len(await states(await store.acquire("q", None))) == 16_000


async def test_scripts_that_the_server_forgot_are_sent_again(servers: Servers) -> None:
    server = servers()
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(Enqueue("a", b"x", 1))
        server.command("SCRIPT", "FLUSH")
        await queue.do(Enqueue("b", b"x", 1))
        assert list(await states(queue)) == ["a", "b"]


async def test_a_server_that_went_back_ends_the_owner_and_is_told(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """The server loses data, as in a crash with weak durability or in a failover to a replica."""
    server = servers("--appendonly", "no")
    async with opened(server, durability="none") as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(Enqueue("a", b"x", 1))
        mark = await head_field(store, "mark")
        await queue.do(Enqueue("b", b"x", 1))
        server.command("HSET", KEYS.head, "mark", mark)
        for act in (queue.look(Depth()), queue.do(Enqueue("c", b"x", 1))):
            with pytest.raises(OwnerLost):
                await act
        assert "lost acknowledged commits" in caplog.text
        caplog.clear()
        server.command("FLUSHALL")
        queue = await store.acquire("q", SIMPLE)
        assert await states(queue) == {}
        server.command("FLUSHALL")
        with caplog.at_level(logging.ERROR), pytest.raises(OwnerLost):
            await queue.do(Enqueue("c", b"x", 1))
        assert "lost acknowledged commits" in caplog.text


async def test_two_owners_of_one_epoch_are_told_apart(servers: Servers) -> None:
    """The server lost the first owner's acquisition, so it gives the same epoch again."""
    server = servers()
    async with opened(server) as store:
        first = await store.acquire("q", SIMPLE)
        server.command("FLUSHALL")
        second = await store.acquire("q", SIMPLE)
        assert first.epoch == second.epoch
        with pytest.raises(OwnerLost):
            await first.do(Enqueue("a", b"x", 1))
        await second.do(Enqueue("b", b"x", 1))
        assert list(await states(second)) == ["b"]


async def head_field(store: RedisStore, field: str) -> bytes:
    [found] = await store._server().ask([("HGET", KEYS.head, field)])
    assert isinstance(found, bytes)
    return found


# -- the server hangs


async def test_a_server_that_stands_still_is_not_waited_for(servers: Servers) -> None:
    server = servers()
    async with opened(server, timeout_s=0.5) as store:
        queues = [await store.acquire(name, SIMPLE) for name in ("q", "r", "s")]
        server.pause()
        try:
            begun_s = time.monotonic()
            many = EnqueueMany(tuple(Enqueue(f"m{n}", bytes(32_000), n) for n in range(500)))
            acts: list[Any] = [
                queues[0].do(Enqueue("a", bytes(30_000), 1), Request("s", 1)),
                queues[1].look(Depth()),
                queues[2].do(many),
                store.acquire("t", SIMPLE),
                store.queues("", "", 9),
                store.due(0, "", 9),
            ]
            outcomes = await asyncio.gather(*acts, return_exceptions=True)
            assert time.monotonic() - begun_s < 10
            for outcome in outcomes:
                assert isinstance(outcome, StorageUnavailable), outcome
                assert "did not answer in time (timeout_s is 0.5)" in str(outcome)
        finally:
            server.go_on()
        other = await store.acquire("q", None)
        again = await other.do(Enqueue("a", bytes(30_000), 1), Request("s", 1))
        assert again.id == "a" and list(await states(other)) == ["a"]
        [event, *more] = await store.events(lane_of("q"), 0, 9)
        assert (event.event.id, more) == ("a", []), "done once"


async def test_a_silent_server_cannot_be_opened_and_says_so(servers: Servers) -> None:
    server = servers()
    server.pause()
    try:
        store = RedisStore(server.address, options=RedisOptions(timeout_s=0.3))
        with pytest.raises(StorageUnavailable, match="did not answer in time"):
            await store.open()
        with pytest.raises(StorageUnavailable, match="not open"):
            await store.acquire("q", SIMPLE)
    finally:
        server.go_on()
    await store.open()
    await store.aclose()


async def test_a_commit_that_comes_late_is_refused_when_another_owner_came(
    servers: Servers,
) -> None:
    """The commit was in a buffer on the way to the server that hung."""
    server = servers()
    async with opened(server, timeout_s=0.3) as store, opened(server) as other:
        queue = await store.acquire("q", SIMPLE)
        proxy = await Proxy.start(server.port)
        async with opened(proxy.address) as slow:
            late = await slow.acquire("q", SIMPLE)
            proxy.hold_requests()
            task = asyncio.create_task(late.do(Enqueue("late", b"x", 1)))
            await proxy.until_held(b"late")
            second = await other.acquire("q", None)
            await second.do(Enqueue("a", b"x", 1))
            proxy.let_requests()
            with pytest.raises(OwnerLost):
                await task
        with pytest.raises(OwnerLost):
            await queue.look(Depth())
        assert list(await states(second)) == ["a"]
        assert [one.event.id for one in await other.events(lane_of("q"), 0, 9)] == ["a"]
        await proxy.aclose()


# -- connections are cut


class Proxy:
    """A proxy between store and server that cuts connections or holds data back."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = ""
        self.server: asyncio.Server
        self.cut_requests_at: int | None = None
        self.cuts_answers = False
        self.held = b""
        self.gate = asyncio.Event()
        self.gate.set()
        self.writers: list[asyncio.StreamWriter] = []

    @staticmethod
    async def start(port: int) -> Proxy:
        proxy = Proxy(port)
        proxy.server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        own = proxy.server.sockets[0].getsockname()[1]
        proxy.address = f"redis://127.0.0.1:{own}/0"
        return proxy

    def hold_requests(self) -> None:
        self.gate.clear()
        self.held = b""

    def let_requests(self) -> None:
        self.gate.set()

    async def until_held(self, text: bytes) -> None:
        while text not in self.held:
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers += [writer, back]
        await asyncio.gather(self._requests(reader, back), self._answers(there, writer))

    async def _requests(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.held += data
            await self.gate.wait()
            if self.cut_requests_at is not None:
                back.write(data[: self.cut_requests_at])
                self._cut()
                return
            back.write(data)
        back.close()

    async def _answers(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65_536):
            if self.cuts_answers:
                self._cut()
                return
            writer.write(data)
        writer.close()

    def _cut(self) -> None:
        for one in self.writers:
            one.close()
        self.writers = []

    async def aclose(self) -> None:
        self._cut()
        self.server.close()


@pytest.mark.parametrize("passed", [1, 500, -1])
async def test_a_commit_that_is_cut_on_its_way_is_not_stored_at_all(
    servers: Servers, passed: int
) -> None:
    server = servers()
    proxy = await Proxy.start(server.port)
    async with opened(proxy.address) as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(Enqueue("a", b"x", 1))
        command = EnqueueMany(tuple(Enqueue(f"m{n}", bytes(200), n) for n in range(20)))
        proxy.cut_requests_at = passed
        with pytest.raises(StorageUnavailable, match="cannot be reached"):
            await queue.do(command, Request("s", 1))
        with pytest.raises(OwnerLost):
            await queue.do(Dequeue("w"))
        proxy.cut_requests_at = None
        other = await store.acquire("q", None)
        assert list(await states(other)) == ["a"]
        assert len(await store.events(lane_of("q"), 0, 99)) == 1
        await other.do(command, Request("s", 1))
        assert len(await store.events(lane_of("q"), 0, 99)) == 21
    await proxy.aclose()


async def test_a_commit_whose_answer_is_lost_is_stored_and_done_once(servers: Servers) -> None:
    server = servers()
    proxy = await Proxy.start(server.port)
    async with opened(proxy.address) as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(EnqueueMany((Enqueue("a", b"x", 1), Enqueue("b", b"x", 2))))
        proxy.cuts_answers = True
        with pytest.raises(StorageUnavailable):
            await queue.do(Dequeue("w"), Request("s", 1))
        proxy.cuts_answers = False
        other = await store.acquire("q", None)
        assert (await other.look(Depth()))[State.RUNNING] == 1
        given = await other.do(Dequeue("w"), Request("s", 1))
        assert [one.id for one in given.leases] == ["a"] and given.leases[0].attempt == 1
        assert (await other.look(Depth()))[State.RUNNING] == 1
    await proxy.aclose()


# -- the server has a wrong configuration


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--appendonly", "no"), "appendonly no.*durability='none'"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "everysec.*durability='everysec'"),
        ((*DURABLE, "--no-appendfsync-on-rewrite", "yes"), "no-appendfsync-on-rewrite yes"),
        ((*DURABLE, "--maxmemory-policy", "allkeys-lru"), "allkeys-lru.*noeviction"),
        ((*DURABLE, "--cluster-enabled", "yes"), "Redis Cluster"),
        (
            (*DURABLE, "--requirepass", "secret"),
            "refuses the username or password|[Aa]uthentication",
        ),
        ((*DURABLE, "--rename-command", "CONFIG", "hidden"), "refuses CONFIG GET"),
        ((*DURABLE, "--replicaof", "127.0.0.1 1"), "is a replica: .*127.0.0.1:1"),
    ],
    ids=lambda one: one[-1] if isinstance(one, tuple) else "",
)
async def test_a_server_that_is_not_fit_is_refused_with_what_to_do(
    servers: Servers, options: tuple[str, ...], text: str
) -> None:
    server = servers(*options)
    store = RedisStore(server.address)
    with pytest.raises(ConfigError, match=text) as caught:
        await store.open()
    assert f"127.0.0.1:{server.port}/0" in str(caught.value)
    await store.aclose()


async def test_a_weaker_server_is_taken_by_name(servers: Servers) -> None:
    server = servers("--appendonly", "no", "--rename-command", "CONFIG", "hidden")
    async with opened(server, durability="none") as store:
        queue = await store.acquire("q", SIMPLE)
        assert (await queue.do(Enqueue("a", b"", 1))).is_changed


async def test_a_password_is_given_and_a_wrong_one_refused(servers: Servers) -> None:
    server = servers(*DURABLE, "--requirepass", "secret")
    async with opened(server, password="secret") as store:
        await store.acquire("q", SIMPLE)
    with pytest.raises(ConfigError, match="refuses the username or password") as caught:
        async with opened(server, password="guessed"):
            pass
    assert "guessed" not in str(caught.value)


async def test_a_user_who_may_do_what_the_guide_says_is_enough(servers: Servers) -> None:
    server = servers()
    may = ("~{millstream:*", "+@all", "-@admin", "-@dangerous", "+info", "+config|get")
    server.command("ACL", "SETUSER", "queues", "on", ">secret", *may)
    async with opened(server, username="queues", password="secret") as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(Enqueue("a", b"", 1))
        [lease] = (await queue.do(Dequeue("w"))).leases
        await queue.do(Complete("a", lease.token))
        store_events = await store.events(lane_of("q"), 0, 9)
        await store.forget_events(lane_of("q"), store_events[-1].position)
        assert await store.queues("", "", 9) == ["q"]
        await queue.delete()
    async with opened(server, username="queues", password="secret", prefix="other") as store:
        with pytest.raises(
            StorageUnavailable, match="does not give its user the required permissions"
        ):
            await store.acquire("q", SIMPLE)


async def test_a_server_whose_settings_became_weaker_is_refused_with_the_next_connection(
    servers: Servers,
) -> None:
    server = servers()
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        server.kill()
        server.start("--appendonly", "yes", "--appendfsync", "everysec")
        await asyncio.sleep(0.1)
        with pytest.raises(StorageUnavailable, match="durability='everysec'"):
            await queue.do(Enqueue("a", b"", 1))


async def test_a_full_server_refuses_commits_whole_and_answers_looks(servers: Servers) -> None:
    server = servers()
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(Enqueue("a", b"x", 1))
        server.command("CONFIG", "SET", "maxmemory", "1")
        assert list(await states(queue)) == ["a"]
        with pytest.raises(StorageUnavailable, match="no memory left: raise maxmemory"):
            await queue.do(EnqueueMany((Enqueue("b", b"x", 1), Enqueue("c", b"x", 1))))
        server.command("CONFIG", "SET", "maxmemory", "0")
        queue = await store.acquire("q", None)
        assert list(await states(queue)) == ["a"]


async def test_a_server_that_became_a_replica_answers_nothing_any_more(servers: Servers) -> None:
    server = servers()
    async with opened(server) as store:
        queues = [await store.acquire(name, SIMPLE) for name in "qr"]
        server.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StorageUnavailable, match="is a replica now"):
            await queues[0].do(Enqueue("a", b"x", 1))
        with pytest.raises(StorageUnavailable, match="is a replica now"):
            await queues[1].look(Depth())
        server.command("REPLICAOF", "NO", "ONE")


async def test_keys_of_somebody_else_are_not_written_to(servers: Servers) -> None:
    server = servers()
    async with opened(server) as store:
        server.command("SET", KEYS.states, "mine")
        with pytest.raises(StorageError, match="'{millstream:.*}:states:q' is a string"):
            await store.acquire("q", SIMPLE)
        assert await store.queues("", "", 9) == []
        server.command("DEL", KEYS.states)
        await store.acquire("q", SIMPLE)
        server.command("HSET", lane_keys("millstream", lane_of("q")).lane, "form", "1")
        with pytest.raises(StorageError, match="format 1; this program needs 2"):
            await store.acquire("q", SIMPLE)


# -- limits


async def test_connections_have_a_limit_and_requests_wait_for_them(servers: Servers) -> None:
    server = servers()
    async with opened(server, connections_max=2) as store:
        queues = [await store.acquire(f"q{number}", SIMPLE) for number in range(30)]
        acts = [queue.do(Enqueue("a", b"x", 1)) for queue in queues]
        assert all(one.is_changed for one in await asyncio.gather(*acts))
        clients = server.command("CLIENT", "LIST").decode().strip().splitlines()
        assert len([one for one in clients if "cmd=client" not in one]) <= 2


async def test_who_waits_for_a_connection_in_vain_is_told(servers: Servers) -> None:
    server = servers()
    async with opened(server, connections_max=1, timeout_s=0.3) as store:
        await store.acquire("q", SIMPLE)
        server.pause()
        try:
            acts = [store.queues("", "", 9) for _ in range(3)]
            outcomes = await asyncio.gather(*acts, return_exceptions=True)
        finally:
            server.go_on()
        assert all(isinstance(one, StorageUnavailable) for one in outcomes)
        assert any("connections_max is 1" in str(one) for one in outcomes)
        await store.acquire("q", SIMPLE)


async def test_a_queue_is_opened_in_pages(servers: Servers) -> None:
    server = servers()
    count = 3_000
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        for first in range(0, count, 500):
            await queue.do(
                EnqueueMany(
                    tuple(Enqueue(f"m{n}", bytes(n % 700), n) for n in range(first, first + 500))
                )
            )
        for number in range(70):
            await queue.do(Enqueue(f"s{number}", b"", 1), Request(f"s{number}", 1))
        before = await states(queue)
    async with opened(server, page_rows=100, page_bytes=5_000) as store:
        queue = await store.acquire("q", None)
        assert await states(queue) == before and len(before) == count + 70
        core: Any = queue
        core._core.check()
        assert len((await queue.look(Get("m699"))).payload) == 699
        assert (await queue.do(Enqueue("s69", b"", 1), Request("s69", 1))).is_changed, "known"


async def test_who_is_followed_while_it_opens_a_queue_does_not_get_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner took over between two pages, so the pages are of two owners."""
    server = servers()
    async with opened(server, page_rows=10) as store, opened(server) as other:
        queue = await other.acquire("q", SIMPLE)
        await queue.do(EnqueueMany(tuple(Enqueue(f"m{n}", bytes(99), n) for n in range(500))))
        asked, ask = 0, Server.ask

        async def ask_late(self: Server, commands: Any) -> list[Any]:
            nonlocal asked
            asked += 1
            if asked == 5:
                last = await other.acquire("q", None)
                await last.do(Enqueue("late", b"", 1))
            return await ask(self, commands)

        monkeypatch.setattr(Server, "ask", ask_late)
        with pytest.raises(OwnerLost):
            await store.acquire("q", None)


async def test_a_commit_of_many_rows_is_one_script(servers: Servers) -> None:
    """The commit has more rows than one call in Lua can have arguments."""
    server = servers()
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        thousands = [
            EnqueueMany(tuple(Enqueue(f"m{k}-{n}", b"x", 1) for n in range(1_000)))
            for k in range(9)
        ]
        await asyncio.gather(*(queue.do(many) for many in thousands))
        assert (await head_field(store, "mark")).endswith(b":1")
        assert len(await states(await store.acquire("q", None))) == 9_000
        assert len(await store.events(lane_of("q"), 0, 20_000)) == 9_000


async def test_nothing_is_left_of_what_was_collected_or_deleted(servers: Servers) -> None:
    server = servers()
    clock = Clock()
    store = RedisStore(server.address, clock, events=True)
    await store.open()
    queue = await store.acquire("q", QueueSettings(retention_ms=5, answers_kept_ms=5))
    for number in range(9):
        await queue.do(Enqueue(f"m{number}", bytes(2_000), 1), Request(f"s{number}", 1))
    for lease in (await queue.do(Dequeue("w", 9), Request("t", 1))).leases:
        await queue.do(Complete(lease.id, lease.token))
    clock.now_ms += 1_000
    await queue.sweep()
    left = [key for key in KEYS[1:] if server.command("EXISTS", key) != b":0\r\n"]
    assert left == [] and await states(queue) == {}
    await queue.do(Enqueue("z", b"x", 1), Request("u", 1))
    assert await store.due(10**15, "", 9) == ["q"]
    await queue.delete()
    assert await store.due(10**15, "", 9) == []
    lane = lane_keys("millstream", lane_of("q"))
    kept = {KEYS.head, lane.lane, lane.events}
    keys = server.command("DBSIZE")
    assert keys == b":%d\r\n" % len(kept)
    await store.aclose()


async def test_a_server_whose_durability_is_weakened_while_it_is_open_is_noticed(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    server = servers()
    async with opened(server, check_period_s=0.05) as store:
        queue = await store.acquire("q", SIMPLE)
        await queue.do(Enqueue("a", b"", 1))
        for name, weak, strong in (
            ("appendfsync", "everysec", "always"),
            ("maxmemory-policy", "allkeys-lru", "noeviction"),
        ):
            server.command("CONFIG", "SET", name, weak)
            with pytest.raises(StorageUnavailable, match=f"{name} {weak}"):
                while True:
                    await store.queues("", "", 9)
                    await asyncio.sleep(0.02)
            server.command("CONFIG", "SET", name, strong)
            async with asyncio.timeout(10):
                while True:
                    with suppress(StorageUnavailable):
                        await store.queues("", "", 9)
                        break
                    await asyncio.sleep(0.02)
        queue = await store.acquire("q", None)
        assert not (await queue.do(Enqueue("a", b"", 1))).is_changed
    told = [text for text in caplog.messages if "operations fail until this is corrected" in text]
    assert len(told) == 2 and server.address.split("//")[1] in told[0]


async def test_the_next_owner_goes_on_from_the_time_in_the_server(servers: Servers) -> None:
    server = servers()
    async with opened(server) as store:
        await store.acquire("q", SIMPLE)
        server.command("HSET", KEYS.head, "now_ms", b"%d" % 10**14)
        queue = await store.acquire("q", None)
        assert 10**14 <= queue.now_ms() < 10**14 + 60_000
        await queue.do(Enqueue("a", b"", 1))
        assert int(await head_field(store, "now_ms")) >= 10**14
        assert int(await head_field(store, "ahead_ms")) > 10**13


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no `fork`")
async def test_a_forked_child_has_no_server(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers()
    async with opened(server) as store:
        queue = await store.acquire("q", SIMPLE)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StorageUnavailable, match="forked"):
            await queue.look(Depth())
        monkeypatch.undo()
