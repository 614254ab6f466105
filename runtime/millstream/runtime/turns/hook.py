"""Life-cycle hooks as something that a request can run.

Owns: `HookSpec`: `on_activate` and `on_deactivate` in the form that a method has (`MethodSpec`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from millstream.runtime.errors import ActivationTimeout, CallTimeout

__all__ = ["HookSpec"]


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
