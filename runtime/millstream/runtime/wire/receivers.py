"""Who a connection tells of calls: those that it sent, and those that it took.

Owns: the Protocols. Not: the connection that keeps them by call id (`connection`).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["AnswerReceiver", "Cancellable"]


class AnswerReceiver(Protocol):
    """Who waits for the answer of a call; exactly one method is called, once."""

    def reply(self, body: msgspec.Raw, /) -> None: ...
    def failure(self, body: msgspec.Raw, /) -> None: ...
    def redirect(self, silo: str, /) -> None: ...
    def broken(self, error: Exception, /) -> None: ...


class Cancellable(Protocol):
    """A call that runs or waits here for its caller."""

    def cancel(self) -> None: ...
