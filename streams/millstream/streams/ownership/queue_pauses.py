"""Pausing and resuming a queue by hand.

Owns `pause_queue`, `resume_queue`, and the target `$holding/<provider>` behind them. The owner
(`manager`) then hands the queue over as if no silo wanted it.

Invariants: the record has the pause before the call returns, so the pause holds for each later
owner, and after a stop of all silos. The write is a compare-and-set, and changes nothing else of
the record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from millstream.runtime import ConfigError, Conflict
from millstream.runtime.extending import Opener, Program, Role, SystemTarget, open_to, show_text
from millstream.streams.contracts.identity import QueueId

from .record import Handoff, QueueRecord, QueueState
from .store import OwnershipStore

__all__ = ["QueuePauseTarget", "pause_queue", "resume_queue"]

SetPaused = Callable[[QueueId, bool], Awaitable[None]]
NEVER_OWNED = QueueRecord("", 0, QueueState.FREE, handoff=Handoff(clean=True, in_flight=0))


class QueuePauseTarget(SystemTarget):
    """Pauses and resumes the queues of one provider.

    Args:
        queues: returns the present queues of the provider.
        changed: called when silos should read a queue's record again.
    """

    target_name = "$holding"

    def __init__(
        self,
        provider: str,
        records: OwnershipStore,
        queues: Callable[[], Sequence[QueueId]],
        changed: Callable[[QueueId], None],
    ) -> None:
        self._provider = provider
        self._records = records
        self._queues = queues
        self._changed = changed

    @open_to(Role.OPERATOR)
    async def hold(self, queue: str, is_held: bool) -> None:
        """Pause or resume a queue; returns when that is stored. Raises ConfigError,
        StorageError."""
        queues = self._queues()
        if queue not in queues:
            names = f"{queues[0]} to {queues[-1]}" if queues else "none"
            raise ConfigError(
                f"stream provider {self._provider!r} has no queue {show_text(queue)}; its queues "
                f"are {names}"
            )
        while not await self._is_written(queue, is_held):
            continue
        self._changed(queue)

    async def _is_written(self, queue: QueueId, is_held: bool) -> bool:
        stored = await self._records.read(queue)
        record = NEVER_OWNED if stored is None else stored.record
        if record.is_held == is_held:
            return True
        new = msgspec.structs.replace(record, is_held=is_held)
        try:
            await self._records.write(queue, new, None if stored is None else stored.etag)
        except Conflict:
            return False  # another writer was faster: read again
        return True


class QueuePauses:
    """Opens the pauses of queues as a namespace opens streams; the key is the provider."""

    def open(self, runtime: Opener, key: str, /) -> SetPaused:
        runtime.check_running()
        gateway, target = runtime.gateway, f"{QueuePauseTarget.target_name}/{key}"
        if gateway is None:
            here: SetPaused = runtime.part(key).queue_pauses.hold
            return here

        async def there(queue: QueueId, is_paused: bool) -> None:
            await gateway.call(queue, target, QueuePauseTarget.hold, queue, is_paused)

        return there


async def pause_queue(program: Program, queue: QueueId, /, provider: str = "default") -> None:
    """Let no silo read a queue until `resume_queue`; publishing to it continues.

    The call returns when the pause is stored in the queue record. The owner then stops reading and
    delivering, waits for calls under way, at most `max_handoff_s`, stores its progress, and gives
    the queue up. The pause applies to every later owner, and survives a stop of all silos. A
    repeated call does no harm.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        queue: name of the queue, as figures and logs show it: `queue-3`.
        provider: the name under which silos were given the provider.

    Raises:
        ConfigError: there is no such provider or queue.
        StorageError: the store failed.
    """
    await program.stream(QueuePauses(), provider)(queue, True)


async def resume_queue(program: Program, queue: QueueId, /, provider: str = "default") -> None:
    """Undo `pause_queue`: the next owner reads on at the stored position.

    A repeated call does no harm.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        queue: name of the queue.
        provider: the name under which silos were given the provider.

    Raises:
        ConfigError: there is no such provider or queue.
        StorageError: the store failed.
    """
    await program.stream(QueuePauses(), provider)(queue, False)
