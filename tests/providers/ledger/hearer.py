"""A grain that records the words that it receives."""

from __future__ import annotations

from millstream.runtime import Grain
from millstream.streams import Event, StreamNamespace, subscribe

__all__ = ["HEARD", "WORDS", "Hearer"]

WORDS = StreamNamespace("words", str)
HEARD: list[str] = []


class Hearer(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        HEARD.append(event.item)
