"""The heartbeat of a silo's own event loop, as its probe thread reads it.

This module measures the age of the last beat and the lag of the loop, and reports the code that
blocks the loop. `prober` decides the reaction of other silos.

Invariants:

- The probe thread reads plain attributes and never waits, not even for the lock of a log.
- A blocked loop is reported once after `HELD_TOLD_S`, and once more when the other silos will evict
  this one for it.
- Code is named only if two looks found the same call of it, and the loop made no iteration between
  them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from millstream.runtime.definition.grain import Grain
from millstream.runtime.log_lines import Lines
from millstream.runtime.text import show_text
from millstream.runtime.wire.address import generation_of

__all__ = ["LoopHeart"]

log = logging.getLogger("millstream.loop")

BEAT_S = 0.25
LOOK_S = 0.4
"""Age of a beat in seconds from which the probe thread looks at the running code."""
HELD_TOLD_S = 1.0
LOOP_MODULES = frozenset({"asyncio.base_events", "asyncio.runners"})
STACK_FRAMES_MAX = 20


class Look(NamedTuple):
    """The code that ran on the loop at one moment.

    `frames` are the calls of one callback or task, innermost first.
    """

    beat_at: float
    rounds: int
    frames: tuple[FrameType, ...]


class LoopHeart:
    """Beats on the event loop. The probe thread calls `answer` a few times a second."""

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
        self._told_of: float | None = None  # the last beat before a reported block
        self._warned_of: float | None = None
        self._look: Look | None = None  # the first look since the last beat
        self._rounds = 0  # loop iterations that the probe thread requested
        self.lag_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start beating."""
        self._thread = threading.get_ident()
        self._beat_at = self._loop.time()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        now = self._loop.time()
        held_s = now - self._beat_at
        if self._told_of == self._beat_at:
            log.warning("%s: the event loop runs again after %.1f s", self._silo, held_s)
        self.lag_s = max(self.lag_s / 2, held_s - BEAT_S)
        self._beat_at = now
        self._look = None  # it keeps the variables of the code that ran
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _go_round(self) -> None:
        self._rounds += 1

    def close(self) -> None:
        """Stop beating."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- from the probe thread

    @property
    def age_s(self) -> float:
        """Seconds since the last beat of the loop."""
        return max(0.0, self._loop.time() - self._beat_at)

    def answer(self) -> bytes:
        """Return the answer to a probe: the age of the last beat in seconds, the generation of the
        silo, and the id of its membership table.

        If the last beat is late, the method also samples the code that runs, and logs code that
        blocks the event loop.
        """
        if self._timer is not None:
            self._watch()
        return f"{self.age_s:.3f} {self._generation} {self._table_id}".encode()

    def _watch(self) -> None:
        beat_at, age_s = self._beat_at, self.age_s
        if age_s < LOOK_S:
            return
        frame = sys._current_frames().get(self._thread)
        look = Look(beat_at, self._rounds, tuple(calls_of(frame)))
        before = self._look
        if before is None or before.beat_at != beat_at or before.rounds != self._rounds:
            before, self._look = None, look
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._go_round)
        held = find_common_frames(before, look)
        if age_s >= self._unresponsive_after_s and self._warned_of != beat_at:
            self._warned_of = beat_at
            self._tell(age_s, held, stack_of(frame), is_final=True)
        elif age_s >= HELD_TOLD_S and self._told_of != beat_at:
            self._told_of = beat_at
            self._tell(age_s, held, stack_of(frame), is_final=False)

    def _tell(
        self, age_s: float, held: tuple[FrameType, ...], stack: str, *, is_final: bool
    ) -> None:
        """Log the report in a thread of its own: the log handler itself may block the loop."""
        culprit = culprit_of(held)
        kind, key, method = culprit or ("", "", "")
        what = show_text(f"{kind}/{key}.{method}") if culprit else "code outside of grains"
        text = f"{self._silo}: {what} has blocked the event loop for {age_s:.1f} s"
        if not held:
            text = (
                f"{self._silo}: the event loop has not run for {age_s:.1f} s, and the cause is "
                "unknown: many short pieces of work, code that does not release the interpreter, "
                "or a stopped process"
            )
        if is_final:
            text += (
                f"; the other silos evict this silo now (unresponsive_after_s is "
                f"{self._unresponsive_after_s:g})"
            )
        extra = {"silo": self._silo, "grain": kind, "key": key, "method": method, "held_s": age_s}
        level = logging.ERROR if is_final else logging.WARNING
        if held:
            text += ": do not block the event loop, await or use a thread"
        threading.Thread(
            target=log.log,
            args=(level, "%s\n%s", text, Lines(stack)),
            kwargs={"extra": extra},
            name="millstream-tell",
            daemon=True,
        ).start()


def calls_of(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the calls of the code that the loop runs, innermost first.

    The frames of the loop itself are left out.
    """
    while frame is not None and frame.f_globals.get("__name__") not in LOOP_MODULES:
        yield frame
        frame = frame.f_back


def find_common_frames(before: Look | None, now: Look) -> tuple[FrameType, ...]:
    """Return the calls that both looks saw, innermost first.

    The result is empty if the loop has made an iteration between the looks. A task takes one step
    per iteration. A call that both looks saw has therefore not suspended between them.
    """
    if before is None or (before.beat_at, before.rounds) != (now.beat_at, now.rounds):
        return ()
    seen = {id(frame) for frame in before.frames}  # these frames live, so their ids are unique
    return tuple(frame for frame in now.frames if id(frame) in seen)


def culprit_of(held: Iterable[FrameType]) -> tuple[str, str, str] | None:
    """Return grain type, key and method of the innermost call of a grain, or None."""
    for frame in held:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Grain):
            return type(owner).__millstream_type__.name, owner.key, frame.f_code.co_name
    return None


def stack_of(frame: FrameType | None) -> str:
    """Return the innermost frames as text."""
    if frame is None:
        return "(no stack)"
    return "".join(traceback.format_stack(frame)[-STACK_FRAMES_MAX:]).rstrip()
