"""A staged batch: the contents of its attempts, and the sequences of its messages. Pure.

Owns the values that are stored with the decision, and the arithmetic of sequences. `coordinator`
makes the decision.

Invariants: the sequences of a lane are consecutive across chunks, attempts and batches. They depend
only on the decision, so each reader gives the same message the same sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

__all__ = ["CHUNKS_MAX", "Batch", "Manifest", "Placed", "check_manifests", "decide", "iter_placed"]

CHUNKS_MAX = 10_000
"""Limit of the chunks of one batch; each chunk has at most 1 MiB."""


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """The contents of one attempt.

    Attributes:
        attempt: its name.
        part: the part of the batch that it wrote.
        lanes: the lanes of its messages. A lane is the sequence of the writer's messages for one
            queue, and has the name that the queue had when the messages were staged.
        chunks: for each chunk, the number of its messages in each of these lanes.
    """

    attempt: str
    part: int
    lanes: list[str]
    chunks: list[list[int]]

    @property
    def messages(self) -> int:
        """The number of messages in all chunks."""
        return sum(map(sum, self.chunks))


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """A decided batch: its attempts in order of their parts, and the first sequence in each
    lane."""

    number: int
    manifests: list[Manifest]
    first: dict[str, int]

    @property
    def messages(self) -> int:
        """The number of messages in all attempts."""
        return sum(manifest.messages for manifest in self.manifests)

    def next(self) -> dict[str, int]:
        """Return the next free sequence of each lane."""
        found = dict(self.first)
        for manifest in self.manifests:
            for chunk in manifest.chunks:
                advance(found, manifest.lanes, chunk)
        return found


class Placed(msgspec.Struct, frozen=True):
    """A chunk, and the sequence of its first message in each lane."""

    part: int
    attempt: str
    index: int
    first: dict[str, int]


def advance(at: dict[str, int], lanes: Sequence[str], counts: Sequence[int]) -> None:
    """Advance the sequences past the messages of a chunk."""
    for lane, count in zip(lanes, counts, strict=True):
        at[lane] += count


def iter_placed(batch: Batch) -> Iterator[Placed]:
    """Yield the chunks of a batch in the order in which they must be enqueued."""
    at = dict(batch.first)
    for manifest in batch.manifests:
        for index, counts in enumerate(manifest.chunks):
            first = {lane: at[lane] for lane in manifest.lanes}
            yield Placed(manifest.part, manifest.attempt, index, first)
            advance(at, manifest.lanes, counts)


def decide(number: int, manifests: Sequence[Manifest], next_of: Mapping[str, int]) -> Batch:
    """Return a batch of these attempts, whose sequences continue at `next_of`.

    Raises ValueError for manifests that do not fit together.
    """
    check_manifests(manifests)
    ordered = sorted(manifests, key=lambda manifest: manifest.part)
    lanes = sorted({lane for manifest in ordered for lane in manifest.lanes})
    return Batch(number, ordered, {lane: next_of.get(lane, 0) for lane in lanes})


def check_manifests(manifests: Sequence[Manifest]) -> None:
    for manifest in manifests:
        name, lanes = f"attempt {manifest.attempt!r}", manifest.lanes
        if len(set(lanes)) < len(lanes):
            raise ValueError(f"{name} names a lane twice: {', '.join(lanes)}")
        chunks = manifest.chunks
        if any(len(counts) != len(lanes) or any(n < 0 for n in counts) for counts in chunks):
            raise ValueError(f"{name}: each chunk has one count, 0 or more, for each of its lanes")
    for what, names in (
        ("a part", [manifest.part for manifest in manifests]),
        ("an attempt", [manifest.attempt for manifest in manifests]),
    ):
        if len(set(names)) < len(names):
            raise ValueError(f"a batch has one attempt for each part, but {what} appears twice")
    count = sum(len(manifest.chunks) for manifest in manifests)
    if count > CHUNKS_MAX:
        raise ValueError(
            f"the batch has {count} chunks; CHUNKS_MAX is {CHUNKS_MAX}: write less in one batch"
        )
