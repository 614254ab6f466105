"""The names of a store's keys.

A frozen hash of its name assigns each queue to one of 16 lanes. All keys of a lane begin with the
same hash tag and are therefore in one slot. So one script may change a queue together with its
lane: the names of queues, their due times, and the events.

Owns `lane_of`, `LaneKeys` and `QueueKeys`.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

__all__ = ["LANES", "LaneKeys", "QueueKeys", "lane_keys", "lane_of", "queue_keys"]

LANES = 16


class LaneKeys(NamedTuple):
    """The keys of a lane.

    `lane` is a hash with the form and the latest position. `names` is the sorted set of existing
    queues. `due` is the sorted set of queues by due time. `events` is the stream that holds the
    outbox.
    """

    lane: bytes
    names: bytes
    due: bytes
    events: bytes


class QueueKeys(NamedTuple):
    """The keys of a queue, all hashes.

    `head` has owner, settings and counters. `states` and `bodies` have the changing and the fixed
    fields of messages, by sequence. `sessions` and `answers` have the remembered requests.
    """

    head: bytes
    states: bytes
    bodies: bytes
    sessions: bytes
    answers: bytes


def lane_of(queue: str) -> int:
    """The lane of a queue. Frozen, because stored data depends on it."""
    return xxhash.xxh3_64_intdigest(queue.encode()) % LANES


def lane_keys(prefix: str, lane: int) -> LaneKeys:
    tag = tag_of(prefix, lane)
    return LaneKeys(tag + b"lane", tag + b"names", tag + b"due", tag + b"events")


def queue_keys(prefix: str, queue: str) -> QueueKeys:
    tag, name = tag_of(prefix, lane_of(queue)), queue.encode()
    return QueueKeys(*(tag + kind.encode() + b":" + name for kind in QueueKeys._fields))


def tag_of(prefix: str, lane: int) -> bytes:
    """The hash tag of a lane.

    The text between the first braces selects the slot, so braces in a queue's name have no effect.
    """
    return f"{{{prefix}:{lane}}}:".encode()
