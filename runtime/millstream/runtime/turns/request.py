"""What goes with a turn: its parent, its task, its deadline.

Owns: `Request` and the context variable that holds the current one. Invariants: `done` is set
exactly once, and from then on the request holds no task; a done request counts as no parent, and a
task that outlived the turn in which it was started has none; a hop is of the `same_task` when it
was made by the task that runs the parent's turn, so only chains of such hops can prove a cycle; a
turn that the runtime cancelled has `expired` or a `stop_reason`, and the count of its task
(`Task.cancelling`) has that cancellation once.
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
"""`cancelling` of a turn whose task belongs to the runtime: only the runtime's own record says that
such a turn was cancelled, and no count of its task does."""


class Occupied(Protocol):
    """What a request has entered: an activation."""

    def leave(self, request: Request, /) -> None: ...


class Runnable(Protocol):
    """What a request runs: a method, or a life-cycle hook."""

    @property
    def label(self) -> str: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def invoke(self) -> Callable[..., Any]: ...
    @property
    def late(self) -> type[CallTimeout]: ...


class Request(msgspec.Struct, eq=False):
    """One turn, from the moment it is asked for until it ends.

    What its maker knows comes first: by position it costs half of what it costs by name.
    """

    parent: Any  # Request | None
    task: Any  # asyncio.Task | None
    activation: Any  # Occupied | None, once entered
    spec: Any  # Runnable; a MethodSpec wherever a method is called
    deadline: float
    depth: int
    cancelling: int = 0  # `Task.cancelling()` when the turn was asked for, or RUNTIME_TASK
    same_task: bool = False
    group: Any = None  # the group of deadlines that holds it, or None
    is_read: bool = False
    is_interleaving: bool = False
    chain: tuple[str, ...] = ()  # ids of remote turns that wait for this one
    caller: str = ""
    timeout_s: float = 0.0  # where the caller chose one
    headers: Any = None  # dict[str, str] | None
    future: Any = None  # what the sweep cancels in place of the task, if the request has that
    done: bool = False
    expired: bool = False
    turn_id: str = ""
    target: str = ""  # `Airport/BOS`, where it is called elsewhere
    stop_reason: str = ""  # set when the runtime itself cancels the turn
    is_cancelled: bool = False  # the runtime cancelled its task: see `cancel_turn`
    is_forced: bool = False  # it has `expired` because its silo ends, not its time


current_request: ContextVar[Request | None] = ContextVar("millstream_request", default=None)


def cancel_turn(request: Request) -> None:
    """Cancel the task of a turn that has just been given a reason to end; a second cancellation of
    the same turn is delivered, but not counted again.
    """
    task = request.task
    if task is not None:
        was_counted, request.is_cancelled = request.is_cancelled, True
        task.cancel()
        if was_counted:
            task.uncancel()


def find_task(loop: asyncio.AbstractEventLoop) -> Callable[[], Any]:
    """The quickest way to the running task: `asyncio.current_task` is slow before 3.12."""
    if sys.version_info >= (3, 12):
        return asyncio.current_task
    tasks: dict[Any, Any] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    return partial(tasks.get, loop, ElsewhereTask())


class ElsewhereTask:
    """Stands for the task of one whose event loop is another: whatever it is asked, it refuses."""

    def __getattr__(self, name: str) -> Any:
        raise NotInCluster(other_loop("this silo or client"))


def other_loop(whose: str) -> str:
    """What to do about a call from an event loop that is not the callee's own."""
    return (
        f"{whose} was started in another event loop than the one that runs here: start one in each"
        " loop, or hand the call over with asyncio.run_coroutine_threadsafe"
    )


def live_request() -> Request | None:
    """The innermost request of the running task that has not ended, or that of who started it.

    A request that ended may stay in the context of the task that ran it; by hops of the same task
    it leads to the one that still runs there. In another task it is that of a turn which ended
    before the task did. Stubs have these lines inlined.
    """
    found = first = current_request.get()
    while found is not None and found.done:
        found = found.parent if found.same_task else None
    if found is not first and found is not None and found.task is not asyncio.current_task():
        return None
    return found


def turn_name(request: Request) -> str:
    """`Airport/BOS`, as shown in messages."""
    if request.activation is not None:
        return str(request.activation)
    return show_text(request.target) if request.target else "?"


def chain_of(request: Request, new_id: Callable[[], int]) -> list[str]:
    """Ids of the turns that wait, by hops of the same task, for `request`; innermost first."""
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
    """Does `blocking`'s turn wait, by hops of the same task, for `request`?"""
    while True:
        if blocking.turn_id and blocking.turn_id in request.chain:
            return True
        if not request.same_task or request.parent.done:
            return False
        request = request.parent
        if request is blocking:
            return True


def path_to(request: Request) -> list[str]:
    """Names of the turns that wait for `request`, outermost first, without itself."""
    names: list[str] = []
    while request.same_task and not request.parent.done:
        request = request.parent
        names.append(turn_name(request))
    names.extend(turn_id.rpartition("#")[0] for turn_id in request.chain)
    return names[::-1]
