"""A state store, a membership table and a reminder table whose calls fail on order or by chance.

This module owns `FailingStore`, `FailingTable` and `FailingReminderTable`. The network between silo
and service is in `services`. A call that fails raises StorageUnavailable, or is never answered. The
call's failure says whether its change happened. Failures on order come before failures by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from millstream.runtime.cluster.table import MemberRow, MemoryMembershipTable, TableView
from millstream.runtime.definition.storage import Etag, MemoryStateStore, Row
from millstream.runtime.errors import ConfigError, StorageError, StorageUnavailable
from millstream.runtime.reminders.table import (
    BucketRange,
    MemoryReminderTable,
    ReminderPosition,
    ReminderRow,
)

from .services import Unanswered
from .world.env import Random

__all__ = ["FailingReminderTable", "FailingStore", "FailingTable"]

T = TypeVar("T")
Act = Literal["read", "write", "clear", "scan"]
TableAct = Literal["read", "write", "heartbeat", "forget"]
ReminderAct = Literal["read", "upsert", "remove", "due"]
FIRST_VERSION = 1_700_000_000_000  # Unix milliseconds; equal in every run


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failure of one call: whether its change happens, and whether it is answered."""

    is_done: bool = False
    hangs: bool = False


@dataclass(slots=True)
class _Said:
    """Failures that a test has ordered and that have not all happened."""

    act: str
    prefix: str
    left: int
    failure: _Failure


class _Failures:
    """The next failures of one store or table, `whose`."""

    def __init__(self, whose: str, rng: Random | None, may_hang: bool) -> None:
        self._whose = whose
        self._rng = rng
        self._may_hang = may_hang
        self._said: list[_Said] = []

    def say(self, act: str, prefix: str, times: int, failure: _Failure) -> None:
        if times < 1:
            raise ConfigError(f"{self._whose}.fail(times={times}): times must be at least 1")
        self._said.append(_Said(act, prefix, times, failure))

    def next(self, act: str, key: str, rate: float) -> _Failure | None:
        """Return the failure of this call, or None."""
        for said in self._said:
            if said.left > 0 and said.act == act and key.startswith(said.prefix):
                said.left -= 1
                return said.failure
        if rate and self._rng is not None and self._rng.random() < rate:
            is_done = self._rng.random() < 0.5
            return _Failure(is_done, self._may_hang and self._rng.random() < 0.25)
        return None

    def happen(self, failure: _Failure, act: str, key: str, do: Callable[[], object]) -> Exception:
        """Make the change, if it is to happen, and return the caller's error."""
        if failure.is_done:
            with suppress(StorageError):  # the answer is lost anyway
                do()
        what = "has happened, but its answer is lost" if failure.is_done else "has not happened"
        text = f"{self._whose}: injected failure: {act} of {key!r} {what}"
        return Unanswered(text) if failure.hangs else StorageUnavailable(text)


def _check_rate(whose: str, rate: float, rng: Random | None) -> None:
    if not 0 <= rate <= 1 or (rate and rng is None):
        raise ConfigError(f"{whose}(rate={rate!r}): pass 0 to 1, and an rng if it is above 0")


class FailingStore(MemoryStateStore):
    """A state store in memory whose calls fail on order (`fail`) or by chance (`rate`).

    ```python
    SimCluster(simulation, stores={"default": FailingStore(simulation.rng, rate=0.01)}, ...)
    ```

    Failed calls raise StorageUnavailable.

    Args:
        rng: The random numbers of the simulation, so that the seed decides. Not needed if `rate` is
            0.
        rate: The share of all calls that fail by chance, from 0 to 1. Half of the failed writes and
            clears have happened.

    Attributes:
        rate: As the argument. A test may change it at any time, for example to 0 when the faults
            end.
        failed_count: The number of calls that failed.

    Raises:
        ConfigError: `rate` is out of range, or above 0 without `rng`.
    """

    def __init__(self, rng: Random | None = None, *, rate: float = 0.0) -> None:
        super().__init__()
        _check_rate("FailingStore", rate, rng)
        self.rate = rate
        self.failed_count = 0
        self._failures = _Failures("FailingStore", rng, may_hang=False)

    def fail(self, act: Act, prefix: str = "", *, times: int = 1, is_done: bool = False) -> None:
        """Let the next calls of one kind fail.

        Args:
            act: The kind of call.
            prefix: Only calls for keys with this prefix fail.
            times: How many calls fail.
            is_done: True: the change happens, and only the answer is lost.

        Raises:
            ConfigError: `times` is less than 1.
        """
        self._failures.say(act, prefix, times, _Failure(is_done))

    def get(self, key: str) -> Row | None:
        """Return the row of a key at once, or None; or fail, as the faults say."""
        get = super().get
        return self._call("read", key, lambda: get(key))

    def put(self, key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        """Store a row at once, or fail."""
        put = super().put
        return self._call("write", key, lambda: put(key, data, expect, fence))

    def remove(self, key: str, expect: Etag, fence: int) -> None:
        """Delete a row at once, or fail."""
        remove = super().remove
        self._call("clear", key, lambda: remove(key, expect, fence))

    def range(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Row]]:
        """Return rows at once, or fail."""
        found = super().range
        return self._call("scan", prefix, lambda: found(prefix, after, limit))

    def _call(self, act: Act, key: str, do: Callable[[], T]) -> T:
        failure = self._failures.next(act, key, self.rate)
        if failure is None:
            return do()
        self.failed_count += 1
        raise self._failures.happen(failure, act, key, do)


