"""A state store whose calls fail when a test says so, or as a seed has it.

Owns: `FailingStore`. Not: the network between silo and store (`services`). Invariants: what fails
raises StorageUnavailable, and whether it has happened is decided before; what was said comes before
what chance has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from millstream.runtime.definition.storage import Etag, MemoryStateStore, Row
from millstream.runtime.errors import ConfigError, StorageError, StorageUnavailable

from .world.env import Random

__all__ = ["FailingStore"]

T = TypeVar("T")
Act = Literal["read", "write", "clear", "scan"]


@dataclass(slots=True)
class _Said:
    """Failures that a test has asked for and that have not come yet."""

    act: Act
    prefix: str
    left: int
    is_done: bool


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
        if not 0 <= rate <= 1 or (rate and rng is None):
            raise ConfigError(f"FailingStore(rate={rate!r}): from 0 to 1, and above 0 with an rng")
        self.rate = rate
        self.failed_count = 0
        self._rng = rng
        self._said: list[_Said] = []

    def fail(self, act: Act, prefix: str = "", *, times: int = 1, is_done: bool = False) -> None:
        """The next `times` calls of this kind for keys that begin with `prefix` fail.

        `is_done`: what was asked happens, and only the answer is lost. Raises ConfigError: `times`
        is below 1.
        """
        if times < 1:
            raise ConfigError(f"FailingStore.fail(times={times}): at least once")
        self._said.append(_Said(act, prefix, times, is_done))

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
        is_done = self._fails(act, key)
        if is_done is None:
            return do()
        self.failed_count += 1
        if is_done:
            with suppress(StorageError):  # the answer is lost, whatever it is
                do()
        what = "has happened, its answer is lost" if is_done else "has not happened"
        raise StorageUnavailable(f"FailingStore: {act} of {key!r} fails on purpose: it {what}")

    def _fails(self, act: Act, key: str) -> bool | None:
        """None: it does not; else whether it happens all the same."""
        for said in self._said:
            if said.left > 0 and said.act == act and key.startswith(said.prefix):
                said.left -= 1
                return said.is_done
        if self.rate and self._rng is not None and self._rng.random() < self.rate:
            return self._rng.random() < 0.5
        return None
