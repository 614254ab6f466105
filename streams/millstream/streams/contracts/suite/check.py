"""One check of the suite, and the conditions under which it applies.

Owns: `AdapterCheck`, and collecting the checks of a module. Invariant: a check that does not apply
says why, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from millstream.streams.contracts.capability import Capability

from .bench import AdapterBench
from .hooks import without_hook

__all__ = ["AdapterCheck", "CheckList"]

Body = Callable[[AdapterBench], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class AdapterCheck:
    """A rule of the contract and its check. `str(check)` is its name.

    Attributes:
        name: the name of the check.
        rule: the rule, as a sentence.
        run: the check itself.
        needs: capabilities that the check needs.
        excludes: capabilities that exclude the check.
        is_for_generated: whether the rule also holds for providers that refuse `enqueue`.
        hooks: names of `AdapterHooks` that the check needs.
    """

    name: str
    rule: str
    run: Body
    needs: frozenset[Capability]
    excludes: frozenset[Capability]
    is_for_generated: bool
    hooks: frozenset[str]

    def __str__(self) -> str:
        return self.name

    def why_skipped(self, bench: AdapterBench) -> str:
        """Return why the check is not run (it does not apply, or a hook is missing), or "" if it is
        run.

        Args:
            bench: the opened provider.
        """
        missing = sorted(one.name for one in self.needs - bench.capabilities)
        if missing:
            return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not declared"
        if found := sorted(one.name for one in self.excludes & bench.capabilities):
            return f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'} declared"
        if bench.is_read_only and not self.is_for_generated:
            return "the provider accepts no messages"
        missing = sorted(name for name in self.hooks if getattr(bench.hooks, name) is None)
        return without_hook(missing[0]) if missing else ""


class CheckList:
    """The checks of one module, in the order of their definition."""

    def __init__(self) -> None:
        self._found: list[AdapterCheck] = []

    def __iter__(self) -> Iterator[AdapterCheck]:
        return iter(self._found)

    def check(
        self,
        *needs: Capability,
        excludes: tuple[Capability, ...] = (),
        generated: bool = False,
        hooks: tuple[str, ...] = (),
    ) -> Callable[[Body], Body]:
        """Collect a function: its docstring is the rule, and its name is the name of the check."""

        def collect(body: Body) -> Body:
            rule = " ".join((body.__doc__ or "").split())
            capabilities = frozenset(needs), frozenset(excludes)
            found = (body.__name__, rule, body, *capabilities, generated, frozenset(hooks))
            self._found.append(AdapterCheck(*found))
            return body

        return collect
