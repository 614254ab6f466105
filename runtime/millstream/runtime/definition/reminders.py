"""Reminders of a grain: the mark `@reminder`, the schedule of a reminder, and its occurrences.

Owns the checks of a reminder's schedule and handler. The package `reminders` stores reminders and
delivers their occurrences. Source: the reminders of Orleans (`RegisterOrUpdateReminder`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args, overload
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from millstream.runtime.errors import ConfigError, DefinitionError
from millstream.runtime.text import show_text

from .checks import takes_positional
from .markers import MARKS, Declaration, Mark, Timeout, add_mark, marks_of
from .method import source_of

__all__ = [
    "EVERY_MAX_S",
    "EVERY_MIN_S",
    "REMINDERS",
    "Missed",
    "Occurrence",
    "Reminder",
    "ReminderHandler",
    "ReminderMark",
    "ReminderSchedule",
    "Reminders",
    "handlers_in",
    "make_schedule",
    "reminder",
]

RM = TypeVar("RM", bound=Callable[[Any, Any], Coroutine[Any, Any, None]])

Missed = Literal["skip", "once", "all"]  # none is delivered, the last one is, or all are

REMINDERS = "$reminders"
"""The name of the extension, the system target and the part of reminders, and of declarations."""
EVERY_MIN_S = 60.0
EVERY_MAX_S = 100 * 366 * 86_400.0
CRON_FIELDS = 5
TEST_START = datetime(2024, 1, 1, tzinfo=UTC)  # any time: a line that fires at all fires after it


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a reminder. It is the argument of the handler.

    A redelivered occurrence has the same `due` and `number`.

    Attributes:
        due: The time by the schedule, in UTC.
        number: 1 for the first occurrence since the reminder was set, and one more for each later
            one. Occurrences that are skipped have no number.
        late_s: Seconds from `due` to the start of the delivery, by the clock of the delivering
            silo.
        is_missed: True: the delivery starts later than `RuntimeOptions.reminder_late_max_s` after
            `due`, for example after an outage.
    """

    due: datetime
    number: int
    late_s: float
    is_missed: bool


@dataclass(frozen=True, slots=True)
class Reminder:
    """A stored reminder of a grain, as `self.context.reminders` returns it.

    Attributes:
        name: The name of the handler.
        due: The time of the next occurrence, in UTC.
        number: The number of the next occurrence.
        every: Seconds between occurrences, or None.
        at: The time of the only occurrence, in UTC, or None.
        cron: The cron line, or None.
        time_zone: The time zone of the cron line.
        missed: The treatment of missed occurrences.
    """

    name: str
    due: datetime
    number: int
    every: float | None
    at: datetime | None
    cron: str | None
    time_zone: str
    missed: Missed


class Reminders(Protocol):
    """The reminders of one grain, as `self.context.reminders`."""

    async def set(
        self,
        name: str,
        /,
        *,
        every: float | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        missed: Missed = "once",
    ) -> Reminder:
        """Store a reminder, in place of the stored one of this name.

        Exactly one of `every`, `at` and `cron` is given. When this returns, the reminder is stored.
        It costs one read and one write of the reminder table.

        Args:
            name: The name of a method of the grain with the mark `@reminder`.
            every: Seconds between occurrences, at least 60. The first one comes `every` seconds
                from now.
            at: The time of the only occurrence: a datetime with a time zone.
            cron: A cron line of five fields, such as `"0 6 * * mon-fri"`.
            time_zone: The time zone of the cron line, such as `"Europe/Berlin"`. None: UTC.
            missed: `"once"`: of the missed occurrences, only the last one is delivered. `"skip"`:
                none. `"all"`: all, one after the other.

        Returns:
            The stored reminder.

        Raises:
            ConfigError: The name has no handler, or the schedule is not valid. The text names what
                to write instead.
            StorageUnavailable: The table did not answer. The reminder may be stored.
            Conflict: The stored reminder changed again and again meanwhile.
            NotInCluster: The activation has ended.
        """
        ...

    async def cancel(self, name: str, /) -> bool:
        """Remove a reminder. When this returns, no further occurrence of it starts.

        A running handler is not cancelled. A reminder whose schedule is in its mark stays
        cancelled until `set` stores it again.

        Args:
            name: The name of the reminder. It may be one whose handler no longer exists.

        Returns:
            Whether there was such a reminder.

        Raises:
            StorageUnavailable: The table did not answer. The reminder may be removed.
            Conflict: The stored reminder changed again and again meanwhile.
            NotInCluster: The activation has ended.
        """
        ...

    async def list(self) -> Sequence[Reminder]:
        """Return the stored reminders of this grain, sorted by name.

        Raises:
            StorageUnavailable: The table did not answer.
            NotInCluster: The activation has ended.
        """
        ...


