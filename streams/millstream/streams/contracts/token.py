"""Tokens: comparable positions of events within one stream.

Invariants: compared as a tuple; `seq` is the provider's number of the stored message, `index` the
item in it; `era` rises when numbering starts anew. Wire form: 3-array. Text: hex 8-16-8.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Token"]


class Token(NamedTuple):
    """A position: (era u32, seq u64, index u32)."""

    era: int
    seq: int
    index: int = 0  # type: ignore[assignment]  # the field shadows tuple.index

    def __str__(self) -> str:
        return f"{self.era:08x}-{self.seq:016x}-{self.index:08x}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """From the text form; raises ValueError naming the text."""
        parts = text.split("-")
        digits = set("0123456789abcdef")
        if [len(part) for part in parts] != [8, 16, 8] or not digits.issuperset("".join(parts)):
            raise ValueError(f"{text!r} is not a token: hex 8-16-8, joined by '-'")
        return cls(*(int(part, 16) for part in parts))
