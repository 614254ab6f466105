"""`millstream pq`, against a cluster in this process."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.imports import ROOT

from millstream.console.main import main
from millstream.providers.priority import MemoryStore, PriorityQueues, State, priority_queue
from millstream.runtime import LocalCluster

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ")


class Desk:
    """Runs each command in a thread, because it has its own event loop."""

    def __init__(self, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster, self._capsys = cluster, capsys

    async def run(self, *words: str, code: int = 0) -> str:
        """Run a command, and return its output, or its error text if it fails."""
        gateway = self.cluster.silos[0].address.partition("@")[0]
        given = await asyncio.to_thread(main, ["pq", *words, "--gateway", gateway])
        out, err = self._capsys.readouterr()
        assert given == code, (words, out, err)
        self.said = err
        return err if code else out

    async def json(self, *words: str) -> Any:
        text = await self.run(*words, "--json")
        assert text.count("\n") == 1, "one line and no more"
        return json.loads(text)


@pytest.fixture
async def desk(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Desk]:
    store = MemoryStore()
    parts = {"priority": lambda: PriorityQueues(store), "other": lambda: PriorityQueues(store)}
    async with LocalCluster(grains=[], parts=parts) as cluster:
        yield Desk(cluster, capsys)


async def test_a_message_is_worked_at(desk: Desk) -> None:
    assert await desk.run("enqueue", "encode", "the film", "--id", "film", "--priority", "5") == (
        "enqueued film (pending)\n"
    )
    again = await desk.run("enqueue", "encode", "the film", "--id", "film", "--priority", "5")
    assert again == "already enqueued: film (pending)\n"
    await desk.run("enqueue", "encode", "more", "--id", "more", "--metadata", "a=b")
    head, row = (await desk.run("dequeue", "encode", "--wait", "5")).splitlines()
    assert head.split() == ["ID", "TOKEN", "ATTEMPT", "UNTIL", "METADATA", "PAYLOAD"]
    assert row.split()[:3] == ["film", "1.2", "1"] and row.endswith("-  the film")
    extended = await desk.run("extend", "encode", "film", "1.2", "--lease", "600")
    assert extended.startswith("film: running, lease until ")
    assert await desk.run("complete", "encode", "film", "1.2") == "film: completed\n"
    done = await desk.run("complete", "encode", "film", "1.2")
    assert done == "film: completed (no change)\n"
    assert await desk.run("dequeue", "encode", "--wanted", "a=c") == ""
    assert desk.said == "no message is available\n"


async def test_json_has_the_names_of_the_http_api(desk: Desk) -> None:
    made = await desk.json("enqueue", "q", "x", "--id", "m", "--metadata", "a=b", "--attempts", "2")
    assert made == {"id": "m", "state": "pending", "version": 1, "is_changed": True}
    [lease] = await desk.json("dequeue", "q", "--worker", "w", "--count", "5")
    assert (
        lease["token"] == "1.2" and lease["payload"] == "eA==" and lease["metadata"] == {"a": "b"}
    )
    released = await desk.json("release", "q", "m", "1.2", "--refund", "--reason", "off")
    assert (released["state"], released["is_changed"]) == ("pending", True)
    view = await desk.json("get", "q", "m")
    assert (view["attempts_left"], view["reason"], view["token"]) == (2, "off", "1.2")
    assert await desk.json("peek", "q", "--count", "3") == [view]
    assert await desk.json("list", "q", "--state", "pending") == [view]
    assert await desk.json("list", "q", "--state", "errored") == []
    assert (await desk.json("depth", "q"))["pending"] == 1
    assert await desk.json("ls") == ["q"]
    shown = await desk.json("show", "q")
    assert shown["version"] == 1 and shown["settings"]["lease_ms"] == 60_000
    assert shown["depth"]["pending"] == 1
    assert await desk.json("dequeue", "q", "--wanted", "a=c") == []


async def test_the_ways_in_which_work_ends(desk: Desk) -> None:
    for id in "abc":
        await desk.run("enqueue", "q", id, "--id", id)
    await desk.run("dequeue", "q", "--count", "2")
    assert await desk.run("fail", "q", "a", "1.2", "--reason", "bad") == "a: errored\n"
    assert await desk.run("release", "q", "b", "2.2", "--delay", "60") == "b: invisible\n"
    assert await desk.run("cancel", "q", "c", "--reason", "late") == "c: canceled\n"
    assert await desk.run("requeue", "q", "a", "--new-id", "again") == "enqueued again (pending)\n"
    assert await desk.run("requeue", "q", "c") == "enqueued c~again-3 (pending)\n"
    assert await desk.run("requeue", "q", "c") == "already enqueued: c~again-3 (pending)\n"
    await desk.run("cancel", "q", "c~again-3")
    assert await desk.run("prioritise", "q", "again", "-7") == "again: pending\n"
    rows = (await desk.run("list", "q")).splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [
        ["a", "errored"],
        ["b", "invisible"],
        ["c", "canceled"],
        ["again", "pending"],
        ["c~again-3", "canceled"],
    ]
    assert (await desk.run("get", "q", "a")).splitlines()[-2].split() == ["reason:", "bad"]
    await desk.run("list", "q", "--count", "1")
    assert desk.said == "there are more messages: --after 1\n"
    await desk.run("list", "q", "--count", "5")
    assert desk.said == ""


async def test_payloads_come_from_texts_files_and_standard_input(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = bytes(range(256))
    path = tmp_path / "payload"
    path.write_bytes(payload)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(payload)))
    queue = priority_queue(desk.cluster, "q")
    gateway = ["--gateway", desk.cluster.silos[0].address.partition("@")[0]]
    for words in (["--id", "a", "-"], ["--id", "b", f"@{path}"], ["--id", "c", "-"]):
        assert await asyncio.to_thread(main, ["pq", "enqueue", "q", *words, *gateway]) == 0
    assert (await queue.get("a")).payload == (await queue.get("b")).payload == payload
    assert (await queue.get("c")).payload == b"", "it was read to its end"
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=out))
    assert await asyncio.to_thread(main, ["pq", "get", "q", "a", "--payload", *gateway]) == 0
    assert out.getvalue() == payload


async def test_a_payload_is_in_the_one_json_value_if_that_is_asked_for(desk: Desk) -> None:
    await priority_queue(desk.cluster, "q").enqueue(b"\x00\n\xff", id="a")
    told = await desk.json("get", "q", "a", "--payload")
    assert b64decode(told["payload"]) == b"\x00\n\xff"


async def test_queues_are_made_changed_and_deleted(desk: Desk) -> None:
    settings = ["--exclusive", "project", "--set", "lease_ms=5000", "--set", "shapes=a,b;c"]
    assert await desk.run("create", "q", *settings) == "q: settings have version 1\n"
    changed = await desk.run("configure", "q", "--set", "enqueue_blocked=yes")
    assert changed == "q: settings have version 2\n"
    text = await desk.run("show", "q")
    told = dict(line.split(":", 1) for line in text.splitlines() if line)
    assert (told["enqueue_blocked"].strip(), told["shapes"].strip()) == ("yes", "a,b; c")
    assert (told["lease_ms"].strip(), told["pending"].strip()) == ("5,000", "0")
    stale = await desk.run("configure", "q", "--set", "attempts=7", "--version", "1", code=1)
    assert stale.startswith("millstream pq configure: SettingsConflict: queue 'q': ")
    await desk.run("configure", "q", "--set", "enqueue_blocked=no", "--set", "exclusivity_key=")
    settings_now = (await priority_queue(desk.cluster, "q").settings()).settings
    assert settings_now.exclusivity_key is None and not settings_now.enqueue_blocked
    assert (
        await desk.run("ls", "--prefix", "x") == ""
        and await desk.run("ls", "--prefix", "q") == "q\n"
    )
    assert "add --yes" in await desk.run("delete", "q", code=2)
    assert await desk.run("delete", "q", "--yes") == "deleted q\n"
    assert await desk.run("ls") == ""


async def test_the_depth_of_values(desk: Desk) -> None:
    await desk.run("create", "q", "--exclusive", "project")
    for project in ("foo", "foo", "bar"):
        await desk.run("enqueue", "q", "x", "--metadata", f"project={project}")
    rows = (await desk.run("depth", "q", "--values")).splitlines()
    assert rows[0].split()[0] == "VALUE" and [row.split()[0] for row in rows[1:]] == ["foo", "bar"]
    assert (await desk.json("depth", "q", "--values"))["foo"]["pending"] == 2
    assert (await desk.json("depth", "q", "--value", "bar"))["pending"] == 1
    found = await priority_queue(desk.cluster, "q").depth(wanted={"project": "foo"})
    assert found[State.PENDING] == 2


WRONG = {
    ("get", "q", "m"): "PriorityQueueNotFound: queue 'q': ",
    ("complete", "q", "m", "1"): "RequestInvalid: queue 'q': token is '1', not a lease token",
    ("enqueue", "q", "x", "--priority", "soon"): "RequestInvalid: queue 'q': priority is 'soon', ",
    ("enqueue", "q", "@/nobody/has/it"): "FileNotFoundError: ",
    ("create", "q", "--set", "lease=5"): "RequestInvalid: queue 'q': lease is not a setting: ",
    ("create", "q", "--set", "limit=x"): "RequestInvalid: queue 'q': limit is 'x', not a whole",
    ("create", "q", "--set", "attempts=0"): "ConfigError: attempts is 0, ",
    ("create", "q", "--set", "enqueue_blocked=1x"): "RequestInvalid: queue 'q': enqueue_blocked",
    ("ls", "--part", "none"): "",
    ("serve", "--host", "0.0.0.0"): "ConfigError: ",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
async def test_what_is_wrong_is_said_in_a_line(
    desk: Desk, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_PQ_TOKEN", raising=False)
    text = await desk.run(*words, code=1)
    assert text.startswith(f"millstream pq {words[0]}: {WRONG[words]}") and text.count("\n") == 1


LONE, DIGITS = "\udcff", "9" * 5_000
ODD = {
    "an id": (("complete", "q", LONE, "1.2"), "queue 'q': id cannot be encoded in UTF-8"),
    "a reason": (
        ("fail", "q", "m", "1.2", "--reason", LONE),
        "queue 'q': reason cannot be encoded",
    ),
    "a long reason": (("fail", "q", "m", "1.2", "--reason", "x" * 2_000), "not 0 to 1024"),
    "a prefix": (("ls", "--prefix", LONE), "prefix cannot be encoded in UTF-8"),
    "a key": (("create", "q", "--exclusive", LONE), "exclusivity_key is "),
    "a number": (("create", "q", "--set", f"limit={DIGITS}"), "queue 'q': limit is '999"),
    "no setting": (("create", "q", "--set", DIGITS), "queue 'q': 999"),
    "a priority": (("enqueue", "q", "x", "--priority", DIGITS), "queue 'q': priority is '999"),
    "a token": (("complete", "q", "m", DIGITS), "queue 'q': token is '999"),
    "no lease": (("enqueue", "q", "x", "--lease", "1e9"), "lease_ms_max is 86400000"),
    "a delay": (("release", "q", "m", "1.2", "--delay", "1e9"), "invisible_ms_max is 31622400000"),
    "no new id": (("requeue", "q", "m", "--new-id", ""), "queue 'q': new_id has 0 bytes"),
}


@pytest.mark.parametrize("what", ODD)
async def test_what_no_text_or_without_end_is_refused_in_a_short_line(
    desk: Desk, what: str
) -> None:
    words, told = ODD[what]
    await desk.run("enqueue", "q", "x", "--id", "m")
    await desk.run("dequeue", "q")
    text = await desk.run(*words, code=1)
    assert told in text and text.count("\n") == 1 and len(text) < 600


def test_a_part_that_cannot_be_is_no_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pq", "ls", "--part", LONE])
    assert "argument --part: '\\udcff' cannot be encoded" in capsys.readouterr().err


async def test_what_a_message_holds_cannot_steer_the_terminal(desk: Desk) -> None:
    queue = priority_queue(desk.cluster, "q\x1b[2J")
    await queue.enqueue(b"\x1b[31m", id="\x1b]0;", metadata={"a\x1b": "\x07"})
    for words in (
        ["ls"],
        ["list", queue.name],
        ["get", queue.name, "\x1b]0;"],
        ["dequeue", queue.name],
    ):
        text = await desk.run(*words)
        assert text.isascii() and all(one.isprintable() or one == "\n" for one in text), words
    assert "\x1b" not in await desk.run("get", queue.name, "\x1bnone", code=1)


async def test_another_part_has_other_queues_handles(desk: Desk) -> None:
    await desk.run("enqueue", "q", "x", "--part", "other")
    assert await desk.run("ls", "--part", "other") == "q\n"


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pq", "ls", "--gateway", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("millstream pq ls: ")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["show"],
        ["get", "q"],
        ["complete", "q", "m"],
        ["enqueue", "q", "x", "--metadata", "a"],
        ["dequeue", "q", "--count", "0"],
        ["prioritise", "q", "m", "soon"],
        ["list", "q", "--state", "lost"],
    ],
)
def test_wrong_arguments_are_told(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pq", *words])
    assert ended.value.code == 2


async def test_the_lines_of_the_guide_answer_as_it_shows(desk: Desk) -> None:
    guide = (ROOT / "docs" / "guides" / "priority.md").read_text()
    found = re.search(r"^```console\n(\$ millstream pq.*?)^```", guide, re.M | re.S)
    assert found is not None
    lines = re.findall(r"^\$ millstream pq (.*)\n((?:[^$].*\n)*)", found[1], re.M)
    assert len(lines) == 4
    for line, wanted in lines:
        text = await desk.run(*shlex.split(line))
        assert TIME.sub("T", text) == TIME.sub("T", wanted), line


async def test_the_clock_of_a_queue_is_shown_and_reset(desk: Desk) -> None:
    await desk.run("create", "q")
    head, row = (await desk.run("clock", "q")).splitlines()
    assert head.split() == ["SHARD", "QUEUE", "MACHINE", "DIFFERENCE"]
    assert len(TIME.findall(row)) == 2 and row.split()[0] == "0" and row.endswith("+0.000 s")
    [reading] = await desk.json("clock", "q", "--reset")
    assert reading["queue_ms"] == reading["machine_ms"]
    assert "there is no such queue" in await desk.run("clock", "none", code=1)
