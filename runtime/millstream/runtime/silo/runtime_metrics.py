"""The metrics of the runtime, and the function that reads them from a silo.

This module owns the descriptions. The numbers belong to the parts of the silo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from millstream.runtime.cluster.rebalance import measure_unevenness
from millstream.runtime.cluster.table import Status
from millstream.runtime.metrics.metric import Metric, Sample
from millstream.runtime.turns.call_counts import CallCounts
from millstream.runtime.version import version

from .assembly import SiloAssembly
from .mailboxes import Mailboxes

__all__ = ["RUNTIME_METRICS", "read_runtime"]

SILO_INFO = Metric(
    name="millstream_silo_info",
    type="gauge",
    help="Always 1; the labels name the silo.",
    labels=("silo", "name", "cluster", "version"),
)
CALLS = Metric(
    name="millstream_calls_total",
    type="counter",
    help="Calls that ended in this silo. outcome: ok, error, timeout or cancelled.",
    labels=("grain_type", "method", "outcome"),
)
CALL_DURATION = Metric(
    name="millstream_call_duration_seconds",
    type="histogram",
    unit="seconds",
    help="Time from the arrival of such a call to its end, with waiting. Direct turns are sampled.",
    labels=("grain_type",),
)
SENT_CALLS = Metric(
    name="millstream_sent_calls_total",
    type="counter",
    help="Calls of this silo to grains, targets and observers that are elsewhere, by outcome.",
    labels=("grain_type", "outcome"),
)
SENT_DURATION = Metric(
    name="millstream_sent_call_duration_seconds",
    type="histogram",
    unit="seconds",
    help="Time from such a call to its answer, with the search for the grain.",
    labels=("grain_type",),
)
ACTIVATIONS = Metric(
    name="millstream_activations",
    type="gauge",
    help="Activations in this silo, with those that start or end.",
    labels=("grain_type",),
)
CREATED = Metric(
    name="millstream_activations_created_total",
    type="counter",
    help="Activations that this silo has created.",
)
FAILED = Metric(
    name="millstream_activations_failed_total",
    type="counter",
    help="Activations that could not start.",
)
ENDED = Metric(
    name="millstream_activations_ended_total",
    type="counter",
    help="Activations that began to end, by reason.",
    labels=("reason",),
)
MOVED = Metric(
    name="millstream_activations_moved_total",
    type="counter",
    help="Activations that rebalancing has moved to other silos.",
)
UNEVENNESS = Metric(
    name="millstream_rebalancing_unevenness_ratio",
    type="gauge",
    unit="ratio",
    help="Share of all movable activations that are in a silo with too many.",
)
WAITING_CALLS = Metric(
    name="millstream_mailbox_waiting_calls",
    type="gauge",
    help="Calls that wait in mailboxes, at the last look.",
    labels=("grain_type",),
)
DEEPEST_MAILBOX = Metric(
    name="millstream_mailbox_deepest_calls",
    type="gauge",
    help="Calls that wait in the longest mailbox, at the last look.",
    labels=("grain_type",),
)
WAITING_BYTES = Metric(
    name="millstream_mailbox_waiting_bytes",
    type="gauge",
    unit="bytes",
    help="Bytes of encoded calls that wait.",
)
REFUSED_CALLS = Metric(
    name="millstream_mailbox_refused_calls_total",
    type="counter",
    help="Calls refused with Overloaded, because a mailbox was full.",
)
LOOP_LAG = Metric(
    name="millstream_event_loop_lag_seconds",
    type="gauge",
    unit="seconds",
    help="Lateness of the event loop: the largest lately, halved every 0.25 s.",
)
CONNECTIONS = Metric(
    name="millstream_connections",
    type="gauge",
    help="Open connections. peer: silo, client, or new (before its handshake).",
    labels=("peer",),
)
RECEIVED_BYTES = Metric(
    name="millstream_received_bytes_total",
    type="counter",
    unit="bytes",
    help="Bytes received by all connections.",
)
SENT_BYTES = Metric(
    name="millstream_sent_bytes_total",
    type="counter",
    unit="bytes",
    help="Bytes written to all connections.",
)
DIRECTORY_ENTRIES = Metric(
    name="millstream_directory_entries",
    type="gauge",
    help="Grains and clients whose location this silo keeps for the cluster.",
)
DIRECTORY_LOCKED = Metric(
    name="millstream_directory_recovering",
    type="gauge",
    help="1 while this silo is taking over a part of the directory, else 0.",
)
CACHED_LOCATIONS = Metric(
    name="millstream_directory_cached_locations",
    type="gauge",
    help="Locations of grains that this silo remembers.",
)
MEMBERS = Metric(
    name="millstream_members",
    type="gauge",
    help="Silos in the membership table, as this silo sees them, by status.",
    labels=("status",),
)
VIEW_VERSION = Metric(
    name="millstream_membership_version",
    type="gauge",
    help="Version of the membership table that this silo has read.",
)
SUSPICIONS = Metric(
    name="millstream_member_suspicions",
    type="gauge",
    help="Votes that silos are dead, in rows of silos that are not dead.",
)

RUNTIME_METRICS = (
    *(SILO_INFO, CALLS, CALL_DURATION, SENT_CALLS, SENT_DURATION),
    *(ACTIVATIONS, CREATED, FAILED, ENDED, MOVED, UNEVENNESS),
    *(WAITING_CALLS, DEEPEST_MAILBOX, WAITING_BYTES, REFUSED_CALLS, LOOP_LAG),
    *(CONNECTIONS, RECEIVED_BYTES, SENT_BYTES),
    *(DIRECTORY_ENTRIES, DIRECTORY_LOCKED, CACHED_LOCATIONS),
    *(MEMBERS, VIEW_VERSION, SUSPICIONS),
)
"""The metrics that `read_runtime` reads."""


def read_runtime(
    silo: SiloAssembly, name: str, counts: CallCounts, mailboxes: Mailboxes
) -> Iterator[Sample]:
    """Yield the samples of a silo's runtime."""
    yield Sample(SILO_INFO, (silo.address, name, silo.cluster, version()), 1)
    yield Sample(LOOP_LAG, (), max(silo.heart.lag_s, 0.0))
    yield from read_calls(counts)
    yield from read_activations(silo, mailboxes)
    yield from read_connections(silo)
    yield from read_cluster(silo)


