"""Cursors and deliveries at messages of a cache, for the tests of an agent's parts."""

from __future__ import annotations

from copy import deepcopy

from millstream.streams import DeliveryOptions, QueueMessage, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot, items_from
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.contracts.item import Item
from millstream.streams.ownership.record import ListedSubscription, QueueProgress

SUBSCRIPTION = "s"


def append(cache: QueueCache, message: QueueMessage) -> Slot:
    """Append a message for which there is room; it is held once."""
    slot = cache.append(message)
    assert slot is not None, f"there is no room for {message.token}"
    return slot


def fits(cache: QueueCache, message: QueueMessage) -> bool:
    """Is there room for the message? The cache stays as it is."""
    return deepcopy(cache).append(message) is not None


def add(cache: QueueCache, *messages: QueueMessage) -> None:
    """Append messages, and hold them no longer than a cursor does."""
    for message in messages:
        cache.release(append(cache, message))


def restored(
    laggards: LaggingCursors,
    one: ListedSubscription,
    upto: Token | None,
    *,
    may_repeat: bool = False,
) -> Cursor:
    """The cursor of a subscription that the former owner has listed."""
    laggards.take_over(QueueProgress(upto, (one,)), may_repeat=may_repeat)
    cursor = laggards.get((one.stream, one.subscription))
    assert cursor is not None
    return cursor


def cursor_at(
    laggards: LaggingCursors,
    slot: Slot,
    after: Token | None = None,
    *,
    subscription: str = SUBSCRIPTION,
    unacked_max: int = 0,
) -> Cursor:
    """A cursor at the first item above `after`, from a message on."""
    cursor = Cursor(laggards, (slot.message.stream, subscription), unacked_max)
    cursor.enter(slot, after)
    return cursor


def delivery_at(
    laggards: LaggingCursors,
    slot: Slot,
    options: DeliveryOptions,
    after: Token | None = None,
    *,
    is_manual: bool = False,
    is_faulted: bool = False,
) -> Delivery:
    """A delivery from the first item above `after` on."""
    cursor = cursor_at(laggards, slot, after)
    return Delivery(cursor, options, after=after, is_manual=is_manual, is_faulted=is_faulted)


def chain_of(cursor: Cursor) -> list[Item]:
    """The items that are here, from the place where the cursor stands."""
    return list(items_from(cursor.slot, cursor._item, 99, 1 << 20))


def at_hand(cursor: Cursor) -> list[int]:
    """The numbers of these messages."""
    return sorted({item.token.seq for item in chain_of(cursor)})
