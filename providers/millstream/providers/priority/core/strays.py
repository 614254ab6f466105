"""Whether a shard still has messages that belong to another one.

Owns: `StraySearch`. Invariants: each look costs at most `STEPS`; a message is looked at once for
each layout, as where it belongs does not change within one; it says that there are strays until
all messages were looked at and none was one.
"""

from __future__ import annotations

from collections.abc import Callable

from .message import Message

__all__ = ["STEPS", "StraySearch"]

STEPS = 20_000
"""Messages that a look takes at most: about 40 ms."""


class StraySearch:
    """The search of one layout."""

    __slots__ = ("_last", "_layout", "_todo")

    def __init__(self) -> None:
        self._layout: int | None = None  # nothing was looked at yet
        self._last: int  # sequences up to it are among those looked at, or to be
        self._todo: list[int]

    def has_any(
        self, layout: int, messages: dict[int, Message], belongs: Callable[[Message], bool]
    ) -> bool:
        """Is a message left that does not belong here, or one that was not looked at?"""
        if layout != self._layout:
            self._layout, self._last, self._todo = layout, 0, []
        for _ in range(STEPS):
            if not self._todo and not self._more(messages):
                return False
            message = messages.get(self._todo[-1])
            if message is not None and not belongs(message):
                return True
            self._todo.pop()
        return bool(self._todo) or self._more(messages)

    def _more(self, messages: dict[int, Message]) -> bool:
        """Messages that came meanwhile are to be looked at, too."""
        if next(reversed(messages), 0) > self._last:  # they are in the order of their sequences
            self._todo = [sequence for sequence in messages if sequence > self._last]
            self._todo.reverse()
            self._last = self._todo[0]
        return bool(self._todo)
