"""One connection: handshake, received frames, and back-pressure.

`Peer` owns the link to one silo, gateway or client, and the received frames that are not processed
yet. Other modules do the rest: `connection_writer` sends messages, `served_calls` keeps the calls
that this process serves, `caller` makes calls and `callee` runs them.

Invariants:

- Every outstanding call ends exactly once, by an answer or by `on_broken` when the link closes.
- This process takes no calls from a peer that does not read its answers.
- A call that cannot be read fails alone. Other unreadable bytes close this connection and no other.
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
    VersionedCall,
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
"""Number of calls that one loop iteration refuses at most. Refusing a call costs about 100 µs."""
FEW = 16
FEW_MESSAGES = [bytes([0x90 + count]) for count in range(FEW)]  # first bytes of short arrays
FRAMES_AHEAD_MAX = 64
"""Received frames that may wait to be processed. Above this number the link is not read."""
BYTES_AHEAD_MAX = 2**20
"""Bytes of these frames. Above this number the link is not read."""
FREE_BYTES = 64 * 1024
"""Client frames up to this size are read without a reservation in `FrameRoom`."""
WAITING_BYTES_MAX = 32 * 2**20
"""Bytes that are buffered of all frames that wait for room.

Above this number, a connection that asks for room is closed.
"""
WARNED_EVERY_S = 10.0
"""Shortest time in seconds between two warnings of one kind about one peer."""
GARBAGE = (FrameError, msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Inbox(Protocol):
    """Receiver of the calls that arrive on connections. It refuses a call by answering it."""

    def serve(self, peer: Peer, call: Call, /) -> None: ...
    def on_frame_end(self) -> None:
        """Called after a frame of several messages that contained calls."""
        ...


class Welcome(Protocol):
    """Receiver of events about peers."""

    def on_greeted(self, peer: Peer, /) -> None:
        """The handshake with the peer is done. A silo has proved its identity by then."""
        ...

    def leaving(self, peer: Peer, /) -> None:
        """The peer shuts down, so this process must send it no new calls."""
        ...

    def on_gateways(self, peer: Peer, view: GatewayView, /) -> None:
        """The peer sent the list of gateways. Raises FrameError if this process accepts none."""
        ...


class LocalEnd:
    """The data that all connections of this process share.

    Args:
        tasks: creates the timers of connections.
        secrets: the secrets that this process knows.

    `open` sets `inbox` and `welcome` before the first connection exists.
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
        "received_bytes",
        "secrets",
        "sent_bytes",
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
        self.received_bytes = self.sent_bytes = 0  # by all connections

    def open(self, inbox: Inbox, welcome: Welcome) -> None:
        """Set the receivers of calls and peer events."""
        self.inbox, self.welcome = inbox, welcome

    def follow(self, table_id: str) -> None:
        """Use another membership table id in every later handshake."""
        self.identity = self.identity._replace(table_id=table_id)

    def greeting(self, is_opener: bool, expected: str) -> Handshake:
        """Create this process's part of the handshake on a new connection."""
        own = hello_of(self.identity, self.options, self.env)
        return Handshake(own, self.secrets, is_opener=is_opener, expected=expected)

    def warn_closed(self, peer: Peer, reason: str) -> None:
        """Log the reason why this process closes a connection."""
        name, why = peer.name or peer.where, show_text(reason, REASON_CHARS_MAX)
        self._closings.note(f"connection with {name} closed: {why}", about=subject_of(peer))

    def warn_unreadable(self, peer: Peer, why: str) -> None:
        """Log that a call cannot be read."""
        text = f"a call of {peer.name or peer.where} cannot be read: {show_text(why)}"
        self._unreadables.note(text, about=subject_of(peer))


def hint_at_tls(link: Link) -> str:
    """Return the likely reason why a process closed a new connection without a word."""
    if link.certified is None:
        return "if it uses TLS, pass tls=Tls(...) or --tls"
    return "it may not accept this certificate, as its log says"


def subject_of(peer: Peer) -> str:
    """Return the subject of a warning: the peer's name, or its host during the handshake."""
    return peer.name or peer.where.rpartition(":")[0]


