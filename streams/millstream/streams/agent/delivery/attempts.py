"""Saying what fails again and again: each time a line, a flood of them a few lines and a count.

Owns: `AttemptLog`. Not: how many lines a flood is (`LineBudget`).
"""

from __future__ import annotations

import logging

from millstream.runtime.extending import LineBudget, shown
from millstream.streams.contracts.token import Token

from .steps import Failure
from .subscriber import Subscriber

__all__ = ["AttemptLog"]

log = logging.getLogger("millstream.delivery")


class AttemptLog:
    """The failed attempts of the deliveries of one queue."""

    def __init__(self, silo: str, queue: str) -> None:
        self._silo = silo
        self._queue = queue
        self._lines = LineBudget()

    def failed(
        self,
        subscriber: Subscriber,
        token: Token | None,
        attempts: int,
        failure: Failure,
        now_s: float,
    ) -> None:
        """A handler raised, took too long, or its grain could not start."""
        left_out = self._lines.take(now_s)
        if left_out is None:
            return
        log.warning(
            "%s/%s.%s failed at %s of %s, attempt %d of %d (%s): %s%s",
            subscriber.grain_type,
            shown(subscriber.grain_key),
            subscriber.handler,
            token,
            shown(str(subscriber.stream)),
            attempts,
            subscriber.options.retries + 1,
            failure.kind.value,
            failure.text.partition("\n")[0],
            left_out,
            extra={
                "silo": self._silo,
                "grain": subscriber.grain_type,
                "key": subscriber.grain_key,
                "queue": self._queue,
                "stream": str(subscriber.stream),
                "subscription": subscriber.id,
            },
        )
