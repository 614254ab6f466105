"""The search for messages of a shard that belong to another shard.

Owns `StraySearch`.

Invariants: each step costs at most `STEPS` messages. Each message is checked once per layout,
because its place does not change within one. The search reports strays until it has checked all
messages and found none.
"""

from __future__ import annotations

from collections.abc import Callable

from .message import Message

__all__ = ["STEPS", "StraySearch"]

STEPS = 20_000
"""Maximum number of messages of one step, about 40 ms."""


class StraySearch:
    """The search within one layout."""

    __slots__ = ("_last", "_layout", "_todo")

    def __init__(self) -> None:
        self._layout: int | None = None  # nothing was checked yet
        self._last: int  # messages up to this sequence are checked or in the list
        self._todo: list[int]

    def has_any(
        self, layout: int, messages: dict[int, Message], belongs: Callable[[Message], bool]
    ) -> bool:
        """Whether a stray or an unchecked message is left."""
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
        """Add the messages that arrived since the list was made."""
        if next(reversed(messages), 0) > self._last:  # messages are in the order of their sequences
            self._todo = [sequence for sequence in messages if sequence > self._last]
            self._todo.reverse()
            self._last = self._todo[0]
        return bool(self._todo)
