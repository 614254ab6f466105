"""The peer NATS: the servers that can be measured, and the small client. No test measures time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchmarks.nats_wire import Nats, NatsRefused, nats_lacks

from benchmarks import __main__ as command


def with_server(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    """Put a `nats-server` of this version first on the path."""
    path = folder / "nats-server"
    path.write_text(f"#!/bin/sh\necho 'nats-server: {version}'\n")
    path.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize("version", ["v2.10.0", "v2.14.0", "v3.0.1"])
def test_a_server_that_syncs_each_message_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    with_server(monkeypatch, tmp_path, version)
    assert nats_lacks() == ""


@pytest.mark.parametrize("version", ["v2.9.10", "v1.14.2", "unknown"])
def test_another_one_is_not_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    version: str,
) -> None:
    with_server(monkeypatch, tmp_path, version)
    assert command.others("nats", command.SUITES["ledger"]) == []
    said = capsys.readouterr().err
    assert f"nats: not measured, nats-server: {version} cannot sync each message" in said


def test_without_a_server_it_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nats_lacks() == "no nats-server here"


def test_parts_that_take_long_are_run_only_when_asked_for() -> None:
    usual, full = (command.parts_of("ledger", is_full)["ours"] for is_full in (False, True))
    assert full[: len(usual)] == usual and set(full) - set(usual) == {"ledger_recovery.full"}
    assert command.parts_of("calls", True) == command.SUITES["calls"]


class Written:
    """A transport that keeps the written data."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def connected() -> tuple[Nats, Any]:
    nats, transport = Nats(), Written()
    nats.connection_made(transport)
    transport.data = b""
    return nats, transport


async def test_an_answer_ends_its_publish_however_it_is_cut() -> None:
    nats, transport = connected()
    first, second = nats.publish("s.a", b"one\r\n"), nats.publish("s.a", b"")
    inboxes = [line.split()[2] for line in transport.data.splitlines() if line.startswith(b"PUB")]
    assert transport.data.startswith(b"PUB s.a %b 5\r\none\r\n\r\nPUB" % inboxes[0])
    answers = b"PING\r\n"
    for inbox, body in zip(reversed(inboxes), (b'{"seq":2}', b"\r\nMSG 1\r\n"), strict=True):
        answers += b"MSG %b 0 %d\r\n%b\r\n" % (inbox, len(body), body)
    for at in range(len(answers)):
        nats.data_received(answers[at : at + 1])
    assert (await second, await first) == (b'{"seq":2}', b"\r\nMSG 1\r\n")
    assert transport.data.endswith(b"PONG\r\n")


async def test_messages_come_with_the_address_of_their_answer() -> None:
    nats, transport = connected()
    heard: list[tuple[str, bytes]] = []
    nats.subscribe("d.k", lambda reply, payload: heard.append((reply, payload)))
    assert transport.data == b"SUB d.k 1\r\n"
    nats.data_received(b"MSG d.k 1 $JS.ACK.7 2\r\nab\r\nMSG d.k 1 1\r\nc\r\n")
    assert heard == [("$JS.ACK.7", b"ab"), ("", b"c")]


async def test_a_refusal_of_the_server_is_an_error() -> None:
    nats, transport = connected()
    asked = asyncio.ensure_future(nats.ask("STREAM.CREATE.S", name="S"))
    while not transport.data:
        await asyncio.sleep(0)
    inbox, body = transport.data.split()[2], b'{"error":{"code":503}}'
    nats.data_received(b"MSG %b 0 %d\r\n%b\r\n" % (inbox, len(body), body))
    with pytest.raises(NatsRefused, match="503"):
        await asked
