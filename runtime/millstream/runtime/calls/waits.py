"""Callers that wait: for an activation in this process, or for an answer from another one.

`LocalWait` is a caller in a mailbox, and `RemoteWait` is the receiver of one answer. Each of them
ends exactly once, and later results are dropped.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from millstream.runtime.codec.failures import isolate_error
from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.turns.request import Request

__all__ = ["LocalWait", "Moved", "RemoteFailure", "RemoteWait"]


class LocalWait:
    """A local caller that waits for an activation. It gets the turn in its own task.

    `size_bytes` counts the encoded arguments that it holds meanwhile.
    """

    __slots__ = ("_known_errors", "future", "is_withdrawn", "request", "size_bytes")

    def __init__(
        self,
        future: asyncio.Future[str | None],
        request: Request,
        known_errors: KnownErrors,
        size_bytes: int = 0,
    ) -> None:
        self.size_bytes = size_bytes
        self.request = request
        self.future = future
        self.is_withdrawn = False
        self._known_errors = known_errors

    def grant(self) -> bool:
        if self.future.done():
            return False
        self.future.set_result(None)
        return True

    def on_moved(self, silo: str) -> None:
        if not self.future.done():
            self.future.set_result(silo)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            assert isinstance(error, Exception)
            label = self.request.spec.label
            self.future.set_exception(isolate_error(error, self._known_errors, label))


class RemoteFailure:
    """The error of a callee. `body` is the encoded error."""

    __slots__ = ("body",)

    def __init__(self, body: msgspec.Raw) -> None:
        self.body = body


class Moved:
    """The call did not run. The grain is at `silo`, or must be looked up if `silo` is empty."""

    __slots__ = ("silo",)

    def __init__(self, silo: str) -> None:
        self.silo = silo


class RemoteWait(msgspec.Struct, eq=False):
    """A caller that waits for an answer: the encoded result, RemoteFailure or Moved."""

    future: Any  # asyncio.Future
    call_id: int = 0

    def reply(self, body: msgspec.Raw) -> None:
        if not self.future.done():
            self.future.set_result(body)

    def failure(self, body: msgspec.Raw) -> None:
        if not self.future.done():
            self.future.set_result(RemoteFailure(body))

    def redirect(self, silo: str) -> None:
        if not self.future.done():
            self.future.set_result(Moved(silo))

    def on_broken(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
