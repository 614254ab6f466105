"""The reminders of a silo as one of its parts, and the choice of their table.

This module owns `ReminderPart` and the metrics of reminders. A silo has the part if one of its
grain classes has a method with `@reminder`. The work is in the package `reminders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from millstream.runtime.calls.system_target import specs_of
from millstream.runtime.definition.grain import Grain
from millstream.runtime.definition.reminders import REMINDERS, ReminderMark
from millstream.runtime.definition.storage import MemoryStateStore
from millstream.runtime.errors import ConfigError
from millstream.runtime.metrics.metric import Metric, Sample
from millstream.runtime.plugins import find_plugin
from millstream.runtime.reminders.grain_reminders import ReminderCalls
from millstream.runtime.reminders.service import ReminderCounts, ReminderService
from millstream.runtime.reminders.table import MemoryReminderTable, ReminderTable
from millstream.runtime.text import show_text

from .agreement import store_text
from .assembly import SiloAssembly
from .part import SiloPart
from .services import Extensions, SiloServices

__all__ = ["ReminderPart", "ReminderPlaces", "add_reminders", "attach_reminders", "counts_in"]

GROUP = "millstream.reminders"
METHODS = ("read", "upsert", "remove", "due")

specs_of(ReminderCalls, REMINDERS)

BUCKETS = Metric(
    name="millstream_reminder_buckets",
    type="gauge",
    help="Buckets, of 1,024, whose reminders this silo delivers.",
)
LOADED = Metric(
    name="millstream_reminders_loaded",
    type="gauge",
    help="Reminders in memory, because they are due soon.",
)
RUNNING = Metric(
    name="millstream_reminder_deliveries",
    type="gauge",
    help="Occurrences of reminders that are being delivered.",
)
DELIVERED = Metric(
    name="millstream_reminders_delivered_total",
    type="counter",
    help="Occurrences whose handler has ended, with failed ones.",
)
MISSED = Metric(
    name="millstream_reminders_missed_total",
    type="counter",
    help="Occurrences that were delivered later than reminder_late_max_s.",
)
FAILED = Metric(
    name="millstream_reminders_failed_total",
    type="counter",
    help="Handlers in this silo that raised, or did not end in time.",
)
WITHOUT_HANDLER = Metric(
    name="millstream_reminders_without_handler",
    type="gauge",
    help="Reminders that are due, and whose handler no active silo has.",
)
DAMAGED = Metric(
    name="millstream_reminders_damaged",
    type="gauge",
    help="Rows of reminders that cannot be read.",
)

REMINDER_METRICS = (
    *(BUCKETS, LOADED, RUNNING, DELIVERED, MISSED, FAILED, WITHOUT_HANDLER, DAMAGED),
)


class ReminderPart(SiloPart):
    """The reminders of one silo."""

    def __init__(self, table: ReminderTable) -> None:
        self.table = table
        self._drain_s = 0.0
        self._service: ReminderService | None = None

    def agreement(self) -> Mapping[str, str]:
        return {"the table": store_text(self.table)}

    def attach(self, silo: SiloAssembly) -> None:
        """Make the service of a silo, and extend its activations."""
        self._drain_s = silo.options.drain_s
        extensions = Extensions(silo)
        service = self._service = ReminderService(
            silo.address,
            table=self.table,
            members=silo.membership,
            targets=silo.targets,
            tasks=silo.engine.new_tasks(),
            fire=lambda kind, seconds: extensions.method(kind, ReminderCalls.fire, seconds),
            wall_s=silo.env.wall_s,
            uniform=silo.env.uniform,
            options=silo.options,
        )
        silo.add_extension(REMINDERS, ReminderCalls, service.extend)

    @property
    def counts(self) -> ReminderCounts:
        """The reminders of the silo in numbers."""
        return ReminderCounts() if self._service is None else self._service.counts

    async def open(self, services: SiloServices, name: str, /) -> None:
        services.metrics.add(REMINDER_METRICS, lambda: read_reminders(self.counts))

    async def start(self, services: SiloServices, name: str, /) -> None:
        if self._service is not None:
            self._service.start()

    async def stop(self) -> None:
        if self._service is not None:
            await self._service.stop(self._drain_s)

    async def aclose(self) -> None:
        if self._service is not None:
            await self._service.aclose()

    def abort(self) -> None:
        if self._service is not None:
            self._service.abort()


def has_reminders(grains: Iterable[type[Grain]]) -> bool:
    """Return whether one of the classes has a handler of reminders."""
    return any(
        isinstance(mark, ReminderMark)
        for cls in grains
        for marks in cls.__millstream_type__.marks.values()
        for mark in marks
    )


class ReminderPlaces(NamedTuple):
    """The places where a silo may keep reminders.

    Attributes:
        given: the argument `reminders` of the silo.
        stores: its argument `stores`.
        membership: its membership table.
        is_alone: that table is its own.
    """

    given: ReminderTable | str | None
    stores: Mapping[str, Any] | None
    membership: object
    is_alone: bool


def add_reminders(
    parts: Mapping[str, SiloPart],
    grains: Iterable[type[Grain]],
    places: ReminderPlaces,
    plugin: Callable[[str, Any], Any],
) -> dict[str, SiloPart]:
    """Return the parts of a silo, with its reminders if one of its classes has handlers.

    The reminders are the first part, so they are the last to stop.

    Args:
        plugin: returns a part itself, or makes the part that a text names, of a group.

    Raises:
        ConfigError: There is no table, or it is no table, or other silos cannot see it.
    """
    given = places.given
    if given is not None and not isinstance(given, str):
        check_table(given)
    if not has_reminders(grains):
        return dict(parts)
    if REMINDERS in parts:
        raise ConfigError(f"Silo(parts=...): the name {REMINDERS!r} is reserved; choose another")
    table = plugin(GROUP, follow_store(places) if given is None else given)
    check_is_shared(places.membership, table)
    return {REMINDERS: ReminderPart(table), **parts}


def attach_reminders(parts: Mapping[str, SiloPart], silo: SiloAssembly) -> None:
    """Connect the reminders among the parts, if there are any, with their silo."""
    part = parts.get(REMINDERS)
    if isinstance(part, ReminderPart):
        part.attach(silo)


def counts_in(parts: Mapping[str, SiloPart]) -> ReminderCounts:
    """Return the reminders of a silo in numbers."""
    part = parts.get(REMINDERS)
    return part.counts if isinstance(part, ReminderPart) else ReminderCounts()


def follow_store(places: ReminderPlaces) -> Any:
    """Return the table of the place where the store `default` is. Raises ConfigError."""
    default = None if places.stores is None else places.stores.get("default")
    if isinstance(default, str):
        try:
            find_plugin(GROUP, default)
            return default
        except ConfigError:  # this kind of store has no table of reminders
            pass
    is_in_memory = places.stores is None or isinstance(default, MemoryStateStore)
    if places.is_alone and is_in_memory:
        return MemoryReminderTable()
    raise ConfigError(
        "this silo hosts a grain class with `@reminder` and has no reminder table: pass "
        "Silo(reminders='sqlite:directory'), or, to silos of one process, the same "
        "MemoryReminderTable"
    )


def check_table(table: object) -> None:
    """Raise ConfigError for an object that is no reminder table."""
    is_table = not isinstance(table, type) and all(
        callable(getattr(table, method, None)) for method in METHODS
    )
    if not is_table:
        raise ConfigError(
            f"Silo(reminders=...) is {show_text(repr(table))}; it must be a ReminderTable, or "
            "name:argument"
        )


def check_is_shared(membership: object, table: object) -> None:
    """Raise ConfigError for a table in the memory of one process under a shared membership."""
    if getattr(membership, "is_of_one_process", False):
        return
    if getattr(table, "is_of_one_process", False):
        raise ConfigError(
            f"the membership table ({type(membership).__qualname__}) is shared with other "
            f"processes, and the reminder table ({type(table).__qualname__}) is in the memory of "
            "this process: pass Silo(reminders='sqlite:directory')"
        )


def read_reminders(counts: ReminderCounts) -> Iterator[Sample]:
    """Yield the samples of a silo's reminders."""
    yield Sample(BUCKETS, (), counts.owned_buckets)
    yield Sample(LOADED, (), counts.loaded)
    yield Sample(RUNNING, (), counts.running)
    yield Sample(DELIVERED, (), counts.delivered)
    yield Sample(MISSED, (), counts.missed)
    yield Sample(FAILED, (), counts.failed)
    yield Sample(WITHOUT_HANDLER, (), counts.without_handler)
    yield Sample(DAMAGED, (), counts.damaged)