class ReminderSchedule(msgspec.Struct, frozen=True, array_like=True):
    """The checked schedule of a reminder. Exactly one of the first three fields is set.

    Attributes:
        every_ms: milliseconds between occurrences; 0: not periodic.
        at_ms: the time of the only occurrence, in milliseconds since 1970.
        cron: the cron line; empty: none.
        time_zone: the time zone of the cron line.
        missed: the treatment of missed occurrences.
    """

    every_ms: int = 0
    at_ms: int | None = None
    cron: str = ""
    time_zone: str = "UTC"
    missed: Missed = "once"


def make_schedule(
    where: str,
    every: float | None,
    at: datetime | None,
    cron: str | None,
    time_zone: str | None,
    missed: object,
) -> ReminderSchedule:
    """Check the arguments of a schedule. Raises ConfigError; `where` begins its text."""
    if [every, at, cron].count(None) != 2:
        raise ConfigError(f"{where}: write exactly one of every=, at= and cron=")
    if missed not in get_args(Missed):
        what = show_text(repr(missed))
        raise ConfigError(f'{where}: missed={what}: write missed="skip", "once" or "all"')
    if time_zone is not None and cron is None:
        raise ConfigError(f"{where}: time_zone= has an effect only with cron=: remove it")
    checked: Any = missed
    if every is not None:
        return ReminderSchedule(every_ms=read_every(where, every), missed=checked)
    if at is not None:
        return ReminderSchedule(at_ms=read_at(where, at), missed=checked)
    zone = "UTC" if time_zone is None else time_zone
    check_zone(where, zone)
    return ReminderSchedule(cron=read_cron(where, cron), time_zone=zone, missed=checked)


def read_every(where: str, every: Any) -> int:
    """Return a period in milliseconds."""
    is_number = isinstance(every, int | float) and not isinstance(every, bool)
    if not is_number or not math.isfinite(every):
        what = show_text(repr(every))
        raise ConfigError(f"{where}: every={what}: write a finite number of seconds")
    if every < EVERY_MIN_S:
        raise ConfigError(
            f"{where}: every={every:g}: a reminder has a period of at least {EVERY_MIN_S:g} s; for "
            "shorter periods, use `@timer` while the grain is active"
        )
    if every > EVERY_MAX_S:
        raise ConfigError(
            f"{where}: every={every:g}: a reminder has a period of at most {EVERY_MAX_S:.0f} s"
        )
    seconds: float = every
    return round(seconds * 1000)


def read_at(where: str, at: object) -> int:
    """Return a time in milliseconds since 1970."""
    if not isinstance(at, datetime):
        what = show_text(repr(at))
        raise ConfigError(
            f"{where}: at={what}: write a datetime with a time zone, such as datetime.now(UTC) + "
            "timedelta(hours=1)"
        )
    if at.tzinfo is None or at.utcoffset() is None:
        raise ConfigError(
            f"{where}: at={at.isoformat()} has no time zone: write datetime(..., tzinfo=UTC), or "
            "at.astimezone() for local time"
        )
    return round(at.timestamp() * 1000)


def check_zone(where: str, zone: object) -> None:
    """Refuse a time zone that this machine does not know."""
    try:
        if isinstance(zone, str) and zone:
            ZoneInfo(zone)
            return
    except (LookupError, ValueError, OSError):  # also for text that is a path
        pass
    raise ConfigError(
        f"{where}: time_zone={show_text(repr(zone))} is unknown: write a name of the IANA time "
        'zones, such as "Europe/Berlin"'
    )


def read_cron(where: str, cron: object) -> str:
    """Return a cron line that fires."""
    what = f"{where}: cron={show_text(repr(cron))}"
    example = 'write five fields (minute, hour, day, month, weekday), such as "30 6 * * mon-fri"'
    if not isinstance(cron, str):
        raise ConfigError(f"{what}: {example}")
    fields = cron.split()
    if len(fields) != CRON_FIELDS:
        raise ConfigError(f"{what} has {len(fields)} fields: {example}")
    line = " ".join(fields)
    try:
        first = next(CronSim(line, TEST_START), None)
    except CronSimError as error:
        raise ConfigError(f"{what}: {str(error).lower()}: {example}") from None
    if first is None:
        raise ConfigError(f"{what} never fires: write a day that its months have")
    return line


