"""The list of subscriptions at a hand-over, with their marks and delivered events. Pure.

Owns `Former`, the record's list of subscriptions whose events are not read yet, and
`list_unfinished`. `ownership` has the record, and `progress.tracker` says when it is written.

Invariant: each subscription has done everything up to `upto` of the record, or is listed. Its mark
is not after the first item that it has not done.
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
"""Limit of the subscriptions of a queue that a hand-over lists."""

Listed = dict[SubscriptionKey, ListedSubscription]


class Former:
    """The list of the former owner of a queue that cannot be read again.

    Messages up to `upto` arrive once more, for the listed subscriptions. `end` is the position just
    after `upto`; None: no message arrives once more.
    """

    def __init__(self, progress: QueueProgress, *, is_used: bool) -> None:
        self.upto = progress.upto if is_used else None
        self.end = None if self.upto is None else self.upto._replace(index=LAST_INDEX)
        self.listed: Listed = {}
        for one in progress.listed if self.upto else ():
            self.listed[one.stream, one.subscription] = one

    def place(self, subscriber: Subscriber) -> None:
        """Place a subscription that has become known where the former owner left it."""
        if self.end is None:
            return
        stream, _ = subscriber.key
        one = self.listed.get(subscriber.key) or self.listed.get((stream, UNKNOWN))
        subscriber.position = self.end if one is None else before(one.mark)
        subscriber.note_sent(None if one is None else one.sent_upto)

    def left(self, newest: Token | None) -> Listed:
        """Return the part of the list that is not read yet. `newest` is the last message read."""
        if self.upto is None or (newest is not None and newest >= self.upto):
            return {}
        begin = BEGINNING if newest is None else following(newest)
        return {key: replace(one, mark=max(one.mark, begin)) for key, one in self.listed.items()}


def list_unfinished(
    entries: Mapping[StreamId, StreamEntry], laggards: LaggingCursors, former: Former
) -> tuple[ListedSubscription, ...]:
    """Return all subscriptions with unfinished events, of this owner or a former one.

    Cost: O(known subscriptions).
    """
    newest = laggards.cache.newest
    found = former.left(newest)
    for cursor in laggards.cursors():
        one = cursor.entry()
        if cursor.may_repeat:  # a former owner may have delivered any of its events
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
    """Say whether an unfinished event was delivered."""
    return one.sent_upto is not None and one.sent_upto >= one.mark


def _list(
    subscriber: Subscriber, first: Token | None, laggards: LaggingCursors, found: Listed
) -> None:
    """Add one subscription. `first` is the first message that not every subscription was given."""
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
