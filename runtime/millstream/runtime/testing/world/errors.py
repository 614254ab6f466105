"""The errors of a simulated run.

This module owns `SimulationError` and its subclasses. The message has the cause, the virtual time
and the tasks or hosts involved.
"""

from __future__ import annotations

from millstream.runtime.errors import MillstreamError

__all__ = ["Deadlock", "HostCrashed", "Livelock", "SimulationError", "VirtualTimeExceeded"]


class SimulationError(MillstreamError):
    """A simulated run cannot continue, or failed."""


class Deadlock(SimulationError):
    """Nothing is ready and no timer is pending, so the program would wait forever.

    The message lists the waiting tasks.
    """


class Livelock(SimulationError):
    """Callbacks run without end while the virtual time stands still.

    The message lists the ready callbacks.
    """


class VirtualTimeExceeded(SimulationError):
    """The program waits beyond the virtual time that it was given (`max_virtual_s`).

    The message lists the waiting tasks.
    """


class HostCrashed(SimulationError):
    """The host crashed before the coroutine that was called on it ended."""
