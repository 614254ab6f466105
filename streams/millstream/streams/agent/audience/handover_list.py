"""The subscriptions that a hand-over lists: where each one is, and what it was delivered.

Owns: `Former`, what the queue record said of subscriptions whose events were not read yet;
`list_unfinished`. Not: the record (`ownership`), when it is written (`standing`). Pure.
Invariant: each subscription has done everything up to `upto` of the record, or is listed; its mark
is not above the first item that it has not done.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from millstream.streams.agent.cache.lagging_cursors import UNKNOWN, LaggingCursors
from millstream.streams.agent.cache.positions import (
    BEGINNING,
    LAST_INDEX,
    SubscriptionKey,
    before,
    following,
)
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import ListedSubscription, QueueProgress

from .stream_entry import StreamEntry

__all__ = ["LISTED_MAX", "Former", "list_unfinished"]

LISTED_MAX = 5_000
"""Subscriptions of a queue that a hand-over lists."""

Listed = dict[SubscriptionKey, ListedSubscription]


class Former:
    """The list of the former owner of a queue that cannot be read again.

    Its messages up to `upto` come once more, for the subscriptions that are listed. `end` is the
    position just behind `upto`; None: nothing comes once more.
    """

    def __init__(self, progress: QueueProgress, *, is_used: bool) -> None:
        self.upto = progress.upto if is_used else None
        self.end = None if self.upto is None else self.upto._replace(index=LAST_INDEX)
        self.listed: Listed = {}
        for one in progress.listed if self.upto else ():
            self.listed[one.stream, one.subscription] = one

    def place(self, subscriber: Subscriber) -> None:
        """A subscription has become known: it begins where the former owner has left it."""
        if self.end is None:
            return
        stream, _ = subscriber.key
        one = self.listed.get(subscriber.key) or self.listed.get((stream, UNKNOWN))
        subscriber.position = self.end if one is None else before(one.mark)
        subscriber.note_sent(None if one is None else one.sent_upto)

    def left(self, newest: Token | None) -> Listed:
        """The list as it is now, as far as it is not read: `newest` is the last message read."""
        if self.upto is None or (newest is not None and newest >= self.upto):
            return {}
        begin = BEGINNING if newest is None else following(newest)
        return {key: replace(one, mark=max(one.mark, begin)) for key, one in self.listed.items()}


def list_unfinished(
    entries: Mapping[StreamId, StreamEntry], laggards: LaggingCursors, former: Former
) -> tuple[ListedSubscription, ...]:
    """All that are not done with what was read, or with what a former owner has read.

    Cost: O(subscriptions known).
    """
    newest = laggards.cache.newest
    found = former.left(newest)
    for cursor in laggards.cursors():
        one = cursor.entry()
        if cursor.may_repeat:  # it may have been delivered all that there is
            last = max(filter(None, (newest, cursor.dropped, one.mark)))
            one = replace(one, sent_upto=last._replace(index=LAST_INDEX))
        found[cursor.key] = one
    for stream, entry in entries.items():
        first = entry.first_waiting
        if first is not None and entry.cold:
            found.setdefault((stream, UNKNOWN), ListedSubscription(*stream, UNKNOWN, first))
        for subscriber in entry.subscribers.values():
            _list(subscriber, first, laggards, found)
    return tuple(one if was_sent(one) else replace(one, sent_upto=None) for one in found.values())


def was_sent(one: ListedSubscription) -> bool:
    """Was something delivered that it has not done?"""
    return one.sent_upto is not None and one.sent_upto >= one.mark


def _list(
    subscriber: Subscriber, first: Token | None, laggards: LaggingCursors, found: Listed
) -> None:
    """Add one subscription; `first`: what it was not given yet, as it waits for all of them."""
    key, delivery = subscriber.key, subscriber.delivery
    if laggards.get(key) is not None:
        one = found[key]
    else:
        token = None if delivery is None else delivery.cursor.token
        mark = token or first
        if mark is None:
            return
        one = ListedSubscription(*key[0], key[1], mark)
    sent = max(filter(None, (one.sent_upto, subscriber.sent_upto)), default=None)
    found[key] = replace(one, sent_upto=sent)