class ReminderHandler(NamedTuple):
    """A handler of reminders, as the silo that hosts it declares it.

    Attributes:
        kind: the name of the grain type.
        name: the name of the method, which is the name of the reminder.
        timeout_s: the deadline by the mark `@timeout` in seconds, or None.
    """

    kind: str
    name: str
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class ReminderMark(Mark):
    """The mark of a method that takes the occurrences of a reminder.

    Attributes:
        schedule: The schedule that the first activation stores, or None.
        handler: The marked function.
    """

    schedule: ReminderSchedule | None
    handler: Callable[..., Any]
    makes_local = True
    needs_one_activation = True

    def __str__(self) -> str:
        return "`@reminder(...)`"

    @property
    def timeout_s(self) -> float | None:
        """The deadline of the handler in seconds, by its mark `@timeout`."""
        marks = getattr(self.handler, MARKS, ())
        return next((mark.seconds for mark in marks if isinstance(mark, Timeout)), None)

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Refuse methods that cannot be handlers of reminders."""
        subject = f"{source_of(fn)}: {owner.__name__}.{name}"
        if not inspect.iscoroutinefunction(fn) or not takes_positional(fn, 2):
            raise DefinitionError(
                f"{subject}: write `async def {name}(self, occurrence: Occurrence) -> None`"
            )
        for mark in marks_of(owner, name):
            if isinstance(mark, ReminderMark) and mark is not self:
                raise DefinitionError(f"{subject}: a method has at most one `@reminder`")
            if not isinstance(mark, Timeout | ReminderMark):
                raise DefinitionError(f"{subject}: {mark} has no effect on a reminder; remove it")
        if not getattr(owner, "__millstream_hosted__", False):
            raise DefinitionError(
                f"{subject}: a contract has no reminders; mark the method of the grain"
            )

    def declare(self, grain_type: str, method: str) -> Declaration | None:
        """Return the handler, for the silo that delivers occurrences to it."""
        handler = ReminderHandler(grain_type, method, self.timeout_s)
        return Declaration(REMINDERS, msgspec.msgpack.encode(handler))


_decode_handler = msgspec.msgpack.Decoder(ReminderHandler).decode


def handlers_in(declarations: Sequence[Declaration]) -> list[ReminderHandler]:
    """Return the handlers of reminders that a silo declares. Unknown forms are left out."""
    found = []
    for one in declarations:
        if one.kind == REMINDERS:
            try:
                found.append(_decode_handler(one.body))
            except msgspec.MsgspecError:  # of a newer version
                continue
    return found


@overload
def reminder(handler: RM, /) -> RM: ...
@overload
def reminder(*, every: float, missed: Missed = "once") -> Callable[[RM], RM]: ...
@overload
def reminder(
    *, cron: str, time_zone: str | None = None, missed: Missed = "once"
) -> Callable[[RM], RM]: ...
@overload
def reminder() -> Callable[[RM], RM]: ...
def reminder(
    handler: Any = None,
    /,
    *,
    every: float | None = None,
    cron: str | None = None,
    time_zone: str | None = None,
    missed: Missed | None = None,
) -> Any:
    """Deliver the occurrences of a reminder to a method. The name of the method is its name.

    ```python
    class Invoice(Grain):
        @reminder(cron="0 6 * * *", time_zone="Europe/Berlin")
        async def send_due(self, occurrence: Occurrence) -> None:
            ...

        @reminder
        async def remind(self, occurrence: Occurrence) -> None:
            ...
    ```

    A reminder is stored, so it survives the restart of all silos, and an occurrence activates the
    grain. With `every` or `cron`, the first activation of each grain stores the reminder. Without
    them, `self.context.reminders.set` stores it. References cannot call the method.

    Each occurrence is delivered at least once: again only after a crash, a partition or a failure
    of the table. A delivery is a turn. It has the deadline of its method's `@timeout`, or else
    `RuntimeOptions.call_timeout_s`. If the handler raises, or does not end in time, the error is
    logged, and the next occurrence comes at its time.

    Args:
        handler: The method, if the decorator is used without arguments.
        every: Seconds between occurrences, at least 60. The first one comes `every` seconds after
            the first activation, and they keep this cadence.
        cron: A cron line of five fields, such as `"0 6 * * mon-fri"`.
        time_zone: The time zone of the cron line, such as `"Europe/Berlin"`. None: UTC.
        missed: `"once"`: of the missed occurrences, only the last one is delivered. `"skip"`: none.
            `"all"`: all, one after the other. An occurrence is missed if its delivery starts later
            than `RuntimeOptions.reminder_late_max_s` after its time.

    Raises:
        ConfigError: The schedule is not valid.
    """
    schedule = None
    if every is not None or cron is not None:
        policy = "once" if missed is None else missed
        schedule = make_schedule("reminder(...)", every, None, cron, time_zone, policy)
    elif time_zone is not None or missed is not None:
        raise ConfigError(
            "reminder(...): time_zone= and missed= belong to a schedule: add every= or cron=, or "
            "give them to context.reminders.set"
        )

    def mark(method: Any) -> Any:
        return add_mark(method, ReminderMark(schedule, method))

    return mark if handler is None else mark(handler)
