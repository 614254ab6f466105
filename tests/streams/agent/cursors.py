"""Makes cursors and deliveries at messages of a cache, for tests of an agent's parts."""

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
    """Append a message that fits; it is pinned once."""
    slot = cache.append(message)
    assert slot is not None, f"there is no room for {message.token}"
    return slot


def fits(cache: QueueCache, message: QueueMessage) -> bool:
    """Does the message fit? The cache is not changed."""
    return deepcopy(cache).append(message) is not None


def add(cache: QueueCache, *messages: QueueMessage) -> None:
    """Append messages, and pin them only while a cursor does."""
    for message in messages:
        cache.release(append(cache, message))


def restored(
    laggards: LaggingCursors,
    one: ListedSubscription,
    upto: Token | None,
    *,
    may_repeat: bool = False,
) -> Cursor:
    """Return the cursor of a subscription that the former owner has listed."""
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
    """Make a cursor at the first item above `after`, starting from a message."""
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
    """Make a delivery that starts with the first item above `after`."""
    cursor = cursor_at(laggards, slot, after)
    return Delivery(cursor, options, after=after, is_manual=is_manual, is_faulted=is_faulted)


def chain_of(cursor: Cursor) -> list[Item]:
    """Return the cached items from the cursor's position on."""
    return list(items_from(cursor.slot, cursor._item, 99, 1 << 20))


def at_hand(cursor: Cursor) -> list[int]:
    """Return the numbers of the messages of these items."""
    return sorted({item.token.seq for item in chain_of(cursor)})
