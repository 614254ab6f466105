"""Caches with messages, and cursors in them."""

from __future__ import annotations

from millstream.streams import CacheLimits, QueueMessage, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import Notes, QueueCache


def cache_with(
    *messages: QueueMessage, limits: CacheLimits | None = None, notes: Notes = "none"
) -> QueueCache:
    """A cache with these messages; each is held once, as nothing was routed."""
    cache = QueueCache(limits or CacheLimits(), notes=notes)
    for message in messages:
        cache.append(message)
    return cache


def slot_at(cache: QueueCache, index: int) -> Slot:
    """The message with this absolute index, which is held."""
    return cache._slots[index]


def release(cache: QueueCache, *indices: int) -> None:
    """Undo one hold of each of these messages."""
    for index in indices:
        cache.release(slot_at(cache, index))


def release_all(cache: QueueCache) -> None:
    """Undo one hold of each message that is in the cache."""
    release(cache, *list(cache._slots))


def cursor_at(cache: QueueCache, index: int, after: Token | None = None) -> Cursor:
    """A cursor that entered at the message with this index, in a cache that nobody follows."""
    slot = slot_at(cache, index)
    cursor = Cursor(LaggingCursors(cache, is_used=False), (slot.message.stream, "sub"))
    cursor.enter(slot, after)
    return cursor
