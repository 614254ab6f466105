"""One queue with several shards: the place of each message, and the names of shards.

A shard is a queue with an owner of its own; shard 0 has the queue's name. A message of an exclusive
queue belongs to the shard of its exclusivity value, and a message of a simple queue to the shard of
its id.

When the number of shards changes, messages stay where they are until they are collected. Meanwhile:

- A shard accepts a message that belonged there before only while it has unfinished messages of the
  same value. Otherwise it refuses the message with `Moved`, and never accepts the value again.
- A shard accepts a message that belongs there now, and belonged elsewhere before, only from a
  caller that got `Moved` in the former shard.
- The caller brings the lease number of the former shard along, so the fencing tokens of a value
  rise across shards.

Therefore no value ever has unfinished messages in two shards.

Owns `home_of`, the names of shards, and changes of their number.

Invariants: layouts of a queue are numbered, and the number never goes back, even if the queue is
deleted and created again. One change ends before the next begins.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from .errors import RequestInvalid, SettingsConflict
from .settings import QueueSettings

__all__ = [
    "JOBS",
    "SHARD_MARK",
    "STREAMS",
    "at_creation",
    "change_settings",
    "home_of",
    "is_wish",
    "shard_name",
    "split_name",
]

STREAMS = "stream/"
"""The beginning of the names of a stream provider's queues.

Only the provider creates them, because only it knows their settings.
"""
JOBS = "job/"
"""The beginning of the names of the queues of durable jobs, which only the part of jobs creates."""
SHARD_MARK = "\x1f"
"""The separator between a queue's name and a shard's number. A queue's name must not contain it."""


def shard_name(queue: str, shard: int) -> str:
    """The name of a shard in the store and as a grain."""
    return f"{queue}{SHARD_MARK}{shard}" if shard else queue


def split_name(name: str) -> tuple[str, int]:
    """The queue and the number of the shard: the inverse of `shard_name`."""
    queue, mark, number = name.partition(SHARD_MARK)
    return queue, int(number) if mark else 0


def home_of(key: str, shards: int) -> int:
    """The shard of a value or an id, by the jump hash of Lamping and Veach.

    If a shard is added to n shards, it takes 1 of n + 1 keys, and the others keep theirs.
    """
    if shards <= 1:
        return 0
    state = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    found, at = 0, 0
    while at < shards:
        found = at
        state = (state * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        at = int((found + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return found


def at_creation(name: str, settings: QueueSettings) -> QueueSettings:
    """The settings of a new queue, which has no former shards. `configure` numbers its layout.

    A shard is created with the settings of its queue. Raises `RequestInvalid` as `change_settings`
    does.
    """
    refuse_shards_of_streams(name, settings)
    return settings if split_name(name)[1] else replace(settings, shards_before=0, layout=0)


def refuse_shards_of_streams(queue: str, settings: QueueSettings) -> None:
    """Raise `RequestInvalid` for several shards of a stream provider's queue.

    The provider identifies events by their lease numbers, which are unique within one shard only.
    """
    if queue.startswith(STREAMS) and settings.shards > 1:
        what = (
            f"is {settings.shards}, but a queue of a stream provider has 1: give the provider more "
            "queues"
        )
        raise RequestInvalid(queue, "shards", what)


def is_wish(wanted: QueueSettings, settings: QueueSettings) -> bool:
    """Whether these settings are the wanted ones, apart from the fields that the queue itself
    sets.
    """
    own = settings.shards_before, settings.layout
    return replace(wanted, shards_before=own[0], layout=own[1]) == settings


def change_settings(
    queue: str, settings: QueueSettings, wanted: QueueSettings, layout_min: int
) -> QueueSettings:
    """The settings after a change.

    Args:
        queue: Name of the queue.
        settings: The present settings.
        wanted: The new settings that a program asks for.
        layout_min: The smallest number of a new layout.

    Raises:
        SettingsConflict: The last change of `shards` is in progress, or a queue with several shards
            would get another exclusivity key.
        RequestInvalid: A stream provider's queue would get several shards.
    """
    refuse_shards_of_streams(queue, wanted)
    before, is_other = settings.shards_before, wanted.shards != settings.shards
    if is_other and before:
        what = f"messages still move from {before} to {settings.shards} shards: change it later"
        raise SettingsConflict(queue, f"shards: {what}")
    is_one = settings.shards == wanted.shards == 1 and not before
    if not is_one and wanted.exclusivity_key != settings.exclusivity_key:
        what = "exclusivity_key cannot change in a queue with several shards"
        raise SettingsConflict(queue, what)
    layout = 0 if is_one else layout_min
    return replace(wanted, shards_before=settings.shards if is_other else before, layout=layout)
