"""Which producer a message has, and which sequence: the identity that the cluster drops repeats by.

Pure. Invariants: the same rows in the same order, in the same batch and partition, get the same
(producer, sequence) pairs in every attempt; within a producer, sequences grow with every message
and with every batch; a sequence is below 2**63. Batch ids have no end: a producer's name has what
does not fit into a sequence. Consequence: a writer's batch ids only grow. A writer id that starts
again at batch 0 (an emptied checkpoint) names messages that were accepted before, and the cluster
would drop them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NUMBER_BITS", "Numbering", "Origin"]

NUMBER_BITS = 31
BATCH_BITS = 63 - NUMBER_BITS
NUMBERS_MAX = 1 << NUMBER_BITS


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows come from: one Spark partition of one batch of one writer."""

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
    """Hands out the sequences of one batch and partition, in message order."""

    __slots__ = ("_base", "_used")

    def __init__(self, origin: Origin) -> None:
        self._base = (origin.batch & ((1 << BATCH_BITS) - 1)) << NUMBER_BITS
        self._used = 0

    @property
    def used(self) -> int:
        """How many sequences were handed out."""
        return self._used

    def take(self) -> int:
        """The next sequence. Raises ValueError after 2**31 messages."""
        if self._used >= NUMBERS_MAX:
            raise ValueError(f"a batch has more than {NUMBERS_MAX} messages in one partition")
        seq = self._base | self._used
        self._used += 1
        return seq

    def check(self) -> None:
        """Assert that no sequence can leave the batch or 63 bits."""
        assert 0 <= self._used <= NUMBERS_MAX
        assert (self._base | (self._used - 1 if self._used else 0)) < 1 << 63
