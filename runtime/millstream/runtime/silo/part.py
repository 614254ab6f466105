"""What a silo can be given beside grains: a part with stages of its own.

Owns: the contract `SiloPart`, its check, and what is left of parts in a silo that is a bookie's.
Not: what a part may use of its silo (`services`).
Invariants: `open` runs while the silo joins, before others can call it; `start` once it is active;
`stop` while all grains are still here; `aclose` when the last turn has ended; `abort` takes the
place of both ends when the silo was evicted, or could not start.
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
    """What `Silo(streams={name: ...}, parts={name: ...})` takes; one object serves one silo.

    Derive from it to inherit stages that do nothing; `millstream.streams.PersistentStreams` is one.
    """

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        """Grain classes that the part brings under its name; its silo hosts them.

        What needs the part itself is a class for each name: a grain goes to any silo of its type.
        """
        return ()

    def agreement(self) -> Mapping[str, str]:
        """What silos of one cluster must have alike: values by what they are, such as
        `{"queues": "8"}`. One that joins with another value than an active silo is refused."""
        return {}

    def has_bookie(self) -> bool:
        """Does it keep data in this silo that all silos write and read? A silo may be run for that
        alone (`millstream run --bookie`), without grains and queues."""
        return False

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Add targets and extensions; grains may ask for the part once this has returned."""
        return None

    async def start(self, services: SiloServices, name: str, /) -> None:
        """Begin to work: the silo is active."""
        return None

    async def stop(self) -> None:
        """Begin no more work, and let end what was begun; grains of this silo still run."""
        return None

    async def aclose(self) -> None:
        """Let go of what `open` took; the last turn of the silo has ended."""
        return None

    def abort(self) -> None:
        """End at once and tell nobody; after a stage that failed, or when the silo was evicted."""
        return None


def list_brought(parts: Mapping[str, SiloPart]) -> list[type[Grain]]:
    """The grain classes that parts bring."""
    return [cls for name, part in parts.items() for cls in part.grains(name)]


def check_needed(grains: Iterable[type[Grain]], parts: Collection[str]) -> None:
    """Refuse grain classes that need a part which the silo was not given. Raises ConfigError."""
    for cls in grains:
        grain_type = cls.__millstream_type__
        for method, marks in grain_type.marks.items():
            for mark in marks:
                if mark.part and mark.part not in parts:
                    known = ", ".join(map(repr, parts)) or "none"
                    raise ConfigError(
                        f"{grain_type.name}.{method}: {mark} needs {mark.part!r}, and this silo "
                        f"was given {known}: write Silo(streams={{{mark.part!r}: ...}})"
                    )


def bookies_of(parts: Mapping[str, SiloPart], is_alone: bool) -> dict[str, SiloPart]:
    """The parts that have a bookie, for a silo of these alone. Raises ConfigError."""
    found = {name: part for name, part in parts.items() if part.has_bookie()}
    if not found:
        known = f"none of {', '.join(map(repr, parts))}" if parts else "there is no part"
        raise ConfigError(
            f"no part of this silo has a bookie ({known}): give it a stream provider with "
            "LedgerQueues, Silo(streams={...})"
        )
    if is_alone:
        raise ConfigError(
            "this silo has a membership table of its own, so nobody could find its bookie: give "
            "all silos one table, Silo(membership='sqlite:directory')"
        )
    return found


STAGES = ("open", "start", "stop", "aclose")


def check_part(name: str, part: Any) -> None:
    """Refuse what is no `SiloPart`, and name all that it lacks. Raises ConfigError."""
    wrong = [f"no `async def {stage}`" for stage in STAGES if not _is_async(part, stage)]
    for plain in ("grains", "abort", "agreement", "has_bookie"):
        if not callable(getattr(part, plain, None)):
            wrong.append(f"no `def {plain}`")
    if wrong:
        raise ConfigError(
            f"part {name!r}: {type(part).__name__} is not a SiloPart: {'; '.join(wrong)}; derive "
            "from millstream.runtime.extending.SiloPart to inherit stages that do nothing"
        )


def _is_async(part: Any, stage: str) -> bool:
    return inspect.iscoroutinefunction(getattr(part, stage, None))
