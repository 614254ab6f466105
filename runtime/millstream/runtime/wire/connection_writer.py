"""The writing half of a connection: outstanding calls, and messages that wait to be written.

`ConnectionWriter` owns the batch of the current loop iteration, the outstanding calls, and the
callers that wait until calls may be sent. The handshake and received frames belong to `connection`;
`batch` decides where a batch is cut.

Invariants:

- Messages leave in the order in which they were sent. The one exception is `send_latest`: its
  message leaves after all others, and a newer one replaces it until then.
- The messages of one loop iteration leave in as few frames as the limits allow.
- Nothing is written to a full link. Calls that wait here can still be withdrawn, and their bytes
  are counted.
- A message that cannot be encoded fails alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from millstream.runtime.errors import Overloaded, SiloUnavailable
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.text import show_text

from .batch import SPARE_BYTES, UNSENDABLE, call_bytes, cut, encode_what_can_be
from .framing import HEADER_BYTES
from .message import Call, Cancel, Hello, Message, encode_messages
from .outbox import Outbox
from .transport import Link

__all__ = ["AnswerReceiver", "ConnectionWriter"]

log = logging.getLogger("millstream.connection")

NIL = msgspec.Raw(b"\xc0")


class AnswerReceiver(Protocol):
    """Receiver of the answer to one call. Exactly one of its methods is called, once."""

    def reply(self, body: msgspec.Raw, /) -> None: ...
    def failure(self, body: msgspec.Raw, /) -> None: ...
    def redirect(self, silo: str, /) -> None: ...
    def on_broken(self, error: Exception, /) -> None: ...


class ConnectionWriter:
    """Sends calls and messages over a connection.

    Args:
        name: the other process, for error texts; empty until the handshake if it opened the
            connection.
        on_full: called after each flush that leaves the link full.

    Attributes:
        is_ready: calls may be sent without waiting.
        is_writable: the link accepts more bytes.
        is_marked: a flush is scheduled, so `send` does not mark this writer in the outbox again.
        peer_frame_max: bytes of the largest frame that the other process accepts.
        calls: the receivers of unanswered calls, by id.
        unwritten_bytes: bytes of the messages that wait here.
        written_bytes: bytes that the link was given so far.
    """

    def __init__(
        self,
        name: str,
        options: RuntimeOptions,
        loop: asyncio.AbstractEventLoop,
        outbox: Outbox,
        on_full: Callable[[], None],
    ) -> None:
        self.name = name
        self.is_ready = False
        self.is_writable = True
        self.is_marked = False
        self._is_closed = False
        self._options = options
        self._loop = loop
        self._outbox = outbox
        self._on_full = on_full
        self._link: Link | None = None
        self._is_open = False  # True once the handshake is done
        self.peer_frame_max = options.frame_bytes_max
        self._batch_messages_max = options.batch_messages_max
        self._batch_bytes_max = options.batch_bytes_max
        self._bytes_limit = "peer_bytes_max"
        self._bytes_max = options.peer_bytes_max
        self._out: list[Message] = []
        self._sizes: list[int] = []  # upper bound of the bytes of each message
        self.unwritten_bytes = 0
        self._latest: Message | None = None  # a newer one replaces it
        self._kept: dict[int, Call] = {}  # calls that a full link left in `_out`
        self._has_withdrawn = False  # `_out` contains calls that must not be sent
        self.written_bytes = 0
        self._waiters: dict[asyncio.Future[None], int] = {}  # and the bytes of their calls
        self._waiting_bytes = 0
        self._next_id = 0
        self.calls: dict[int, AnswerReceiver] = {}

    def limit_calls(self, name: str, bytes_max: int) -> None:
        """Let at most so many bytes of calls wait here, by a limit other than `peer_bytes_max`."""
        self._bytes_limit, self._bytes_max = name, bytes_max

    def attach(self, link: Link) -> None:
        """Write to this link from now on."""
        self._link = link

    def open(self, hello: Hello) -> None:
        """Finish the handshake: adopt the name and the frame limits of the other process."""
        self._is_open = True
        self.name = hello.sender
        self.peer_frame_max = min(self.peer_frame_max, hello.frame_bytes_max)
        self._batch_bytes_max = min(self._batch_bytes_max, self.peer_frame_max // 2)
        self._batch_messages_max = min(self._batch_messages_max, hello.batch_messages_max)

    def on_writable(self, is_writable: bool) -> None:
        """The link has become full, or accepts bytes again."""
        self.is_writable = is_writable
        self.become_ready()

    def become_ready(self) -> None:
        """Wake the waiting callers in order. Later callers may send at once only after that."""
        if (self._out or self._latest) and self.is_writable:
            self.flush()
        if not (self._is_open and self.is_writable) or self._is_closed:
            self.is_ready = False
            return
        if not self._waiters:
            self.is_ready = True
            return
        waiters, self._waiters, self._waiting_bytes = self._waiters, {}, 0
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        # runs after the wake-ups, so callers that arrive meanwhile queue behind the woken ones
        self._loop.call_soon(self.become_ready)

    async def ready(self, size_bytes: int = 0) -> None:
        """Wait until the handshake is done and the link is writable, in order of arrival.

        The waiting caller holds `size_bytes` meanwhile. Raises SiloUnavailable, Overloaded.
        """
        if self._is_closed:
            raise SiloUnavailable(f"{self.name}: the connection is closed", may_have_run=False)
        if len(self._waiters) >= self._options.waiting_calls_max:
            limit = self._options.waiting_calls_max
            raise Overloaded(f"{self.name}: too many calls wait", "waiting_calls_max", limit)
        if self.is_ready:
            return
        self._check_room(self._waiting_bytes + self.unwritten_bytes, size_bytes)
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = size_bytes
        self._waiting_bytes += size_bytes
        try:
            await waiter
        except asyncio.CancelledError:
            self._waiting_bytes -= self._waiters.pop(waiter, 0)
            raise
        if self._is_closed:  # it closed after this caller was woken
            text = f"{self.name}: the connection closed right after it opened"
            raise SiloUnavailable(text, may_have_run=False)

    def _check_room(self, waiting_bytes: int, size_bytes: int) -> None:
        """Raise Overloaded if too many bytes would wait. A single message may always wait."""
        limit = self._bytes_max
        if waiting_bytes and waiting_bytes + size_bytes > limit:
            raise Overloaded(f"{self.name}: too many bytes wait", self._bytes_limit, limit)

    def close(self, reason: str) -> None:
        """End all outstanding calls with SiloUnavailable, because the link is gone."""
        what = "connection lost" if self.is_ready else "no connection"
        text = f"{self.name}: {what} ({show_text(reason)})"
        self._is_closed, self.is_ready = True, False

        unsent = {message.id for message in self._out if isinstance(message, Call)}
        calls, self.calls = self.calls, {}
        self._out, self._sizes, self.unwritten_bytes, self._kept = [], [], 0, {}
        self._latest = None
        for call_id, receiver in calls.items():
            is_sent = call_id not in unsent
            told = f"{text}; {'the call may have run' if is_sent else 'the call did not run'}"
            receiver.on_broken(SiloUnavailable(told, may_have_run=is_sent, silo=self.name))

        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(SiloUnavailable(text, may_have_run=False))
        self._waiters.clear()

    def send(self, message: Message, size_bytes: int = 0) -> None:
        """Add a message to the batch of this iteration. `size_bytes` counts its body and names."""
        if self._is_closed:
            return
        if not self.is_marked:
            self.is_marked = True
            self._outbox.mark(self)
        size_bytes += SPARE_BYTES
        self._out.append(message)
        self._sizes.append(size_bytes)
        self.unwritten_bytes += size_bytes

    def send_latest(self, message: Message, size_bytes: int) -> None:
        """Write a message once the link has taken all others.

        A newer message replaces it until then. `size_bytes` is an upper bound. A message that
        exceeds the frame limit of the other process is not sent.
        """
        if not self._is_closed and size_bytes + SPARE_BYTES <= self.peer_frame_max:
            self._latest = message
            if not self.is_marked:
                self.is_marked = True
                self._outbox.mark(self)

    def send_call(self, call: Call, receiver: AnswerReceiver, body_bytes: int | None = None) -> int:
        """Send a call and return its id.

        Pass `body_bytes` if the size of the body is known. Raises Overloaded, SiloUnavailable,
        ValueError (too large), TypeError (headers).
        """
        if self._is_closed:
            raise SiloUnavailable(f"{self.name}: the connection is closed", may_have_run=False)
        size = call_bytes(call, body_bytes)
        waiting = self.unwritten_bytes
        if size + SPARE_BYTES > self.peer_frame_max or waiting + size > self._bytes_max:
            self._check_bytes(call, size)
        if len(self.calls) >= self._options.peer_calls_max:
            raise Overloaded(
                f"{self.name}: too many outstanding calls",
                "peer_calls_max",
                self._options.peer_calls_max,
            )
        self._next_id += 1
        call.id = self._next_id
        self.calls[call.id] = receiver
        self.send(call, size)
        return call.id

    def send_one_way(self, call: Call) -> None:
        """Send a call that has no answer. Raises the errors of `send_call`."""
        if self._is_closed:
            raise SiloUnavailable(f"{self.name}: the connection is closed", may_have_run=False)
        size = call_bytes(call)
        self._check_bytes(call, size)
        self.send(call, size)

    def _check_bytes(self, call: Call, size: int) -> None:
        if size + SPARE_BYTES > self.peer_frame_max:
            name = f"{call.kind}/{show_text(call.key)}.{call.method}"
            raise ValueError(
                f"{name}: arguments, key and headers of {size} bytes exceed "
                f"frame_bytes_max {self.peer_frame_max}"
            )
        if self.unwritten_bytes and self.unwritten_bytes + size > self._bytes_max:
            call.body = NIL  # a stored error keeps its Python frames, and these would keep the body
            self._check_room(self.unwritten_bytes, size)

    @property
    def is_idle(self) -> bool:
        """True if no call is outstanding, no message waits to be written, and no caller waits."""
        return not (self.calls or self._out or self._waiters)

    @property
    def oldest_call(self) -> int:
        """The id of the oldest unanswered call, or 0."""
        return next(iter(self.calls), 0)

    def cancel_call(self, call_id: int) -> None:
        """Give up a call: withdraw it if it is not written, else send a Cancel."""
        if self.calls.pop(call_id, None) is None:
            return
        call = self._kept.pop(call_id, None)
        if call is None:
            self.send(Cancel(call_id))
            return
        self._has_withdrawn = True
        self.unwritten_bytes -= call_bytes(call) + SPARE_BYTES
        call.body, call.key, call.headers, call.chain = NIL, "", None, []

    def flush(self) -> None:
        """Write the collected messages in as few frames as possible, until the link is full."""
        self.is_marked = False
        if not (self._out or self._latest) or not self._is_open or self._is_closed:
            return
        if self.is_writable:
            if self._has_withdrawn:
                self._drop_withdrawn()
            out, self._out = self._out, []
            sizes, self._sizes = self._sizes, []
            size, self.unwritten_bytes, self._kept = self.unwritten_bytes, 0, {}
            if len(out) > self._batch_messages_max or size > self._batch_bytes_max:
                self._write_some(out, sizes)
            elif out:
                self.write(out)
            if self._latest and self.is_writable:
                latest, self._latest = self._latest, None
                self.write([latest])
        if not self.is_writable:
            self._on_full()

    def flush_or_mark(self, *, at_once: bool) -> None:
        """Write the messages that were sent since the caller set `is_marked`.

        With `at_once` they are written now, otherwise with all other messages of this iteration.
        """
        self.is_marked = False
        if not (self._out or self._latest):
            return
        if at_once:
            self.flush()
        else:
            self.is_marked = True
            self._outbox.mark(self)

    def _drop_withdrawn(self) -> None:
        pairs = zip(self._out, self._sizes, strict=True)
        left = [(one, size) for one, size in pairs if not self._is_withdrawn(one)]
        self._out, self._sizes = [one for one, _ in left], [size for _, size in left]
        self._has_withdrawn = False

    def _write_some(self, out: list[Message], sizes: list[int]) -> None:
        """Write batches until the link is full, and keep the rest."""
        begin = 0
        for end in cut(sizes, self._batch_messages_max, self._batch_bytes_max):
            if not self.is_writable:
                self._keep(out[begin:], sizes[begin:])
                return
            self.write(out[begin:end])
            begin = end

    def _is_withdrawn(self, message: Message) -> bool:
        return isinstance(message, Call) and message.id != 0 and message.id not in self.calls

    def _keep(self, rest: list[Message], sizes: list[int]) -> None:
        self._out = [*rest, *self._out]
        self._sizes = [*sizes, *self._sizes]
        self.unwritten_bytes += sum(sizes)
        self._kept = {one.id: one for one in rest if isinstance(one, Call) and one.id}

    def write(self, batch: Sequence[Message]) -> None:
        """Write a batch or a handshake message before all waiting messages."""
        assert self._link is not None
        try:
            payload = encode_messages(batch)
        except UNSENDABLE:
            payload, unsendable = encode_what_can_be(batch)
            for message, error in unsendable:
                self._fail_unsendable(message, error)
            if not payload:
                return
        data = len(payload).to_bytes(HEADER_BYTES, "little") + payload  # same as `frame`
        self.written_bytes += len(data)
        self._link.write(data)

    def _fail_unsendable(self, message: Message, error: Exception) -> None:
        text = show_text(f"{type(message).__name__} to {self.name} cannot be sent: {error}")
        log.warning("%s", text)
        if isinstance(message, Call):
            receiver = self.calls.pop(message.id, None)
            if receiver is not None:
                receiver.on_broken(TypeError(text))
