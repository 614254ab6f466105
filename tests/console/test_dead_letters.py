"""`millstream dead-letters`, against a cluster in this process."""

from __future__ import annotations

import asyncio

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.console.main import main
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster, MemoryStateStore, StateStore
from millstream.streams import (
    DeadLetter,
    DeliveryOptions,
    Event,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
    subscribe,
)

LINES = StreamNamespace("lines", str)
BAD: set[str] = set()


@pytest.fixture(autouse=True)
def clean() -> None:
    BAD.clear()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        if event.item in BAD:
            raise ValueError("not \x1b[31mread")


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        balancer=DeploymentBalancer(rebalance_delay_s=0.05),
        options=StreamOptions(delivery=DeliveryOptions(retries=0)),
    )


async def letters_of(cluster: LocalCluster, texts: str) -> list[DeadLetter]:
    BAD.update(texts)
    await cluster.stream(LINES, "k").publish_many(texts)
    found: list[DeadLetter] = []
    async with asyncio.timeout(20):
        while len(found) < len(texts):
            found = [*await dead_letters(cluster).list()]
    return found


async def run(cluster: LocalCluster, *words: str) -> int:
    """Run the command in a thread, because it has its own event loop."""
    gateway = cluster.silos[0].address.partition("@")[0]
    arguments = ["dead-letters", *words, "--gateway", gateway]
    return await asyncio.to_thread(main, arguments)


async def test_letters_are_listed_and_shown_and_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        first, second = await letters_of(cluster, "ab")
        assert await run(cluster, "ls") == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  ")[0] for line in lines] == [first.id, second.id]
        assert await run(cluster, "ls", "--limit", "1") == 0
        out, more = capsys.readouterr()
        assert len(out.splitlines()) == 1 and f"--after '{first.id}'" in more
        assert await run(cluster, "ls", "--after", first.id) == 0
        assert capsys.readouterr().out.startswith(second.id)
        assert await run(cluster, "show", first.id) == 0
        shown = capsys.readouterr().out
    assert "Reader/k.on_line" in shown and '"a"' in shown and "Traceback" in shown
    assert "\x1b" not in shown and "\\x1b[31mread" in shown


async def test_letters_are_redriven_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        first, second, third = await letters_of(cluster, "abc")
        BAD.remove("a")
        assert await run(cluster, "redrive", first.id, second.id) == 1
        out, wrong = capsys.readouterr()
        assert out == f"redriven {first.id}\n" and f"{second.id}: ValueError" in wrong
        assert await run(cluster, "delete", second.id) == 0
        assert await run(cluster, "delete", second.id) == 1
        BAD.clear()
        assert await run(cluster, "redrive", "--all") == 0
        assert capsys.readouterr().out.endswith(f"redriven {third.id}\n")
        assert await run(cluster, "ls") == 0 and not capsys.readouterr().out
        assert await run(cluster, "show", third.id) == 1
        assert "LookupError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["redrive"], ["delete"], ["redrive", "x", "--all"], ["delete", "x", "--subscription", "s"]],
)
def test_what_is_not_said_clearly_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dead-letters", *words]) == 2
    assert "millstream dead-letters:" in capsys.readouterr().err


async def test_a_provider_and_a_cluster_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    providers = {"default": provider, "p": provider}
    async with LocalCluster(silos=1, grains=[Reader], streams=providers, cluster="c") as cluster:
        [letter] = await letters_of(cluster, "a")
        assert await run(cluster, "ls", "--cluster", "c", "--provider", "p") == 0
        assert not capsys.readouterr().out
        assert await run(cluster, "ls", "--cluster", "c", "--provider", "default") == 0
        assert capsys.readouterr().out.startswith(letter.id)
        assert await run(cluster, "ls", "--cluster", "d") == 1
        assert not capsys.readouterr().out


async def test_damaged_letters_are_counted_and_named_beside_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStateStore()
    stores: dict[str, StateStore] = {"default": store}
    async with LocalCluster(
        silos=1, grains=[Reader], streams={"default": provider}, stores=stores
    ) as cluster:
        first, second = await letters_of(cluster, "ab")
        key = f"dead/default/{first.id}"
        row = store.get(key)
        assert row is not None
        store.put(key, row.data[:-1], row.etag, row.fence)
        for words in ((), ("--limit", "1")):
            assert await run(cluster, "ls", *words) == 1
            out, error = capsys.readouterr()
            assert [line.split("  ")[0] for line in out.splitlines()] == [second.id]
            assert "damaged letters, not listed: 1; `show ID` shows" in error
            assert error.splitlines()[-1] == first.id
        assert await run(cluster, "show", first.id) == 1
        assert "Corrupt: row dead/default/" in capsys.readouterr().err
        assert await run(cluster, "delete", first.id) == 0
        assert await run(cluster, "ls") == 0
