"""The errors of a simulated run.

Owns: `SimulationError` and what is under it. Invariant: the message says what, at which virtual
time, and who was involved.
"""

from __future__ import annotations

from millstream.runtime.errors import MillstreamError

__all__ = ["Deadlock", "HostCrashed", "Livelock", "SimulationError", "VirtualTimeExceeded"]


class SimulationError(MillstreamError):
    """A simulated run cannot go on, or went wrong."""


class Deadlock(SimulationError):
    """Nothing is ready and no timer is pending: the program would wait for ever."""


class Livelock(SimulationError):
    """Callbacks run without end while time stands still."""


class VirtualTimeExceeded(SimulationError):
    """The program wants to wait beyond the virtual time that it was given."""


class HostCrashed(SimulationError):
    """The host crashed before the coroutine that was called on it ended."""
