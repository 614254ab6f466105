"""A state store and a membership table whose calls fail when a test says so, or as a seed has it.

Owns: `FailingStore`, `FailingTable`. Not: the network between silo and service (`services`).
Invariants: what fails raises StorageUnavailable, or is never answered, and whether it has happened
is decided before; what was said comes before what chance has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from millstream.runtime.cluster.table import MemberRow, MemoryMembershipTable, TableView
from millstream.runtime.definition.storage import Etag, MemoryStateStore, Row
from millstream.runtime.errors import ConfigError, StorageError, StorageUnavailable

from .services import Unanswered
from .world.env import Random

__all__ = ["FailingStore", "FailingTable"]

T = TypeVar("T")
Act = Literal["read", "write", "clear", "scan"]
TableAct = Literal["read", "write", "heartbeat", "forget"]
FIRST_VERSION = 1_700_000_000_000  # as Unix milliseconds; the same in every run


@dataclass(frozen=True, slots=True)
class _Failure:
    """How one call fails: does it happen all the same, and is it answered at all?"""

    is_done: bool = False
    hangs: bool = False


@dataclass(slots=True)
class _Said:
    """Failures that a test has asked for and that have not come yet."""

    act: str
    prefix: str
    left: int
    failure: _Failure


class _Failures:
    """What fails next of one store or table, `whose`."""

    def __init__(self, whose: str, rng: Random | None, may_hang: bool) -> None:
        self._whose = whose
        self._rng = rng
        self._may_hang = may_hang
        self._said: list[_Said] = []

    def say(self, act: str, prefix: str, times: int, failure: _Failure) -> None:
        if times < 1:
            raise ConfigError(f"{self._whose}.fail(times={times}): at least once")
        self._said.append(_Said(act, prefix, times, failure))

    def next(self, act: str, key: str, rate: float) -> _Failure | None:
        """How this call fails; None: it does not."""
        for said in self._said:
            if said.left > 0 and said.act == act and key.startswith(said.prefix):
                said.left -= 1
                return said.failure
        if rate and self._rng is not None and self._rng.random() < rate:
            is_done = self._rng.random() < 0.5
            return _Failure(is_done, self._may_hang and self._rng.random() < 0.25)
        return None

    def happen(self, failure: _Failure, act: str, key: str, do: Callable[[], object]) -> Exception:
        """Do it, if it is to happen; what the caller gets instead of an answer."""
        if failure.is_done:
            with suppress(StorageError):  # the answer is lost, whatever it is
                do()
        what = "has happened, its answer is lost" if failure.is_done else "has not happened"
        text = f"{self._whose}: {act} of {key!r} fails on purpose: it {what}"
        return Unanswered(text) if failure.hangs else StorageUnavailable(text)


def _check_rate(whose: str, rate: float, rng: Random | None) -> None:
    if not 0 <= rate <= 1 or (rate and rng is None):
        raise ConfigError(f"{whose}(rate={rate!r}): from 0 to 1, and above 0 with an rng")


class FailingStore(MemoryStateStore):
    """`SimCluster(stores={"default": FailingStore(simulation.rng, rate=0.01)})`, or with `fail`.

    Args:
        rng: the simulation's, so that the seed decides; not needed with rate 0.
        rate: how many of all calls fail by chance, from 0 to 1. Half of the writes and clears that
            fail have happened. Raises ConfigError: out of bounds, or above 0 without `rng`.

    Attributes: `rate`, which a test may set at any time, to 0 when troubles end; `failed_count`.
    """

    def __init__(self, rng: Random | None = None, *, rate: float = 0.0) -> None:
        super().__init__()
        _check_rate("FailingStore", rate, rng)
        self.rate = rate
        self.failed_count = 0
        self._failures = _Failures("FailingStore", rng, may_hang=False)

    def fail(self, act: Act, prefix: str = "", *, times: int = 1, is_done: bool = False) -> None:
        """The next `times` calls of this kind for keys that begin with `prefix` fail.

        `is_done`: what was asked happens, and only the answer is lost. Raises ConfigError: `times`
        is below 1.
        """
        self._failures.say(act, prefix, times, _Failure(is_done))

    def get(self, key: str) -> Row | None:
        get = super().get
        return self._call("read", key, lambda: get(key))

    def put(self, key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        put = super().put
        return self._call("write", key, lambda: put(key, data, expect, fence))

    def remove(self, key: str, expect: Etag, fence: int) -> None:
        remove = super().remove
        self._call("clear", key, lambda: remove(key, expect, fence))

    def range(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Row]]:
        found = super().range
        return self._call("scan", prefix, lambda: found(prefix, after, limit))

    def _call(self, act: Act, key: str, do: Callable[[], T]) -> T:
        failure = self._failures.next(act, key, self.rate)
        if failure is None:
            return do()
        self.failed_count += 1
        raise self._failures.happen(failure, act, key, do)


class FailingTable(MemoryMembershipTable):
    """`SimCluster(membership=FailingTable(simulation.rng, rate=0.05))`, or with `fail`.

    Args:
        rng: the simulation's, so that the seed decides; not needed with rate 0.
        rate: how many of all calls fail by chance, from 0 to 1: half of the changes that fail have
            happened, and a quarter of what fails is never answered. Raises ConfigError: out of
            bounds, or above 0 without `rng`.

    Attributes: `rate`, which a test may set at any time, to 0 when troubles end; `failed_count`.
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
        """The next `times` calls of this kind fail; of rows of silos whose address begins so.

        `is_done`: what was asked happens, and only the answer is lost. `hangs`: there is no answer,
        ever; else it is StorageUnavailable. A `read` is of no silo. Raises ConfigError: `times` is
        below 1.
        """
        self._failures.say(act, silo, times, _Failure(is_done, hangs))

    def view(self) -> TableView:
        view = super().view
        return self._call("read", "", view)

    def replace_row(self, row: MemberRow, expect_version: int) -> bool:
        replace_row = super().replace_row
        return self._call("write", row.silo, lambda: replace_row(row, expect_version))

    def drop(self, silo: str, expect_version: int) -> bool:
        drop = super().drop
        return self._call("forget", silo, lambda: drop(silo, expect_version))

    def stamp(self, silo: str, alive_s: float) -> None:
        stamp = super().stamp
        return self._call("heartbeat", silo, lambda: stamp(silo, alive_s))

    def _call(self, act: TableAct, silo: str, do: Callable[[], T]) -> T:
        failure = self._failures.next(act, silo, self.rate)
        if failure is None:
            return do()
        self.failed_count += 1
        raise self._failures.happen(failure, act, silo, do)
