"""`millstream why`, against a cluster in this process."""

from __future__ import annotations

import asyncio

import pytest
from tests.console.test_pausing import LINES, Reader, provider

from millstream.console.main import main
from millstream.console.why import SUBSCRIPTIONS_MAX, lines_of, subscription_line
from millstream.runtime import LocalCluster
from millstream.streams import (
    LetterReport,
    StreamId,
    StreamReport,
    SubscriptionReport,
    Why,
    lagging,
    pause_stream,
)

ONE = SubscriptionReport("audit", "Ledger/eu", "in_flight", 3, 0.2, 0.001)


async def run(cluster: LocalCluster, *words: str) -> int:
    """Run the command in a thread, because it has its own event loop."""
    gateway = cluster.silos[0].address.partition("@")[0]
    return await asyncio.to_thread(main, ["why", *words, "--gateway", gateway])


async def test_a_stream_is_told_of_with_its_hops(capsys: pytest.CaptureFixture[str]) -> None:
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        await cluster.stream(LINES, "a\x1b").publish("one")
        assert await run(cluster, "lines", "a\x1b") == 0
        out = capsys.readouterr().out
        assert "Stream lines/a\\x1b makes progress" in out and "\x1b" not in out
        assert "queue-0 (owned, " in out and "1 read" in out and "Reader" in out
        assert await run(cluster, "lines", "a", "--provider", "p") == 1
        assert capsys.readouterr().err.startswith("millstream why: ")


async def test_without_a_key_the_streams_that_are_behind_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        assert await run(cluster, "lines") == 0
        assert capsys.readouterr().out == "No stream of lines has unprocessed events.\n"
        await pause_stream(cluster, LINES, "a\x1b")
        await cluster.stream(LINES, "a\x1b").publish("one")
        async with asyncio.timeout(20):
            while not await lagging(cluster, "lines"):
                await asyncio.sleep(0)
        assert await run(cluster, "lines") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("lines/a\\x1b (queue-0, ")
        assert line.endswith("the whole stream is paused: `resume_stream` resumes it")


def test_dead_letters_are_printed() -> None:
    letter = LetterReport("audit/n/k/1", "audit", 6, "ValueError: no")
    report = StreamReport(StreamId("n", "k"), "queue-3", subscriptions=[ONE], letters=[letter])
    lines = lines_of(Why("nothing", "All is well.", (report, report)))
    assert lines[-1] == "dead letter   audit/n/k/1: ValueError: no"


def test_retries_and_gaps_stand_in_the_line_of_their_subscription() -> None:
    assert subscription_line(ONE).endswith(
        "audit: in_flight, lag 3 events or 0.2 s, 1 ms per event"
    )
    missing = SubscriptionReport("audit", "Ledger/eu", "idle", gaps=2, gone_max=7, retries=1_234)
    line = subscription_line(missing)
    gaps = "2 gaps, in which at most 7 messages of the queue were lost"
    assert line.endswith(f" s, 1,234 retries, {gaps}")


def test_very_many_subscriptions_are_not_printed_all() -> None:
    report = StreamReport(StreamId("n", "k"), "queue-3", subscriptions=[ONE] * 25)
    lines = lines_of(Why("nothing", "All is well.", (report, report)))
    assert lines[0] == "All is well." and "queue-3 (free)" in lines[2]
    assert sum("audit" in line for line in lines) == SUBSCRIPTIONS_MAX
    assert lines[-1] == "... and 5 more subscriptions"
