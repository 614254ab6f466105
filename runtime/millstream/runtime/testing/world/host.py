"""Simulated hosts, and the host of running code.

This module owns `Host`, the context variable that marks code of a host, and the names of tasks and
callbacks in messages. The effects of a crash are in `loop`, `network` and `disk`.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from typing import Any

__all__ = ["HOST", "Host", "current_host", "describe", "host_of", "is_alive", "name_of", "tag_of"]


class Host:
    """A simulated process. Code that runs in its context ends without a trace when it crashes.

    A restarted host is a new object with the same name and a higher incarnation.

    Args:
        name: The name of the host.
        incarnation: How many times the host was started.

    Attributes:
        name: The name of the host.
        incarnation: How many times the host was started.
        alive: False once the host has crashed.
        waiting: The callbacks that wait while the host is paused. None: it is not paused.
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
        """Return a new context on this host. A variable set in it is not visible in another one."""
        return self._context.copy()


HOST: ContextVar[Host | None] = ContextVar("millstream_sim_host", default=None)


def current_host() -> Host | None:
    """Return the host of the running code; None for the driver of the simulation."""
    return HOST.get()


def host_of(handle: Any) -> Host | None:
    """Return the host of a callback; None if it has none."""
    host: Host | None = handle._context.get(HOST)
    return host


def is_alive(host: Host | None) -> bool:
    """Return whether a host is alive. No host (None) counts as alive."""
    return host is None or host.alive


def tag_of(host: Host | None) -> str:
    """Return the host as the beginning of a message; empty for no host."""
    return "" if host is None else f"{host}: "


def name_of(handle: Any) -> str:
    """Return the name of a callback for messages, with its host."""
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return tag_of(host_of(handle)) + describe(owner)
    return tag_of(host_of(handle)) + getattr(callback, "__qualname__", repr(callback))


def describe(task: asyncio.Task[Any]) -> str:
    """Return the name of a task, and the line where its innermost coroutine outside of asyncio
    waits.
    """
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
