"""Life-cycle hooks as something that a request can run.

Owns: `HookSpec`: `on_activate` and `on_deactivate` in the form that a method has (`MethodSpec`);
`LateStep`, what becomes of one that is over its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from millstream.runtime.errors import ActivationTimeout, CallTimeout

from .request import Request, cancel_turn

__all__ = ["HookSpec", "LateStep"]


class HookSpec:
    """One hook of one grain type, with its deadline in seconds."""

    __slots__ = ("label", "late", "name", "timeout_s")
    extension = ""
    writes_states = False

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name = name
        self.label = name
        self.timeout_s = timeout_s
        self.late = ActivationTimeout if name == "on_activate" else CallTimeout

    def invoke(self, grain: Any, *args: Any) -> Coroutine[Any, Any, Any]:
        """Call the hook."""
        hook: Coroutine[Any, Any, Any] = getattr(grain, self.name)(*args)
        return hook


class LateStep:
    """What the sweep of the deadlines cancels in place of a hook's task.

    Args:
        leave: called once the task was cancelled; sees to it that nobody waits for it for ever.
    """

    __slots__ = ("_leave", "_request")

    def __init__(self, request: Request, leave: Callable[[], object]) -> None:
        self._request = request
        self._leave = leave

    def cancel(self) -> None:
        """The deadline of the hook has passed."""
        cancel_turn(self._request)
        self._leave()
