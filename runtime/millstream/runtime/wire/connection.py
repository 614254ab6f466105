"""One peer: handshake, frames, batches, correlation of calls, back-pressure.

Owns: the link to one silo, gateway or client, the calls outstanding on it, and its outgoing
batch. Not: who is asked what (`calls`), what runs (`serving`). Invariants: messages leave in the
order in which they were given; all that is given in one loop iteration leaves in as few frames as
the limits allow; every outstanding call ends exactly once: by an answer, or by `broken` when the
link closes; garbage closes this connection and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from millstream.runtime.codec.failures import describe
from millstream.runtime.errors import Overloaded, SiloUnavailable
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.tasks import Tasks

from .framing import FrameError, FrameReader, frame
from .greeting import Identity, check_hello
from .message import (
    WIRE_VERSION,
    Call,
    Cancel,
    Failure,
    Goodbye,
    Hello,
    Message,
    Redirect,
    Reply,
    decode_messages,
    encode_messages,
)
from .outbox import Outbox
from .transport import Link

__all__ = ["AnswerReceiver", "Cancellable", "Inbox", "LocalEnd", "Peer", "Welcome"]

log = logging.getLogger("millstream.connection")

SPARE_BYTES = 256  # what the small parts of a message may take beside body and names


class AnswerReceiver(Protocol):
    """Who waits for the answer of a call; exactly one method is called, once."""

    def reply(self, body: msgspec.Raw, /) -> None: ...
    def failure(self, body: msgspec.Raw, /) -> None: ...
    def redirect(self, silo: str, /) -> None: ...
    def broken(self, error: Exception, /) -> None: ...


class Cancellable(Protocol):
    """A call that runs or waits here for its caller."""

    def cancel(self) -> None: ...


class Inbox(Protocol):
    """What takes the calls that arrive; refuses by answering."""

    def serve(self, peer: Peer, call: Call, /) -> None: ...


class Welcome(Protocol):
    """Who is told of the other ends."""

    def greeted(self, peer: Peer, /) -> None:
        """It has said who it is."""
        ...

    def leaving(self, peer: Peer, /) -> None:
        """It stops: no new calls to it."""
        ...


class LocalEnd:
    """This process, to all of its connections.

    `inbox` and `welcome` are given by `open`, before the first connection.
    """

    __slots__ = ("identity", "inbox", "loop", "options", "outbox", "tasks", "welcome")
    inbox: Inbox
    welcome: Welcome

    def __init__(
        self,
        identity: Identity,
        options: RuntimeOptions,
        loop: asyncio.AbstractEventLoop,
        tasks: Tasks,
        outbox: Outbox,
    ) -> None:
        self.identity = identity
        self.options = options
        self.loop = loop
        self.tasks = tasks
        self.outbox = outbox

    def open(self, inbox: Inbox, welcome: Welcome) -> None:
        """From now on calls and greetings have somebody who takes them."""
        self.inbox, self.welcome = inbox, welcome


class Peer:
    """The connection to one other process; also a `LinkReceiver`."""

    def __init__(self, end: LocalEnd, name: str, on_closed: Callable[[Peer], None]) -> None:
        self._end = end
        self._inbox = end.inbox
        self._outbox = end.outbox
        self._loop = end.loop
        self._options = end.options
        self._on_closed = on_closed
        self.name = name  # silo address, or client id, once known
        self.is_silo = True
        self.is_ready = False
        self.is_closed = False
        self.is_leaving = False
        self._link: Link | None = None
        self._reader = FrameReader(end.options.frame_bytes_max)
        self._greeted = False
        self._greeting: asyncio.TimerHandle | None = None  # ends a connection that says nothing
        self._peer_frame_max = end.options.frame_bytes_max
        self._batch_bytes_max = min(end.options.batch_bytes_max, self._peer_frame_max // 2)
        self._out: list[Message] = []
        self._out_bytes = 0
        self._is_marked = False
        self._is_writable = True
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._next_id = 0
        self._calls: dict[int, AnswerReceiver] = {}
        self._served: dict[int, Cancellable | None] = {}

    # -- opening and closing

    def attach(self, link: Link) -> None:
        """Take over a link and greet."""
        self._link = link
        own, limit = self._end.identity, self._options.frame_bytes_max
        hello = Hello(WIRE_VERSION, own.cluster, own.address, own.is_silo, limit)
        limit_s = self._options.greet_timeout_s
        self._greeting = self._end.tasks.call_later(limit_s, self._close_silent)
        link.write(frame(encode_messages([hello])))
        link.start(self)

    def _close_silent(self) -> None:
        limit_s = self._options.greet_timeout_s
        self.close(f"no greeting within {limit_s:g} s (greet_timeout_s)")

    def _greet(self, message: Message) -> None:
        hello = check_hello(message, self._end.identity, self.name)
        self._greeted = True
        self._stop_waiting()
        self._peer_frame_max = min(self._peer_frame_max, hello.frame_bytes_max)
        self._batch_bytes_max = min(self._batch_bytes_max, self._peer_frame_max // 2)
        self.is_silo, self.name = hello.is_silo, hello.sender
        self._end.welcome.greeted(self)
        self._become_ready()

    def _stop_waiting(self) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
            self._greeting = None

    def _become_ready(self) -> None:
        """Wake those who wait, in order; only then is the peer ready for newcomers."""
        if not (self._greeted and self._is_writable) or self.is_closed:
            self.is_ready = False
            return
        if self._out:
            self.flush()
        if not self._waiters:
            self.is_ready = True
            return
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        # runs after the wake-ups: who came meanwhile waits in line, too
        self._loop.call_soon(self._become_ready)

    async def ready(self) -> None:
        """Wait in line until greeted and writable. Raises SiloUnavailable, Overloaded."""
        limit = self._options.waiting_calls_max
        if self.is_closed:
            raise SiloUnavailable(f"{self.name}: the connection is closed")
        if len(self._waiters) >= limit:
            raise Overloaded(f"{self.name} does not read", "waiting_calls_max", limit)
        if not self.is_ready:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
            if self.is_closed:  # since it woke those who wait
                raise SiloUnavailable(f"{self.name}: the connection closed as it opened")

    def close(self, reason: str) -> None:
        """Close the link; what is outstanding breaks with SiloUnavailable."""
        if self._link is not None:
            self._link.close()
        self.closed(reason)

    def closed(self, reason: str, /) -> None:
        """The link is gone (called by the link too)."""
        if self.is_closed:
            return
        self.is_closed, self.is_ready = True, False
        self._stop_waiting()
        text = f"{self.name}: connection lost ({reason})"
        for receiver in list(self._calls.values()):
            receiver.broken(SiloUnavailable(text))
        self._calls.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(SiloUnavailable(text))
        self._waiters.clear()
        for served in list(self._served.values()):
            if served is not None:
                served.cancel()
        self._served.clear()
        self._out.clear()
        self._out_bytes = 0
        self._on_closed(self)

    # -- sending

    def send(self, message: Message, size_bytes: int = 0) -> None:
        """Put a message with so many bytes of body and names into this iteration's batch."""
        if self.is_closed:
            return
        if not self._is_marked:
            self._is_marked = True
            self._outbox.mark(self)
        self._out.append(message)
        self._out_bytes += size_bytes + SPARE_BYTES

    def send_call(self, call: Call, receiver: AnswerReceiver) -> int:
        """Send a call; returns its id. Raises Overloaded, SiloUnavailable, TypeError (too big)."""
        if self.is_closed:
            raise SiloUnavailable(f"{self.name}: the connection is closed")
        size = self._size_of(call)
        if len(self._calls) >= self._options.peer_calls_max:
            raise Overloaded(
                f"{self.name}: calls outstanding", "peer_calls_max", self._options.peer_calls_max
            )
        self._next_id += 1
        call.id = self._next_id
        self._calls[call.id] = receiver
        self.send(call, size)
        return call.id

    def send_one_way(self, call: Call) -> None:
        """Send a call that has no answer."""
        self.send(call, self._size_of(call))

    def _size_of(self, call: Call) -> int:
        """Bytes of body and names, at most. Raises ValueError (too large for a frame)."""
        size = len(memoryview(call.body))
        letters = len(call.kind) + len(call.key) + len(call.method) + len(call.caller)
        if call.chain:
            letters += sum(map(len, call.chain))
        if call.headers:
            letters += sum(len(name) + len(text) for name, text in call.headers.items())
        if size + 4 * letters + SPARE_BYTES > self._peer_frame_max:
            raise ValueError(
                f"{call.kind}/{call.key}.{call.method}: arguments of {size} bytes exceed "
                f"frame_bytes_max {self._peer_frame_max}"
            )
        return size + 4 * letters

    @property
    def oldest_call(self) -> int:
        """The id of the call that waits longest for its answer; 0: none."""
        return next(iter(self._calls), 0)

    def cancel_call(self, call_id: int) -> None:
        """Tell the callee that nobody waits any more."""
        if self._calls.pop(call_id, None) is not None:
            self.send(Cancel(call_id))

    def answer(self, call_id: int, message: Reply | Failure | Redirect) -> None:
        """Answer a served call, unless the caller gave it up or is gone."""
        if call_id not in self._served:
            return
        del self._served[call_id]
        size = 0
        if not isinstance(message, Redirect):
            size = len(memoryview(message.body))
            if size + SPARE_BYTES > self._peer_frame_max:
                message = self._too_large(message, size)
        self.send(message, size)

    def refuse(self, call_id: int, failure: Failure) -> None:
        """Answer a call that does not run, registered or not; one-way calls get no answer.

        Calls above `served_calls_max` are answered like this, so it counts none.
        """
        if call_id:
            self._served[call_id] = None
            self.answer(call_id, failure)

    def _too_large(self, message: Reply | Failure, size: int) -> Failure:
        what = "result" if isinstance(message, Reply) else "error"
        error = ValueError(f"{what} of {size} bytes exceeds frame_bytes_max {self._peer_frame_max}")
        return Failure(message.id, msgspec.Raw(describe(error, self.name)))

    def forget_served(self, call_id: int) -> None:
        """The call is over, answered or not."""
        self._served.pop(call_id, None)

    def flush(self) -> None:
        """Write what has collected, as few frames as the limits allow."""
        self._is_marked = False
        if not self._out or self._link is None or not self._greeted or self.is_closed:
            return
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        fits = len(out) <= self._options.batch_messages_max and size <= self._batch_bytes_max
        for batch in [out] if fits else self._batches(out):
            self._link.write(frame(encode_messages(batch)))

    def _batches(self, out: list[Message]) -> list[list[Message]]:
        batches: list[list[Message]] = []
        batch: list[Message] = []
        size = 0
        for message in out:
            body = getattr(message, "body", None)
            grows_by = SPARE_BYTES if body is None else SPARE_BYTES + len(memoryview(body))
            if batch and (
                len(batch) >= self._options.batch_messages_max
                or size + grows_by > self._batch_bytes_max
            ):
                batches.append(batch)
                batch, size = [], 0
            batch.append(message)
            size += grows_by
        batches.append(batch)
        return batches

    # -- receiving (LinkReceiver)

    def writable(self, is_writable: bool, /) -> None:
        self._is_writable = is_writable
        self._become_ready()

    def received(self, data: bytes, /) -> None:
        if self.is_closed:
            return
        try:
            for payload in self._reader.feed(data):
                self._take_frame(payload)
        except (FrameError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            log.warning("connection with %s closed: %s", self._who(), error)
            self._abort(str(error))

    def _who(self) -> str:
        return self.name or (self._link.peer if self._link is not None else "?")

    def _abort(self, reason: str) -> None:
        if self._link is not None:
            self._link.abort()
        self.closed(reason)

    def _take_frame(self, payload: bytes) -> None:
        messages = decode_messages(payload)
        if not self._greeted:
            if len(messages) != 1:
                raise FrameError("the first frame must be one Hello")
            self._greet(messages[0])
            return
        for message in messages:
            if type(message) is Call:
                self._take_call(message)
            elif type(message) is Reply:
                receiver = self._calls.pop(message.id, None)
                if receiver is not None:
                    receiver.reply(message.body)
            else:
                self._take_other(message)
        if self.is_leaving:
            self._finish_leaving()

    def _finish_leaving(self) -> None:
        """The other side stops: close once it has answered everything."""
        if not (self._calls or self._out or self._served or self.is_closed):
            self.close("the other side stops")

    @property
    def is_serving(self) -> bool:
        """Are there calls of this peer that are not answered yet, or answers not written?"""
        return not self.is_closed and bool(self._served or self._out)

    def _take_call(self, call: Call) -> None:
        if call.id in self._served:
            raise FrameError(f"call id {call.id} is in use")
        self._inbox.serve(self, call)

    def watch_served(self, call_id: int, served: Cancellable | None) -> None:
        """Register a call before it runs, so that a Cancel in the same batch finds it.

        Raises Overloaded at `served_calls_max`.
        """
        if not call_id:
            return
        if len(self._served) >= self._options.served_calls_max:
            raise Overloaded(
                "calls being served", "served_calls_max", self._options.served_calls_max
            )
        self._served[call_id] = served

    def _take_other(self, message: Message) -> None:
        match message:
            case Failure(id=call_id, body=body):
                receiver = self._calls.pop(call_id, None)
                if receiver is not None:
                    receiver.failure(body)
            case Redirect(id=call_id, silo=silo):
                receiver = self._calls.pop(call_id, None)
                if receiver is not None:
                    receiver.redirect(silo)
            case Cancel(id=call_id):
                served = self._served.pop(call_id, None)
                if served is not None:
                    served.cancel()
            case Goodbye():
                self.is_leaving = True
                self._end.welcome.leaving(self)
                self._finish_leaving()
            case _:
                raise FrameError(f"unexpected {type(message).__name__}")
