"""What is not under way goes back to a queue that has no order, before another silo reads it.

Owns: `give_back`. Not: the call (`reading`). Invariants: what is out for one subscription stays
here for all; what goes back is held by nobody here, and goes back to all its subscriptions, those
that have done it too.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

from .audience.stream_entry import StreamEntry, places
from .cache.queue_cache import QueueCache
from .delivery.subscriber import Deliveries
from .reading.steps import Returned

__all__ = ["give_back"]


def give_back(
    streams: Iterable[tuple[StreamId, StreamEntry]], cache: QueueCache, deliveries: Deliveries
) -> list[Returned]:
    """Let go of what is behind the last message of each stream that is out; returns what that is.

    What is being dealt out to very many subscriptions stays.
    """
    cache.purge()
    fresh: list[Token] = []
    tried: list[Token] = []
    for stream, entry in streams:
        if entry.spread:
            continue
        last, failed = _let_go(entry, cache, deliveries)
        for token in cache.cut(stream, last):
            (tried if token in failed else fresh).append(token)
    both = Returned(fresh), Returned(tried, has_run=True)
    return [one for one in both if one.tokens]


def _let_go(
    entry: StreamEntry, cache: QueueCache, deliveries: Deliveries
) -> tuple[int, frozenset[Token]]:
    """Returns the last message that stays, and those that have failed."""
    cold = entry.cold or ()
    if entry.cold is not None:
        entry.cold = []
    for _, cold_index in cold:
        cache.unpin(cold_index)
    last = max((s.delivery.last_out for s in entry.subscribers.values() if s.delivery), default=-1)
    failed: set[Token] = set()
    for index, one in list(places(entry)):
        if index <= last:
            continue
        if one.delivery is not None and one.delivery.has_failed:
            failed.add(cache.slot(index).message.token)
        deliveries.drop(one)
    return last, frozenset(failed)
