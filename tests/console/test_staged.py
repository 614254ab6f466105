"""`millstream staged`, against a cluster in this process whose queue refuses some messages."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from millstream.balancers import DeploymentBalancer
from millstream.console.main import main, parser
from millstream.providers.memory import MemoryQueues
from millstream.providers.memory.adapter import MemoryAdapter
from millstream.runtime import EnqueueFailed, Grain, LocalCluster, StreamError, connect
from millstream.streams import (
    AdapterHost,
    Event,
    HashRingMapper,
    OutMessage,
    PersistentStreams,
    QueueId,
    StreamNamespace,
    Token,
    subscribe,
)
from millstream.streams.extending import IngestMessage, encode_messages
from millstream.streams.staging.stager import StagedAttempt, StagedBatch, StagedWriterName

WORDS = StreamNamespace("words", str)
SEEN: dict[str, list[str]] = defaultdict(list)
REFUSED: set[str] = set()


class Reader(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        SEEN[self.key].append(event.item)


class FussyQueues(MemoryQueues):
    async def open(self, provider: str, host: AdapterHost, /) -> MemoryAdapter:
        return FussyAdapter(host, self._options)


class FussyAdapter(MemoryAdapter):
    """Refuses some words permanently. No sender can know them in advance."""

    def enqueue_at_once(self, *_: Any) -> None:
        return None

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        words = [msgspec.msgpack.decode(message.items[0]) for message in messages]
        fit = next((at for at, word in enumerate(words) if word in REFUSED), len(words))
        stored = await super().enqueue(queue, messages[:fit], mapper_epoch) if fit else []
        if fit < len(words):
            raise EnqueueFailed(stored, StreamError(f"the word {words[fit]!r} is not allowed"))
        return stored


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    REFUSED.clear()


def provider() -> PersistentStreams:
    return PersistentStreams(
        FussyQueues(), mapper=HashRingMapper(queues=2), balancer=DeploymentBalancer()
    )


def cluster() -> LocalCluster:
    return LocalCluster(silos=1, grains=[Reader], streams={"default": provider})


def gateway_of(running: LocalCluster) -> str:
    return running.silos[0].address.partition("@")[0]


async def write(running: LocalCluster, batch: int, *words: str) -> int:
    """Stage words under their first letters, then commit them."""
    name = StagedWriterName("default", WORDS.name, "w")
    messages = [
        IngestMessage(word[0], 0, [msgspec.Raw(msgspec.msgpack.encode(word))]) for word in words
    ]
    async with connect(gateway_of(running)) as client:
        attempt = StagedAttempt(client.gateway, name, batch, 0, f"u{batch}", patience_s=10.0)
        manifests = []
        if await attempt.begin():
            await attempt.stage(encode_messages(messages))
            manifests = [await attempt.finish()]
        return await StagedBatch(client.gateway, name, batch, patience_s=10.0).commit(manifests)


async def run(running: LocalCluster, *words: str) -> int:
    """Run the command in a thread, because it has its own event loop."""
    return await asyncio.to_thread(main, ["staged", *words, "--gateway", gateway_of(running)])


async def test_a_batch_that_a_queue_refuses_says_why_and_is_given_up_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    REFUSED.update(["bad", "b\x1b[31mooh"])
    async with cluster() as running:
        assert await write(running, 0, "a0") == 1
        for _ in range(2):  # a restarted query finds the same letters
            with pytest.raises(StreamError, match="millstream staged abandon words w 1") as told:
                await write(running, 1, "a1", "bad", "b1", "b\x1b[31mooh", "c1")
            assert "the word 'bad' is not allowed" in str(told.value)
        with pytest.raises(StreamError, match="batch 1 is decided"):
            await write(running, 2, "a2", "b2")

        assert await run(running, "list") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert "words  w  last batch 1  batch 1 waits (5 messages)  REFUSED: " in line
        assert "the word 'bad' is not allowed" in line

        assert await run(running, "abandon", "words", "w", "2") == 1
        assert "batch 2 of writer w in words does not wait" in capsys.readouterr().err
        assert await run(running, "show", "words", "x") == 1
        assert "there is no writer x in words" in capsys.readouterr().err

        for action in (("abandon", "words", "w", "1"), ("show", "words", "w")):
            assert await run(running, *action) == 0
            _, report, *lines = capsys.readouterr().out.splitlines()
            assert report == "batch 1 was abandoned: 3 messages are published, 2 are not:"
            assert "part 0, chunk 0, message 1: key 'b', 1 items of 4 bytes: " in lines[0]
            assert "is not allowed" in lines[0] and "message 3: key 'b'" in lines[1]
            assert "\x1b" not in lines[1] and len(lines) == 2

        assert await write(running, 1, "never looked at") == 5
        assert await write(running, 2, "a2", "b2") == 2
        async with asyncio.timeout(20):
            while sum(map(len, SEEN.values())) < 6:
                await asyncio.sleep(0)
        assert SEEN == {"a": ["a0", "a1", "a2"], "b": ["b1", "b2"], "c": ["c1"]}


async def test_a_queue_that_accepts_it_after_all_needs_no_operator() -> None:
    REFUSED.add("bad")
    async with cluster() as running:
        with pytest.raises(StreamError, match="is not allowed"):
            await write(running, 0, "bad", "good")
        REFUSED.clear()
        assert await write(running, 0) == 2


def test_a_batch_must_be_named() -> None:
    for words in (["staged"], ["staged", "abandon", "words", "w"], ["staged", "show", "words"]):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args(words)
        assert ended.value.code == 2