class Intake:
    """Admission of large frames from clients, one after the other (see `FrameRoom`)."""

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
        """Return True if the peer may read a frame of this size now.

        If the result is False, the intake calls `read_on` of the peer later. Raises FrameError if
        too many frames wait.
        """
        answer = self._room.ask(peer, size, held_bytes, self._loop.time())
        if answer == "full":
            limit = f"partial_bytes_max {self._options.partial_bytes_max}"
            raise FrameError(f"no room for a frame of {size} bytes ({limit}): too many frames wait")
        self._arm()
        return answer == "read"

    def release(self, peer: Peer) -> None:
        """Give back the room of a peer whose frame is complete or whose connection is closed."""
        for admitted in self._room.release(peer, self._loop.time()):
            assert isinstance(admitted, Peer)
            admitted.read_on()
        self._arm()

    def _arm(self) -> None:
        """Set the timer for frames that take too long. No timer runs while no peer waits."""
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
    """The connection to one other process, and the `LinkReceiver` of its link.

    Args:
        name: the silo or gateway to connect to; empty for a process that connected to this one.
        on_closed: called once, when the connection is closed.

    Attributes:
        name: the address of the silo or the id of the client, once known.
        where: the address of the remote end of the link.
        is_silo, role, table_id: the claims of the other process in its handshake. `table_id` names
            the membership table that it follows.
        client_name: the name in the certificate of a client; empty for silos, and without TLS.
        writer: sends calls and messages to the other process.
        served: the calls of the other process that this process serves.
        takes_several: True while a frame with more than one message is processed.
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
        self.table_id = self.client_name = ""
        self.is_leaving = False
        self._is_opener = bool(name)
        self._reader = FrameReader(min(GREETING_BYTES_MAX, end.options.frame_bytes_max))
        self._greeting = end.greeting(self._is_opener, name)
        self._greeting_timer: asyncio.TimerHandle | None = None  # ends a silent handshake
        self._frames: deque[bytes] = deque()  # received, not processed yet
        self._messages: Sequence[Message | Unreadable] = ()  # rest of a frame
        self._is_going_on = False
        self._is_paused = False  # process nothing: too many answers wait
        self._is_reading = True
        self._frame_bytes = 0  # size of the frame that has room or waits for it
        self._awaits_room = False
        self._is_heard = False
        self._owes_sign = False
        self._silence = Silence()

    # -- opening and closing

    def attach(self, link: Link) -> None:
        """Take over a link and start the handshake."""
        self._link, self.where = link, link.peer
        self._greeting.certified = link.certified
        limit_s = self._options.greet_timeout_s
        self._greeting_timer = self._end.tasks.call_later(
            limit_s, lambda: self.close(f"no handshake within {limit_s:g} s (greet_timeout_s)")
        )
        self.writer.attach(link)
        self.writer.write([self._greeting.own])
        link.start(self)

    def _hear_greeting(self, payload: bytes) -> None:
        try:
            for answer in self._greeting.take(decode_messages(payload)):
                self.writer.write([answer])
        except SiloReplaced as error:  # expected after a restart
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
        """Finish the handshake: the identity of the other process is established."""
        hello = self._greeting.other
        assert hello is not None
        self._stop_waiting()
        self._reader.limit_bytes = self._options.frame_bytes_max
        self.writer.open(hello)
        self.is_silo, self.role, self.name = hello.is_silo, role_in(hello), hello.sender
        self.table_id = hello.table_id
        if not hello.is_silo and self._greeting.certified is not None:
            self.client_name = self._greeting.certified.name
        self._end.pulse.add(self)
        self._end.welcome.on_greeted(self)
        self.writer.become_ready()

    @property
    def refusal(self) -> HandshakeError | None:
        """The reason why the two processes can never talk, if the handshake has found one."""
        return self._greeting.refusal

    def _stop_waiting(self) -> None:
        if self._greeting_timer is not None:
            self._greeting_timer.cancel()
            self._greeting_timer = None

    def close(self, reason: str) -> None:
        """Close the link. Outstanding calls fail with SiloUnavailable."""
        if self._link is not None:
            self._link.close()
        self.on_closed(reason)

    def on_closed(self, reason: str, /) -> None:
        """Clean up after the link has closed. The link calls this method too."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._is_opener and self._link is not None and not self._is_heard:
            reason = f"{reason}; {hint_at_tls(self._link)}"
        self._stop_waiting()
        self._end.pulse.remove(self)
        self.writer.close(reason)
        self._end.sent_bytes += self.writer.written_bytes
        self.served.cancel_all()
        self._frames.clear()
        self._messages = ()
        self._give_room()
        self._on_closed(self)

    def _on_full(self) -> None:
        """Called by the writer when the link is full.

        If the peer opened the connection and does not read its answers, stop reading its requests.
        Close the connection when more than `unread_bytes_max` bytes of answers wait.
        """
        if self._is_opener or self._link is None or self.is_closed:
            return
        waiting = self.writer.unwritten_bytes + self._link.waiting_bytes
        limit = self._options.unread_bytes_max
        if waiting > limit:
            self._abort(
                f"{waiting} bytes of answers are unread by the peer (unread_bytes_max {limit})"
            )
        elif waiting > self._options.answer_bytes_max:
            self._is_paused = True
            self._set_reading()

    # -- receiving (LinkReceiver)

    def writable(self, is_writable: bool, /) -> None:
        self.writer.on_writable(is_writable)
        if self._is_paused and self.writer.is_writable:  # still: messages that waited may fill it
            self._is_paused = False
            self._go_on_soon()
            self._set_reading()

    def on_received(self, data: bytes, /) -> None:
        if self.is_closed:
            return
        self._is_heard = True
        self._end.received_bytes += len(data)
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
        """Reserve room for a client's large frame, and release it when the frame is complete."""
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
        """Read the frame that waited for room. Called by the intake."""
        self._awaits_room = False
        self._set_reading()

    def end_late_frame(self) -> None:
        """Close the connection because its frame takes too long while other peers wait for room.

        Called by the intake.
        """
        options, held = self._options, self._reader.held_bytes
        self._abort(
            f"a frame of {self._frame_bytes} bytes did not arrive within "
            f"{options.frame_timeout_s:g} s (frame_timeout_s; {held} bytes arrived), and other "
            f"connections wait for room (partial_bytes_max {options.partial_bytes_max})"
        )

    def _take_frames(self) -> None:
        """Process received frames. Only the first frame with calls runs in this loop iteration."""
        has_called = False
        while self._frames and not (self.is_closed or self._is_paused or self._messages):
            payload = self._frames.popleft()
            if not self._greeting.is_done:
                self._hear_greeting(payload)
                self._frames.extend(self._reader.feed(b""))  # the handshake raised the size limit
                self._see_to_room(is_whole=False)
                continue
            messages = decode_frame(payload, self._options.batch_messages_max)
            if has_called and any(isinstance(message, Call) for message in messages):
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
        """Process more of the received frames."""
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
        """Pause the link if enough frames wait, and resume it otherwise."""
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
        """Process the messages of a frame, and return True if it contained calls.

        Answers that are ready at once are written before this method returns.
        """
        writer, was_marked = self.writer, self.writer.is_marked
        writer.is_marked = True  # messages that are sent meanwhile are written below
        self.served.refusals, self.takes_several, has_called = 0, len(messages) > 1, False
        try:
            for at, message in enumerate(messages):
                if type(message) is Call or type(message) is VersionedCall:
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
        """Close the connection of a peer that shuts down, once no call is outstanding."""
        waits = self.served.calls or self._frames or not self.writer.is_idle
        if not (waits or self.is_closed):
            self.close("the peer is shutting down")

    @property
    def is_serving(self) -> bool:
        """True while calls of this peer are unanswered, or answers are not written yet."""
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
                # callers that the handshake woke in this iteration send their calls first
                self._loop.call_soon(self._finish_leaving)
            case GatewayView():
                self._end.welcome.on_gateways(self, message)
            case Unreadable():
                self.served.refuse_unreadable(message)
                self._end.warn_unreadable(self, message.why)
            case _:
                raise FrameError(f"unexpected message {type(message).__name__}")

    def check_pulse(self, looks_max: int, /) -> None:
        """Ask a silent peer for a sign of life.

        After too many looks without a sign, close the connection.
        """
        assert self._link is not None
        if self._awaits_room:  # this process does not read the peer, so silence proves nothing
            self._silence = Silence()
            self.writer.send(Ping(False))
            return
        waiting = self._link.waiting_bytes
        is_heard, self._is_heard = self._is_heard, False
        looks = self._silence.look(is_heard, waiting, self.writer.written_bytes)
        if looks > looks_max:
            limit_s = self._options.silent_after_s
            self._abort(f"the peer sent and read nothing for {limit_s:g} s (silent_after_s)")
        elif looks:
            self.writer.send(Ping(True))


def decode_frame(payload: bytes, limit: int) -> Sequence[Message | Unreadable]:
    """Decode the messages of a frame.

    Raises FrameError above `limit` messages, or one of the errors in GARBAGE.
    """
    if limit < FEW or payload[:1] not in FEW_MESSAGES:
        count = count_of(payload)
        if count > limit:
            raise FrameError(f"frame of {count} messages exceeds batch_messages_max {limit}")
    try:
        messages: Sequence[Message] = decode_messages(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode_each(payload)
    return messages
