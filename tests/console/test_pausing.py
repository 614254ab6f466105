"""`millstream queues` and `millstream streams`, against a cluster in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.console.main import main
from millstream.providers.memory import MemoryQueues
from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
    why,
)

LINES = StreamNamespace("lines", str)
HEARD: list[str] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    HEARD.clear()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        HEARD.append(event.item)


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.01),
        options=StreamOptions(ownership=OwnershipOptions(poll_s=0.02)),
    )


async def run(cluster: LocalCluster, *words: str) -> int:
    """Run the command in a thread, because it has its own event loop."""
    gateway = cluster.silos[0].address.partition("@")[0]
    return await asyncio.to_thread(main, [*words, "--gateway", gateway])


async def test_streams_are_paused_and_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        assert await run(cluster, "streams", "pause", "lines", "a", "b") == 0
        assert capsys.readouterr().out == "paused a\npaused b\n"
        stream = cluster.stream(LINES, "a")
        await stream.publish("one")
        assert (await why(cluster, stream)).check == "stream_paused"
        assert not HEARD
        assert await run(cluster, "streams", "resume", "lines", "a") == 0
        assert capsys.readouterr().out == "resumed a\n"
        await until(lambda: HEARD == ["one"])


async def test_queues_are_paused_and_go_on_and_one_that_is_not_there_stops_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        assert await run(cluster, "queues", "pause", "queue-\x1b7", "queue-0") == 1
        out, wrong = capsys.readouterr()
        assert out == "paused queue-0\n"
        assert wrong.startswith("millstream queues pause: ConfigError: ")
        assert "\x1b" not in wrong and "queue-0 to queue-0" in wrong
        await cluster.stream(LINES, "a").publish("one")
        assert (await why(cluster, cluster.stream(LINES, "a"))).check == "queue_paused"
        assert await run(cluster, "queues", "resume", "queue-0") == 0
        await until(lambda: HEARD == ["one"])


async def test_a_provider_that_is_not_there_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        for words in (["queues", "pause", "queue-0"], ["streams", "resume", "lines", "a"]):
            assert await run(cluster, *words, "--provider", "p") == 1
            assert capsys.readouterr().err.startswith(f"millstream {words[0]} {words[1]}: ")


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["streams", "pause", "lines", "a", "--gateway", "127.0.0.1:1"]
    assert main(words) == 1
    assert capsys.readouterr().err.startswith("millstream streams pause: ")


@pytest.mark.parametrize(
    "words", [["queues"], ["queues", "pause"], ["streams", "pause", "lines"], ["streams", "stop"]]
)
def test_what_is_missing_is_told(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


async def test_without_the_operators_secret_nothing_is_paused_and_the_command_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with LocalCluster(silos=1, grains=[Reader], streams={"default": provider}) as cluster:
        monkeypatch.delenv("MILLSTREAM_OPERATOR_SECRET")
        for words in (
            ("queues", "pause", "queue-0"),
            ("streams", "pause", "lines", "a"),
            ("why", "lines", "a"),
            ("dead-letters", "ls"),
        ):
            assert await run(cluster, *words) == 1
            assert "NotAllowed" in (told := capsys.readouterr().err) and "--operator" in told
        assert await run(cluster, "queues", "readers", "--operator", str(tmp_path)) == 1
        assert "--operator: " in (told := capsys.readouterr().err) and "does not exist" in told
        assert (await why(cluster, cluster.stream(LINES, "a"))).check != "queue_paused"


async def test_an_operator_names_the_directory_of_the_silos(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MILLSTREAM_OPERATOR_SECRET")
    table, store = SqliteMembershipTable(tmp_path), SqliteStateStore(tmp_path)
    async with LocalCluster(
        grains=[Reader],
        streams={"default": provider},
        membership=table,
        stores={"default": store},
    ) as cluster:
        directory = ("--operator", str(tmp_path))
        assert await run(cluster, "queues", "pause", "queue-0", *directory) == 0
        assert capsys.readouterr().out == "paused queue-0\n"
    await table.aclose()
    await store.aclose()
