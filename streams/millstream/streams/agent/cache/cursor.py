"""The place of one subscription in its stream. Pure.

A `Cursor` knows the first event that is not done, the next event to send, and the events that must
be read again. `queue_cache` has the cached messages, `lagging_cursors` the cursors that lag, and
`delivery` decides when to send.

Invariants:

- A cursor is idle, or at an event that is not done. An idle cursor pins nothing.
- With automatic acknowledgement, the next event to send is the first one that is not done. With
  manual acknowledgement, up to `unacked_max` events after that one may be sent. The first event is
  never one that is acknowledged or given up.
- A lagging cursor pins nothing in the cache except its tail. Each message that it needs is in one
  of three places. It was read again (from `slot`), it must be read again (from `following` to
  `dropped`), or it is in the cache (from the tail).
- A cursor lags until its first unfinished event is in the cache, or nothing is left.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import ListedSubscription

from .lane import REREAD, Slot, items_from, lag_from
from .positions import BEGINNING, SubscriptionKey, before, following, past
from .queue_cache import QueueCache
from .reread_messages import RereadMessages

__all__ = ["Cursor"]

Place = tuple[Slot, int]


class LagRegistry(Protocol):
    """The lagging cursors of a queue."""

    @property
    def cache(self) -> QueueCache: ...
    @property
    def reread(self) -> RereadMessages: ...
    def add(self, cursor: Cursor, /) -> None:
        """Record that the cursor lags from now on."""
        ...

    def remove(self, cursor: Cursor, /) -> None:
        """Record that the cursor no longer lags."""
        ...


class Cursor:
    """The place of one subscription. A new cursor is idle.

    Attributes:
        key: the stream and the subscription.
        unacked_max: the number of events that may be sent and not yet acknowledged by hand; 0: a
            reply acknowledges its events.
        ahead: the number of events that were sent, and are not acknowledged by hand.
        slot: the message with the first unfinished event; None: the cursor is idle, or the message
            is not here.
        is_lagging: the cursor pins nothing in the cache except its tail.

    Attributes of a lagging cursor:

        start: the first item that it needs.
        following: from this token on, messages must be read again.
        dropped: up to this token, messages must be read again; None: none are missing, and it
            continues in the cache.
        floor: this message and all before it are done, or are not for this subscription; None:
            unknown.
        tail: the message where it continues in the cache, once one has arrived.
        keeps: new messages stay in the cache for it.
        is_new: its beginning was not compared with the messages that the provider keeps.
        is_rewound: its consumer does not know yet that earlier events are delivered again.
        may_repeat: its events may have been delivered before.
        is_full: there was no room for the next message, and no event was finished since.
        sent: a former owner delivered unfinished events up to this token; None: see `may_repeat`.
    """

    __slots__ = (
        "_cache",
        "_following",
        "_given",
        "_given_up",
        "_item",
        "_laggards",
        "_reread",
        "_sends",
        "ahead",
        "dropped",
        "floor",
        "is_full",
        "is_lagging",
        "is_new",
        "is_rewound",
        "keeps",
        "key",
        "may_repeat",
        "sent",
        "since_s",
        "slot",
        "start",
        "tail",
        "unacked_max",
    )

    def __init__(self, laggards: LagRegistry, key: SubscriptionKey, unacked_max: int = 0) -> None:
        self._laggards, self._cache = laggards, laggards.cache
        self._reread = laggards.reread
        self.key = key
        self.unacked_max = unacked_max
        self.slot: Slot | None = None
        self._item = 0  # in that message
        self._sends: Place | None = None  # by hand; None: `ahead` items after the first one
        self.ahead = 0
        # For manual acknowledgement: counts of sent items with their times, and given-up items.
        # None until there are any, because most subscriptions never have any.
        self._given: deque[tuple[int, float]] | None = None
        self._given_up: set[Token] | None = None
        self.tail: Slot | None = None
        self.dropped: Token | None = None
        self.floor: Token | None = None
        self.sent: Token | None = None
        self.is_lagging = self.keeps = self.is_new = False
        self.is_rewound = self.may_repeat = self.is_full = False
        self.since_s = 0.0  # while it lags: when its next event was stored, as far as is known

    # -- the first unfinished event

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left."""
        return self.slot is None and not self.is_lagging

    @property
    def index(self) -> int | None:
        """The absolute index of the message with the first unfinished event, or None if the message
        is not in the cache."""
        slot = self.slot
        return None if slot is None or slot.index < 0 else slot.index

    @property
    def token(self) -> Token | None:
        """The first unfinished item, or the place where it must be read; None if nothing is
        left."""
        if self.slot is not None:
            return self.slot.token_at(self._item)
        return self.position if self.is_lagging else None

    @property
    def position(self) -> Token:
        """The first unfinished item of a cursor that lags, or has just reached the cache."""
        if self.slot is not None:
            return self.slot.token_at(self._item)
        return max(self.start, self.following)

    @property
    def after(self) -> Token:
        """The position just before `position`: everything up to here is done."""
        return before(self.position)

    @property
    def message(self) -> Token:
        """The token of the message with the first unfinished event."""
        assert self.slot is not None, f"{self.key} is at no message"
        return self.slot.message.token

    @property
    def tried(self) -> int:
        """The number of earlier attempts at the present message, as the provider counts them."""
        return 0 if self.slot is None else max(0, self.slot.message.attempt - 1)

    @property
    def goes_back(self) -> bool:
        """Whether the present message returns to the queue when the handler fails."""
        return self.slot is not None and self.slot.goes_back

    @property
    def is_last(self) -> bool:
        """Whether the queue will not deliver the message again after a failure."""
        return self.slot is not None and self.slot.message.is_last

    def going_back(self) -> Sequence[Token]:
        """Return the messages from here on, if each of them returns to the queue for this
        subscription."""
        found: list[Token] = []
        slot = self.slot
        while slot is not None:
            if not slot.goes_back:
                return ()
            found.append(slot.message.token)
            slot = slot.next
        return found

    def index_at(self, count: int) -> int:
        """Return the index of the message with the item `count` items later; `peek` has returned
        it."""
        slot, item = self.slot, self._item + count
        while slot is not None and item >= len(slot.message.items):
            item -= len(slot.message.items)
            slot = slot.next
        assert slot is not None, f"{count} items are not here"
        return slot.index

    def lag(self) -> tuple[int, float]:
        """Return the number of items that are here from this one on, and the wall-clock time when
        the first was stored, or 0 if there is none or if it is not known.

        If no item of a lagging cursor is here, the time is that of the last look or of the moment
        at which it began to lag.
        """
        events, since_s = lag_from(self.slot, self._item)
        if self.is_lagging:
            since_s = self.since_s = since_s or self.since_s
        return events, since_s

    # -- moving

    def enter(self, slot: Slot, after: Token | None = None) -> bool:
        """Move an idle cursor to the first item above `after`, starting at a message of the cache.

        Returns whether there is such an item.
        """
        at: Slot | None = slot
        item = 0 if after is None or slot.message.token > after else slot.first_item(after)
        while at is not None and item >= len(at.message.items):
            at = at.next
            item = 0 if at is None else at.first_item(after)
        if at is None:
            return False
        at.holds += 1
        self.slot, self._item = at, item
        return True

    def seek(self, after: Token | None) -> None:
        """Move to the first item of the cache above `after`. None means the oldest cached item."""
        slot = self._cache.first_slot(self.key[0], after)
        if slot is not None:
            slot.holds += 1  # the cursor may be the only one that pins it
        self.close()
        if slot is not None:
            self.enter(slot, after)
            self._cache.release(slot)

    def advance(self, count: int) -> None:
        """Move past `count` items, which are all here. Amortised O(1) for each message."""
        if self.is_lagging:
            self._advance_reread(count)
            return
        slot, item = self.slot, self._item + count
        self._item = item
        while slot is not None and item >= len(slot.message.items):
            item -= len(slot.message.items)
            upcoming = slot.next
            if upcoming is not None:
                upcoming.holds += 1
            self.slot, self._item = upcoming, item
            self._cache.release(slot)
            slot = upcoming
        assert slot is not None or item == 0, f"moved {item} items past the end of {self.key}"

    def _advance_reread(self, count: int) -> None:
        """Move past items that were read again; after the last one, the cursor continues in the
        cache."""
        self.is_rewound = self.is_full = False
        slot, item = self.slot, self._item + count
        self._item = item
        while slot is not None and item >= len(slot.message.items):
            item -= len(slot.message.items)
            self.floor = slot.message.token
            slot = self._pass(slot)
            self._item = item
        assert slot is not None or item == 0, f"{item} items of {self.key} are not here"
        if slot is None:
            self._sends = None  # the next item may be after the last message that was here
        self._rejoin()

    def _pass(self, slot: Slot) -> Slot | None:
        """Unpin a message that was read again. Move to the next such message, and return it, or
        None."""
        assert slot.lane is not None, f"{slot.message.token} is in no lane"
        upcoming = slot.next
        if upcoming is None:
            self._following = slot.lane.end
        else:
            upcoming.holds += 1
        self.slot = upcoming
        self._reread.release(slot)
        return upcoming

    def leave(self) -> None:
        """Move to the next message."""
        assert self.slot is not None, "a drained cursor is nowhere"
        self.advance(len(self.slot.message.items) - self._item)

    def close(self) -> None:
        """Unpin everything and become idle; a repeated call is harmless."""
        self.rewind()
        self._given_up = None
        if self.is_lagging:
            self._stop_lagging()
        self._let_slot_go()

    def _let_slot_go(self) -> None:
        slot, self.slot, self._item, self._sends = self.slot, None, 0, None
        if slot is not None and slot.index >= 0:
            self._cache.release(slot)
        elif slot is not None:
            self._reread.release(slot)

    # -- the next event to send

    @property
    def next_token(self) -> Token | None:
        """The next item to send, or None if it is not here or nothing is left."""
        if not self.unacked_max:
            return self.token
        place = self._place()
        return None if place is None else place[0].token_at(place[1])

    @property
    def next_index(self) -> int | None:
        """The absolute index of the message with the next item to send, or None if the message is
        not in the cache."""
        if not self.unacked_max:
            return self.index
        place = self._place()
        return None if place is None or place[0].index < 0 else place[0].index

    @property
    def can_send(self) -> bool:
        """With manual acknowledgement: whether an item is here that may be sent."""
        return self.ahead < self.unacked_max and self._place() is not None

    @property
    def is_away(self) -> bool:
        """Whether no item to send is here, and messages must be read again for which there is
        room."""
        if not self.is_lagging:
            return False
        if not self.unacked_max:
            return self.slot is None
        if self.ahead >= self.unacked_max or self.is_full:
            return False
        return (self.dropped is not None or self.is_new) and self._place() is None

    def _place(self) -> Place | None:
        """Return the place of the next item to send, with manual acknowledgement, or None if the
        item is not here."""
        at = self._sends
        if at is None and self.slot is not None:
            at = (self.slot, self._item + self.ahead)
        while at is not None:
            slot, item = self._sends = at
            if item < len(slot.message.items):
                if not self._given_up or slot.token_at(item) not in self._given_up:
                    return at
                self.ahead += 1
                self._note_given(1, math.inf)
                at = (slot, item + 1)
            else:
                upcoming = slot.next or self._beyond(slot)
                at = None if upcoming is None else (upcoming, item - len(slot.message.items))
        return None

    def _beyond(self, slot: Slot) -> Slot | None:
        """Return the message in the cache that follows the last one that was read again, if it is
        known."""
        if slot.lane is None or slot.index >= 0 or not self.has_all:
            return None
        at = self.tail
        while at is not None and at.message.token < slot.lane.end:
            at = at.next
        return at

    def peek(self, max_events: int, max_bytes: int) -> Sequence[Item]:
        """Return the next items to send, without moving; none: they are not here, or too many are
        unacknowledged.

        Otherwise there is at least one item, whatever its size. Cost: O(items returned).
        """
        if not self.unacked_max:
            return items_from(self.slot, self._item, max_events, max_bytes)
        place = self._place()
        room = min(max_events, self.unacked_max - self.ahead)
        if place is None or room < 1:
            return ()
        items = items_from(*place, room, max_bytes)
        given_up = self._given_up
        if not given_up:
            return items
        ends = (at for at, item in enumerate(items) if item.token in given_up)
        return items[: next(ends, len(items))]

    # -- manual acknowledgement

    @property
    def given_s(self) -> float:
        """The time when the oldest unacknowledged item was sent; infinite if there is none."""
        return self._given[0][1] if self._given else math.inf

    def give(self, count: int, at_s: float) -> None:
        """Record that `count` items of the last `peek` were sent at this time.

        They may have left the cache meanwhile, if `let_go` came first.
        """
        place = self._place()
        self._sends = None if place is None else (place[0], place[1] + count)
        self.ahead += count
        self._note_given(count, at_s)

    def _note_given(self, count: int, at_s: float) -> None:
        if self._given is None:
            self._given = deque()
        self._given.append((count, at_s))

    def _keep_given(self) -> None:
        """Count sent items only if they are here. Cost: O(messages here)."""
        slot, here = self.slot, -self._item
        while slot is not None and here < self.ahead:
            here += len(slot.message.items)
            slot = slot.next
        left = self.ahead - max(0, here)
        if left <= 0:
            return
        self.ahead, self._sends = self.ahead - left, None
        while left and self._given:
            last_count, at_s = self._given.pop()
            if last_count > left:
                self._given.append((last_count - left, at_s))
            left -= min(left, last_count)

    def give_up(self, token: Token) -> None:
        """Give up the item at `token`, which is the next to send. The item counts as done when all
        earlier items are done."""
        self.give(1, math.inf)
        self._given_up = {*(self._given_up or ()), token}

    def rewind(self) -> None:
        """Send all unacknowledged items again."""
        self.ahead, self._sends = 0, None
        self._given = None

    def settle(self, upto: Token | None) -> None:
        """Acknowledge the sent items up to a token."""
        while self.ahead and (count := self._count_acked(upto, self.ahead)):
            self._release(count)

    def pass_over(self, upto: Token) -> bool:
        """Acknowledge items up to a token, although no reply said that they were sent.

        No call may be in flight. Returns whether there were any such items. They need not be here:
        items that must still be read again are then skipped.
        """
        is_any = False
        while not self.ahead and (count := self._count_acked(upto, sys.maxsize)):
            self._sends, is_any = None, True
            self.advance(count)
        if self.ahead or not self.is_lagging or self.slot is not None or upto < self.position:
            return is_any
        self.skip_to(past(upto))
        return True

    def _count_acked(self, upto: Token | None, count_max: int) -> int:
        """Return the number of leading items of this message that are acknowledged or given up."""
        slot = self.slot
        if slot is None:
            return 0
        count = 0 if upto is None else min(slot.first_item(upto) - self._item, count_max)
        if count > 0:
            return count
        given_up = self._given_up
        return int(given_up is not None and slot.token_at(self._item) in given_up)

    def _release(self, count: int) -> None:
        slot, item = self.slot, self._item
        if self._given_up and slot is not None:
            self._given_up.difference_update(slot.token_at(item + at) for at in range(count))
        self.advance(count)
        self.ahead -= count
        if not self.ahead:
            self._sends = None
        while count and self._given:
            first_count, at_s = self._given.popleft()
            if first_count > count:
                self._given.appendleft((first_count - count, at_s))
            count -= min(count, first_count)

    # -- lagging

    @property
    def following(self) -> Token:
        """The token from which messages of the stream must be read again, while the cursor lags."""
        slot = self.slot
        return self._following if slot is None or slot.lane is None else slot.lane.end

    @property
    def has_all(self) -> bool:
        """Whether no message is left to be read again."""
        return self.dropped is None

    def begin(
        self,
        start: Token,
        dropped: Token | None,
        floor: Token | None = None,
        *,
        may_repeat: bool,
        is_new: bool = False,
    ) -> None:
        """Let an idle cursor lag: it needs the stored messages from `start` on."""
        assert self.is_drained, f"{self.key} is at {self.token}"
        self.start, self._following = start, Token(start.era, start.seq)
        self.dropped, self.floor = dropped, floor
        self.may_repeat, self.is_new = may_repeat, is_new
        self.is_rewound = self.is_full = False
        self.sent = None
        self.is_lagging = True
        self._laggards.add(self)
        self._meet()

    def start_lagging(self, out: int, *, has_chain: bool, may_repeat: bool) -> None:
        """Unpin everything in the cache.

        Args:
            out: the number of items, from the first unfinished one, that must stay at hand.
            has_chain: whether the cursor keeps messages that are here, as far as there is room.
        """
        slot, item = self.slot, self._item
        assert slot is not None and not self.is_lagging, f"{self.key} lags, or is drained"
        self.slot = self._sends = None
        self.since_s = slot.message.enqueued_s
        newest = self._cache.newest_of(self.key[0])
        self.begin(slot.token_at(item), newest, slot.before, may_repeat=may_repeat)
        if out or has_chain:
            self._keep(slot, out + item, has_chain=has_chain)
        self._meet()
        self._cache.moved += 1
        self._cache.release(slot)

    def _keep(self, slot: Slot, out: int, *, has_chain: bool) -> None:
        """Keep messages of the cache as if they were read again: those with the first `out` items,
        and more as far as there is room."""
        kept, must = [slot.message], slot.message.token
        upcoming = slot.next
        left = out - len(slot.message.items)
        while upcoming is not None and (left > 0 or has_chain):
            kept.append(upcoming.message)
            must = upcoming.message.token if left > 0 else must
            left -= len(upcoming.message.items)
            upcoming = upcoming.next
        self._enter_reread(kept, following(kept[-1].token), must)

    def _enter_reread(self, messages: Sequence[QueueMessage], end: Token, must: Token) -> None:
        """Move to the first message at or above `following` that was read again, if there is one.

        Args:
            messages: all messages of its stream up to `end`, from `following` or an earlier place.
            must: up to this token, messages are kept even without room.
        """
        slot, self._following = self._reread.enter(
            self.key[0], self._following, messages, end, must
        )
        self.slot, after = slot, before(self.start)
        while slot is not None and slot.is_at_most(after):
            slot = self._pass(slot)
        self._item = 0 if slot is None else slot.first_item(after)

    def _meet(self) -> None:
        """Check whether all its messages were read again, so that it continues in the cache."""
        if self.dropped is not None and self.following > self.dropped:
            self.dropped = None
        self._rejoin()

    def _rejoin(self) -> None:
        """Stop lagging if the cursor needs no stored message any more.

        This is the case if no unfinished message that was read again is here (`slot`), no message
        must be read again (`dropped`), and the beginning was compared with the messages of the
        provider (`is_new`). The cursor then continues at its tail in the cache, or becomes idle.
        """
        if self.slot is not None or self.dropped is not None or self.is_new:
            return
        if self.tail is not None:
            self.enter(self.tail, self.after)
        self._stop_lagging()

    def _stop_lagging(self) -> None:
        self.is_lagging = self.keeps = False
        self._let_tail_go()
        self._laggards.remove(self)

    def _let_tail_go(self) -> None:
        tail, self.tail = self.tail, None
        if tail is not None:
            self._cache.release(tail)

    def came(self, slot: Slot) -> None:
        """Handle a new message of its stream in the cache, while it lags."""
        token = slot.message.token
        if token < self.following or (self.dropped is not None and token <= self.dropped):
            return  # it was read again, or will be
        if not self.keeps:
            self.dropped = token
        elif self.tail is None:
            self.tail = slot
            slot.holds += 1
            self._meet()

    def needs(self, token: Token) -> bool:
        """Say whether this message of its stream is unfinished."""
        position = self.position
        return token >= Token(position.era, position.seq)

    def let_go(self) -> None:
        """Pin nothing in the cache; new messages are read again later."""
        self.keeps = False
        if self.tail is not None:
            newest = self._cache.newest_of(self.key[0])
            assert newest is not None, "a tail is in the cache"
            self.dropped = newest if self.dropped is None else max(self.dropped, newest)
            self._sends = None  # it may be in a message that leaves
            self._let_tail_go()

    def take(self, messages: Sequence[QueueMessage], upto: Token) -> None:
        """Accept messages that were read again: all of its stream from an earlier place up to
        `upto`.

        Cursors share messages if they take the same ones and the cursor with the earliest place is
        first.
        """
        if self.dropped is None:
            return
        end = min(upto, following(self.dropped))  # later messages arrive through the cache
        slot = self.slot
        if slot is None:
            self._enter_reread(messages, end, BEGINNING)
        elif slot.lane is not None:
            self._reread.extend(slot.lane, messages, end)
        # without a message here the cursor reads again: the first message always has room
        self.is_full = self.slot is not None and self.following < end
        self._meet()
        if self.is_lagging and not self.has_all:
            self.let_go()

    def lose(self, first: Token) -> Token | None:
        """Record that all messages before `first` are lost; returns the place of the cursor if it
        needed them.

        At the beginning of the queue, the cursor needs none of them: it gets the oldest kept
        messages. With manual acknowledgement, sent items that are not here are sent again, because
        some of them may be lost.
        """
        if self.dropped is None or first <= self.following:
            return None
        self._keep_given()
        wanted, end = max(self.start, self.following), min(first, following(self.dropped))
        if self.slot is None:
            self._following = end
        elif self.slot.lane is not None:
            self.slot.lane.end = end
        self._meet()
        return None if wanted == BEGINNING else wanted

    def begin_within(self, first: Token | None, last: Token | None, newest: Token | None) -> bool:
        """Compare the beginning of the cursor with the messages that the provider keeps.

        Args:
            first: the first message that the provider kept at the time of the question. None: the
                provider kept no message.
            last: the last message that the provider kept then, or None.
            newest: the last message that had arrived here by then, or None.

        Returns True if the cursor should have begun after the last message; then it gets only new
        messages.
        """
        self.is_new = False
        known = [one for one in (last, self._cache.newest) if one is not None]
        end = following(max(known)) if known else BEGINNING
        is_ahead = self.start > end
        if is_ahead:
            self.start = self._following = end
        elif self.start == BEGINNING and first is not None:
            self._following = first
        elif self.start == BEGINNING and newest is not None:
            self._following = following(newest)  # without messages that arrived since
        if last is not None:
            self.dropped = last if self.dropped is None else max(self.dropped, last)
        self._meet()
        return is_ahead

    def skip_to(self, start: Token) -> None:
        """Skip everything before `start`; nothing from there on was read yet."""
        self.start = max(self.start, start)
        self._following = max(self._following, Token(start.era, start.seq))
        self._meet()

    def unload(self) -> None:
        """Pin nothing: all unfinished messages are read again."""
        slot = self.slot
        if slot is not None and slot.lane is not None:
            dropped = slot.lane.tail.message.token
            self.dropped = dropped if self.dropped is None else max(self.dropped, dropped)
            self.start = self.position
            self._following = Token(self.start.era, self.start.seq)
            self.is_full = False
            self._let_slot_go()
        self.let_go()

    def entry(self) -> ListedSubscription:
        """Return the entry of a lagging cursor for the queue record."""
        (namespace, name), subscription = self.key
        position = self.position
        return ListedSubscription(
            namespace, name, subscription, position, self.sent, self.is_rewound
        )

    def check(self) -> None:
        """Assert the invariants."""
        slot = self.slot
        assert slot is None or (self._item < len(slot.message.items) and slot.holds > 0)
        assert slot is None or self.is_lagging is (slot.index == REREAD)
        if not self.is_lagging:
            assert self.tail is None and not self.keeps
            return
        assert self.tail is None or self.keeps
        assert self.slot is not None or not self.has_all or self.is_new
