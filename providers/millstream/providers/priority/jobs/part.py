"""`Jobs`: the part of a silo that runs durable jobs.

Owns the lifetime of the runner in this silo, and the settings on which all silos agree. Jobs are
stored in two queues of the part `priority`.

Invariant: one `Jobs` serves one silo.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.providers.priority.part import PriorityQueues
from millstream.runtime import ConfigError
from millstream.runtime.extending import SiloPart, SiloServices, check_kind

from .job import HOW_TO_ADD, PART, QUEUES
from .options import JobOptions, JobRetry
from .runner import JobRunner

__all__ = ["Jobs"]


class Jobs(SiloPart):
    """The part of a silo that runs durable jobs: calls of grain methods that run later.

    Give every silo of the cluster this part, beside `PriorityQueues`:
    `Silo(parts={"priority": PriorityQueues(store), "jobs": Jobs()})`. Programs then schedule jobs
    by `schedule`. Both names are fixed. Jobs are as durable as the store of the queues.

    A silo runs the jobs of the grain types that it hosts. The grain itself may be in any silo.

    Args:
        retry: When a job runs again after its method failed. None: the defaults of `JobRetry`.
        options: Times and limits. None: the defaults of `JobOptions`.

    Raises:
        ConfigError: An argument has another type. At the start of the silo: the part has another
            name than `jobs`, serves another silo already, or the silo has no `PriorityQueues` named
            `priority`.
    """

    def __init__(self, *, retry: JobRetry | None = None, options: JobOptions | None = None) -> None:
        self.retry = JobRetry() if retry is None else retry
        check_kind("Jobs(retry=...)", self.retry, JobRetry)
        self.options = JobOptions() if options is None else options
        check_kind("Jobs(options=...)", self.options, JobOptions)
        self._runner: JobRunner | None = None

    def agreement(self) -> Mapping[str, str]:
        """The settings on which all silos must agree, because they are stored with each job."""
        return {"retries of jobs": repr(self.retry), "limits of jobs": repr(self.options.shared)}

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Check the names of the parts."""
        if self._runner is not None:
            raise ConfigError(f"part {name!r}: this Jobs already serves a silo; make one per silo")
        if name != PART:
            raise ConfigError(f"part {name!r}: Jobs must have the name {PART!r}: {HOW_TO_ADD}")
        try:
            found = services.part(QUEUES)
        except ConfigError:
            found = None
        if not isinstance(found, PriorityQueues):
            raise ConfigError(f"part {name!r}: this silo has no part {QUEUES!r}: {HOW_TO_ADD}")
        self._runner = JobRunner(services, self.options, self.retry)

    async def start(self, services: SiloServices, name: str, /) -> None:
        """Begin to run jobs."""
        assert self._runner is not None, "open comes before start"
        self._runner.start()

    async def stop(self) -> None:
        """Lease no more jobs, and wait for the running ones, at most `drain_s`."""
        if self._runner is not None:
            await self._runner.stop()

    def abort(self) -> None:
        """End at once. Other silos run the jobs of this one when their leases have ended."""
        if self._runner is not None:
            self._runner.abort()
