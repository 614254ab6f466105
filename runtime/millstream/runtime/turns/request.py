"""A request: the data of one turn, such as its parent, its task and its deadline.

This module owns `Request` and the context variable of the current request.

Invariants:

- `done` is set exactly once. A done request holds no task and counts as no parent.
- A task that outlives the turn in which it was started has no current request.
- A hop is the step from a turn to a request that this turn makes. The hop has `same_task` if the
  task that runs the turn makes the request. Only a chain of such hops can prove a cycle.
- A turn that the runtime cancelled has `expired` or a `stop_reason`. Its task counts this
  cancellation once in `Task.cancelling`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import msgspec

from millstream.runtime.errors import CallTimeout, NotInCluster
from millstream.runtime.text import show_text

__all__ = [
    "RUNTIME_TASK",
    "Occupied",
    "Request",
    "Runnable",
    "caller_of",
    "cancel_turn",
    "chain_of",
    "current_request",
    "find_task",
    "live_request",
    "other_loop",
    "path_to",
    "turn_name",
    "waits_for",
]


RUNTIME_TASK = sys.maxsize
"""Value of `cancelling` for a turn whose task belongs to the runtime.

Only the runtime's own record shows that such a turn was cancelled; the count of its task does not.
"""


class Occupied(Protocol):
    """An activation that a request has entered."""

    def leave(self, request: Request, /) -> None: ...


class Runnable(Protocol):
    """The method or life-cycle hook that a request runs."""

    @property
    def label(self) -> str: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def invoke(self) -> Callable[..., Any]: ...
    @property
    def late(self) -> type[CallTimeout]: ...


class Request(msgspec.Struct, eq=False):
    """One turn, from the moment it is requested until it ends.

    The fields that its creator knows come first, because passing them by position costs half as
    much as passing them by name.
    """

    parent: Any  # Request | None
    task: Any  # asyncio.Task | None
    activation: Any  # Occupied | None, once entered
    spec: Any  # Runnable; a MethodSpec wherever a method is called
    deadline: float
    depth: int
    cancelling: int = 0  # `Task.cancelling()` when the turn was requested, or RUNTIME_TASK
    same_task: bool = False
    group: Any = None  # its group of deadlines, or None
    is_read: bool = False
    is_interleaving: bool = False
    chain: tuple[str, ...] = ()  # ids of the remote turns that wait for this turn
    caller: str = ""
    timeout_s: float = 0.0  # if the caller chose one
    headers: Any = None  # HeaderSet | None
    future: Any = None  # the sweep cancels it instead of the task, if there is one
    done: bool = False
    expired: bool = False
    turn_id: str = ""
    target: str = ""  # `Airport/BOS`, if the call goes to another process
    stop_reason: str = ""  # set when the runtime itself cancels the turn
    is_cancelled: bool = False  # the runtime cancelled its task (`cancel_turn`)
    is_forced: bool = False  # it `expired` because its silo ends, not by its deadline
    is_use: bool = True  # it counts as a use of the activation
    section: str = ""  # its open section of call-chain reentrancy


current_request: ContextVar[Request | None] = ContextVar("millstream_request", default=None)


def cancel_turn(request: Request) -> None:
    """Cancel the task of a turn that has just been given a reason to end.

    A second cancellation of the same turn is delivered, but not counted again.
    """
    task = request.task
    if task is not None:
        was_counted, request.is_cancelled = request.is_cancelled, True
        task.cancel()
        if was_counted:
            task.uncancel()


def find_task(loop: asyncio.AbstractEventLoop) -> Callable[[], Any]:
    """Return the fastest function for the running task.

    `asyncio.current_task` is slow before Python 3.12.
    """
    if sys.version_info >= (3, 12):
        return asyncio.current_task
    tasks: dict[Any, Any] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    return partial(tasks.get, loop, ElsewhereTask())


class ElsewhereTask:
    """Placeholder for the task of another event loop. Every use of it raises NotInCluster."""

    def __getattr__(self, name: str) -> Any:
        raise NotInCluster(other_loop("this silo or client"))


def other_loop(whose: str) -> str:
    """Return the error text for a call from an event loop that is not the callee's own."""
    return (
        f"{whose} was started in another event loop than the running one: start one in each loop,"
        " or pass the call to its loop with asyncio.run_coroutine_threadsafe"
    )


def live_request() -> Request | None:
    """Return the innermost unfinished request of the running task, or of the task that started it.

    A finished request may remain in the context of the task that ran it. Then the first unfinished
    request among its parents still runs in this task, if all hops up to it have `same_task`. In
    another task, such a request belongs to a turn that ended before the task did, so it does not
    count. Stubs contain these lines inline.
    """
    found = first = current_request.get()
    while found is not None and found.done:
        found = found.parent if found.same_task else None
    if found is not first and found is not None and found.task is not asyncio.current_task():
        return None
    return found


def caller_of(request: Request) -> str:
    """Return the grain whose turn makes a call, as `Type/key`, or an empty text."""
    if request.caller or not request.same_task:
        return request.caller
    return turn_name(request.parent)


def turn_name(request: Request) -> str:
    """Return the name of a turn for messages, such as `Airport/BOS`."""
    if request.activation is not None:
        return str(request.activation)
    return show_text(request.target) if request.target else "?"


def chain_of(request: Request, new_id: Callable[[], int]) -> list[str]:
    """Return the ids of the turns that wait for `request`, the innermost turn first.

    The turns may be in other silos; the ids let a callee detect a cycle of calls.
    A turn counts only if its own task made the next call of the chain. Such a turn cannot continue
    before `request` ends. A turn whose background task made the call can continue.
    """
    chain: list[str] = []
    while request.same_task and not request.parent.done:
        request = request.parent
        if not request.turn_id:
            request.turn_id = f"{turn_name(request)}#{new_id():x}"
        chain.append(request.turn_id)
    if not request.same_task:
        chain.extend(request.chain)
    return chain


def waits_for(blocking: Request, request: Request) -> bool:
    """Return True if the turn of `blocking` waits for `request`.

    As in `chain_of`, a turn waits only if its own task made the next call of the chain.
    """
    while True:
        if blocking.turn_id and blocking.turn_id in request.chain:
            return True
        if not request.same_task or request.parent.done:
            return False
        request = request.parent
        if request is blocking:
            return True


def path_to(request: Request) -> list[str]:
    """Return the names of the turns that wait for `request`, outermost first, without itself."""
    names: list[str] = []
    while request.same_task and not request.parent.done:
        request = request.parent
        names.append(turn_name(request))
    names.extend(turn_id.rpartition("#")[0] for turn_id in request.chain)
    return names[::-1]
