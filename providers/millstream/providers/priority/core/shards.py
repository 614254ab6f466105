"""One queue over several shards: which messages are where, and what they are called.

A shard is a queue of its own, with its own owner; shard 0 has the queue's name. A message of an
exclusive queue is where its exclusivity value belongs, one of a simple queue where its id does.
When the number of shards changes, messages stay where they are until they are collected. While
that lasts a shard takes what belonged there before only as long as it has unfinished messages of
that value; else it says `Moved`, and never takes the value again. What belongs to a shard now, and
elsewhere before, is taken by it only from who was told `Moved` there. So no value is ever in two
shards unfinished. The lease number of the former shard comes along, so that of a value fencing
tokens rise in all shards.
Owns: `home_of`, names of shards, what a change of the number becomes. Source: `spec/queues.md` C12.
Invariants: layouts of a queue are numbered, and never go back, also when it is deleted and made
again; one change ends before the next begins.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from .errors import RequestInvalid, SettingsConflict
from .settings import QueueSettings

__all__ = [
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
"""What the names of a stream provider's queues begin with. Only the provider makes these: it alone
knows what they are like, also when one was deleted."""
SHARD_MARK = "\x1f"
"""Between a queue's name and a shard's number; no queue has it in its name."""


def shard_name(queue: str, shard: int) -> str:
    """What the shard of a queue is called in the store, and as a grain."""
    return f"{queue}{SHARD_MARK}{shard}" if shard else queue


def split_name(name: str) -> tuple[str, int]:
    """The queue, and which shard of it: the inverse of `shard_name`."""
    queue, mark, number = name.partition(SHARD_MARK)
    return queue, int(number) if mark else 0


def home_of(key: str, shards: int) -> int:
    """The shard of a value or an id, by a jump hash (Lamping and Veach): of n + 1 shards the new
    one takes 1 of n + 1 keys, and the others keep theirs."""
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
    """The settings of a new queue: it has been nowhere else, and `configure` numbers its layout.
    Shards are made with those of their queue. Raises `RequestInvalid`: as `change_settings`."""
    refuse_shards_of_streams(name, settings)
    return settings if split_name(name)[1] else replace(settings, shards_before=0, layout=0)


def refuse_shards_of_streams(queue: str, settings: QueueSettings) -> None:
    """What a stream provider reads from a queue it knows by the numbers of leases, and these are of
    one shard: of two leases with one number it would end the wrong one."""
    if queue.startswith(STREAMS) and settings.shards > 1:
        what = f"is {settings.shards}, the queue of a stream provider has 1: give that more queues"
        raise RequestInvalid(queue, "shards", what)


def is_wish(wanted: QueueSettings, settings: QueueSettings) -> bool:
    """Are these the settings that somebody wants, as far as that is theirs to say?"""
    own = settings.shards_before, settings.layout
    return replace(wanted, shards_before=own[0], layout=own[1]) == settings


def change_settings(
    queue: str, settings: QueueSettings, wanted: QueueSettings, layout_min: int
) -> QueueSettings:
    """What settings become that somebody wants to be others.

    Args:
        layout_min: the least number of a new layout.
    Raises: `SettingsConflict`: the last change of `shards` is under way, or several shards stand
    against another exclusivity key; `RequestInvalid`: shards of a queue of streams.
    """
    refuse_shards_of_streams(queue, wanted)
    before, is_other = settings.shards_before, wanted.shards != settings.shards
    if is_other and before:
        what = f"its messages still go from {before} to {settings.shards} shards: change it later"
        raise SettingsConflict(queue, f"shards: {what}")
    is_one = settings.shards == wanted.shards == 1 and not before
    if not is_one and wanted.exclusivity_key != settings.exclusivity_key:
        what = "exclusivity_key cannot change in a queue with several shards"
        raise SettingsConflict(queue, what)
    layout = 0 if is_one else layout_min
    return replace(wanted, shards_before=settings.shards if is_other else before, layout=layout)
