"""The heartbeat of a silo's own event loop, as its probe thread reads it.

Owns: the age of the last beat, the lag of the loop, and what is said of a loop that is held. Not:
what others conclude from it (`prober`). Invariants: the probe thread reads plain attributes and
never waits for anything, a log's lock included; each time that the loop is held is told once when
it has lasted `HELD_TOLD_S`, and once more when the others will evict this silo for it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from types import FrameType

from millstream.runtime.definition.grain import Grain
from millstream.runtime.wire.address import generation_of

__all__ = ["LoopHeart"]

log = logging.getLogger("millstream.loop")

BEAT_S = 0.25
HELD_TOLD_S = 1.0
STACK_FRAMES_MAX = 20


class LoopHeart:
    """Beats on the loop; `answer` is called from the probe thread, a few times a second."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        silo: str,
        unresponsive_after_s: float,
        table_id: str,
    ) -> None:
        self._loop = loop
        self._silo = silo
        self._generation = generation_of(silo)
        self._table_id = table_id
        self._unresponsive_after_s = unresponsive_after_s
        self._beat_at = loop.time()
        self._thread = 0
        self._told_of: float | None = None  # the beat after which the loop was held, as told
        self._warned_of: float | None = None
        self.lag_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat from now on."""
        self._thread = threading.get_ident()
        self._beat_at = self._loop.time()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        now = self._loop.time()
        held_s = now - self._beat_at
        if self._told_of == self._beat_at:
            log.warning("%s: the loop runs again after %.1f s", self._silo, held_s)
        self.lag_s = max(self.lag_s / 2, held_s - BEAT_S)
        self._beat_at = now
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def close(self) -> None:
        """Stop beating."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- from the probe thread

    @property
    def age_s(self) -> float:
        """How long ago the loop has beaten."""
        return max(0.0, self._loop.time() - self._beat_at)

    def answer(self) -> bytes:
        """The age of the last beat in seconds, the generation, the id of the membership table.

        Tells who holds the loop.
        """
        if self._timer is not None:
            self._watch()
        return f"{self.age_s:.3f} {self._generation} {self._table_id}".encode()

    def _watch(self) -> None:
        beat_at, age_s = self._beat_at, self.age_s
        if age_s >= self._unresponsive_after_s and self._warned_of != beat_at:
            self._warned_of = beat_at
            self._tell(age_s, is_final=True)
        elif age_s >= HELD_TOLD_S and self._told_of != beat_at:
            self._told_of = beat_at
            self._tell(age_s, is_final=False)

    def _tell(self, age_s: float, *, is_final: bool) -> None:
        """Say it from a thread of its own: the loop may be held by what writes logs."""
        frame = sys._current_frames().get(self._thread)
        culprit, stack = culprit_of(frame), stack_of(frame)
        kind, key, method = culprit or ("", "", "")
        what = f"{kind}/{key}.{method}" if culprit else "code outside of grains"
        text = f"{self._silo}: {what} has held the loop for {age_s:.1f} s"
        if is_final:
            text += (
                f"; the other silos evict this one now (unresponsive_after_s is "
                f"{self._unresponsive_after_s:g})"
            )
        extra = {"silo": self._silo, "grain": kind, "key": key, "method": method, "held_s": age_s}
        level = logging.ERROR if is_final else logging.WARNING
        message = f"{text}: do not block the loop, await or use a thread\n{stack}"
        threading.Thread(
            target=log.log,
            args=(level, "%s", message),
            kwargs={"extra": extra},
            name="millstream-tell",
            daemon=True,
        ).start()


def culprit_of(frame: FrameType | None) -> tuple[str, str, str] | None:
    """Grain type, key and method of the innermost frame of a grain; None if there is none."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Grain):
            return type(owner).__millstream_type__.name, owner.key, frame.f_code.co_name
        frame = frame.f_back
    return None


def stack_of(frame: FrameType | None) -> str:
    """The innermost frames as text."""
    if frame is None:
        return "(no stack)"
    return "".join(traceback.format_stack(frame)[-STACK_FRAMES_MAX:]).rstrip()
