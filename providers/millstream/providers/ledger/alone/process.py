"""A process without a silo, with the parts of a silo that bookies and topics need.

Owns: `OneProcess`. Invariants: no other silo is alive, and none is called. Time comes from the
event loop, and chance and wall time from `env`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from millstream.runtime import Env, SiloUnavailable
from millstream.runtime.extending import SystemTarget, Tasks

__all__ = ["OneProcess"]

P = ParamSpec("P")
T = TypeVar("T")


class LoopClock:
    """A `Clock` of the running loop."""

    def __init__(self, env: Env) -> None:
        self._loop = asyncio.get_running_loop()
        self._env = env

    def now(self) -> float:
        return self._loop.time()

    def wall_s(self) -> float:
        return self._env.wall_s()

    def uniform(self, low: float, high: float, /) -> float:
        return self._env.uniform(low, high)


class OneProcess:
    """A process without a silo. Attributes: `silo`, its name in rows, which no other process
    has."""

    def __init__(self, env: Env) -> None:
        self.silo = f"process {env.new_id():x}"
        self.clock = LoopClock(env)
        self.tasks = Tasks(asyncio.get_running_loop(), env.new_context, "topics")

    @property
    def members(self) -> OneProcess:
        return self

    @property
    def targets(self) -> OneProcess:
        return self

    def is_live(self, silo: str, /) -> bool:
        return silo == self.silo

    def add(self, target: SystemTarget, instance: str = "") -> None:
        """Ignored: no other process calls the target."""

    async def call(
        self,
        silo: str,
        target: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        raise SiloUnavailable(f"{silo}: this process has no silo, and cannot call {target}")
