"""Silos with a directory each, while silos hang, crash, fill up, forget and return."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.providers.ledger.replicated import Silos, outcome

from millstream.providers.ledger import (
    LedgerOptions,
    LedgerTopicOptions,
    LedgerTopicSettings,
    Quorum,
)
from millstream.providers.ledger.inspection import StoredMessage
from millstream.providers.ledger.topic.cursors.cursor import Cursor
from millstream.providers.ledger.topic.topics import Topics
from millstream.runtime import (
    EnqueueFailed,
    MemoryStateStore,
    PublishUnknown,
    QueueUnavailable,
    Row,
)
from millstream.runtime.testing import Simulation, run

TELL_S = 0.1  # the delay until readers elsewhere know the confirmed entries


async def stored(silos: Silos, name: str, count: int) -> list[str]:
    """Return the words that a silo reads at most `TELL_S` later, and check that there are
    enough.
    """
    await asyncio.sleep(TELL_S)
    words = await silos.words(name)
    assert len(words) >= count, words
    return words


async def elsewhere(silos: Silos) -> tuple[str, str, list[str]]:
    """Return the silo that writes the queue, another silo, and all others."""
    owner = await silos.owner()
    others = [name for name in silos.cluster.names if name != owner]
    return owner, others[0], others


def test_what_two_of_three_have_is_not_denied_by_an_older_copy_and_who_missed_it() -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, (_, third) = await elsewhere(silos)
            await silos.publish(owner, "0")
            await asyncio.sleep(2.0)
            copy = sim.disk(other).copy_of("/")
            sim.kill(third)
            words = ["0", *map(str, range(1, 9))]
            for word in words[1:]:
                await silos.publish(owner, word)
            await asyncio.sleep(2.0)
            silos.cluster.boot(third)
            await silos.cluster.until_active()
            sim.kill(other)
            sim.kill(owner)
            sim.disk(other).restore("/", copy)
            silos.cluster.boot(other)
            await asyncio.sleep(30.0)
            failed = await outcome(silos.publish(third, "x"))
            assert isinstance(failed, EnqueueFailed), "only the former owner knows"
            silos.cluster.boot(owner)
            await silos.cluster.until_active()
            while isinstance(await outcome(silos.publish(third, "later")), EnqueueFailed):
                pass
            assert (await stored(silos, third, 10))[:9] == words

    run(main, 1)


def test_a_bookie_that_stops_is_named_no_more_until_it_runs_again() -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, _ = await elsewhere(silos)
            await silos.publish(owner, "a")
            sim.disk(other).fail_sync()
            await silos.publish(owner, "b")
            while silos.bookies()[other].silo:
                assert silos.bookies()[other].boot == 1
                await asyncio.sleep(0.01)
            assert not silos.bookies()[other].is_writable
            await asyncio.sleep(8.0)
            found = silos.bookies()[other]
            assert found.silo == silos.silo(other).address and found.boot == 2
            assert await stored(silos, other, 2) == ["a", "b"]

    run(main, 1)


def test_an_owner_that_dies_while_it_stores_leaves_its_publisher_in_doubt() -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, others = await elsewhere(silos)
            await silos.publish(other, "a")
            for name in others:
                sim.disk(name).stall(30.0)
            sending = asyncio.ensure_future(outcome(silos.publish(other, "b")))
            await asyncio.sleep(0.5)
            sim.kill(owner)
            failed = await sending
            assert isinstance(failed, EnqueueFailed) and isinstance(failed.cause, PublishUnknown)

    run(main, 1)


def test_the_first_silo_starts_and_publishes_wait_for_a_second() -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 1) as silos:
            began_s = sim.loop.time()
            failed = await outcome(silos.publish("silo-0", "a"))
            assert isinstance(failed, EnqueueFailed)
            assert isinstance(failed.cause, QueueUnavailable)
            assert "needs 2 running bookies with free disk space, but there are 1; start" in str(
                failed.cause
            )
            assert sim.loop.time() - began_s < 3.5
            waiting = asyncio.ensure_future(silos.publish("silo-0", "b"))
            silos.cluster.add_silo()
            assert await waiting == [1]
            assert await stored(silos, "silo-1", 1) == ["b"]

    run(main, 1)


def test_a_ledger_of_too_few_copies_ends_once_there_are_bookies_for_all() -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 2) as silos:
            await silos.publish("silo-0", "a")
            (ledger,) = silos.ledgers()
            assert (ledger.quorum, ledger.wanted) == (Quorum(2, 2, 2), Quorum(3, 3, 2))
            silos.cluster.add_silo()
            await asyncio.sleep(8.0)
            await silos.publish("silo-0", "b")
            ledger = silos.ledgers()[-1]
            assert (ledger.quorum, ledger.wanted) == (Quorum(3, 3, 2), None)
            assert await stored(silos, "silo-2", 2) == ["a", "b"]

    run(main, 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_silo_that_stands_still_holds_up_nobody(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, (_, third) = await elsewhere(silos)
            await silos.publish(third, "0")
            sim.pause(other)
            for number in range(1, 20):
                began_s = sim.loop.time()
                await silos.publish(third, str(number))
                assert sim.loop.time() - began_s < 0.2
            await asyncio.sleep(TELL_S)
            began_s = sim.loop.time()
            assert await silos.words(third) == [str(number) for number in range(20)]
            assert sim.loop.time() - began_s < 0.5
            assert {len(one.fragments) for one in silos.ledgers()} == {1}, "nobody is replaced"
            sim.resume(other)

    run(main, seed)


def test_an_idle_writer_is_read_elsewhere_within_100_ms() -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            _, other, _ = await elsewhere(silos)
            reader = await silos.on(other, lambda: silos.topic_reader(other))
            for number in range(1, 6):
                waits = partial(reader.wait, number, 5.0)
                waiting = asyncio.ensure_future(silos.on(other, waits))
                await asyncio.sleep(1.0)
                await silos.publish("silo-0", "x")
                began_s = sim.loop.time()
                assert await waiting
                assert sim.loop.time() - began_s < 0.1

    run(main, 1)


class CountingStore(MemoryStateStore):
    """Counts the reads of topic rows."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def get(self, key: str) -> Row | None:
        self.reads += key.startswith("ledger/sim/topics/")
        return super().get(key)


