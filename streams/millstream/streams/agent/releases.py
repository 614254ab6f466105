"""What is not under way goes back to a queue that has no order, before another silo reads it.

Owns: `give_back`. Not: the call (`reading`). Invariants: what is out for one subscription stays
here for all; what goes back is held by nobody here, and goes back to all its subscriptions, those
that have done it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

from .audience.stream_entry import StreamEntry, places
from .cache.queue_cache import QueueCache
from .delivery.dispatch import Dispatch

__all__ = ["give_back"]


def give_back(
    streams: Iterable[tuple[StreamId, StreamEntry]], cache: QueueCache, deliveries: Dispatch
) -> list[tuple[list[Token], bool]]:
    """Let go of what is behind the last message of each stream that is out; returns what that is,
    once without and once with handlers that have tried it (`has_run`).

    What is being dealt out to very many subscriptions stays.
    """
    fresh: list[Token] = []
    tried: list[Token] = []
    for stream, entry in streams:
        if entry.spread:
            continue
        last = max((s.work.last_out for s in entry.subscribers.values() if s.work), default=-1)
        failed = _find_failed(entry, last)
        for token in cache.cut(stream, last, partial(_let_go, entry, last, cache, deliveries)):
            (tried if token in failed else fresh).append(token)
    return [(fresh, False), (tried, True)]


def _find_failed(entry: StreamEntry, last: int) -> frozenset[Token]:
    """The messages behind an index at which a handler has failed."""
    found: set[Token] = set()
    for index, one in places(entry):
        delivery = one.delivery
        if index > last and delivery is not None and delivery.tries.error is not None:
            found.add(delivery.cursor.message)
    return frozenset(found)


def _let_go(entry: StreamEntry, last: int, cache: QueueCache, deliveries: Dispatch) -> None:
    """Nothing here holds a message behind an index."""
    cold = entry.cold or ()
    if entry.cold is not None:
        entry.cold = []
    for slot in cold:
        cache.release(slot)
    for index, one in list(places(entry)):
        if index > last:
            deliveries.drop(one)
