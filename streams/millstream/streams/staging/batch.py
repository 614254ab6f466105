"""A staged batch: what its attempts hold, and which sequences its messages have. Pure.

Owns: the values that are stored with the decision, and the arithmetic of sequences. Not: the
decision (`coordinator`), chunks themselves. Invariants: the sequences of a lane are consecutive,
over chunks, attempts and batches; they depend on the decision alone, so whoever reads it gives the
same message the same sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

__all__ = ["CHUNKS_MAX", "Batch", "Manifest", "Placed", "check_manifests", "decide", "iter_placed"]

CHUNKS_MAX = 10_000
"""Chunks of one batch; each has at most 1 MiB."""


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """What one attempt has staged.

    Attributes: `attempt`, its name; `part`, of the batch, which it wrote; `lanes`, where its
    messages go: a lane is a queue of a namespace, as it was called when they were staged;
    `chunks`, of each chunk how many messages it has for each of these lanes.
    """

    attempt: str
    part: int
    lanes: list[str]
    chunks: list[list[int]]

    @property
    def messages(self) -> int:
        """Of all chunks."""
        return sum(map(sum, self.chunks))


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """A batch that is decided: its attempts by part, and the first sequence in each lane."""

    number: int
    manifests: list[Manifest]
    first: dict[str, int]

    @property
    def messages(self) -> int:
        """Of all attempts."""
        return sum(manifest.messages for manifest in self.manifests)

    def next(self) -> dict[str, int]:
        """The sequence behind the last one, in each lane."""
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
    """Go past the messages of a chunk."""
    for lane, count in zip(lanes, counts, strict=True):
        at[lane] += count


def iter_placed(batch: Batch) -> Iterator[Placed]:
    """The chunks of a batch in the order in which they are to be enqueued."""
    at = dict(batch.first)
    for manifest in batch.manifests:
        for index, counts in enumerate(manifest.chunks):
            first = {lane: at[lane] for lane in manifest.lanes}
            yield Placed(manifest.part, manifest.attempt, index, first)
            advance(at, manifest.lanes, counts)


def decide(number: int, manifests: Sequence[Manifest], next_of: Mapping[str, int]) -> Batch:
    """A batch of these attempts, whose sequences go on where `next_of` says.

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
            raise ValueError(f"a batch has one attempt for each part; {what} is there twice")
    count = sum(len(manifest.chunks) for manifest in manifests)
    if count > CHUNKS_MAX:
        raise ValueError(
            f"a batch of {count} chunks; CHUNKS_MAX is {CHUNKS_MAX}: write less at once"
        )
