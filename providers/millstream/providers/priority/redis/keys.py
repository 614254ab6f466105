"""The names of a store's keys.

A queue is in one of 16 lanes by a frozen hash of its name. All keys of a lane begin with the same
hash tag, so they are in one slot, and one script may change a queue together with what is said of
it to others: its name, when it is due, its events.
Owns: `lane_of`, `LaneKeys`, `QueueKeys`.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

__all__ = ["LANES", "LaneKeys", "QueueKeys", "lane_keys", "lane_of", "queue_keys"]

LANES = 16


class LaneKeys(NamedTuple):
    """`lane`: a hash, the form of the lane and its latest position. `names`: a sorted set of the
    queues that are there. `due`: one of queues by the time at which they are due. `events`: a
    stream, the outbox."""

    lane: bytes
    names: bytes
    due: bytes
    events: bytes


class QueueKeys(NamedTuple):
    """Hashes. `head`: owner, settings and counters. `states` and `bodies`: of messages, by their
    sequence; what can change, and what cannot. `sessions`, `answers`: what is remembered of
    requests."""

    head: bytes
    states: bytes
    bodies: bytes
    sessions: bytes
    answers: bytes


def lane_of(queue: str) -> int:
    """Frozen: what is stored depends on it."""
    return xxhash.xxh3_64_intdigest(queue.encode()) % LANES


def lane_keys(prefix: str, lane: int) -> LaneKeys:
    tag = tag_of(prefix, lane)
    return LaneKeys(tag + b"lane", tag + b"names", tag + b"due", tag + b"events")


def queue_keys(prefix: str, queue: str) -> QueueKeys:
    tag, name = tag_of(prefix, lane_of(queue)), queue.encode()
    return QueueKeys(*(tag + kind.encode() + b":" + name for kind in QueueKeys._fields))


def tag_of(prefix: str, lane: int) -> bytes:
    """What is between the braces decides upon the slot, whatever braces a queue's name has."""
    return f"{{{prefix}:{lane}}}:".encode()
