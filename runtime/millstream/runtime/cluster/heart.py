"""The heartbeat of a silo's own event loop, as its probe thread reads it.

Owns: the age of the last beat, the lag of the loop, and what is said of a loop that is held. Not:
what others conclude from it (`prober`). Invariants: the probe thread reads plain attributes and
never waits for anything, a log's lock included; each time that the loop is held is told once when
it has lasted `HELD_TOLD_S`, and once more when the others will evict this silo for it; code is
blamed only if two looks saw the same call of it, and the loop did not go round between them.
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
"""Age of a beat from which the probe thread looks at what the loop does."""
HELD_TOLD_S = 1.0
LOOP_MODULES = frozenset({"asyncio.base_events", "asyncio.runners"})
STACK_FRAMES_MAX = 20


class Look(NamedTuple):
    """What ran on the loop at one moment: the calls of one callback or task, innermost first."""

    beat_at: float
    rounds: int
    frames: tuple[FrameType, ...]


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
        self._look: Look | None = None  # the first since the last beat
        self._rounds = 0  # of the loop, which were asked for by the probe thread
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
        self._look = None  # it keeps the variables of what ran
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
        """Say it from a thread of its own: the loop may be held by what writes logs."""
        culprit = culprit_of(held)
        kind, key, method = culprit or ("", "", "")
        what = show_text(f"{kind}/{key}.{method}") if culprit else "code outside of grains"
        text = f"{self._silo}: {what} has held the loop for {age_s:.1f} s"
        if not held:
            text = (
                f"{self._silo}: the loop has not gone round for {age_s:.1f} s, and what holds it is"
                " not known: many short pieces of work, code that does not give the interpreter up,"
                " or a process that was stopped"
            )
        if is_final:
            text += (
                f"; the other silos evict this one now (unresponsive_after_s is "
                f"{self._unresponsive_after_s:g})"
            )
        extra = {"silo": self._silo, "grain": kind, "key": key, "method": method, "held_s": age_s}
        level = logging.ERROR if is_final else logging.WARNING
        if held:
            text += ": do not block the loop, await or use a thread"
        threading.Thread(
            target=log.log,
            args=(level, "%s\n%s", text, Lines(stack)),
            kwargs={"extra": extra},
            name="millstream-tell",
            daemon=True,
        ).start()


def calls_of(frame: FrameType | None) -> Iterator[FrameType]:
    """The calls of what the loop runs, innermost first, without those of the loop itself."""
    while frame is not None and frame.f_globals.get("__name__") not in LOOP_MODULES:
        yield frame
        frame = frame.f_back


def find_common_frames(before: Look | None, now: Look) -> tuple[FrameType, ...]:
    """The calls that both looks saw, innermost first; none if the loop went round between them.

    A task takes one step in a round of the loop, so a call that both saw has not let go between.
    """
    if before is None or (before.beat_at, before.rounds) != (now.beat_at, now.rounds):
        return ()
    seen = {id(frame) for frame in before.frames}  # alive, so no other has its id
    return tuple(frame for frame in now.frames if id(frame) in seen)


def culprit_of(held: Iterable[FrameType]) -> tuple[str, str, str] | None:
    """Grain type, key and method of the innermost call of a grain; None if there is none."""
    for frame in held:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Grain):
            return type(owner).__millstream_type__.name, owner.key, frame.f_code.co_name
    return None


def stack_of(frame: FrameType | None) -> str:
    """The innermost frames as text."""
    if frame is None:
        return "(no stack)"
    return "".join(traceback.format_stack(frame)[-STACK_FRAMES_MAX:]).rstrip()
