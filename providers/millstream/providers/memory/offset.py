"""Offsets of slots as users see them: a generation and an index in it.

Owns: `Offset`. Inside, positions are unbounded ints; this is a view of them that wraps as a pair of
unsigned 64-bit numbers does. Invariant: order holds only within a window narrower than one
generation (2**64 slots), across every wrap; over all offsets it is not transitive, so never sort.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Offset"]

_SPAN = 1 << 64
_WRAP = 1 << 128


@dataclass(frozen=True, slots=True)
class Offset:
    """A position; generation 0 follows generation 2**64 - 1."""

    generation: int
    index: int

    def __post_init__(self) -> None:
        for name, value in (("generation", self.generation), ("index", self.index)):
            if not 0 <= value < _SPAN:
                raise ValueError(f"{name} is {value}, it must be in 0..2**64-1")

    @classmethod
    def of(cls, position: int) -> Offset:
        """The view of a position; positions 2**128 apart look the same."""
        return cls(*divmod(position % _WRAP, _SPAN))

    def near(self, reference: int) -> int:
        """The position with this view that is nearest to `reference`."""
        ahead = (self._flat() - reference) % _WRAP
        return reference + (ahead if ahead < _WRAP // 2 else ahead - _WRAP)

    def __add__(self, count: int) -> Offset:
        return Offset.of(self._flat() + count)

    def __sub__(self, other: Offset) -> Offset:
        """The distance from `other`, which may lie before the wrap."""
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