def test_who_waits_for_an_open_ledger_is_woken_and_does_not_poll() -> None:
    async def main(sim: Simulation) -> None:
        store = CountingStore()
        async with Silos(sim, 3, store=store) as silos:
            _, other, _ = await elsewhere(silos)
            await silos.publish(other, "a")
            reader = await silos.on(other, lambda: silos.topic_reader(other))
            before = store.reads
            assert not await silos.on(other, partial(reader.wait, 2, 20.0))
            assert store.reads - before <= 30
            waiting = asyncio.ensure_future(silos.on(other, partial(reader.wait, 2, 20.0)))
            await asyncio.sleep(5.5)
            await silos.publish("silo-0", "b")
            began_s = sim.loop.time()
            assert await waiting and sim.loop.time() - began_s < 0.1

    run(main, 1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_waits_follows_from_ledger_to_ledger(seed: int) -> None:
    settings = LedgerTopicSettings(ledger_entries_max=2)
    options = LedgerOptions(settings=settings, topic=LedgerTopicOptions(retention_s=None))

    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3, options=options) as silos:
            _, other, _ = await elsewhere(silos)
            reader = await silos.on(other, lambda: silos.topic_reader(other))
            for number in range(1, 12):
                waiting = asyncio.ensure_future(silos.on(other, partial(reader.wait, number, 9.0)))
                await asyncio.sleep(0.7 + number / 7)
                await silos.publish("silo-0", str(number))
                began_s = sim.loop.time()
                assert await waiting and sim.loop.time() - began_s < 0.2
            assert len(silos.ledgers()) >= 5

    run(main, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_owner_that_is_killed_is_followed_and_nothing_is_lost(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, _ = await elsewhere(silos)
            accepted = [str(number) for number in range(10)]
            for word in accepted:
                await silos.publish(other, word)
            sim.kill(owner)
            while isinstance(await outcome(silos.publish(other, "later")), EnqueueFailed):
                pass
            assert (await stored(silos, other, 11))[:10] == accepted

    run(main, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_owner_that_stood_still_writes_nothing_any_more(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, _ = await elsewhere(silos)
            await silos.publish(other, "before")
            late = asyncio.ensure_future(outcome(silos.publish(owner, "late")))
            await asyncio.sleep(0.001)
            sim.pause(owner)
            while isinstance(await outcome(silos.publish(other, "meanwhile")), EnqueueFailed):
                pass
            words = await stored(silos, other, 2)
            sim.resume(owner)
            await outcome(late) if not late.done() else None
            await silos.cluster.until_active()
            assert await stored(silos, other, len(words)) == words, "nothing comes in between"
            await silos.publish(owner, "again")
            assert await stored(silos, other, 3) == [*words, "again"]

    run(main, seed)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_whole_cluster_stops_in_time_and_comes_back(hangs: bool) -> None:
    async def main(sim: Simulation) -> None:
        store = MemoryStateStore()
        accepted = [str(number) for number in range(10)]
        async with Silos(sim, 3, store=store) as silos:
            owner, other, _ = await elsewhere(silos)
            for word in accepted:
                await silos.publish("silo-0", word)
            if hangs:
                sim.pause(other)
                sim.loop.call_later(12.0, sim.resume, other)
            began_s = sim.loop.time()
            await asyncio.gather(*[silos.cluster.remove_silo(name) for name in silos.cluster.names])
            assert sim.loop.time() - began_s < 20.0
            await silos.close_services()
        async with Silos(sim, 3, store=store) as silos:
            await silos.publish("silo-0", "later")
            assert await stored(silos, "silo-1", 11) == [*accepted, "later"]

    run(main, 1)


def test_the_last_silo_stops_in_time_though_its_bookies_are_gone() -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, others = await elsewhere(silos)
            await silos.publish(owner, "a")
            for name in others:
                sim.kill(name)
            waiting = asyncio.ensure_future(outcome(silos.publish(owner, "b")))
            await asyncio.sleep(1.0)
            began_s = sim.loop.time()
            await silos.cluster.remove_silo(owner)
            assert sim.loop.time() - began_s < 15.0
            assert isinstance(await waiting, EnqueueFailed)
            for name in others:
                silos.cluster.boot(name)
            await silos.cluster.until_active()
            assert (await stored(silos, other, 1))[0] == "a"

    run(main, 1)


def test_after_a_stop_of_all_a_queue_waits_for_the_bookies_that_it_needs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, others = await elsewhere(silos)
            await silos.publish(owner, "a")
            for name in silos.cluster.names:
                sim.kill(name)
            silos.cluster.boot(owner)
            await asyncio.sleep(20.0)
            failed = await outcome(silos.publish(owner, "b"))
            assert isinstance(failed, EnqueueFailed)
            assert (
                "1 of its bookies could be fenced, but 2 of each write set are needed"
                in caplog.text
            )
            silos.cluster.boot(other)
            while isinstance(await outcome(silos.publish(owner, "c")), EnqueueFailed):
                pass
            assert await stored(silos, other, 2) == ["a", "c"]
            silos.cluster.boot(others[1])
            await silos.cluster.until_active()

    run(main, 1)


def test_a_queue_that_cannot_be_read_takes_what_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read(*_: object) -> list[StoredMessage]:
        raise QueueUnavailable("no bookie returned entry 7")

    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            _, other, _ = await elsewhere(silos)
            await silos.publish(other, "before")
            monkeypatch.setattr(Cursor, "read", read)
            words = [str(number) for number in range(80)]
            for word in words:
                await silos.publish(other, word)
                await asyncio.sleep(1.0)
            monkeypatch.undo()
            assert await stored(silos, other, 81) == ["before", *words]
            assert len(silos.ledgers()) == 1, "nobody took it over"

    run(main, 1)


def test_who_cannot_publish_hears_why_the_owner_does_not_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def open_(*_: object) -> None:
        raise QueueUnavailable("ledger 7 lacks entry 9: put the directory back")

    async def main(sim: Simulation) -> None:
        monkeypatch.setattr(Topics, "open", open_)
        async with Silos(sim, 3) as silos:
            await asyncio.sleep(5.0)
            for name in silos.cluster.names:
                failed = await outcome(silos.publish(name, "a"))
                assert isinstance(failed, EnqueueFailed)
                text = "because no silo opened the queue within 2 s: ledger 7 lacks entry 9"
                assert text in str(failed.cause)

    run(main, 1)


@pytest.mark.parametrize("silos_count", [3, 4])
def test_a_full_disk_is_written_no_more_and_still_read(silos_count: int) -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, silos_count) as silos:
            owner, other, _ = await elsewhere(silos)
            await silos.publish(owner, "a")
            names = {one.bookie: name for name, one in silos.bookies().items()}
            full = names[silos.ledgers()[0].fragments[0].bookies[0]]
            sim.disk(full).fill_up(10_000)
            await asyncio.sleep(3.0)
            for number in range(20):
                await silos.publish(owner, str(number))
            assert not silos.bookies()[full].is_writable
            last = silos.ledgers()[-1]
            if silos_count == 4:
                assert silos.bookies()[full].bookie not in last.fragments[-1].bookies
            words = ["a", *map(str, range(20))]
            assert await stored(silos, other, 21) == words
            sim.disk(full).make_room()
            await asyncio.sleep(3.0)
            assert silos.bookies()[full].is_writable
            await silos.publish(owner, "z")
            assert await stored(silos, other, 22) == [*words, "z"]

    run(main, 1)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(2, 2, 2)])
def test_two_of_five_that_die_at_once_are_replaced(quorum: Quorum) -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 5, quorum=quorum) as silos:
            owner = await silos.owner()
            words = [str(number) for number in range(12)]
            for word in words:
                await silos.publish(owner, word)
            names = {one.bookie: name for name, one in silos.bookies().items()}
            holders = [names[bookie] for bookie in silos.ledgers()[-1].fragments[-1].bookies]
            dying = [name for name in holders if name != owner][:2]
            for name in dying:
                sim.kill(name)
            for number in range(12, 24):
                words.append(str(number))
                while isinstance(await outcome(silos.publish(owner, words[-1])), EnqueueFailed):
                    words.append(words[-1])
            for name in dying:
                silos.cluster.boot(name)
            await silos.cluster.until_active()
            found = await stored(silos, dying[0], 24)
            assert [w for n, w in enumerate(found) if not n or found[n - 1] != w] == list(
                dict.fromkeys(words)
            )
            last = silos.ledgers()[-1]
            assert last.quorum == quorum

    run(main, 1)


