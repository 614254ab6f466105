"""The producer and the sequence of a message, by which the cluster drops repeats, as pure values.

The same rows in the same order, batch and partition get the same (producer, sequence) pairs in
every attempt. Within a producer, sequences grow with every message and every batch, and stay below
2**63. Batch ids have no limit, so the producer's name has the part that does not fit into a
sequence. As a consequence, the batch ids of a writer must only grow. A writer id that starts again
at batch 0 (an emptied checkpoint) repeats accepted identities, and the cluster would drop its
messages.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NUMBER_BITS", "Numbering", "Origin"]

NUMBER_BITS = 31
BATCH_BITS = 63 - NUMBER_BITS
NUMBERS_MAX = 1 << NUMBER_BITS


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of rows: one Spark partition of one batch of one writer."""

    writer: str
    batch: int
    partition: int

    def __post_init__(self) -> None:
        assert self.batch >= 0, f"batch id {self.batch}: Spark counts from 0"

    @property
    def producer(self) -> str:
        """The producer's name: numbering is per writer and partition, over 2**32 batches."""
        name, epoch = f"{self.writer}/{self.partition}", self.batch >> BATCH_BITS
        return f"{name}/{epoch}" if epoch else name


class Numbering:
    """Gives the sequences of one batch and partition, in message order."""

    __slots__ = ("_base", "_used")

    def __init__(self, origin: Origin) -> None:
        self._base = (origin.batch & ((1 << BATCH_BITS) - 1)) << NUMBER_BITS
        self._used = 0

    @property
    def used(self) -> int:
        """The number of sequences given so far."""
        return self._used

    def take(self) -> int:
        """Return the next sequence. Raises ValueError after 2**31 messages."""
        if self._used >= NUMBERS_MAX:
            raise ValueError(f"a batch has more than {NUMBERS_MAX} messages in one partition")
        seq = self._base | self._used
        self._used += 1
        return seq

    def check(self) -> None:
        """Assert that no sequence leaves the batch or 63 bits."""
        assert 0 <= self._used <= NUMBERS_MAX
        assert (self._base | (self._used - 1 if self._used else 0)) < 1 << 63
