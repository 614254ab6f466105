"""Two ends of one connection, or one end alone, without a silo."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import msgspec

from millstream.runtime import Env, RuntimeOptions
from millstream.runtime.extending import Tasks
from millstream.runtime.wire.connection import LocalEnd, Peer
from millstream.runtime.wire.framing import FrameReader, frame
from millstream.runtime.wire.handshake import Handshake, Identity, hello_of
from millstream.runtime.wire.message import (
    Call,
    Failure,
    GatewayView,
    Message,
    decode_messages,
    encode_messages,
)
from millstream.runtime.wire.outbox import Outbox
from millstream.runtime.wire.secret import Secrets
from millstream.runtime.wire.transport import LinkReceiver

SECRET = Secrets(b"known to the silos of one cluster", b"known to its operators too")
NIL = msgspec.Raw(b"\xc0")


class FakeLink:
    """Keeps the written messages. The test decides when it is full."""

    peer = "somewhere:1"
    certified = None

    def __init__(self) -> None:
        self.receiver: Any = None
        self.messages: list[Message] = []
        self.sizes: list[int] = []
        self.counts: list[int] = []
        self.waiting_bytes = 0
        self.full_at: int | None = None
        self.is_reading = True
        self.ended = ""
        self._frames = FrameReader(1 << 30)

    def start(self, receiver: LinkReceiver, /) -> None:
        self.receiver = receiver

    def write(self, data: bytes, /) -> None:
        assert not self.ended
        for payload in self._frames.feed(data):
            found = decode_messages(payload)
            self.messages += found
            self.counts.append(len(found))
            self.sizes.append(len(payload))
        if self.full_at is not None:
            self.waiting_bytes += len(data)
            if self.waiting_bytes > self.full_at:
                self.receiver.writable(False)

    def drain(self) -> None:
        """The other end has read everything, and reads on."""
        self.full_at, self.waiting_bytes = None, 0
        self.receiver.writable(True)

    def reading(self, is_on: bool, /) -> None:
        self.is_reading = is_on

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the written messages of a kind."""
        return [message for message in self.messages if isinstance(message, kind)]


class Waits:
    """An `AnswerReceiver` that records its answers."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def reply(self, body: msgspec.Raw, /) -> None:
        self.told.append(("reply", bytes(body)))

    def failure(self, body: msgspec.Raw, /) -> None:
        self.told.append(("failure", bytes(body)))

    def redirect(self, silo: str, /) -> None:
        self.told.append(("redirect", silo))

    def on_broken(self, error: Exception, /) -> None:
        self.told.append(error)


class Office:
    """Records calls and greetings, and refuses kinds that begin with `no`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.greeted_by: list[Peer] = []
        self.left: list[Peer] = []
        self.views: list[GatewayView] = []

    def serve(self, peer: Peer, call: Call, /) -> None:
        self.calls.append(call)
        if call.kind.startswith("no"):
            peer.served.refuse(call.id, Failure(call.id, NIL))
        else:
            peer.served.watch(call.id, None)

    def on_frame_end(self) -> None:
        pass

    def on_greeted(self, peer: Peer, /) -> None:
        self.greeted_by.append(peer)

    def leaving(self, peer: Peer, /) -> None:
        self.left.append(peer)

    def on_gateways(self, peer: Peer, view: GatewayView, /) -> None:
        self.views.append(view)


def end_of(office: Office, secrets: Secrets = SECRET, **options: Any) -> LocalEnd:
    """Return the end of this process."""
    loop = asyncio.get_running_loop()
    identity = Identity("dev", "here:1@1", True)
    settings, tasks = RuntimeOptions(**options), Tasks(loop, Context)
    end = LocalEnd(identity, settings, loop, tasks, Outbox(loop), Env(), secrets)
    end.open(inbox=office, welcome=office)
    return end


def raw(*messages: Any) -> bytes:
    """Return one frame of messages."""
    return frame(encode_messages(list(messages)))


def visitor(office: Office, **options: Any) -> tuple[Peer, FakeLink]:
    """Return the connection of a client after its greeting."""
    link, peer = FakeLink(), Peer(end_of(office, **options), "", lambda peer: None)
    peer.attach(link)
    hello = hello_of(Identity("dev", "client-1", False), RuntimeOptions(), Env())
    peer.on_received(raw(hello))
    assert office.greeted_by == [peer]
    return peer, link


def outgoing(office: Office, **options: Any) -> tuple[Peer, FakeLink]:
    """Return a connection to a silo after the greeting."""
    link, peer = FakeLink(), Peer(end_of(office, **options), "there:1@1", lambda peer: None)
    peer.attach(link)
    own = hello_of(Identity("dev", "there:1@1", True), RuntimeOptions(), Env())
    other = Handshake(own, SECRET, is_opener=False)
    other.take(link.messages[:1])
    peer.on_received(raw(own))
    peer.on_received(raw(*other.take(link.messages[1:2])))
    assert peer.writer.is_ready
    return peer, link


def call(call_id: int = 0, **changes: Any) -> Call:
    """Return a call in the form of the wire."""
    fields: dict[str, Any] = {
        "kind": "Desk",
        "key": "a",
        "method": "where",
        "body": NIL,
        "ttl_s": 5.0,
        "caller": "",
        "chain": [],
        "hops": 0,
        "headers": None,
    }
    return Call(id=call_id, **{**fields, **changes})
