"""Cycles of calls that wait for each other, and the turns that a late call waited for.

This module finds cycles and describes them. A cycle is reported only if the task of each turn made
its hop itself, because then no other code can end the wait.
"""

from __future__ import annotations

from millstream.runtime.errors import CallCycle
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.flows import is_in_section
from millstream.runtime.turns.request import Request, path_to, waits_for
from millstream.runtime.turns.workers import Pool, WorkerActivation

__all__ = ["check_cycle", "name_blockers", "note_blockers"]


def check_cycle(activation: Activation, request: Request) -> None:
    """Raise CallCycle if a turn that blocks the request waits for this request itself.

    A turn in whose section the request is does not block it. A call to stateless workers is in a
    cycle only if each worker of the pool waits for it, because any worker may take the call.
    """
    blocking = [turn for turn in activation.blocking() if not is_in_section(request, turn)]
    if any(waits_for(turn, request) for turn in blocking):
        if isinstance(activation, WorkerActivation) and not is_whole_pool_waiting(
            activation.pool, request
        ):
            return
        target = str(activation)
        path: list[str] = []
        for name in path_to(request):  # turns before the target are no part of the cycle
            path = [name] if name == target else [*path, name]
        raise CallCycle(*path, target)


def is_whole_pool_waiting(pool: Pool, request: Request) -> bool:
    """Return True if each worker of a pool runs a turn that waits for the request."""
    return all(any(waits_for(turn, request) for turn in one.blocking()) for one in pool.workers)


def name_blockers(activation: Activation) -> str:
    """Describe the turns that block a request, or return an empty text if none runs."""
    names = [
        f"{request.spec.label} for {request.caller or 'a caller'}"
        for request in activation.blocking()
    ]
    return f"waited for {activation}, which runs {', '.join(names)}" if names else ""


def note_blockers(request: Request, activation: Activation) -> None:
    """After a deadline, store the description of the blockers in all requests that waited."""
    text = name_blockers(activation)
    waiting: Request | None = request
    while waiting is not None:
        if waiting.expired and not waiting.is_forced and not waiting.stop_reason:
            waiting.stop_reason = text
        waiting = waiting.parent
