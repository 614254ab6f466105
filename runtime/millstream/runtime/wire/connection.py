"""One peer: handshake, frames that are read, back-pressure.

Owns: the link to one silo, gateway or client, and what was read of it and not taken yet. Not: what
is written (`connection_writer`), the calls that are served (`served_calls`), who is asked what
(`caller`), what runs (`callee`). Invariants: every outstanding call ends exactly once: by an
answer, or by `on_broken` when the link closes; an end that does not take its answers has none of
its calls taken; a message that cannot be read fails alone; garbage closes this connection and
nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from millstream.runtime.env import Env
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.repeated import Repeated
from millstream.runtime.role import Role
from millstream.runtime.tasks import Tasks
from millstream.runtime.text import show_text

from .connection_writer import ConnectionWriter
from .framing import HEADER_BYTES, FrameError, FrameReader, FrameRoom
from .handshake import (
    GREETING_BYTES_MAX,
    REASON_CHARS_MAX,
    Handshake,
    HandshakeError,
    Identity,
    SiloReplaced,
    hello_of,
    role_in,
)
from .message import (
    Call,
    Cancel,
    Failure,
    GatewayView,
    Goodbye,
    Message,
    Ping,
    Redirect,
    Reply,
    Unreadable,
    count_of,
    decode_each,
    decode_messages,
)
from .outbox import Outbox
from .pulse import Pulse, Silence
from .secret import NO_SECRETS, Secrets
from .served_calls import ServedCalls
from .transport import Link

__all__ = ["Inbox", "LocalEnd", "Peer", "Welcome"]

log = logging.getLogger("millstream.connection")

REFUSALS_AT_ONCE = 8
"""Calls refused in one loop iteration: each costs some 100 µs."""
FEW = 16
FEW_MESSAGES = [bytes([0x90 + count]) for count in range(FEW)]  # how arrays of so many begin
FRAMES_AHEAD_MAX = 64
"""Frames that are read and not taken yet; above, the link is not read."""
BYTES_AHEAD_MAX = 2**20
"""Bytes of these frames; above, the link is not read."""
FREE_BYTES = 64 * 1024
"""Frames of clients up to this size are read without asking for room."""
WAITING_BYTES_MAX = 32 * 2**20
"""What is held of frames that wait for room; above, the connection that asks is closed."""
WARNED_EVERY_S = 10.0
"""Warnings about one peer, of one sort, are logged at most this often."""
GARBAGE = (FrameError, msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Inbox(Protocol):
    """What takes the calls that arrive; refuses by answering."""

    def serve(self, peer: Peer, call: Call, /) -> None: ...
    def on_frame_end(self) -> None:
        """A frame of several messages, with calls among them, was given."""
        ...


class Welcome(Protocol):
    """Who is told of the other ends."""

    def on_greeted(self, peer: Peer, /) -> None:
        """It has said, and as a silo proved, who it is."""
        ...

    def leaving(self, peer: Peer, /) -> None:
        """It stops: no new calls to it."""
        ...

    def on_gateways(self, peer: Peer, view: GatewayView, /) -> None:
        """It tells which gateways there are. Raises FrameError: it has no business to."""
        ...


class LocalEnd:
    """This process, to all of its connections.

    Args:
        tasks: makes the timers of connections.
        secrets: those that this process knows.

    `inbox` and `welcome` are given by `open`, before the first connection.
    """

    __slots__ = (
        "_closings",
        "_unreadables",
        "env",
        "identity",
        "inbox",
        "intake",
        "loop",
        "options",
        "outbox",
        "pulse",
        "secrets",
        "tasks",
        "welcome",
    )
    inbox: Inbox
    welcome: Welcome

    def __init__(
        self,
        identity: Identity,
        options: RuntimeOptions,
        loop: asyncio.AbstractEventLoop,
        tasks: Tasks,
        outbox: Outbox,
        env: Env,
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        self.identity = identity
        self.options = options
        self.loop = loop
        self.tasks = tasks
        self.outbox = outbox
        self.env = env
        self.secrets = secrets
        self._closings = Repeated(log, loop.time, WARNED_EVERY_S)
        self._unreadables = Repeated(log, loop.time, WARNED_EVERY_S)
        self.pulse = Pulse(tasks, options.ping_every_s, options.silent_after_s)
        self.intake = Intake(options, loop, tasks)

    def open(self, inbox: Inbox, welcome: Welcome) -> None:
        """From now on calls and greetings have somebody who takes them."""
        self.inbox, self.welcome = inbox, welcome

    def follow(self, table_id: str) -> None:
        """This end goes by another membership table from its next greeting on."""
        self.identity = self.identity._replace(table_id=table_id)

    def greeting(self, is_opener: bool, expected: str) -> Handshake:
        """This end's part of the greeting on a new connection."""
        own = hello_of(self.identity, self.options, self.env)
        return Handshake(own, self.secrets, is_opener=is_opener, expected=expected)

    def warn_closed(self, peer: Peer, reason: str) -> None:
        """Log why this end closes a connection."""
        name, why = peer.name or peer.where, show_text(reason, REASON_CHARS_MAX)
        self._closings.note(f"connection with {name} closed: {why}", about=subject_of(peer))

    def warn_unreadable(self, peer: Peer, why: str) -> None:
        """Log that a call cannot be read."""
        text = f"a call of {peer.name or peer.where} cannot be read: {show_text(why)}"
        self._unreadables.note(text, about=subject_of(peer))


