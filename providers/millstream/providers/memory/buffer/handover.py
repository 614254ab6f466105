"""Items from other threads, on their way into the topic's loop.

This module owns `Handover`. Items of one thread enter in its order. A burst of items wakes the loop
once. At most `items_max` items wait.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

from millstream.runtime import ConfigError, QueueFull

from .errors import TopicClosed

__all__ = ["Handover", "Puts"]

log = logging.getLogger("millstream.buffer")

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Puts(Protocol[T_contra]):
    """The receiver of items in the loop."""

    def try_produce(self, item: T_contra, /) -> bool: ...


class Handover(Generic[T]):
    """Passes items from threads to a producer. `name` is the topic, for errors."""

    RETRY_S = 0.005  # while the topic is full

    def __init__(self, producer: Puts[T], items_max: int, name: str) -> None:
        self._producer = producer
        self._items_max = items_max
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._is_woken = False
        self._is_closed = False

    def bind(self) -> None:
        """Use the running loop as the topic's loop."""
        self._loop = asyncio.get_running_loop()

    def put(self, item: T) -> None:
        """Add an item, from any thread.

        Raises QueueFull, TopicClosed, and ConfigError if the topic has no loop yet.
        """
        loop = self._loop
        if loop is None:
            raise ConfigError(
                f"{self._name} knows no event loop yet: create a consumer in the loop first"
            )
        with self._lock:
            if self._is_closed:
                raise TopicClosed(f"{self._name} is closed and accepts no more items")
            if len(self._items) >= self._items_max:
                raise QueueFull(
                    f"{self._name}: {self._items_max} items from other threads wait already "
                    "(handover_max)"
                )
            self._items.append(item)
            must_wake, self._is_woken = not self._is_woken, True
        if must_wake:
            loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._items:
                    self._is_woken = False
                    return
                item = self._items[0]
            try:
                is_in = self._producer.try_produce(item)
            except Exception:  # raised by the user's `key`
                log.exception(
                    "%s: the key function failed for an item from another thread; "
                    "the item is dropped",
                    self._name,
                )
                is_in = True
            if not is_in:
                assert self._loop is not None
                self._loop.call_later(self.RETRY_S, self._drain)
                return
            self._items.popleft()

    def close(self) -> list[T]:
        """Accept no more items; returns the items that have not entered yet."""
        with self._lock:
            self._is_closed = True
            left = list(self._items)
            self._items.clear()
        return left
