"""Streams over priority queues deliver the most urgent event first and one event of a stream at a
time, also after failures, waits and crashes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.providers.priority.streamed import JOBS, Given, Work, in_streams

from millstream.providers.priority import (
    DeadlineOptions,
    PriorityQueueNotFound,
    RequestInvalid,
    State,
    priority_queue,
)
from millstream.providers.priority.adapter.receiver import DeadlineReceiver
from millstream.providers.priority.core.shards import STREAMS
from millstream.runtime import StreamError
from millstream.streams import Token, pause_stream, resume_stream


async def hold_all(work: Work, *keys: str) -> asyncio.Event:
    """Let the handlers of these streams wait for an event. Returns it when each handler has an
    event.
    """
    go_on = asyncio.Event()

    async def wait(one: Given) -> None:
        if one.key in keys:
            await go_on.wait()

    work.jobs.act = wait
    for key in keys:
        await work.publish(key, "first", priority=0)
    await work.until(lambda: len(work.jobs.given) == len(keys))
    return go_on


def test_of_one_stream_the_most_urgent_comes_first() -> None:
    async def main(work: Work) -> None:
        go_on = await hold_all(work, "a")
        for priority in (30, 10, 20):
            await work.publish("a", str(priority), priority=priority)
        go_on.set()
        await work.until(lambda: work.states()[State.COMPLETED] == 4)
        assert work.jobs.items() == ["first", "10", "20", "30"]
        work.jobs.check_one_at_a_time()

    in_streams(main)


def test_without_a_priority_the_time_of_publishing_counts_and_each_item_is_a_message() -> None:
    async def main(work: Work) -> None:
        go_on = await hold_all(work, "a")
        await work.publish("a", "1", "2", "3")
        assert work.states()[State.PENDING] == 3
        await work.publish("a", "old", priority=5)
        go_on.set()
        await work.until(lambda: work.states()[State.COMPLETED] == 5)
        assert work.jobs.items() == ["first", "old", "1", "2", "3"]

    in_streams(main)


def test_a_stream_that_is_slow_keeps_no_other_waiting() -> None:
    async def main(work: Work) -> None:
        go_on = await hold_all(work, "slow")
        await work.publish("slow", "second")
        for number in range(5):
            await work.publish(f"k{number}", "x")
        await work.until(lambda: work.states()[State.COMPLETED] == 5)
        assert work.jobs.items("slow") == ["first"]
        await asyncio.sleep(45)  # much longer than a lease, so the lease is extended
        assert work.jobs.items("slow") == ["first"] and work.states()[State.RUNNING] == 1
        go_on.set()
        await work.until(lambda: work.states()[State.COMPLETED] == 7)
        assert work.jobs.items("slow") == ["first", "second"]

    in_streams(main)


def test_a_handler_that_fails_gets_it_again_after_the_back_off_and_others_do_not_wait() -> None:
    async def main(work: Work) -> None:
        async def fail_twice(one: Given) -> None:
            if one.item == "bad" and len(work.jobs.items("a")) <= 2:
                raise ValueError("not yet")

        work.jobs.act = fail_twice
        await work.publish("a", "bad", priority=1)
        await work.until(lambda: len(work.jobs.given) == 1)
        await asyncio.sleep(0.5)
        assert work.states()[State.INVISIBLE] == 1 and not work.states()[State.RUNNING]
        await work.publish("b", "good", priority=2)
        await work.until(lambda: work.states()[State.COMPLETED] == 2)
        bad = [one for one in work.jobs.given if one.item == "bad"]
        assert len(bad) == 3 and [one.error for one in bad] == ["not yet", "not yet", ""]
        for before, after in itertools.pairwise(bad):
            # the back-off, between half and all of it
            assert 1.0 <= after.begin_s - before.begin_s < 4.0
        assert work.jobs.items("b") == ["good"]

    in_streams(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_silo_that_dies_with_events_in_its_hands_loses_none_and_doubles_no_key(
    seed: int,
) -> None:
    async def main(work: Work) -> None:
        async def slow(one: Given) -> None:
            await asyncio.sleep(0.4)

        work.jobs.act = slow
        for number in range(24):
            await work.publish(f"k{number % 6}", str(number), priority=number)
        await work.until(lambda: len(work.jobs.given) > 8)
        work.simulation.crash(work.owner())
        await work.until(lambda: work.states()[State.COMPLETED] == 24, 200)
        assert sorted({int(item) for item in work.jobs.items()}) == list(range(24))
        work.jobs.check_one_at_a_time()

    in_streams(main, seed=seed, silos=3)


def test_a_queue_that_is_paused_holds_no_lease_and_uses_no_attempt() -> None:
    async def main(work: Work) -> None:
        go_on = await hold_all(work, "a")
        await work.publish("b", "next", priority=1)
        await work.until(lambda: len(work.jobs.given) == 2)
        silo = work.cluster.silo(work.owner())
        assert silo is not None
        [queue] = silo.services.part("work").stats()
        agent = silo.services.part("work").manager.agent(queue.queue)
        agent.pause()
        for number in range(3):
            await work.publish(f"k{number}", "x")
        go_on.set()
        await work.until(lambda: work.states()[State.COMPLETED] == 2)
        await asyncio.sleep(30)
        assert not work.states()[State.RUNNING] and work.states()[State.PENDING] == 3
        assert all(row.attempts_left in (99, 100) for row in work.rows())
        agent.resume()
        await work.until(lambda: work.states()[State.COMPLETED] == 5)

    in_streams(main)


def test_a_priority_that_is_none_is_refused_and_what_is_before_it_is_stored() -> None:
    async def main(work: Work) -> None:
        await work.publish("a", "good")
        stream = work.client.stream(JOBS, "a")
        for text in ("soon", "1.5", str(2**53 + 1)):
            with pytest.raises(StreamError, match="the header 'priority' is"):
                await work.on(work.host, stream.publish("bad", headers={"priority": text}))
        await work.until(lambda: work.jobs.items() == ["good"])

    in_streams(main)


def test_what_is_given_up_is_errored_with_its_reason() -> None:
    async def main(work: Work) -> None:
        async def fail(one: Given) -> None:
            if one.key == "a":
                raise ValueError("cannot be decoded")

        work.jobs.act = fail
        await work.publish("a", "bad")
        await work.publish("b", "good")
        await work.until(lambda: work.states()[State.ERRORED] == 1)
        assert len(work.jobs.items("a")) == 3 and len(work.jobs.failures) == 1
        assert work.jobs.failures[0].attempts == 3
        await work.until(lambda: work.states()[State.COMPLETED] == 1)
        [row] = (one for one in work.rows() if State(one.state) is State.ERRORED)
        assert "cannot be decoded" in row.reason
        await asyncio.sleep(30)
        assert len(work.jobs.items("a")) == 3

    in_streams(main, retries=2)


def test_at_the_last_attempt_of_the_queue_the_failure_handler_is_asked() -> None:
    async def main(work: Work) -> None:
        async def fail(one: Given) -> None:
            raise ValueError("no")

        work.jobs.act = fail
        await work.publish("a", "bad")
        await work.until(lambda: work.states()[State.ERRORED] == 1)
        assert len(work.jobs.given) == 2
        assert [one.attempts for one in work.jobs.failures] == [2]

    in_streams(main, attempts=2, retries=10)


def test_a_failure_handler_that_fails_at_the_last_attempt_is_asked_again() -> None:
    async def main(work: Work) -> None:
        async def fail(one: Given) -> None:
            raise ValueError("no")

        work.jobs.act = fail
        work.jobs.refusals = 2
        await work.publish("a", "bad")
        await work.until(lambda: work.states()[State.ERRORED] == 1)
        assert len(work.jobs.given) == 1 and len(work.jobs.failures) == 3

    in_streams(main, attempts=1, retries=10)


def test_a_stream_that_is_paused_holds_no_lease_and_uses_no_attempt() -> None:
    async def main(work: Work) -> None:
        await work.on(work.host, pause_stream(work.client, JOBS, "a"))
        await work.publish("a", "1", "2", "3")
        await work.publish("b", "x")
        await work.until(lambda: work.states()[State.COMPLETED] == 1)
        begin = len(await work.store.events(0, 0, 10_000))
        held = 0
        for _ in range(300):
            await asyncio.sleep(0.1)
            held += work.states()[State.RUNNING]
        assert held < 30 and work.jobs.items() == ["x"]
        found = await work.store.events(0, 0, 10_000)
        assert len(found) - begin < 100  # the reader retries less and less often
        await work.on(work.host, resume_stream(work.client, JOBS, "a"))
        await work.until(lambda: work.states()[State.COMPLETED] == 4)
        assert sorted(work.jobs.items("a")) == ["1", "2", "3"]
        assert {row.attempts_left for row in work.rows()} == {99}

    in_streams(main)


def test_a_subscription_that_was_paused_by_a_failure_goes_on_when_it_is_resumed() -> None:
    async def main(work: Work) -> None:
        is_broken = True

        async def fail(one: Given) -> None:
            if is_broken and one.key == "a":
                raise ValueError("no")

        work.jobs.act = fail
        work.jobs.decision = "pause"
        await work.publish("a", "1", "2")
        await work.until(lambda: len(work.jobs.failures) == 1)
        await asyncio.sleep(20)
        calls = len(work.jobs.items("a"))
        await asyncio.sleep(20)
        assert len(work.jobs.items("a")) == calls  # nothing is delivered in the meantime
        is_broken = False
        stream = work.client.stream(JOBS, "a")
        [found] = await work.on(work.host, stream.subscriptions())
        await work.on(work.host, found.resume())
        await work.until(lambda: work.states()[State.COMPLETED] == 2)

    in_streams(main, retries=0)


def test_a_queue_that_is_deleted_is_made_again_with_the_options_of_its_streams() -> None:
    async def main(work: Work) -> None:
        await work.publish("a", "1")
        await work.until(lambda: work.states()[State.COMPLETED] == 1)
        wanted = DeadlineOptions(lease_s=10.0, attempts=7).settings()
        for number in range(3):
            await work.on(work.host, work.queue.delete())
            await work.publish("a", "x" * 40_000, *(f"{number} of {one}" for one in range(3)))
            await work.until(lambda: work.states()[State.COMPLETED] == 4)
            row = await work.on(work.host, work.queue.settings())
            assert row.settings == wanted
        for configure in (work.queue.configure, priority_queue(work.client, f"{STREAMS}y").create):
            with pytest.raises(
                RequestInvalid, match=r"shards is 2, but a queue of a stream .* has 1"
            ):
                await work.on(work.host, configure(replace(wanted, shards=2)))
        with pytest.raises(PriorityQueueNotFound):
            await work.on(work.host, priority_queue(work.client, f"{STREAMS}x").enqueue(b""))

    in_streams(main, attempts=7)


def test_what_a_paused_stream_gives_back_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled: dict[str, list[Token]] = {"ack": [], "release": []}
    ack, release = DeadlineReceiver.ack, DeadlineReceiver.release

    async def noted_ack(
        self: DeadlineReceiver, upto: Token | None, also: Sequence[Token] = (), /
    ) -> None:
        settled["ack"] += also
        await ack(self, upto, also)

    async def noted_release(
        self: DeadlineReceiver, tokens: Sequence[Token], delay_s: float, has_run: bool, /
    ) -> None:
        settled["release"] += tokens
        await release(self, tokens, delay_s, has_run)

    monkeypatch.setattr(DeadlineReceiver, "ack", noted_ack)
    monkeypatch.setattr(DeadlineReceiver, "release", noted_release)

    async def main(work: Work) -> None:
        await work.on(work.host, pause_stream(work.client, JOBS, "a"))
        await work.publish("a", "1", "2", "3")
        await work.publish("b", "x")
        await asyncio.sleep(20)
        assert len(settled["ack"]) == 1 and len(settled["release"]) > 3
        assert not set(settled["ack"]) & set(settled["release"])

    in_streams(main)
