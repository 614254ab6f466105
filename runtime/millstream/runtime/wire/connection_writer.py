"""The writing half of a connection: calls sent, and what waits to be written.

Owns: the batch of this loop iteration, the calls outstanding, who waits until calls are taken. Not:
the greeting, what is read (`connection`), where batches are cut (`batch`). Invariants: messages
leave in the order in which they were given; all that is given in one loop iteration leaves in as
few frames as the limits allow; a link that is full is given no more, so what waits here can still
be withdrawn, and its bytes are counted; a message that cannot be encoded fails alone. The one
exception to the order is a message that a later one replaces: one of these waits at most, until all
others are written.
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
    """Who waits for the answer of a call; exactly one method is called, once."""

    def reply(self, body: msgspec.Raw, /) -> None: ...
    def failure(self, body: msgspec.Raw, /) -> None: ...
    def redirect(self, silo: str, /) -> None: ...
    def on_broken(self, error: Exception, /) -> None: ...


class ConnectionWriter:
    """Sends calls and messages over a connection.

    Args:
        name: the other end, in errors; empty if it opened the connection, until it has greeted.
        on_full: called after each flush that leaves the link full.

    Attributes: `is_ready`, calls may be sent at once; `is_writable`, the link takes more;
    `is_marked`, a flush is to come, so that `send` asks the outbox for none; `peer_frame_max`,
    bytes of the largest frame that the other end takes; `calls`, those that are not answered yet,
    by id; `unwritten_bytes`, of the messages that wait here; `written_bytes`, of all that the link
    was given.
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
        self._is_open = False  # the other end has greeted
        self.peer_frame_max = options.frame_bytes_max
        self._batch_messages_max = options.batch_messages_max
        self._batch_bytes_max = options.batch_bytes_max
        self._bytes_max = options.peer_bytes_max
        self._out: list[Message] = []
        self._sizes: list[int] = []  # bytes that each of them takes, at most
        self.unwritten_bytes = 0
        self._latest: Message | None = None  # replaced as long as it is not written
        self._kept: dict[int, Call] = {}  # calls that a full link left in `_out`, by id
        self._has_withdrawn = False  # calls in `_out` that are not sent any more
        self.written_bytes = 0
        self._waiters: dict[asyncio.Future[None], int] = {}  # with the bytes that they hold
        self._waiting_bytes = 0
        self._next_id = 0
        self.calls: dict[int, AnswerReceiver] = {}

    def attach(self, link: Link) -> None:
        """Write to this link from now on."""
        self._link = link

    def open(self, hello: Hello) -> None:
        """The other end has greeted, and takes no larger frames than it says."""
        self._is_open = True
        self.name = hello.sender
        self.peer_frame_max = min(self.peer_frame_max, hello.frame_bytes_max)
        self._batch_bytes_max = min(self._batch_bytes_max, self.peer_frame_max // 2)
        self._batch_messages_max = min(self._batch_messages_max, hello.batch_messages_max)

    def on_writable(self, is_writable: bool) -> None:
        """The link takes more, or is full."""
        self.is_writable = is_writable
        self.become_ready()

    def become_ready(self) -> None:
        """Wake those who wait, in order; only then may newcomers send at once."""
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
        # runs after the wake-ups: who came meanwhile waits behind them
        self._loop.call_soon(self.become_ready)

    async def ready(self, size_bytes: int = 0) -> None:
        """Wait, after those who came before, until greeted and writable; the caller holds so many
        bytes meanwhile.

        Raises SiloUnavailable, Overloaded.
        """
        if self._is_closed:
            raise SiloUnavailable(f"{self.name}: the connection is closed", may_have_run=False)
        if len(self._waiters) >= self._options.waiting_calls_max:
            limit = self._options.waiting_calls_max
            raise Overloaded(f"{self.name} does not read", "waiting_calls_max", limit)
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
        if self._is_closed:  # since it woke those who wait
            text = f"{self.name}: the connection closed as it opened"
            raise SiloUnavailable(text, may_have_run=False)

    def _check_room(self, waiting_bytes: int, size_bytes: int) -> None:
        """Raise Overloaded if so much more would wait; a single message always may."""
        limit = self._options.peer_bytes_max
        if waiting_bytes and waiting_bytes + size_bytes > limit:
            raise Overloaded(f"{self.name}: bytes that wait for it", "peer_bytes_max", limit)

    def close(self, reason: str) -> None:
        """The link is gone: what is outstanding breaks with SiloUnavailable."""
        self._is_closed, self.is_ready = True, False
        text = f"{self.name}: connection lost ({show_text(reason)})"
        unsent = {message.id for message in self._out if isinstance(message, Call)}
        calls, self.calls = self.calls, {}
        self._out, self._sizes, self.unwritten_bytes, self._kept = [], [], 0, {}
        self._latest = None
        for call_id, receiver in calls.items():
            is_sent = call_id not in unsent
            receiver.on_broken(SiloUnavailable(text, may_have_run=is_sent, silo=self.name))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(SiloUnavailable(text, may_have_run=False))
        self._waiters.clear()

    def send(self, message: Message, size_bytes: int = 0) -> None:
        """Put a message with so many bytes of body and names into this iteration's batch."""
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
        """Write a message of at most so many bytes once the link has taken all others.

        Until then another one replaces it. Nothing is sent that the other end would not take.
        """
        if not self._is_closed and size_bytes + SPARE_BYTES <= self.peer_frame_max:
            self._latest = message
            if not self.is_marked:
                self.is_marked = True
                self._outbox.mark(self)

    def send_call(self, call: Call, receiver: AnswerReceiver, body_bytes: int | None = None) -> int:
        """Send a call; returns its id. `body_bytes`: of its body, where they are known.

        Raises Overloaded, SiloUnavailable, ValueError (too large), TypeError (headers).
        """
        if self._is_closed:
            raise SiloUnavailable(f"{self.name}: the connection is closed", may_have_run=False)
        size = call_bytes(call, body_bytes)
        waiting = self.unwritten_bytes
        if size + SPARE_BYTES > self.peer_frame_max or waiting + size > self._bytes_max:
            self._check_bytes(call, size)
        if len(self.calls) >= self._options.peer_calls_max:
            raise Overloaded(
                f"{self.name}: calls outstanding", "peer_calls_max", self._options.peer_calls_max
            )
        self._next_id += 1
        call.id = self._next_id
        self.calls[call.id] = receiver
        self.send(call, size)
        return call.id

    def send_one_way(self, call: Call) -> None:
        """Send a call that has no answer. Raises as `send_call`."""
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
        if self.unwritten_bytes and self.unwritten_bytes + size > self._options.peer_bytes_max:
            call.body = NIL  # the error may be kept, and its frames with it
            self._check_room(self.unwritten_bytes, size)

    @property
    def is_idle(self) -> bool:
        """Is no call outstanding, does no message wait to be written, and nobody to send one?"""
        return not (self.calls or self._out or self._waiters)

    @property
    def oldest_call(self) -> int:
        """The id of the call that waits longest for its answer; 0: none."""
        return next(iter(self.calls), 0)

    def cancel_call(self, call_id: int) -> None:
        """Nobody waits any more: withdraw the call, or tell the callee."""
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
        """Write what has collected, as few frames as the limits allow, while the link takes it."""
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
        """Write what was sent since the caller set `is_marked`: at once, or with all else that
        this iteration sends."""
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
        """Write batch after batch until the link is full; keep the rest."""
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
        """Write messages before all that wait: those of the handshake, and batches."""
        assert self._link is not None
        try:
            payload = encode_messages(batch)
        except UNSENDABLE:
            payload, unsendable = encode_what_can_be(batch)
            for message, error in unsendable:
                self._fail_unsendable(message, error)
            if not payload:
                return
        data = len(payload).to_bytes(HEADER_BYTES, "little") + payload  # as `frame`
        self.written_bytes += len(data)
        self._link.write(data)

    def _fail_unsendable(self, message: Message, error: Exception) -> None:
        text = show_text(f"{type(message).__name__} to {self.name} cannot be sent: {error}")
        log.warning("%s", text)
        if isinstance(message, Call):
            receiver = self.calls.pop(message.id, None)
            if receiver is not None:
                receiver.on_broken(TypeError(text))
