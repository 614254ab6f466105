"""Call filters: functions that run around the calls of grains.

Owns the view of a call that a filter gets, the filters of a process or class with their checks, and
the chain that runs them. `turns.run` runs incoming filters inside the turn of the callee, and
`calls.caller` runs outgoing filters in the task of the caller.

Invariants:

- The method gets a fresh copy of the arguments each time a filter proceeds.
- The method never runs after the turn of its call has ended, and never twice at the same time.
- A result that a filter returns passes the codec of the method, as a result of the method does.

Source: the grain call filters of Orleans (`IIncomingGrainCallFilter`, `IOutgoingGrainCallFilter`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.runtime.errors import ConfigError
from millstream.runtime.public_names import public_name
from millstream.runtime.text import show_text

from .names import grain_id

__all__ = ["NO_FILTERS", "CallFilter", "CallFilters", "FilterChain", "GrainCall", "Proceed"]


class Proceed(Protocol):
    """Runs the rest of a call: the next filters, and the method. A filter awaits it."""

    def __call__(self) -> Awaitable[object]:
        """Return an awaitable of the result. Errors of the method reach the filter."""
        ...


class GrainCall:
    """A call of a grain's method, as a filter sees it.

    Attributes:
        type_name: The name of the grain type.
        key: The key of the grain.
        method: The name of the method.
        arguments: The arguments by name. A filter may replace values; the new values pass the
            codec of the method.
        headers: The headers by name, flowing ones included. A filter may set more: an incoming
            filter for the turn, an outgoing filter for the call.
        caller: The grain whose turn makes the call, as `Type/key`. Empty: a program.
        grain: The grain itself for an incoming call, None for an outgoing one.
        is_one_way: True if the caller gets no result.
    """

    __slots__ = (
        "arguments",
        "caller",
        "grain",
        "headers",
        "is_one_way",
        "key",
        "method",
        "type_name",
    )

    def __init__(
        self,
        type_name: str,
        key: str,
        method: str,
        arguments: dict[str, object],
        headers: dict[str, str],
        caller: str = "",
        grain: object | None = None,
        is_one_way: bool = False,
    ) -> None:
        self.type_name = type_name
        self.key = key
        self.method = method
        self.arguments = arguments
        self.headers = headers
        self.caller = caller
        self.grain = grain
        self.is_one_way = is_one_way

    @property
    def grain_id(self) -> str:
        """The exact `Type/key` of the grain."""
        return grain_id(self.type_name, self.key)

    def __repr__(self) -> str:
        return f"<call of {show_text(self.grain_id)}.{self.method}>"


class CallFilter(Protocol):
    """An async function that runs around a call: `async def audit(call, proceed) -> object`."""

    def __call__(self, call: GrainCall, proceed: Proceed, /) -> Awaitable[object]:
        """Run around a call.

        Args:
            call: The call. Its arguments and headers may be replaced.
            proceed: Runs the rest of the call. A second call of it repeats the method.

        Returns:
            The result for the caller: that of `proceed`, or another one of the method's type.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFilters:
    """The filters of a silo, a client or a grain class, in the order in which they run.

    ```python
    async def audit(call: GrainCall, proceed: Proceed) -> object:
        started_s = monotonic()
        try:
            return await proceed()
        finally:
            log.info("%s.%s took %.3f s", call.grain_id, call.method, monotonic() - started_s)


    Silo(grains=[Airport], filters=CallFilters(incoming=[audit]))
    ```

    Args:
        incoming: Run in the turn of a called grain: those of the silo, then those of the class.
        outgoing: Run in the task of a caller: those of the calling grain's class, then those of the
            silo or client.

    Raises:
        ConfigError: A filter is no async function of a call and `proceed`.
    """

    incoming: Sequence[CallFilter] = ()
    outgoing: Sequence[CallFilter] = ()

    def __post_init__(self) -> None:
        for field in ("incoming", "outgoing"):
            given = getattr(self, field)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise ConfigError(
                    f"CallFilters({field}=...) is {show_text(repr(given))}: pass a list of filters"
                )
            for one in given:
                check_filter(f"CallFilters({field}=...)", one)
            object.__setattr__(self, field, tuple(given))


NO_FILTERS = CallFilters()


