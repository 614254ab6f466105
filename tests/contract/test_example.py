"""The example of an adapter keeps the contract, survives half a line, and never blocks the loop."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.contract.example import EXAMPLE, jsonl
from tests.contract.proven import expect_run, holds_nothing

from millstream.runtime import QueueUnavailable
from millstream.streams import OutMessage, StreamId, Token
from millstream.streams.contracts.suite.host import BenchHost
from millstream.streams.testing import (
    ADAPTER_CHECKS,
    AdapterCheck,
    AdapterHooks,
    run_adapter_check,
)


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
async def test_the_example_keeps_the_contract(check: AdapterCheck, tmp_path: Path) -> None:
    hooks = AdapterHooks(kill=holds_nothing)
    why = await run_adapter_check(check, lambda: jsonl.JsonLinesQueues(tmp_path), hooks=hooks)
    expect_run(why, "forget", "skip")  # it deletes nothing, and all of its numbers have gaps


async def publish(place: Path, *texts: str) -> list[Token]:
    adapter = await jsonl.JsonLinesQueues(place).open("p", BenchHost())
    messages = [OutMessage(StreamId("n", "k"), [text.encode()]) for text in texts]
    found: list[Token] = await adapter.enqueue("q", messages, 1)
    return found


async def read(place: Path, after: Token | None = None) -> list[bytes]:
    adapter = await jsonl.JsonLinesQueues(place).open("p", BenchHost())
    receiver = adapter.receiver("q", 1)
    await receiver.start(after)
    return [message.items[0] for message in await receiver.read(100, 10_000, 0.0)]


@pytest.mark.parametrize("half", [b'["n", "k", ["aGFsZg', b"x" * 10_000])
async def test_half_a_line_is_skipped_and_cut_off(tmp_path: Path, half: bytes) -> None:
    (first,) = await publish(tmp_path, "a")
    path = tmp_path / "p" / "q"
    path.write_bytes(path.read_bytes() + half)
    assert await read(tmp_path) == [b"a"]
    await publish(tmp_path, "b")
    assert await read(tmp_path) == [b"a", b"b"] and await read(tmp_path, first) == [b"b"]
    assert half not in path.read_bytes()


async def test_a_file_with_nothing_but_half_a_line_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "q").write_bytes(b"[")
    assert await read(tmp_path) == []
    await publish(tmp_path, "a")
    assert await read(tmp_path) == [b"a"]


async def test_a_list_that_cannot_be_synced_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(tmp_path, "a")

    def fails(descriptor: int) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(QueueUnavailable, match="no room"):
            await publish(tmp_path, "b", "c")
    await publish(tmp_path, "d")
    assert await read(tmp_path) == [b"a", b"d"]


async def test_files_are_touched_in_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[int]()
    opened = Path.open

    def noting(path: Path, *args: object, **named: object) -> object:
        threads.append(threading.get_ident())
        return opened(path, *args, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", noting)
    await publish(tmp_path, "a")
    await read(tmp_path)
    assert len(threads) == 2 and threading.get_ident() not in threads


@pytest.mark.real
def test_the_example_carries_a_stream() -> None:
    command = [sys.executable, str(EXAMPLE / "main.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    words = ["a: one", "a: two", "a: three", "b: one", "b: two", "b: three"]
    assert (done.stdout.splitlines(), done.returncode) == (words, 0), done.stderr
