"""The calls of the other process that this process serves.

`ServedCalls` registers these calls, answers them and refuses them. `connection` reads them,
`callee` runs them, and `connection_writer` writes the answers.

Invariants:

- A call is answered at most once, and never after its caller gave it up.
- An answer that is too large for the other process is replaced by an error that fits.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from millstream.runtime.codec.failures import describe
from millstream.runtime.errors import Overloaded

from .batch import SPARE_BYTES
from .connection_writer import ConnectionWriter
from .framing import FrameError
from .message import Failure, Redirect, Reply, Unreadable

__all__ = ["ServedCalls"]


class Cancellable(Protocol):
    """A call that runs or waits here for its caller."""

    def cancel(self) -> None: ...


class ServedCalls:
    """The calls of the other process on one connection.

    Args:
        writer: the writer of the same connection, which sends the answers.

    Attributes:
        calls: the unanswered calls by id.
        refusals: number of refused calls since the connection set it to 0.
    """

    __slots__ = ("_limit", "_writer", "calls", "refusals")

    def __init__(self, writer: ConnectionWriter, served_calls_max: int) -> None:
        self._writer = writer
        self._limit = served_calls_max
        self.calls: dict[int, Cancellable | None] = {}
        self.refusals = 0

    def watch(self, call_id: int, served: Cancellable | None) -> None:
        """Register a call before it runs, so that a Cancel in the same batch finds it.

        Raises Overloaded at `served_calls_max`.
        """
        if not call_id:
            return
        if len(self.calls) >= self._limit:
            raise Overloaded(
                "too many calls in progress on this connection", "served_calls_max", self._limit
            )
        self.calls[call_id] = served

    def forget(self, call_id: int) -> None:
        """Remove a call that has ended, answered or not."""
        self.calls.pop(call_id, None)

    def cancel(self, call_id: int) -> None:
        """Cancel a call that its caller gave up."""
        served = self.calls.pop(call_id, None)
        if served is not None:
            served.cancel()

    def answer(
        self, call_id: int, message: Reply | Failure | Redirect, body_bytes: int | None = None
    ) -> None:
        """Answer a served call, unless its caller gave it up or has gone.

        Pass `body_bytes` if the size of the message's body is known.
        """
        if call_id not in self.calls:
            return
        del self.calls[call_id]
        if body_bytes is None:
            body_bytes = 0 if isinstance(message, Redirect) else len(memoryview(message.body))
        if body_bytes + SPARE_BYTES > self._writer.peer_frame_max:
            message = self._too_large(message, body_bytes)
        self._writer.send(message, body_bytes)

    def refuse(self, call_id: int, failure: Failure) -> None:
        """Answer a call that does not run, registered or not. One-way calls get no answer.

        Calls above `served_calls_max` are refused in this way, so the method does not check the
        limit.
        """
        self.refusals += 1
        if call_id:
            self.calls[call_id] = None
            self.answer(call_id, failure)

    def refuse_unreadable(self, call: Unreadable) -> None:
        """Answer a call that cannot be read. Raises FrameError if its id is in use."""
        if call.id in self.calls:
            raise FrameError(f"call id {call.id} is in use")
        error = TypeError(f"the call cannot be read: {call.why}")
        self.refuse(call.id, Failure(call.id, msgspec.Raw(describe(error, self._writer.name))))

    def _too_large(self, message: Reply | Failure | Redirect, size: int) -> Failure:
        what = "result" if isinstance(message, Reply) else "error"
        error = ValueError(
            f"{what} of {size} bytes exceeds frame_bytes_max {self._writer.peer_frame_max}"
        )
        return Failure(message.id, msgspec.Raw(describe(error, self._writer.name)))

    def cancel_all(self) -> None:
        """Cancel all calls, because the connection is closed."""
        for served in list(self.calls.values()):
            if served is not None:
                served.cancel()
        self.calls.clear()
