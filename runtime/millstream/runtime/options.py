"""The options of the runtime, and the checks of options.

Every limit and every wait of the runtime is a field here. The unit is part of the name: `_s` is
seconds, `_bytes` is bytes. Options are frozen, and their values are checked when an object is made.
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
    "PlacementOptions",
    "Rebalancing",
    "RuntimeOptions",
    "check_fields",
    "check_kind",
]


FRAME_BYTES_MOST = 2**32 - 1
"""The largest length that a frame can state."""
NUMBERS: dict[object, tuple[type, ...]] = {float: (int, float), int: (int,)}
"""The types accepted for a number of a type: `5` for `5.0`, but never a bool."""
NAMES: dict[object, str] = {float: "number", int: "whole number", NoneType: "None"}


@cache
def _hints_of(cls: Hashable) -> dict[str, Any]:
    return get_type_hints(cls)


def check_fields(options: Any, named: Callable[[str], str] | None = None) -> None:
    """Check the fields of a dataclass against their annotations.

    A number must be finite and positive. The metadata of a field may lower that bound by `min`, and
    add an upper bound by `max`: `field(default=0.0, metadata={"min": 0})`. Call it in
    `__post_init__`.

    Args:
        options: The dataclass object.
        named: Gives the name of a field for the message. None: `Class.field`.

    Raises:
        ConfigError: A field has another type than its annotation, or is out of range. The message
            names the first such field.
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
    """Check the type of an argument.

    Args:
        what: The argument as the message shows it, such as `connect(cluster=...)`.
        value: The value.
        kind: The type that it must have.

    Raises:
        ConfigError: The value has another type.
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{what} is {show_value(value)}; it must be a {kind.__name__}")


def _complaint(value: object, hint: Any, metadata: Mapping[str, float]) -> str:
    """Return the form that the value should have; empty if the value is valid."""
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
    """How a silo or client makes and serves calls.

    Pass it to `Silo`, `LocalCluster` or `connect`. Times are in seconds. All numbers must be
    positive and finite. An option of a wrong type or range raises ConfigError when the object is
    made.

    Attributes:
        call_timeout_s: Deadline of a call whose method has none of its own.
        sweep_s: How often the runtime looks for requests whose deadline has passed, while there are
            any.
        slice_s: Direct turns yield to the event loop after this time.
        nested_turns_max: Direct turns nested in one task. A deeper one gets a task of its own.
        chain_turns_max: Turns that wait for each other in one chain of calls. A longer chain raises
            CallError.
        waiting_calls_max: Requests that wait for one activation, one location or one connection.
            Above, the caller gets Overloaded.
        waiting_bytes_max: Bytes of encoded calls that wait for one activation, or for the location
            of one grain.
        silo_waiting_bytes_max: Bytes of encoded calls that wait in one silo or client altogether.
        frame_bytes_max: Size of the largest frame that is sent or accepted, in bytes. At most
            4,294,967,295. All silos of a cluster should have the same value.
        partial_bytes_max: Bytes of all frames that one silo is reading from clients. At the limit,
            a connection that begins a frame of more than 64 KiB is not read until there is room.
            Frames of silos do not count.
        frame_timeout_s: How long a frame of a client may take to arrive while others wait for its
            room. After that, its connection is closed.
        batch_messages_max: Messages joined in one frame.
        batch_bytes_max: A frame is closed when its messages reach this size in bytes.
        peer_calls_max: Calls to one silo that are not answered yet. Above, the caller gets
            Overloaded.
        peer_bytes_max: Bytes of calls that wait to be written to one silo or gateway. One call
            alone may be larger.
        answer_bytes_max: Bytes of answers that wait for one connection. Above, the silo takes no
            more calls from the connection.
        unread_bytes_max: Bytes of answers that wait for one connection. Above, the connection is
            closed.
        observer_bytes_max: Bytes of calls to the observers of one client that wait in one silo: for
            its connection to be free, or for the client to attach again. Above, the caller gets
            Overloaded. One call alone may be larger.
        client_lease_s: How long a client with observers may stay silent. After that, calls to its
            observers end with ClientUnavailable. The client renews the lease four times within it.
        observing_clients_max: Clients with observers that one silo serves as their gateway, with
            those that were closed or cut off within `client_lease_s`. Above, a client tries another
            gateway.
        connections_max: Connections of clients to one silo, and of other programs before their
            handshake. Connections of silos do not count.
        ping_every_s: A connection that received nothing for this long gets a ping.
        silent_after_s: A connection that sent and took nothing for this long after a ping is
            closed.
        served_calls_max: Calls that one connection has made and that are not answered yet. Above,
            the caller gets Overloaded.
        redirects_max: How often a call is sent on after its grain moved, and how often a location
            is tried.
        retry_first_s: The first wait before a call that did not run is sent again. Each further
            wait is twice as long.
        results_batch_items: Items of a streamed result that travel together. A generator runs ahead
            of its consumer by at most this many items.
        results_batch_bytes: Bytes of encoded items that travel together. One item alone may be
            larger.
        results_idle_s: A generator whose consumer asks for nothing for this long is closed.
        results_open_max: Generators that run in one activation. Above, the caller gets Overloaded.
        activation_timeout_s: How long reading a grain's states and `on_activate` may take together.
            After that, the waiting calls get ActivationTimeout.
        deactivation_timeout_s: How long `on_deactivate` may take, and before it the cancelled tasks
            of the activation.
        idle_after_s: An activation that is unused for this long is deactivated.
        collect_every_s: How often a silo looks for idle activations.
        directory_cache_max: Locations of grains that one silo remembers.
        connect_retry_s: Wait before an address that refused a connection is tried again.
        greet_timeout_s: How long the other end of a new connection may take for its handshake.
        drain_s: How long a stopping silo waits for running turns.
        migration_bytes_max: Size of the largest package of an activation that moves to another
            silo, in bytes. An activation with a larger one ends as usual.
        reminder_late_max_s: An occurrence of a reminder is missed if its delivery starts later than
            this after its time. It should be longer than the silos need to notice a crash.
        reminder_deliveries_max: Occurrences of reminders that one silo delivers at the same time.
        reminders_loaded_max: Reminders that one silo keeps in memory, those that are due first.
        reminder_refresh_s: How often a silo reads its reminders from the table. It reads those that
            are due within twice this time.
        reminder_release_s: How long a silo that gains reminders waits until a live silo has ended
            its deliveries of them.
    """

    call_timeout_s: float = 30.0
    sweep_s: float = 0.02
    slice_s: float = 0.001
    nested_turns_max: int = 32
    chain_turns_max: int = 400
    waiting_calls_max: int = 10_000
    waiting_bytes_max: int = 64 * 2**20
    silo_waiting_bytes_max: int = 256 * 2**20
    frame_bytes_max: int = field(default=64 * 2**20, metadata={"max": FRAME_BYTES_MOST})
    partial_bytes_max: int = 128 * 2**20
    frame_timeout_s: float = 30.0
    batch_messages_max: int = 64
    batch_bytes_max: int = 64 * 2**10
    peer_calls_max: int = 100_000
    peer_bytes_max: int = 24 * 2**20
    answer_bytes_max: int = 2**20
    unread_bytes_max: int = 256 * 2**20
    observer_bytes_max: int = 4 * 2**20
    client_lease_s: float = 60.0
    observing_clients_max: int = 10_000
    connections_max: int = 900
    ping_every_s: float = 5.0
    silent_after_s: float = 30.0
    served_calls_max: int = 100_000
    redirects_max: int = 6
    retry_first_s: float = 0.05
    results_batch_items: int = 256
    results_batch_bytes: int = 256 * 2**10
    results_idle_s: float = 60.0
    results_open_max: int = 1_000
    activation_timeout_s: float = 30.0
    deactivation_timeout_s: float = 30.0
    idle_after_s: float = 900.0
    collect_every_s: float = 60.0
    directory_cache_max: int = 100_000
    connect_retry_s: float = 0.5
    greet_timeout_s: float = 5.0
    drain_s: float = 10.0
    migration_bytes_max: int = 4 * 2**20
    reminder_late_max_s: float = 60.0
    reminder_deliveries_max: int = 100
    reminders_loaded_max: int = 10_000
    reminder_refresh_s: float = 30.0
    reminder_release_s: float = 30.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipOptions:
    """How silos watch each other, and when they evict a silo. Modelled on Orleans'
    `ClusterMembershipOptions`.

    Pass the same options to all silos of a cluster. With the defaults, a silo that hangs or is cut
    off is evicted after about 4.5 s. A silo that computes without awaiting is not evicted for up to
    `unresponsive_after_s`, as long as its code lets other threads run. A call of C code that holds
    the interpreter for four seconds looks like a silo that hangs.

    Times are in seconds. All numbers must be positive and finite, else ConfigError is raised.

    Attributes:
        probe_every_s: Time between two probes of one silo. After a failed probe, the next one
            follows after half of it.
        probe_timeout_s: A probe without an answer for this long has failed. C code may hold the
            interpreter meanwhile.
        missed_probes_max: Failed probes in a row after which a silo is suspected.
        unresponsive_after_s: A silo whose event loop makes no progress for this long counts as
            failed, although it answers probes.
        probed_silos_max: How many other silos each silo probes.
        votes_for_death: Fresh votes that evict a silo, in a cluster with three or more live silos.
            With fewer silos, one less.
        vote_expires_s: Age at which a vote no longer counts.
        refresh_s: How often a silo reads the membership table without another cause.
        heartbeat_s: How often a silo stamps its own row.
        stale_after_s: A silo whose row was not stamped for this long does not count as alive when
            votes are counted.
        join_timeout_s: How long a joining silo tries to reach the active silos. After that, it does
            not start.
        dead_rows_kept_s: Rows of silos that have been dead for longer than this are deleted, one
            with each reading of the table.
    """

    probe_every_s: float = 0.5
    probe_timeout_s: float = 1.25
    missed_probes_max: int = 2
    unresponsive_after_s: float = 30.0
    probed_silos_max: int = 10
    votes_for_death: int = 2
    vote_expires_s: float = 120.0
    refresh_s: float = 2.0
    heartbeat_s: float = 1.5
    stale_after_s: float = 90.0
    join_timeout_s: float = 60.0
    dead_rows_kept_s: float = 604_800.0

    def __post_init__(self) -> None:
        check_fields(self)


WEIGHT = {"min": 0.0, "max": 100.0}
SHARE = {"min": 0.0, "max": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """How `LEAST_LOADED` weighs the load of silos. Modelled on Orleans'
    `ResourceOptimizedPlacementOptions` and its options of load shedding.

    Each silo uses its own options for the activations that its callers need. Pass the same options
    to all silos of a cluster.

    A weight is a number from 0 to 100. Only the ratios of the weights count; a figure with the
    weight 0 has no effect. Shares are from 0 to 1.

    Attributes:
        cpu_weight: Weight of the processor time that the silo uses, as a share of one core.
        memory_used_weight: Weight of the memory that the process uses, as a share of all memory.
        memory_available_weight: Weight of the memory that is not available.
        memory_total_weight: Weight of having less memory than the largest candidate.
        activations_weight: Weight of the number of activations.
        lag_weight: Weight of the lag of the event loop.
        local_margin: The silo of the caller is chosen if its score is at most this share of the
            range of scores above the best one.
        cpu_max: A silo that uses more than this share of a core is overloaded.
        memory_max: A silo is overloaded if more than this share of all memory is in use.
        lag_max_s: A silo whose event loop lags more than this, in seconds, is overloaded. Lags are
            scored as shares of it.
        smoothing_s: A change of processor time, memory or lag counts by half after this time, in
            seconds.

    Raises:
        ConfigError: A value has a wrong type or range, or all weights are 0.
    """

    cpu_weight: float = field(default=40.0, metadata=WEIGHT)
    memory_used_weight: float = field(default=20.0, metadata=WEIGHT)
    memory_available_weight: float = field(default=20.0, metadata=WEIGHT)
    memory_total_weight: float = field(default=5.0, metadata=WEIGHT)
    activations_weight: float = field(default=15.0, metadata=WEIGHT)
    lag_weight: float = field(default=20.0, metadata=WEIGHT)
    local_margin: float = field(default=0.05, metadata=SHARE)
    cpu_max: float = field(default=0.95, metadata=SHARE)
    memory_max: float = field(default=0.9, metadata=SHARE)
    lag_max_s: float = field(default=1.0, metadata={"max": 3_600.0})
    smoothing_s: float = field(default=2.0, metadata={"max": 3_600.0})

    def __post_init__(self) -> None:
        check_fields(self)
        weights = [one.name for one in fields(self) if one.name.endswith("_weight")]
        if not any(getattr(self, name) for name in weights):
            names = ", ".join(weights)
            raise ConfigError(f"PlacementOptions: all weights are 0: set one of {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalancing:
    """How the silos of a cluster even out their activations, for `Silo(rebalancing=...)`. Modelled
    on Orleans' `ActivationRebalancerOptions`.

    Give all silos of a cluster the same options. Silos without rebalancing neither give nor get
    activations by it.

    Unevenness is the share of all movable activations that are in a silo with too many, from 0 to
    1.

    Attributes:
        first_after_s: The time from the start of a silo to its first round, in seconds.
        every_s: The time between two rounds, in seconds. At least 2, since counts are up to a
            second old.
        moves_max: Activations that one silo moves to another one in a round, from 1 to 10,000.
        start_above: A session starts at a greater unevenness.
        stop_below: A session ends at this unevenness or a lower one. At most `start_above`.
        improvement_min: A round that lowers the unevenness by less than this is stagnant.
        stagnant_rounds_max: A session ends after this many stagnant rounds in a row, until the
            unevenness grows or the silos change.

    Raises:
        ConfigError: A value has a wrong type or range.
    """

    first_after_s: float = field(default=60.0, metadata={"min": 0.0, "max": 86_400.0})
    every_s: float = field(default=15.0, metadata={"min": 2.0, "max": 86_400.0})
    moves_max: int = field(default=1_000, metadata={"max": 10_000})
    start_above: float = field(default=0.1, metadata=SHARE)
    stop_below: float = field(default=0.02, metadata=SHARE)
    improvement_min: float = field(default=0.001, metadata=SHARE)
    stagnant_rounds_max: int = field(default=3, metadata={"max": 1_000})

    def __post_init__(self) -> None:
        check_fields(self)
        if self.stop_below > self.start_above:
            raise ConfigError(
                f"Rebalancing.stop_below is {self.stop_below:g}; it must be at most start_above, "
                f"{self.start_above:g}"
            )
