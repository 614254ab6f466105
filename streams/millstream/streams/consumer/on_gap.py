"""The `@on_gap` mark: it names the method that receives reports of missing events.

This module also decides which gap a consumer sees before a delivery. `run` calls the method, and
the agent finds the gaps. Invariant: a gap that the consumer is already past is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from millstream.runtime.extending import add_mark
from millstream.streams.api.event import Gap
from millstream.streams.api.namespace import StreamNamespace
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

from .batch import WireBatch
from .news import NewsMark, handler_of, refuse_function

__all__ = ["GapMark", "gap_handler", "gap_of", "on_gap"]

G = TypeVar("G")


class GapMark(NewsMark):
    """The mark that `@on_gap` leaves on a method."""

    word, news, takes = "on_gap", "gaps", Gap


def on_gap(
    namespace: StreamNamespace[Any], /
) -> Callable[
    [Callable[[G, Gap], Coroutine[Any, Any, None]]], Callable[[G, Gap], Coroutine[Any, Any, None]]
]:
    """Mark the method that hears of gaps in the streams of a namespace: `@on_gap(ARRIVALS)`.

    Put it on an `async def` method with one argument, a `Gap`. The method is called when events of
    a stream may be missing, just before the first event that follows. It is called for each
    subscription of the grain to that stream, marked or explicit. Without it, a gap is only logged
    and counted.

    The call is part of handling the next event: in attempts, in `handler_timeout_s`, and in the
    write of `commit_with`. If it raises, it gets the gap again, together with that event.

    A class has one such method for the streams of a name. If the namespace is implicit only, the
    class needs a method with `@subscribe` for it as well.

    Args:
        namespace: the streams.

    Raises:
        DefinitionError: a rule is broken; raised with file and line when the class is defined.
    """
    refuse_function(namespace, "on_gap")
    mark = GapMark(namespace)

    def mark_method(
        method: Callable[[G, Gap], Coroutine[Any, Any, None]],
    ) -> Callable[[G, Gap], Coroutine[Any, Any, None]]:
        add_mark(method, mark)
        return method

    return mark_method


def gap_handler(grain: Any, namespace: str) -> Callable[[Gap], Coroutine[Any, Any, None]] | None:
    """Return the grain's `@on_gap` method for streams of this name, if it has one."""
    return handler_of(grain, GapMark, namespace)


def gap_of(batch: WireBatch, last: Token | None) -> Gap | None:
    """Return the gap before a delivery; None if there is none, or the consumer is already past it.
    Pure.

    `last` is the last event of the queue that the consumer has processed, if known.
    """
    if batch.gap is None:
        return None
    after, first = batch.gap
    if batch.has_positions and last is not None:
        if last >= first:
            return None
        after = last
    stream = StreamId(batch.namespace, batch.key)
    return Gap(stream, batch.subscription, after, first)
