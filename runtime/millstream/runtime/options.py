"""Frozen options of the runtime: every limit and every wait has its name here.

Invariants: units are in the names; values are checked when the object is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .errors import ConfigError
from .text import show_value

__all__ = [
    "MembershipOptions",
    "RuntimeOptions",
    "check_fields",
    "check_kind",
]


FRAME_BYTES_MOST = 2**32 - 1
"""What the length of a frame can say."""
NUMBERS: dict[object, tuple[type, ...]] = {float: (int, float), int: (int,)}
"""What is taken for a number of a type: `5` for `5.0`, but no bool."""
NAMES: dict[object, str] = {float: "number", int: "whole number", NoneType: "None"}


@cache
def _hints_of(cls: Hashable) -> dict[str, Any]:
    return get_type_hints(cls)


def check_fields(options: Any, named: Callable[[str], str] | None = None) -> None:
    """Raise ConfigError for the first field that has another type than its annotation, or a
    number that is not finite and positive. The metadata of a field may have a `min`, for one that
    may be as low as that, and a `max`.

    Args:
        options: a dataclass.
        named: a field's name as the message shows it; default: `Class.field`.
    """
    cls: Any = type(options)
    hints = _hints_of(cls)
    for one in fields(options):
        wanted = _complaint(getattr(options, one.name), hints[one.name], one.metadata)
        if wanted:
            name = named(one.name) if named else f"{type(options).__name__}.{one.name}"
            value = show_value(getattr(options, one.name))
            raise ConfigError(f"{name} is {value}; it must be {wanted}")


def check_kind(what: str, value: object, kind: type[Any]) -> None:
    """Raise ConfigError for an argument, called `what`, that is not of its type."""
    if not isinstance(value, kind):
        raise ConfigError(f"{what} is {show_value(value)}; it must be a {kind.__name__}")


def _complaint(value: object, hint: Any, metadata: Mapping[str, float]) -> str:
    """What the value should be; empty if it is."""
    if get_origin(hint) is Literal:
        texts = list(map(repr, get_args(hint)))
        return "" if show_value(value) in texts else f"{', '.join(texts[:-1])} or {texts[-1]}"
    kinds = get_args(hint) or (hint,)
    lowest, highest = metadata.get("min"), metadata.get("max", math.inf)
    for kind in kinds:
        if kind not in NUMBERS:
            if isinstance(value, get_origin(kind) or kind):
                return ""
        elif isinstance(value, NUMBERS[kind]) and not isinstance(value, bool):
            number: Any = value
            is_enough = number > 0 if lowest is None else number >= lowest
            if is_enough and number < math.inf and number <= highest:
                return ""
    wanted = " or ".join(NAMES.get(kind) or kind.__name__ for kind in kinds)
    if not NUMBERS.keys() & set(kinds):
        return f"a {wanted}"
    above = " > 0" if lowest is None else f" >= {lowest:g}" if lowest > -math.inf else ""
    return f"a {wanted}{above}" + (f", at most {highest:.12g}" if highest < math.inf else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """How a silo or client makes and serves calls."""

    call_timeout_s: float = 30.0
    """Deadline of a call whose method has none of its own."""
    sweep_s: float = 0.02
    """How often requests are looked at for deadlines, while there are any."""
    slice_s: float = 0.001
    """Direct turns yield to the loop after this long."""
    nested_turns_max: int = 32
    """Direct turns nested in one task; deeper ones hop to a new task."""
    chain_turns_max: int = 400
    """Turns that wait for each other in one chain of calls."""
    waiting_calls_max: int = 10_000
    """Requests waiting for one activation."""
    waiting_bytes_max: int = 64 * 2**20
    """Bytes of encoded calls that wait for one activation, or for the location of one grain."""
    silo_waiting_bytes_max: int = 256 * 2**20
    """The same for all that wait in one silo or client."""
    frame_bytes_max: int = field(default=64 * 2**20, metadata={"max": FRAME_BYTES_MOST})
    """Largest frame that is sent or taken."""
    partial_bytes_max: int = 128 * 2**20
    """Bytes of all frames that are being read from clients, in one silo; other connections that
    begin a frame of more than 64 KiB are not read until there is room. Silos are not counted."""
    frame_timeout_s: float = 30.0
    """How long a client's frame may take to arrive while others wait for its room; above, its
    connection is closed."""
    batch_messages_max: int = 64
    """Messages joined in one frame."""
    batch_bytes_max: int = 64 * 2**10
    """A frame is closed when its messages reach this size."""
    peer_calls_max: int = 100_000
    """Calls outstanding to one silo."""
    peer_bytes_max: int = 24 * 2**20
    """Bytes of calls that wait to be written to one silo or gateway."""
    answer_bytes_max: int = 2**20
    """Bytes of answers that wait for one connection; above, no call is taken from it."""
    unread_bytes_max: int = 256 * 2**20
    """Bytes of answers that wait for one connection; above, it is closed."""
    connections_max: int = 900
    """Connections to one silo of clients, and of others that have not greeted; those of silos are
    not counted."""
    ping_every_s: float = 5.0
    """A connection on which nothing was heard for this long is asked for a sign."""
    silent_after_s: float = 30.0
    """A connection that was asked, and said and took nothing for this long, is closed."""
    served_calls_max: int = 100_000
    """Calls accepted from one connection and not yet answered."""
    redirects_max: int = 6
    """How often a call is sent on after a grain moved."""
    retry_first_s: float = 0.05
    """First wait before a surely unexecuted call is sent again."""
    activation_timeout_s: float = 30.0
    """How long the reading of a grain's states and `on_activate` may take together."""
    deactivation_timeout_s: float = 30.0
    """How long `on_deactivate` may take, and before it the activation's cancelled tasks."""
    idle_after_s: float = 900.0
    """Activations unused for this long are collected."""
    collect_every_s: float = 60.0
    """How often idle activations are looked for."""
    directory_cache_max: int = 100_000
    """Grain locations remembered per silo."""
    connect_retry_s: float = 0.5
    """Wait before an address that refused is tried again."""
    greet_timeout_s: float = 5.0
    """How long the other end of a new connection may take to say who it is."""
    drain_s: float = 10.0
    """How long a stopping silo waits for running turns."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipOptions:
    """How silos watch each other. Source: Orleans' ClusterMembershipOptions.

    With the defaults a silo that hangs is evicted some 4.5 s later. A silo that computes is spared
    for `unresponsive_after_s` if its code lets other threads run. A call of C code that holds the
    interpreter for four seconds cannot be told from a silo that hangs.
    """

    probe_every_s: float = 0.5
    """Time between probes of one silo."""
    probe_timeout_s: float = 1.25
    """A probe without an answer for this long has failed; C code may hold the GIL meanwhile."""
    missed_probes_max: int = 2
    """Failed probes in a row before a silo is suspected."""
    unresponsive_after_s: float = 30.0
    """A silo whose loop has not beaten for this long counts as failed."""
    probed_silos_max: int = 10
    """How many ring successors each silo probes."""
    votes_for_death: int = 2
    """Fresh votes that evict a silo, where three or more are alive; one below that."""
    vote_expires_s: float = 120.0
    """Age at which a vote no longer counts."""
    refresh_s: float = 2.0
    """How often the table is read without a cause."""
    heartbeat_s: float = 1.5
    """How often a silo stamps its row."""
    stale_after_s: float = 90.0
    """A row not stamped for this long does not count as alive when votes are counted."""
    join_timeout_s: float = 60.0
    """How long a silo tries to become active."""
    dead_rows_kept_s: float = 604_800.0
    """Dead rows older than this are forgotten."""

    def __post_init__(self) -> None:
        check_fields(self)
