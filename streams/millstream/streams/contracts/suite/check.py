"""One check of the suite, and when it applies.

Owns: `AdapterCheck`, and collecting those of a module. Invariant: a check that does not apply says
why, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from millstream.streams.contracts.capability import Capability

from .bench import AdapterBench

__all__ = ["AdapterCheck", "Checks"]

Body = Callable[[AdapterBench], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class AdapterCheck:
    """A rule that an adapter is held to. `str` of it is its name.

    Attributes: `rule`: the sentence that it checks; `needs`, `excludes`: capabilities; `run`: the
    check itself; `is_for_generated`: does it also hold where `enqueue` is refused?
    """

    name: str
    rule: str
    run: Body
    needs: frozenset[Capability]
    excludes: frozenset[Capability]
    is_for_generated: bool

    def __str__(self) -> str:
        return self.name

    def why_skipped(self, bench: AdapterBench) -> str:
        """Why it does not apply to what is under test; empty if it does."""
        missing = sorted(one.name for one in self.needs - bench.capabilities)
        if missing:
            return f"{', '.join(missing)} is not declared"
        if found := sorted(one.name for one in self.excludes & bench.capabilities):
            return f"{', '.join(found)} is declared"
        if bench.is_read_only and not self.is_for_generated:
            return "the provider accepts no messages"
        return ""


class Checks:
    """The checks of one module, in the order in which they stand there."""

    def __init__(self) -> None:
        self._found: list[AdapterCheck] = []

    def __iter__(self) -> Iterator[AdapterCheck]:
        return iter(self._found)

    def check(
        self, *needs: Capability, excludes: tuple[Capability, ...] = (), generated: bool = False
    ) -> Callable[[Body], Body]:
        """Collect a function: its docstring is the rule, its name that of the check."""

        def collect(body: Body) -> Body:
            rule = " ".join((body.__doc__ or "").split())
            found = (body.__name__, rule, body, frozenset(needs), frozenset(excludes), generated)
            self._found.append(AdapterCheck(*found))
            return body

        return collect