def read_calls(counts: CallCounts) -> Iterator[Sample]:
    """Yield the calls and their durations."""
    for grain_type, method, outcome, number in counts.list_calls():
        yield Sample(CALLS, (grain_type, method, outcome), number)
    for target, outcome, number in counts.list_sent():
        yield Sample(SENT_CALLS, (target, outcome), number)
    for grain_type, durations in counts.durations.items():
        yield Sample(CALL_DURATION, (grain_type,), durations)
    for target, durations in counts.sent_durations.items():
        yield Sample(SENT_DURATION, (target,), durations)


def read_activations(silo: SiloAssembly, mailboxes: Mailboxes) -> Iterator[Sample]:
    """Yield the activations and the calls that wait for them."""
    catalog, waiting_bytes = silo.catalog, silo.turns.waiting_bytes
    for kind in silo.references.kinds.values():
        if kind.hosted is not None:
            yield Sample(ACTIVATIONS, (kind.name,), len(catalog.of(kind.name).all()))
    yield Sample(CREATED, (), catalog.created)
    yield Sample(FAILED, (), catalog.failed)
    for reason, number in catalog.ended.items():
        yield Sample(ENDED, (reason.value,), number)
    for name, waiting in mailboxes.waiting.items():
        yield Sample(WAITING_CALLS, (name,), waiting.calls)
        yield Sample(DEEPEST_MAILBOX, (name,), waiting.deepest)
    yield Sample(WAITING_BYTES, (), waiting_bytes.used)
    yield Sample(REFUSED_CALLS, (), waiting_bytes.refused)
    if silo.rebalancing is not None:
        yield Sample(MOVED, (), silo.rebalancing.moved)
        yield Sample(UNEVENNESS, (), measure_unevenness(silo.rebalancing.counts()))


def read_connections(silo: SiloAssembly) -> Iterator[Sample]:
    """Yield the connections and their bytes."""
    visitors, end = silo.visitors, silo.engine.end
    opened = dict.fromkeys(silo.peers.list_known())  # a silo may be known by two names
    newcomers = len(visitors.newcomers)
    clients = len(visitors.clients)
    silos = len(visitors.inbound) - newcomers - clients + len(opened)
    for peer, number in (("silo", silos), ("client", clients), ("new", newcomers)):
        yield Sample(CONNECTIONS, (peer,), number)
    is_open = (*opened, *visitors.inbound)
    yield Sample(RECEIVED_BYTES, (), end.received_bytes)
    sent_bytes = sum(one.writer.written_bytes for one in is_open if not one.is_closed)
    yield Sample(SENT_BYTES, (), end.sent_bytes + sent_bytes)


def read_cluster(silo: SiloAssembly) -> Iterator[Sample]:
    """Yield the directory and the membership."""
    view = silo.membership.view
    yield Sample(DIRECTORY_ENTRIES, (), silo.directory.range.entry_count)
    yield Sample(DIRECTORY_LOCKED, (), int(silo.directory.is_locked))
    yield Sample(CACHED_LOCATIONS, (), len(silo.directory.locations))
    found = Counter(row.status for row in view.rows)
    for status in Status:
        yield Sample(MEMBERS, (status.value,), found[status])
    yield Sample(VIEW_VERSION, (), view.version)
    living = [row for row in view.rows if row.status is not Status.DEAD]
    yield Sample(SUSPICIONS, (), sum(len(row.suspicions) for row in living))
