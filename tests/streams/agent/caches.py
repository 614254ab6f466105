"""Makes caches with messages, and cursors in them."""

from __future__ import annotations

from millstream.streams import CacheLimits, QueueMessage, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import Notes, QueueCache


def cache_with(
    *messages: QueueMessage, limits: CacheLimits | None = None, notes: Notes = "none"
) -> QueueCache:
    """Make a cache with these messages; each is pinned once, because nothing was routed."""
    cache = QueueCache(limits or CacheLimits(), notes=notes)
    for message in messages:
        cache.append(message)
    return cache


def slot_at(cache: QueueCache, index: int) -> Slot:
    """Return the pinned message with this absolute index."""
    return cache._slots[index]


def release(cache: QueueCache, *indices: int) -> None:
    """Unpin each of these messages once."""
    for index in indices:
        cache.release(slot_at(cache, index))


def release_all(cache: QueueCache) -> None:
    """Unpin each message in the cache once."""
    release(cache, *list(cache._slots))


def cursor_at(cache: QueueCache, index: int, after: Token | None = None) -> Cursor:
    """Make a cursor at the message with this index; the cache has no other cursors."""
    slot = slot_at(cache, index)
    cursor = Cursor(LaggingCursors(cache, is_used=False), (slot.message.stream, "sub"))
    cursor.enter(slot, after)
    return cursor