def subject_of(peer: Peer) -> str:
    """The subject of a warning: a peer by its name, or its machine until it has greeted."""
    return peer.name or peer.where.rpartition(":")[0]


class Intake:
    """Lets connections of clients read large frames in turn (`FrameRoom`)."""

    __slots__ = ("_loop", "_options", "_room", "_tasks", "_timer")

    def __init__(
        self, options: RuntimeOptions, loop: asyncio.AbstractEventLoop, tasks: Tasks
    ) -> None:
        self._options = options
        self._loop = loop
        self._tasks = tasks
        self._room = FrameRoom(options.partial_bytes_max, WAITING_BYTES_MAX)
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, peer: Peer, size: int, held_bytes: int) -> bool:
        """May it read a frame of that size now? Else it is told by `read_on`. Raises FrameError."""
        answer = self._room.ask(peer, size, held_bytes, self._loop.time())
        if answer == "full":
            limit = f"partial_bytes_max {self._options.partial_bytes_max}"
            raise FrameError(f"no room for its frame of {size} bytes ({limit}): too many wait")
        self._arm()
        return answer == "read"

    def release(self, peer: Peer) -> None:
        """Its frame is whole, or it is closed."""
        for admitted in self._room.release(peer, self._loop.time()):
            assert isinstance(admitted, Peer)
            admitted.read_on()
        self._arm()

    def _arm(self) -> None:
        """Look at the right time for frames that take too long; not at all while nobody waits."""
        if self._timer is not None:
            self._timer.cancel()
        due_s = self._room.next_late_s(self._options.frame_timeout_s)
        self._timer = None if due_s is None else self._tasks.call_at(due_s, self._end_late)

    def _end_late(self) -> None:
        self._timer = None
        for late in self._room.late(self._loop.time(), self._options.frame_timeout_s):
            assert isinstance(late, Peer)
            late.end_late_frame()
        self._arm()


