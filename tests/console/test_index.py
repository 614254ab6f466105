"""`millstream index` over an index in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.providers.index.kit import START_MS, change

from millstream.console.main import main
from millstream.providers.priority import MemoryStore, PriorityQueues, priority_queue
from millstream.providers.spark.index import IndexOptions, IndexWriter
from millstream.runtime import LocalCluster

FOR_EVER = IndexOptions(history_days=None)


class Desk:
    """Runs commands."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self._capsys = f"sqlite:{folder}/index.db", capsys
        self.writer = IndexWriter(self.place, FOR_EVER)

    def run(self, action: str, *words: str, code: int = 0) -> str:
        given = main(["index", action, self.place, *words])
        out, err = self._capsys.readouterr()
        assert given == code, (words, out, err)
        return out or err

    def json(self, *words: str, code: int = 0) -> Any:
        text = self.run(*words, "--json", code=code)
        assert text.count("\n") == 1, "one line and no more"
        return json.loads(text)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(tmp_path, capsys)
    running = change(version=2, source="pending", target="running", step="dequeued", attempt=1)
    failed = change(version=3, source="running", target="errored", step="failed", attempt=1)
    rows = [
        change(metadata={"size": "S"}),
        running._replace(time_ms=START_MS + 50),
        failed._replace(time_ms=START_MS + 70, reason="\x1b[31mno disk"),
        change(id="other", seq=9),
    ]
    made.writer.apply("query", 0, rows, START_MS)
    return made


def test_questions_and_their_answers(desk: Desk) -> None:
    assert desk.run("query", "depth").splitlines() == [
        "queue  state    messages",
        "q      errored         1",
        "q      pending         1",
    ]
    assert desk.json("query", "depth", "q") == {"q": {"errored": 1, "pending": 1}}
    assert desk.json("query", "depth", "--wanted", "size=S") == {}
    history = desk.run("query", "history", "q", "m").splitlines()
    assert len(history) == 4 and "2024-10-04 00:00:00Z" in history[1]
    assert "\x1b" not in history[3] and "no disk" in history[3]
    assert [one["version"] for one in desk.json("query", "history", "q", "m")] == [1, 2, 3]
    (message,) = desk.json("query", "message", "q", "m")
    assert message["to_state"] == "errored" and message["metadata"] == {}
    assert (
        desk.run("query", "message", "q", "none", code=1)
        == "the index has no change of this message\n"
    )
    times = {one["state"]: one["total_ms"] for one in desk.json("query", "times", "q", "m")}
    assert times["pending"] == 50 and times["running"] == 20 and times["errored"] > 1_000_000
    errors = {"failed": 1, "expired": 0, "released": 0, "total": 1}
    assert desk.json("query", "errors") == errors and "failed:" in desk.run("query", "errors")


def test_what_is_wrong_is_said(desk: Desk, tmp_path: Path) -> None:
    assert "needs QUEUE and ID" in desk.run("query", "history", "q", code=2)
    assert "--wanted is an option of depth only" in desk.run(
        "query", "times", "--wanted", "a=b", code=2
    )
    desk.place = f"sqlite:{tmp_path}/none.db"
    assert "there is no index" in desk.run("query", "depth", code=1)
    with pytest.raises(SystemExit):
        main(["index", "query", desk.place, "weather"])


def test_an_index_with_a_gap_is_not_whole(desk: Desk) -> None:
    assert desk.run("verify") == "the index is complete\n"
    desk.writer.apply("query", 1, [change(version=6)], START_MS)
    assert desk.run("verify", code=1).startswith(
        "q, shard 0, message m: 2 missing: the history has 4 of the versions up to 6"
    )
    assert desk.json("verify", code=1)["findings"][0]["missing"] == 2


async def test_it_is_compared_with_the_queues(desk: Desk) -> None:
    import asyncio

    store = MemoryStore()
    async with LocalCluster(grains=[], parts={"priority": lambda: PriorityQueues(store)}) as silos:
        gateway = silos.silos[0].address.partition("@")[0]
        await priority_queue(silos, "q").enqueue(b"x")

        def verify(code: int) -> str:
            return desk.run("verify", "--queues", "--gateway", gateway, code=code)

        assert await asyncio.to_thread(verify, 1) == "q, errored: 1 in the index, 0 in the queue\n"
        desk.writer.apply("query", 1, [change(version=4, target=None)], START_MS)
        text = "the index is complete, and agrees with the queues\n"
        assert await asyncio.to_thread(verify, 0) == text
