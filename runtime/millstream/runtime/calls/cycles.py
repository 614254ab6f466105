"""Who waits for whom: calls that can never start, and what a late one waited for.

Owns: the check for cycles and the words for it. Invariant: a cycle is only found where every hop
was made by its turn's own task, so that nobody could end it.
"""

from __future__ import annotations

from millstream.runtime.errors import CallCycle
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.request import Request, path_to, waits_for

__all__ = ["check_cycle", "name_blockers", "note_blockers"]


def check_cycle(activation: Activation, request: Request) -> None:
    """Raise CallCycle if a turn that keeps the request waiting itself waits for the request."""
    if any(waits_for(blocking, request) for blocking in activation.blocking()):
        target = str(activation)
        path: list[str] = []
        for name in path_to(request):  # what came before the target waits, and is no part of it
            path = [name] if name == target else [*path, name]
        raise CallCycle(*path, target)


def name_blockers(activation: Activation) -> str:
    """What a request that waits for an activation waits for; empty if nothing runs there."""
    names = [
        f"{request.spec.label} for {request.caller or 'a caller'}"
        for request in activation.blocking()
    ]
    return f"waited for {activation}, which runs {', '.join(names)}" if names else ""


def note_blockers(request: Request, activation: Activation) -> None:
    """If a deadline ended the wait, tell all whose wait it was what was waited for."""
    text = name_blockers(activation)
    waiting: Request | None = request
    while waiting is not None:
        if waiting.expired and not waiting.is_forced and not waiting.stop_reason:
            waiting.stop_reason = text
        waiting = waiting.parent