class Peer:
    """The connection to one other process; also a `LinkReceiver`.

    Args:
        name: whom it leads to; empty for who connects to us.
        on_closed: told once, when it is closed.

    Attributes: `name`, a silo's address or a client's id, once known; `where`, the address of the
    other end of the link; `is_silo`, `role` and `table_id` (the membership table that it follows),
    as the other end has said in its greeting; `writer`, by which it is sent calls and messages;
    `served`, its calls; `takes_several`: the frame that is taken now has more than one message.
    """

    def __init__(self, end: LocalEnd, name: str, on_closed: Callable[[Peer], None]) -> None:
        self.name = name
        self.where = "?"
        self.writer = ConnectionWriter(name, end.options, end.loop, end.outbox, self._on_full)
        self.served = ServedCalls(self.writer, end.options.served_calls_max)
        self.takes_several = False
        self.is_closed = False
        self._end = end
        self._options = end.options
        self._loop = end.loop
        self._inbox = end.inbox
        self._on_closed = on_closed
        self._link: Link | None = None
        self.is_silo = True
        self.role = Role.SILO
        self.table_id = ""
        self.is_leaving = False
        self._is_opener = bool(name)
        self._reader = FrameReader(min(GREETING_BYTES_MAX, end.options.frame_bytes_max))
        self._greeting = end.greeting(self._is_opener, name)
        self._greeting_timer: asyncio.TimerHandle | None = None  # ends one that says nothing
        self._frames: deque[bytes] = deque()  # read, and not taken yet
        self._messages: Sequence[Message | Unreadable] = ()  # the rest of a frame, likewise
        self._is_going_on = False
        self._is_paused = False  # nothing is taken, since answers wait
        self._is_reading = True
        self._frame_bytes = 0  # of the frame that has or awaits room
        self._awaits_room = False
        self._is_heard = False
        self._owes_sign = False
        self._silence = Silence()

    # -- opening and closing

    def attach(self, link: Link) -> None:
        """Take over a link and greet."""
        self._link, self.where = link, link.peer
        limit_s = self._options.greet_timeout_s
        self._greeting_timer = self._end.tasks.call_later(
            limit_s, lambda: self.close(f"no greeting within {limit_s:g} s (greet_timeout_s)")
        )
        self.writer.attach(link)
        self.writer.write([self._greeting.own])
        link.start(self)

    def _hear_greeting(self, payload: bytes) -> None:
        try:
            for answer in self._greeting.take(decode_messages(payload)):
                self.writer.write([answer])
        except SiloReplaced as error:  # as is to be expected after a restart
            log.info("%s", error)
            self.close(str(error))
            return
        except HandshakeError as error:
            if self._is_opener:
                raise
            self.writer.write([Goodbye(str(error))])
            self._end.warn_closed(self, str(error))
            self.close(str(error))
            return
        if self._greeting.is_done:
            self._greet()

    def _greet(self) -> None:
        """The other end is who it says."""
        hello = self._greeting.other
        assert hello is not None
        self._stop_waiting()
        self._reader.limit_bytes = self._options.frame_bytes_max
        self.writer.open(hello)
        self.is_silo, self.role, self.name = hello.is_silo, role_in(hello), hello.sender
        self.table_id = hello.table_id
        self._end.pulse.add(self)
        self._end.welcome.on_greeted(self)
        self.writer.become_ready()

    @property
    def refusal(self) -> HandshakeError | None:
        """Why this end and the other will never talk, if the greeting has shown that."""
        return self._greeting.refusal

    def _stop_waiting(self) -> None:
        if self._greeting_timer is not None:
            self._greeting_timer.cancel()
            self._greeting_timer = None

    def close(self, reason: str) -> None:
        """Close the link; what is outstanding breaks with SiloUnavailable."""
        if self._link is not None:
            self._link.close()
        self.on_closed(reason)

    def on_closed(self, reason: str, /) -> None:
        """The link is gone (called by the link too)."""
        if self.is_closed:
            return
        self.is_closed = True
        self._stop_waiting()
        self._end.pulse.remove(self)
        self.writer.close(reason)
        self.served.cancel_all()
        self._frames.clear()
        self._messages = ()
        self._give_room()
        self._on_closed(self)

    def _on_full(self) -> None:
        """Take no calls of an end that we serve while too much waits for it (called by the writer,
        as the link is full)."""
        if self._is_opener or self._link is None or self.is_closed:
            return
        waiting = self.writer.unwritten_bytes + self._link.waiting_bytes
        limit = self._options.unread_bytes_max
        if waiting > limit:
            self._abort(f"{waiting} bytes of answers wait for it (unread_bytes_max {limit})")
        elif waiting > self._options.answer_bytes_max:
            self._is_paused = True
            self._set_reading()

    # -- receiving (LinkReceiver)

    def writable(self, is_writable: bool, /) -> None:
        self.writer.on_writable(is_writable)
        if self._is_paused and self.writer.is_writable:  # what waited has not filled it again
            self._is_paused = False
            self._go_on_soon()
            self._set_reading()

    def on_received(self, data: bytes, /) -> None:
        if self.is_closed:
            return
        self._is_heard = True
        try:
            payloads = self._reader.feed(data)
            if self._frames or self._messages or self._is_paused:
                self._frames.extend(payloads)
                self._set_reading()
            elif len(payloads) == 1 and self._greeting.is_done:
                self._take_messages(decode_frame(payloads[0], self._options.batch_messages_max))
            elif payloads:
                self._frames.extend(payloads)
                self._take_frames()
            if self._frame_bytes or self._reader.need > FREE_BYTES:
                self._see_to_room(bool(payloads))
        except GARBAGE as error:
            self._abort(str(error))

    def _see_to_room(self, is_whole: bool) -> None:
        """Ask for room when a client begins a large frame; give it back when that is whole."""
        if is_whole and self._frame_bytes:
            self._give_room()
        size = self._reader.need - HEADER_BYTES
        is_asking = size > FREE_BYTES and not self._frame_bytes and not self.is_closed
        if is_asking and self._greeting.is_done and not (self.is_silo or self._is_opener):
            self._frame_bytes = size
            self._awaits_room = not self._end.intake.ask(self, size, self._reader.held_bytes)
            self._set_reading()

    def _give_room(self) -> None:
        if self._frame_bytes:
            self._frame_bytes, self._awaits_room = 0, False
            self._end.intake.release(self)

    def read_on(self) -> None:
        """There is room for its frame now (called by the intake)."""
        self._awaits_room = False
        self._set_reading()

    def end_late_frame(self) -> None:
        """Others have waited too long for the room of its frame (called by the intake)."""
        options, held = self._options, self._reader.held_bytes
        self._abort(
            f"its frame of {self._frame_bytes} bytes did not arrive within "
            f"{options.frame_timeout_s:g} s (frame_timeout_s; {held} bytes came), and others wait "
            f"for room (partial_bytes_max {options.partial_bytes_max})"
        )

    def _take_frames(self) -> None:
        """Take frames; from the second one with calls on they wait for the next iteration."""
        has_called = False
        while self._frames and not (self.is_closed or self._is_paused or self._messages):
            payload = self._frames.popleft()
            if not self._greeting.is_done:
                self._hear_greeting(payload)
                self._frames.extend(self._reader.feed(b""))  # what the greeting made readable
                self._see_to_room(is_whole=False)
                continue
            messages = decode_frame(payload, self._options.batch_messages_max)
            if has_called and any(type(message) is Call for message in messages):
                self._messages = messages
                self._go_on_soon()
                break
            has_called |= self._take_messages(messages)
        self._set_reading()

    def _go_on_soon(self) -> None:
        if not self._is_going_on:
            self._is_going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take some more of what was read."""
        self._is_going_on = False
        if self.is_closed or self._is_paused:
            return
        try:
            messages, self._messages = self._messages, ()
            if messages:
                self._take_messages(messages)
            if not self._messages:
                self._take_frames()
        except GARBAGE as error:
            self._abort(str(error))

    def _set_reading(self) -> None:
        """Read the link unless enough was read already."""
        is_ahead = len(self._frames) > FRAMES_AHEAD_MAX or (
            sum(map(len, self._frames)) > BYTES_AHEAD_MAX
        )
        is_wanted = not (self._is_paused or self._awaits_room or is_ahead)
        if is_wanted != self._is_reading and self._link is not None:
            self._is_reading = is_wanted
            self._link.reading(is_wanted)

    def _abort(self, reason: str) -> None:
        self._end.warn_closed(self, reason)
        if self._link is not None:
            self._link.abort()
        self.on_closed(reason)

    def _take_messages(self, messages: Sequence[Message | Unreadable]) -> bool:
        """Take what a frame had; True if calls were among it. What is answered at once leaves."""
        writer, was_marked = self.writer, self.writer.is_marked
        writer.is_marked = True  # what is sent meanwhile is written below
        self.served.refusals, self.takes_several, has_called = 0, len(messages) > 1, False
        try:
            for at, message in enumerate(messages):
                if type(message) is Call:
                    if message.id in self.served.calls:
                        raise FrameError(f"call id {message.id} is in use")
                    has_called = True
                    self._inbox.serve(self, message)
                    if self.served.refusals >= REFUSALS_AT_ONCE:
                        self._messages = messages[at + 1 :]
                        self._go_on_soon()
                        break
                elif type(message) is Reply:
                    receiver = writer.calls.pop(message.id, None)
                    if receiver is not None:
                        receiver.reply(message.body)
                else:
                    self._take_other(message)
        finally:
            if has_called and self.takes_several:
                self._inbox.on_frame_end()
            if self._owes_sign:
                self._owes_sign = False
                writer.send(Ping(False))
            if not was_marked:
                writer.flush_or_mark(at_once=has_called)
        if self.is_leaving and not self._messages:
            self._loop.call_soon(self._finish_leaving)
        return has_called

    def _finish_leaving(self) -> None:
        """The other side stops: close once it has answered everything."""
        waits = self.served.calls or self._frames or not self.writer.is_idle
        if not (waits or self.is_closed):
            self.close("the other side stops")

    @property
    def is_serving(self) -> bool:
        """Are there calls of this peer that are not answered yet, or answers not written?"""
        return not self.is_closed and bool(
            self.served.calls or self.writer.unwritten_bytes or self._frames or self._messages
        )

    def _take_other(self, message: Message | Unreadable) -> None:
        match message:
            case Failure(id=call_id, body=body):
                receiver = self.writer.calls.pop(call_id, None)
                if receiver is not None:
                    receiver.failure(body)
            case Redirect(id=call_id, silo=silo):
                receiver = self.writer.calls.pop(call_id, None)
                if receiver is not None:
                    receiver.redirect(silo)
            case Cancel(id=call_id):
                self.served.cancel(call_id)
            case Ping(wants_answer=wants_answer):
                self._owes_sign |= wants_answer
            case Goodbye():
                self.is_leaving = True
                self._end.welcome.leaving(self)
                # those that the greeting woke in this iteration send what they have first
                self._loop.call_soon(self._finish_leaving)
            case GatewayView():
                self._end.welcome.on_gateways(self, message)
            case Unreadable():
                self.served.refuse_unreadable(message)
                self._end.warn_unreadable(self, message.why)
            case _:
                raise FrameError(f"unexpected {type(message).__name__}")

    def check_pulse(self, looks_max: int, /) -> None:
        """Ask for a sign after a silence; close after one that is too long."""
        assert self._link is not None
        if self._awaits_room:  # it is not heard because it is not read, and cannot know that
            self._silence = Silence()
            self.writer.send(Ping(False))
            return
        waiting = self._link.waiting_bytes
        is_heard, self._is_heard = self._is_heard, False
        looks = self._silence.look(is_heard, waiting, self.writer.written_bytes)
        if looks > looks_max:
            limit_s = self._options.silent_after_s
            self._abort(f"it said and took nothing for {limit_s:g} s (silent_after_s)")
        elif looks:
            self.writer.send(Ping(True))


def decode_frame(payload: bytes, limit: int) -> Sequence[Message | Unreadable]:
    """The messages of a frame. Raises FrameError above the limit, and one of GARBAGE."""
    if limit < FEW or payload[:1] not in FEW_MESSAGES:
        count = count_of(payload)
        if count > limit:
            raise FrameError(f"frame of {count} messages exceeds batch_messages_max {limit}")
    try:
        messages: Sequence[Message] = decode_messages(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode_each(payload)
    return messages
