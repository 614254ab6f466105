"""What a link knows between sends: calls without an answer, and how long to wait. Pure.

Invariants: at most `calls_max` calls are out; a call leaves only by its own reply; calls are kept
in the order they were sent, so that sending them again keeps that order; time is spent by
waiting only, and renewed by a reply.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.runtime.extending import Backoff
from millstream.runtime.wire import (
    Call,
    Failure,
    Goodbye,
    Message,
    Redirect,
    Reply,
    encode_messages,
    frame,
)

__all__ = ["GatewayUnavailable", "PublishFailed", "Rounds", "TimeLeft", "Window"]


class PublishFailed(Exception):
    """The cluster answered, and the answer is no. The message has the cluster's own text."""


class GatewayUnavailable(ConnectionError):
    """No gateway answered for `timeout_s`; what was sent may have been accepted."""


class Window:
    """The calls that are out."""

    __slots__ = ("_accepted", "_calls_max", "_leaving", "_out")

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._out: dict[int, tuple[bytes, int]] = {}
        self._accepted = 0
        self._leaving = False

    def __len__(self) -> int:
        return len(self._out)

    @property
    def full(self) -> bool:
        """Another call has to wait."""
        return len(self._out) >= self._calls_max

    @property
    def accepted(self) -> int:
        """Messages that the cluster has accepted, now or in an earlier attempt."""
        return self._accepted

    @property
    def leaving(self) -> bool:
        """The gateway said that it stops; it still answers what is out."""
        return self._leaving

    def add(self, call: Call, messages: int) -> bytes:
        """Put a call out that carries so many messages; return its frame."""
        assert not self.full and call.id not in self._out
        data = frame(encode_messages([call]))
        self._out[call.id] = data, messages
        return data

    def moved(self) -> list[bytes]:
        """There is a new connection: the frames to send on it again, in order."""
        self._leaving = False
        return [data for data, _ in self._out.values()]

    def take(self, message: Message) -> bool:
        """Take what a gateway sent; True if it answers a call. Raises PublishFailed."""
        match message:
            case Reply(id=call_id, body=body):
                self._settle(call_id, msgspec.msgpack.decode(body))
                return True
            case Failure(body=body):
                raise PublishFailed(f"the cluster refused rows: {failure_text(body)}")
            case Redirect(silo=silo):
                raise PublishFailed(f"the gateway does not publish itself, silo {silo!r} does")
            case Goodbye():
                self._leaving = True
                return False
            case _:
                raise PublishFailed(f"a gateway sent {type(message).__name__}, which has no use")

    def check(self) -> None:
        """Assert the bounds."""
        assert 0 <= len(self._out) <= self._calls_max
        assert self._accepted >= 0

    def _settle(self, call_id: int, accepted: Any) -> None:
        if call_id not in self._out:
            raise PublishFailed(f"a gateway answered call {call_id}, which is not out")
        _, messages = self._out.pop(call_id)
        if accepted != messages:
            raise PublishFailed(f"the cluster accepted {accepted!r} of {messages} messages")
        self._accepted += messages


class _ErrorHead(msgspec.Struct, array_like=True):
    """What a person needs of an encoded `WireError`; the rest of the array is skipped."""

    type_name: str
    message: str


def failure_text(body: bytes | msgspec.Raw) -> str:
    """Type and message of an encoded error; whatever it is, this returns a text."""
    try:
        error = msgspec.msgpack.decode(body, type=_ErrorHead)
    except msgspec.DecodeError:
        return repr(bytes(body))
    return f"{error.type_name}: {error.message}"


class TimeLeft:
    """Time that may still be spent waiting. It counts waits, and reads no clock."""

    __slots__ = ("_left_s", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = self._left_s = timeout_s

    def slice_s(self, at_most_s: float) -> float:
        """How long the next wait may be."""
        return min(at_most_s, self._left_s)

    def spend(self, waited_s: float, cause: BaseException | None) -> None:
        """A wait brought nothing. Raises GatewayUnavailable when none is left."""
        self._left_s -= waited_s
        if self._left_s <= 0:
            raise GatewayUnavailable(
                f"no gateway answered for timeout_s {self._timeout_s:g}: {cause}"
            ) from cause

    def renew(self) -> None:
        """Something was answered."""
        self._left_s = self._timeout_s


class Rounds:
    """Waits between attempts: none in the first round over the gateways, then longer ones."""

    __slots__ = ("_failures", "_gateways")

    BACKOFF = Backoff(first_s=0.05, factor=2.0, ceiling_s=2.0)

    def __init__(self, gateways: int) -> None:
        self._gateways = gateways
        self._failures = 0

    def next_s(self) -> float:
        """An attempt failed: how long to wait before the next."""
        self._failures += 1
        rounds = self._failures // self._gateways
        return self.BACKOFF.whole_s(rounds) if rounds else 0.0

    def reset(self) -> None:
        """Something was answered."""
        self._failures = 0
