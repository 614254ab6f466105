"""The contract of a silo's part: an object that the silo starts and stops by stages of its own.

This module owns `SiloPart`, its check, and the choice of parts for a silo that is only a bookie.
The module `services` owns the things that a part may use. `open` runs while the silo joins, before
others can call it. `start` runs once the silo is active. `stop` runs while all grains are still
here. `aclose` runs after the last turn. `abort` replaces both ends if the silo was evicted or could
not start.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from millstream.runtime.definition.grain import Grain
from millstream.runtime.errors import ConfigError

from .services import SiloServices

__all__ = ["SiloPart", "bookies_of", "check_needed", "check_part", "list_brought"]


class SiloPart(Protocol):
    """A part of a silo, for `Silo(streams={name: ...}, parts={name: ...})`.

    One object serves one silo. Derive from this class to inherit stages that do nothing; an object
    of another class needs all methods. `millstream.streams.PersistentStreams` is a part.

    A silo calls the stages in this order: `open` while it joins, `start` when it is active, `stop`
    when it begins to stop, and `aclose` after the last turn has ended. `abort` replaces `stop` and
    `aclose` if a stage failed or the silo was evicted.
    """

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        """Return the grain classes that the part brings. Its silo hosts them.

        These grains may use `services_of`. If a class needs one particular part, make a class for
        each name, because a call goes to any silo that hosts the grain type.

        Args:
            name: The name of the part in its silo.
        """
        return ()

    def agreement(self) -> Mapping[str, str]:
        """Return the settings that all silos of a cluster must have alike, such as `{"queues":
        "8"}`.

        A silo that joins with another value than an active silo is refused. Called before the silo
        joins.

        Returns:
            The values, as text by the name of the setting.
        """
        return {}

    def has_bookie(self) -> bool:
        """Return whether the part keeps data in this silo that all silos write and read.

        A silo can be run for such data alone, without grains and queues: `millstream run --bookie`.
        """
        return False

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Prepare the part: add system targets and extensions.

        The silo is joining, and other silos cannot call it yet. Grains may ask for the part once
        this has returned.

        Args:
            services: The services of the silo. Keep them for later.
            name: The name of the part in its silo.
        """
        return None

    async def start(self, services: SiloServices, name: str, /) -> None:
        """Begin to work. The silo is active.

        Args:
            services: The services of the silo.
            name: The name of the part in its silo.
        """
        return None

    async def stop(self) -> None:
        """Begin no more work, and let running work end. All grains of the silo still run."""
        return None

    async def aclose(self) -> None:
        """Free everything that `open` took. The last turn of the silo has ended."""
        return None

    def abort(self) -> None:
        """End at once, without a message to anyone.

        Called in place of `stop` and `aclose`, after a stage that failed, an eviction, or
        `Silo.kill`.
        """
        return None


def list_brought(parts: Mapping[str, SiloPart]) -> list[type[Grain]]:
    """Return the grain classes that parts bring."""
    return [cls for name, part in parts.items() for cls in part.grains(name)]


def check_needed(grains: Iterable[type[Grain]], parts: Collection[str]) -> None:
    """Raise ConfigError for a grain class that needs a part which the silo does not have."""
    for cls in grains:
        grain_type = cls.__millstream_type__
        for method, marks in grain_type.marks.items():
            for mark in marks:
                if mark.part and mark.part not in parts:
                    known = ", ".join(map(repr, parts)) or "none"
                    raise ConfigError(
                        f"{grain_type.name}.{method}: {mark} needs part {mark.part!r}, and this "
                        f"silo has {known}: pass Silo(streams={{{mark.part!r}: ...}})"
                    )


def bookies_of(parts: Mapping[str, SiloPart], is_alone: bool) -> dict[str, SiloPart]:
    """Return the parts that have a bookie. Raises ConfigError if there are none."""
    found = {name: part for name, part in parts.items() if part.has_bookie()}
    if not found:
        known = f"it has {', '.join(map(repr, parts))}" if parts else "it has no parts"
        raise ConfigError(
            f"no part of this silo has a bookie ({known}): pass a stream provider with "
            "LedgerQueues, Silo(streams={...})"
        )
    if is_alone:
        raise ConfigError(
            "this silo has its own membership table, so no other silo can find its bookie: pass "
            "the same table to all silos, Silo(membership='sqlite:directory')"
        )
    return found


STAGES = ("open", "start", "stop", "aclose")


def check_part(name: str, part: Any) -> None:
    """Raise ConfigError for an object that is no `SiloPart`, and list everything that it lacks."""
    if inspect.isroutine(part):
        call = f"{part.__name__}()"
        raise ConfigError(
            f"part {name!r} is a function: a Silo takes the object that the function returns, so "
            f"write {call}"
        )
    wrong = [f"no `async def {stage}`" for stage in STAGES if not _is_async(part, stage)]
    for plain in ("grains", "abort", "agreement", "has_bookie"):
        if not callable(getattr(part, plain, None)):
            wrong.append(f"no `def {plain}`")
    if wrong:
        raise ConfigError(
            f"part {name!r}: {type(part).__name__} is not a SiloPart: {'; '.join(wrong)}; derive "
            "the class from millstream.runtime.extending.SiloPart to inherit stages that do nothing"
        )


def _is_async(part: Any, stage: str) -> bool:
    return inspect.iscoroutinefunction(getattr(part, stage, None))