def test_a_directory_that_was_wiped_is_made_anew_and_the_others_have_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            assert "this directory is new" not in caplog.text, "nothing is wrong with new silos"
            owner, other, _ = await elsewhere(silos)
            words = [str(number) for number in range(10)]
            for word in words:
                await silos.publish(owner, word)
            before = silos.bookies()[other].bookie
            sim.kill(other)
            sim.disk(other).restore("/", {})
            silos.cluster.boot(other)
            await silos.cluster.until_active()
            assert f"/ledger/{other}: this directory is new" in caplog.text
            assert before in caplog.text
            await silos.publish(other, "more")
            assert await stored(silos, other, 11) == [*words, "more"]
            assert silos.bookies()[other].bookie != before

    run(main, 1)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_directory_that_is_an_older_copy_denies_nothing(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        async with Silos(sim, 3) as silos:
            owner, other, _ = await elsewhere(silos)
            words = ["a"]
            await silos.publish(owner, "a")
            copy = sim.disk(other).copy_of("/")
            for number in range(10):
                words.append(str(number))
                await silos.publish(owner, words[-1])
            await asyncio.sleep(2.0)
            sim.kill(other)
            sim.disk(other).restore("/", copy)
            silos.cluster.boot(other)
            await silos.cluster.until_active()
            sim.kill(owner)
            while isinstance(await outcome(silos.publish(other, "later")), EnqueueFailed):
                if sim.loop.time() > 40.0 and not sim.is_up(owner):
                    silos.cluster.boot(owner)
            assert (await stored(silos, other, 12))[:11] == words

    run(main, seed)
