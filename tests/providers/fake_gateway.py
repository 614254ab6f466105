"""A gateway for the tests of the Spark connector. It speaks the wire protocol and drops repeats.

A test plans its faults: `drop_at` and `refuse_at` hold numbers of calls, counted from 0 over all
connections. A dropped call was accepted, and only its answer is lost. After a refused call, every
later call of its session is refused too, because the order would be lost.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

from millstream.runtime import QueueFull
from millstream.runtime.extending import encode_error
from millstream.runtime.wire.framing import FrameReader, frame
from millstream.runtime.wire.message import (
    WIRE_VERSION,
    Call,
    Cancel,
    Failure,
    GatewayView,
    Goodbye,
    Hello,
    Message,
    Ping,
    Reply,
    decode_messages,
    encode_messages,
)

QUIET_S = 0.1
QUEUE_FULL = msgspec.Raw(encode_error(QueueFull("10 of 10"), "a queue"))


@dataclass(frozen=True)
class Row:
    """An accepted item, and the message that contained it."""

    namespace: str
    key: str
    producer: str
    seq: int
    item: dict[str, Any]


@dataclass
class Faults:
    """The planned faults of the gateway."""

    drop_at: set[int] = field(default_factory=set)
    refuse_at: set[int] = field(default_factory=set)
    hold: int = 1
    hello: Message | None = None
    goodbye_at: set[int] = field(default_factory=set)


@dataclass
class Held:
    """The answers that a connection has not sent yet, and whether it is closing."""

    answers: list[Message] = field(default_factory=list)
    leaving: bool = False


class FakeGateway:
    """Listens on a free port of this machine inside the `with` block."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.rows: list[Row] = []
        self.calls: list[Call] = []
        self.sessions: list[tuple[str, int]] = []
        self.hellos: list[Hello] = []
        self.repeats = 0
        self.overrun = False
        self._seen: set[tuple[str, int]] = set()
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    @property
    def name(self) -> str:
        """The gateway's name, in the form of a silo's name."""
        return f"{self.option}@1"

    @property
    def option(self) -> str:
        """The address in the form of the option `gateways`."""
        return f"{self.address[0]}:{self.address[1]}"

    def __enter__(self) -> FakeGateway:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                _hang_up(sock)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def hang_up(self) -> None:
        """Close every connection from the gateway's side."""
        with self._lock:
            for sock in self._open:
                _hang_up(sock)

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        reader, held = FrameReader(1 << 24), Held()
        with sock:
            try:
                own = Hello(WIRE_VERSION, "dev", self.name, True, 1 << 24)
                sock.sendall(frame(encode_messages([self.faults.hello or own])))
                while data := sock.recv(1 << 16):
                    for payload in reader.feed(data):
                        for message in decode_messages(payload):
                            if not self._take(sock, message, held):
                                return
            except OSError:
                return

    def _take(self, sock: socket.socket, message: Message, held: Held) -> bool:
        """Handle a message. False means that the connection must be dropped."""
        if isinstance(message, Hello):
            self.hellos.append(message)
            return True
        if isinstance(message, Ping | Cancel):
            return True
        assert isinstance(message, Call)
        if message.kind == "$gateway":
            known: Any = GatewayView(1, [self.name]) if message.method == "gateways" else []
            sock.sendall(frame(encode_messages([Reply(message.id, _raw(known))])))
            return True
        with self._lock:
            number = len(self.calls)
            self.calls.append(message)
            is_next = self._is_next(message) and number not in self.faults.refuse_at
            held.answers += self._answer(number, message, not is_next)
        if number in self.faults.drop_at:
            return False
        if held.leaving:
            # time in which a client that does not wait for answers would send more
            _more_comes(sock)
        held.leaving |= number in self.faults.goodbye_at
        if held.leaving or len(held.answers) >= self.faults.hold:
            self.overrun |= self.faults.hold > 1 and _more_comes(sock)
            sock.sendall(frame(encode_messages(held.answers)))
            held.answers.clear()
        return True

    def _is_next(self, call: Call) -> bool:
        """Is the call the next one of its session?"""
        session, place = msgspec.msgpack.decode(call.body)[2:4]
        return int(place) == self._places.get(session, 0)

    def _answer(self, number: int, call: Call, refused: bool) -> list[Message]:
        if refused:
            return [Failure(call.id, QUEUE_FULL)]
        accepted = self._store(call)
        goodbye = [Goodbye("stopping")] if number in self.faults.goodbye_at else []
        return [*goodbye, Reply(call.id, _raw(accepted))]

    def _store(self, call: Call) -> int:
        assert (call.kind, call.method, call.headers) == ("$ingest/default", "publish_next", None)
        namespace, producer, session, place, messages = msgspec.msgpack.decode(call.body)
        self.sessions.append((session, place))
        self._places[session] = place + 1
        for key, seq, items in messages:
            if (producer, seq) in self._seen:
                self.repeats += 1
                continue
            self._seen.add((producer, seq))
            self.rows += [Row(namespace, key, producer, seq, item) for item in items]
        return len(messages)


def _more_comes(sock: socket.socket) -> bool:
    """Does the peer send more before it gets an answer?"""
    sock.settimeout(QUIET_S)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        sock.settimeout(None)


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))
