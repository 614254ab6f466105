"""The hooks by which a grain takes values along when it moves to another silo.

This module owns the pair `on_dehydrate` and `on_rehydrate` of a class, and its checks.
`turns/package` makes and opens the package that travels, and `cluster/migrations` sends it.

Source: `IGrainMigrationParticipant` of Orleans.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from millstream.runtime.codec.codec import Codec, build_codec
from millstream.runtime.codec.types import resolve_hints, show_hint
from millstream.runtime.errors import DefinitionError

from .method import source_of

__all__ = ["MOVE_HOOKS", "MoveHooks", "find_move_hooks"]

DEHYDRATE, REHYDRATE = "on_dehydrate", "on_rehydrate"
MOVE_HOOKS = {
    DEHYDRATE: "def on_dehydrate(self) -> T",
    REHYDRATE: "def on_rehydrate(self, value: T) -> None",
}
"""The hooks of a move, as a class writes them."""


class MoveHooks:
    """The hooks of one grain class."""

    def __init__(self, cls: type[Any], localns: Mapping[str, Any]) -> None:
        self._cls = cls
        self._localns = localns
        self._codec: Codec[Any] | None = None

    def resolve(self) -> None:
        """Build the codec of the value. Raises DefinitionError, and NameError as `MethodSpec`."""
        if self._codec is not None:
            return
        cls = self._cls
        given: dict[str, Any] = {}
        for name, which in ((DEHYDRATE, "return"), (REHYDRATE, "")):
            hook = inspect.getattr_static(cls, name)
            found = resolve_hints(hook, self._localns, cls)
            which = which or list(inspect.signature(hook).parameters)[1]
            if which not in found:
                raise DefinitionError(f"{_where(cls, name)}: the value needs an annotation")
            given[name] = found[which]
        if given[DEHYDRATE] != given[REHYDRATE]:
            raise DefinitionError(
                f"{_where(cls, REHYDRATE)} takes `{show_hint(given[REHYDRATE])}`, and "
                f"{DEHYDRATE} returns `{show_hint(given[DEHYDRATE])}`: annotate both with the same "
                "type"
            )
        self._codec = build_codec(given[DEHYDRATE], f"{_where(cls, DEHYDRATE)}: value")

    def dehydrate(self, grain: Any) -> bytes:
        """Return the encoded value of a grain that leaves. Raises any error of the hook."""
        self.resolve()
        assert self._codec is not None
        value: bytes = self._codec.encode(grain.on_dehydrate())
        return value

    def rehydrate(self, grain: Any, value: bytes, runtime: object) -> None:
        """Give the value to a grain that arrives. Raises any error of the hook."""
        self.resolve()
        assert self._codec is not None
        grain.on_rehydrate(self._codec.decode(value, runtime))


def find_move_hooks(cls: type[Any], localns: Mapping[str, Any]) -> MoveHooks | None:
    """Return the hooks of a class, or None if it has none.

    Raises DefinitionError if a hook is missing, or cannot be called.
    """
    if not cls.__millstream_hosted__:
        return None
    hooks = {name: inspect.getattr_static(cls, name, None) for name in MOVE_HOOKS}
    if not any(hooks.values()):
        return None
    for name, wanted in MOVE_HOOKS.items():
        hook, count = hooks[name], 1 + (name == REHYDRATE)
        is_plain = inspect.isfunction(hook) and not (
            inspect.iscoroutinefunction(hook)
            or inspect.isgeneratorfunction(hook)
            or inspect.isasyncgenfunction(hook)
        )
        if not is_plain or len(inspect.signature(hook).parameters) != count:
            other = "a class has both hooks or none" if hook is None else "the hooks of a move wait"
            other = f"{other} for nothing" if hook is not None else other
            raise DefinitionError(f"{_where(cls, name)}: {other}: write `{wanted}`")
    found = MoveHooks(cls, localns)
    try:
        found.resolve()
    except NameError:
        pass  # a name is defined later in the module: resolve when a silo hosts the class
    return found


def _where(cls: type[Any], name: str) -> str:
    hook = inspect.getattr_static(cls, name, None)
    return f"{source_of(hook if inspect.isfunction(hook) else cls)}: {cls.__name__}.{name}"
