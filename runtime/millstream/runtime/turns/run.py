"""Running a turn that did not take the direct path, and ending any turn.

Owns: the order in which a turn ends (spec/hotpath.md trap 2): context, done flag, registry,
release, then everything that may raise. Invariants: an activation that was entered is left
whatever happens; a turn that the runtime cancelled (deadline, forced end) never ends as a
cancellation; no exception keeps a frame that keeps the exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from millstream.runtime.codec.failures import isolate_error
from millstream.runtime.errors import CallTimeout, GrainError, SiloUnavailable

from .request import Request, current_request, path_to, turn_name

if TYPE_CHECKING:
    from millstream.runtime.calls.engine import Host

    from .activation import Activation

__all__ = ["begin_turn", "finish", "settle", "timed_out"]


def finish(host: Host, request: Request) -> None:
    """End a request: nothing here may raise."""
    if current_request.get() is request:
        current_request.set(request.parent)
    request.done = True
    if request.group is not None:
        host.pending.remove(request)
    activation, request.task, request.future = request.activation, None, None
    if activation is not None:
        activation.leave(request)


def settle(host: Host, request: Request, error: BaseException) -> BaseException:
    """End a failed request and say what its caller gets."""
    task = request.task
    finish(host, request)
    if request.expired or request.stop_reason:
        is_ours = task is None or task.uncancel() <= request.cancelling
        if is_ours or not isinstance(error, asyncio.CancelledError):
            return timed_out(host, request) if request.expired else stopped(request)
        return error
    if isinstance(error, asyncio.CancelledError) and request.activation is not None:
        if task is not None and task.cancelling() <= request.cancelling:
            return own_cancellation(request)  # nobody cancelled the caller: the method raised it
    if not isinstance(error, Exception):
        return error
    if request.activation is None:
        return error  # raised by the runtime, not by the callee: nothing to isolate
    return isolate_error(error, host.known_errors, turn_name(request))


def timed_out(host: Host, request: Request) -> CallTimeout | SiloUnavailable:
    """The error of a request whose deadline passed, with what it waited for; or its silo ended."""
    if request.is_forced:
        return stopped(request)
    target = f"{turn_name(request)}: " if request.activation is not None else ""
    waiters = path_to(request)
    waited = f"; waited for by {' → '.join(waiters)}" if waiters else ""
    seconds = request.timeout_s or request.spec.timeout_s or host.options.call_timeout_s
    blocked = f"; {request.stop_reason}" if request.stop_reason else ""
    return CallTimeout(
        f"{target}{request.spec.label} did not end within its deadline "
        f"(at most {seconds:.2g} s){waited}{blocked}"
    )


def own_cancellation(request: Request) -> GrainError:
    """What a caller gets when the method itself raised CancelledError."""
    place = f"{turn_name(request)}: {request.spec.label}"
    return GrainError("asyncio.CancelledError", f"{place} awaited something that was cancelled")


def stopped(request: Request) -> SiloUnavailable:
    """The error of a turn that was ended by force."""
    return SiloUnavailable(f"{turn_name(request)}: {request.spec.label}: {request.stop_reason}")


def begin_turn(
    activation: Activation, request: Request, args: tuple[Any, ...]
) -> Coroutine[Any, Any, Any]:
    """What runs the method of an entered request, to be awaited at once in the running task.

    The caller ends the request.
    """
    spec = request.spec
    target = activation.grain
    if spec.extension:
        target = activation.table.host.catalog.extension_of(activation, spec.extension)
    current_request.set(request)
    method: Coroutine[Any, Any, Any] = spec.invoke(target, *args)
    return _and_write(activation, method) if activation.table.writes_each_turn else method


async def _and_write(activation: Activation, method: Coroutine[Any, Any, Any]) -> Any:
    result = await method
    await activation.table.host.catalog.write_changed(activation)
    return result