def check_filter(where: str, fn: object) -> None:
    """Raise ConfigError for an object that cannot be a filter."""
    wanted = "write `async def audit(call: GrainCall, proceed: Proceed) -> object`"
    if isinstance(fn, type) or not callable(fn) or not is_async(fn):
        raise ConfigError(f"{where}: {show_text(repr(fn))} is not an async function: {wanted}")
    _check_arguments(where, fn, 2, wanted)


def check_decision(where: str, fn: Any) -> None:
    """Raise ConfigError for an object that cannot decide whether a call may interleave."""
    wanted = "write `def may_interleave(call: GrainCall) -> bool`"
    if is_async(fn):
        raise ConfigError(f"{where}: {name_of(fn)} is async, and is asked without await: {wanted}")
    _check_arguments(where, fn, 1, wanted)


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether a call of a function, or of an object with `__call__`, is a coroutine."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _check_arguments(where: str, fn: Any, count: int, wanted: str) -> None:
    try:
        inspect.signature(fn).bind(*[None] * count)
    except TypeError as error:
        raise ConfigError(f"{where}: {name_of(fn)}: {error}: {wanted}") from None


def name_of(fn: object) -> str:
    """Return the name of a filter, for messages."""
    named: Any = fn if hasattr(fn, "__qualname__") else type(fn)
    return public_name(named)


class FilterChain:
    """Runs the filters of one call, and then the call itself.

    Args:
        invoke: Runs the call with a list of arguments.
        has_ended: Returns True once the turn of the call has ended.
        is_streamed: The call starts a generator. Filters get None as its result, and cannot replace
            its items.
    """

    __slots__ = (
        "_call",
        "_filters",
        "_has_ended",
        "_invoke",
        "_is_running",
        "_is_streamed",
        "_names",
        "_started",
    )

    def __init__(
        self,
        filters: Sequence[CallFilter],
        call: GrainCall,
        invoke: Callable[[tuple[Any, ...]], Awaitable[Any]],
        has_ended: Callable[[], bool],
        *,
        is_streamed: bool = False,
    ) -> None:
        self._is_streamed = is_streamed
        self._started: Any = None
        self._filters = filters
        self._call = call
        self._names = list(call.arguments)
        self._invoke = invoke
        self._has_ended = has_ended
        self._is_running = False

    async def run(self) -> Any:
        """Run the first filter, which decides whether the others and the method run."""
        result = await self._run_from(0)
        if not self._is_streamed:
            return result
        if result is not None:
            raise ConfigError(
                f"{self._call}: a filter returned {show_text(repr(result))} for a call that starts "
                "a generator: proceed and return None, or raise an error that refuses the call"
            )
        return self._started

    async def _run_from(self, index: int) -> Any:
        if index == len(self._filters):
            return await self._run_method()
        has_proceeded = False

        async def proceed() -> object:
            nonlocal has_proceeded
            has_proceeded = True
            return await self._run_from(index + 1)

        result = await self._filters[index](self._call, proceed)
        if result is None and not has_proceeded:
            raise ConfigError(
                f"{self._call}: the filter {name_of(self._filters[index])} returned None and did "
                "not proceed: write `return await proceed()`, return another result, or raise an "
                "error that refuses the call"
            )
        return result

    async def _run_method(self) -> Any:
        if self._is_running or self._has_ended():
            problem = "runs already" if self._is_running else "has ended"
            raise ConfigError(
                f"{self._call}: a filter proceeded while the call {problem}: await `proceed()` in "
                "the filter, and once at a time"
            )
        if self._started is not None:
            raise ConfigError(
                f"{self._call}: a filter proceeded twice with a call that starts a generator: "
                "proceed once"
            )
        self._is_running = True
        try:
            result = await self._invoke(self._values())
        finally:
            self._is_running = False
        if self._is_streamed:
            self._started, result = result, None
        return result

    def _values(self) -> tuple[Any, ...]:
        given, names = self._call.arguments, self._names
        if len(given) != len(names) or not all(name in given for name in names):
            raise ConfigError(
                f"{self._call}: a filter left the arguments {show_text(repr(list(given)))}; the "
                f"method takes {names}: replace values only"
            )
        return tuple(given[name] for name in names)
