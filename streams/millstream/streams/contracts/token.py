"""Tokens: comparable positions of events within one stream.

Invariants: tokens compare as tuples. `seq` is the provider's number of the stored message, and
`index` is the item in it. `era` rises when numbering starts anew. Wire form: 3-array. Text: hex
8-16-8.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Token"]


class Token(NamedTuple):
    """The position of an event in its stream. Tokens of one stream compare in the order of events.

    `str(token)` and `Token.parse(text)` convert to and from hexadecimal text of 8, 16 and 8 digits,
    joined by `-`. Use the text to store a position outside of the cluster.

    Attributes:
        era: rises when the provider starts its numbering anew; 32 bits.
        seq: the provider's number of the stored message; 64 bits.
        index: the place of the item in its message, from 0; 32 bits.
    """

    era: int
    seq: int
    index: int = 0  # type: ignore[assignment]  # the field shadows tuple.index

    def __str__(self) -> str:
        return f"{self.era:08x}-{self.seq:016x}-{self.index:08x}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Return the token of a text that `str(token)` made.

        Args:
            text: the text.

        Raises:
            ValueError: the text is no token; the error names it.
        """
        parts = text.split("-")
        digits = set("0123456789abcdef")
        if [len(part) for part in parts] != [8, 16, 8] or not digits.issuperset("".join(parts)):
            raise ValueError(
                f"{text!r} is not a token: write 8, 16 and 8 hexadecimal digits, joined by '-'"
            )
        return cls(*(int(part, 16) for part in parts))
