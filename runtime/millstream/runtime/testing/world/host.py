"""Simulated hosts, and who runs on which.

Owns: `Host`, the context variable that marks what belongs to it, and the names of tasks and
callbacks in messages. Not: what a crash does (`loop`, `network`, `disk`).
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from typing import Any

__all__ = ["HOST", "Host", "current_host", "describe", "host_of", "is_alive", "name_of", "tag_of"]


class Host:
    """A simulated process. What runs in its context ends without a trace when it crashes.

    A restarted host has the same name and a higher incarnation. `waiting`: what would run on it,
    while it is paused; None: it is not.
    """

    __slots__ = ("__weakref__", "_context", "alive", "incarnation", "name", "waiting")

    def __init__(self, name: str, incarnation: int = 1) -> None:
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        self.waiting: list[asyncio.Handle] | None = None
        self._context = Context()
        self._context.run(HOST.set, self)

    def __repr__(self) -> str:
        return f"{self.name}#{self.incarnation}" + ("" if self.alive else " (crashed)")

    def context(self) -> Context:
        """A new context on this host: what one callback sets in it does not reach the next."""
        return self._context.copy()


HOST: ContextVar[Host | None] = ContextVar("millstream_sim_host", default=None)


def current_host() -> Host | None:
    """The host that the running code is on; None for the driver of the simulation."""
    return HOST.get()


def host_of(handle: Any) -> Host | None:
    host: Host | None = handle._context.get(HOST)
    return host


def is_alive(host: Host | None) -> bool:
    return host is None or host.alive


def tag_of(host: Host | None) -> str:
    return "" if host is None else f"{host}: "


def name_of(handle: Any) -> str:
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return tag_of(host_of(handle)) + describe(owner)
    return tag_of(host_of(handle)) + getattr(callback, "__qualname__", repr(callback))


def describe(task: asyncio.Task[Any]) -> str:
    """Name of a task, and the line where its innermost coroutine outside of asyncio waits."""
    coro: Any = task.get_coro()
    frame = getattr(coro, "cr_frame", None)
    while (inner := getattr(coro, "cr_await", None)) is not None:
        inner_frame = getattr(inner, "cr_frame", None)
        if inner_frame is None or inner_frame.f_globals.get("__name__", "").startswith("asyncio."):
            break
        coro, frame = inner, inner_frame
    what = f"{task.get_name()} {getattr(coro, '__qualname__', repr(coro))}"
    if frame is None:
        return what
    file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{what} ({file}:{frame.f_lineno})"