class FailingTable(MemoryMembershipTable):
    """A membership table in memory whose calls fail on order (`fail`) or by chance (`rate`).

    ```python
    SimCluster(simulation, membership=FailingTable(simulation.rng, rate=0.05), ...)
    ```

    Failed calls raise StorageUnavailable, or are never answered.

    Args:
        rng: The random numbers of the simulation, so that the seed decides. Not needed if `rate` is
            0.
        rate: The share of all calls that fail by chance, from 0 to 1. Half of the failed changes
            have happened. A quarter of the failed calls is never answered.

    Attributes:
        rate: As the argument. A test may change it at any time, for example to 0 when the faults
            end.
        failed_count: The number of calls that failed.

    Raises:
        ConfigError: `rate` is out of range, or above 0 without `rng`.
    """

    def __init__(self, rng: Random | None = None, *, rate: float = 0.0) -> None:
        super().__init__(FIRST_VERSION)
        _check_rate("FailingTable", rate, rng)
        self.rate = rate
        self.failed_count = 0
        self._failures = _Failures("FailingTable", rng, may_hang=True)

    def fail(
        self,
        act: TableAct,
        silo: str = "",
        *,
        times: int = 1,
        is_done: bool = False,
        hangs: bool = False,
    ) -> None:
        """Let the next calls of one kind fail.

        Args:
            act: The kind of call.
            silo: Only calls for rows of silos whose address begins with this text fail. A `read` is
                for no silo.
            times: How many calls fail.
            is_done: True: the change happens, and only the answer is lost.
            hangs: True: the call is never answered. False: it raises StorageUnavailable.

        Raises:
            ConfigError: `times` is less than 1.
        """
        self._failures.say(act, silo, times, _Failure(is_done, hangs))

    def view(self) -> TableView:
        """Return the table at once, or fail."""
        view = super().view
        return self._call("read", "", view)

    def replace_row(self, row: MemberRow, expect_version: int) -> bool:
        """Insert or replace a row at once, or fail."""
        replace_row = super().replace_row
        return self._call("write", row.silo, lambda: replace_row(row, expect_version))

    def drop(self, silo: str, expect_version: int) -> bool:
        """Delete a row at once, or fail."""
        drop = super().drop
        return self._call("forget", silo, lambda: drop(silo, expect_version))

    def stamp(self, silo: str, alive_s: float) -> None:
        """Store a heartbeat at once, or fail."""
        stamp = super().stamp
        return self._call("heartbeat", silo, lambda: stamp(silo, alive_s))

    def _call(self, act: TableAct, silo: str, do: Callable[[], T]) -> T:
        failure = self._failures.next(act, silo, self.rate)
        if failure is None:
            return do()
        self.failed_count += 1
        raise self._failures.happen(failure, act, silo, do)


class FailingReminderTable(MemoryReminderTable):
    """A reminder table in memory whose calls fail on order (`fail`) or by chance (`rate`).

    ```python
    SimCluster(simulation, reminders=FailingReminderTable(simulation.rng, rate=0.01), ...)
    ```

    Failed calls raise StorageUnavailable.

    Args:
        rng: The random numbers of the simulation, so that the seed decides. Not needed if `rate` is
            0.
        rate: The share of all calls that fail by chance, from 0 to 1. Half of the failed changes
            have happened.

    Attributes:
        rate: As the argument. A test may change it at any time.
        failed_count: The number of calls that failed.

    Raises:
        ConfigError: `rate` is out of range, or above 0 without `rng`.
    """

    def __init__(self, rng: Random | None = None, *, rate: float = 0.0) -> None:
        super().__init__()
        _check_rate("FailingReminderTable", rate, rng)
        self.rate = rate
        self.failed_count = 0
        self._failures = _Failures("FailingReminderTable", rng, may_hang=False)

    def fail(
        self,
        act: ReminderAct,
        prefix: str = "",
        *,
        times: int = 1,
        is_done: bool = False,
        hangs: bool = False,
    ) -> None:
        """Let the next calls of one kind fail.

        Args:
            act: The kind of call.
            prefix: Only calls for grains with this prefix fail. Calls of `due` are for no grain.
            times: How many calls fail.
            is_done: True: the change happens, and only the answer is lost.
            hangs: True: a call in a simulated cluster is not answered.

        Raises:
            ConfigError: `times` is less than 1.
        """
        self._failures.say(act, prefix, times, _Failure(is_done, hangs))

    def rows_of(self, grain: str) -> Sequence[ReminderRow]:
        """Return the rows of a grain at once; or fail, as the faults say."""
        found = super().rows_of
        return self._call("read", grain, lambda: found(grain))

    def put(self, row: ReminderRow, expect: Etag | None) -> Etag:
        """Store a row at once, or fail."""
        put = super().put
        return self._call("upsert", row.grain, lambda: put(row, expect))

    def drop(self, grain: str, name: str, expect: Etag) -> None:
        """Delete a row at once, or fail."""
        drop = super().drop
        self._call("remove", grain, lambda: drop(grain, name, expect))

    def list_due(
        self,
        buckets: Sequence[BucketRange],
        after: ReminderPosition | None,
        before_ms: int,
        limit: int,
    ) -> Sequence[ReminderRow]:
        """Return rows at once, or fail."""
        found = super().list_due
        return self._call("due", "", lambda: found(buckets, after, before_ms, limit))

    def _call(self, act: ReminderAct, grain: str, do: Callable[[], T]) -> T:
        failure = self._failures.next(act, grain, self.rate)
        if failure is None:
            return do()
        self.failed_count += 1
        raise self._failures.happen(failure, act, grain, do)
