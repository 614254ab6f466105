"""Offsets of slots as users see them: a generation and an index in it.

This module owns `Offset`. Inside the provider, positions are unbounded ints, and `Offset` is a view
of them that wraps like a pair of unsigned 64-bit numbers. Order holds only within a window narrower
than one generation (2**64 slots), across every wrap. Over all offsets the order is not transitive,
so never sort offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Offset"]

_SPAN = 1 << 64
_WRAP = 1 << 128


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in a partition of a buffer topic, as two numbers that wrap at 64 bits.

    `MemoryConsumer.offsets()` returns offsets. Within one generation (2**64 positions) offsets
    compare in order, across a wrap too: generation 0 follows generation 2**64 - 1. The order is not
    transitive over all offsets, so do not sort them. `offset + count` moves forward. `offset -
    earlier` is the distance, and raises `ValueError` if `earlier` is later.

    Attributes:
        generation: How often the index has wrapped, in 0..2**64-1.
        index: The position within the generation, in 0..2**64-1.

    Raises:
        ValueError: A number is outside its range.
    """

    generation: int
    index: int

    def __post_init__(self) -> None:
        for name, value in (("generation", self.generation), ("index", self.index)):
            if not 0 <= value < _SPAN:
                raise ValueError(f"{name} is {value}, it must be in 0..2**64-1")

    @classmethod
    def of(cls, position: int) -> Offset:
        """Return the offset of a position; positions that differ by 2**128 have the same offset.

        Args:
            position: A position as an unbounded int.
        """
        return cls(*divmod(position % _WRAP, _SPAN))

    def near(self, reference: int) -> int:
        """Return the position with this offset that is nearest to `reference`.

        Args:
            reference: A position as an unbounded int.
        """
        ahead = (self._flat() - reference) % _WRAP
        return reference + (ahead if ahead < _WRAP // 2 else ahead - _WRAP)

    def __add__(self, count: int) -> Offset:
        return Offset.of(self._flat() + count)

    def __sub__(self, other: Offset) -> Offset:
        """Return the distance from `other`, which may be before the wrap."""
        if self < other:
            raise ValueError(f"{other} is after {self}: the distance is negative")
        return Offset.of(self._flat() - other._flat())

    def __lt__(self, other: Offset) -> bool:
        generations = {self.generation, other.generation}
        if generations == {0, _SPAN - 1}:
            return self.generation > other.generation
        return self._flat() < other._flat()

    def __gt__(self, other: Offset) -> bool:
        return other < self

    def __le__(self, other: Offset) -> bool:
        return not other < self

    def __ge__(self, other: Offset) -> bool:
        return not self < other

    def _flat(self) -> int:
        return self.generation * _SPAN + self.index
