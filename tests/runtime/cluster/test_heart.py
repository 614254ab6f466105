"""A blocked loop is detected and reported by the thread that answers probes. A process without file
descriptors still answers probes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.runtime import Address, Grain, Silo, TcpTransport
from millstream.runtime.cluster.heart import LoopHeart, culprit_of
from millstream.runtime.testing import grain_of
from millstream.runtime.wire.transport import ProbeListener

SEEN = threading.Event()


class Blocker(Grain):
    """Block the loop until that is detected, as `time.sleep` would."""

    async def hold(self) -> bool:
        return SEEN.wait(10)


class Told(logging.Handler):
    """Collects log records from any thread."""

    def __init__(self, seen: threading.Event) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.seen.set()


@pytest.mark.real
async def test_the_grain_that_holds_the_loop_is_named_with_its_stack() -> None:
    SEEN.clear()
    logger = logging.getLogger("millstream.loop")
    told = Told(SEEN)
    logger.addHandler(told)
    try:
        async with Silo(grains=[Blocker]) as silo:
            assert await silo.grain(Blocker, "b1").hold()
            record = told.records[0]
            assert record.levelno == logging.WARNING
            text = record.getMessage()
            assert f"{silo.address}: Blocker/b1.hold has blocked the event loop for 1." in text
            assert "SEEN.wait(10)" in text and "test_heart.py" in text
            fields = record.__dict__
            assert (fields["grain"], fields["key"], fields["method"]) == ("Blocker", "b1", "hold")
            assert fields["silo"] == silo.address and fields["held_s"] >= 1.0
    finally:
        logger.removeHandler(told)


class Held:
    """A heart with a blocked loop, on a clock of the test."""

    def __init__(self, limit_s: float = 30.0) -> None:
        self.now = 100.0
        loop: Any = SimpleNamespace(
            time=lambda: self.now,
            call_later=lambda *_: SimpleNamespace(cancel=lambda: None),
            call_soon_threadsafe=lambda *_: None,
        )
        self.told: list[tuple[float, bool]] = []
        self.heart = LoopHeart(loop, "a:1@7", limit_s, "00112233aabbccdd")
        self.heart._tell = self._note  # type: ignore[method-assign]
        self.heart.start()

    def _note(self, age_s: float, held: object, stack: str, *, is_final: bool) -> None:
        self.told.append((age_s, is_final))

    def after(self, seconds: float) -> None:
        self.now = 100.0 + seconds
        self.heart.answer()


def test_a_held_loop_is_told_once_and_again_when_that_evicts_the_silo() -> None:
    held = Held()
    for seconds in (0.5, 0.9, 1.0, 1.5, 29.0, 30.0, 31.0):
        held.after(seconds)
    assert held.told == [(1.0, False), (30.0, True)]


def test_a_loop_that_runs_again_and_is_held_again_is_told_again() -> None:
    held = Held()
    held.after(2.0)
    held.heart._beat()
    held.after(2.5)
    held.after(3.5)
    assert held.told == [(2.0, False), (1.5, False)]


def test_a_heart_that_was_closed_tells_nothing() -> None:
    held = Held()
    held.heart.close()
    held.after(50.0)
    assert held.told == []


def test_the_eviction_is_told_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    del held.heart._tell
    logger = logging.getLogger("millstream.loop")
    told = Told(threading.Event())
    logger.addHandler(told)
    try:
        held.after(30.0)
        assert told.seen.wait(10)
    finally:
        logger.removeHandler(told)
    [record] = told.records
    assert record.levelno == logging.ERROR
    assert "unresponsive_after_s is 30" in record.getMessage()


def test_code_outside_of_grains_has_no_culprit() -> None:
    assert culprit_of(()) is None


# --- the blamed call -----------------------------------------------------------------------------


class Stage:
    """A loop of two rounds. The looks happen while code of the test runs."""

    def __init__(self) -> None:
        self.now, self.due = 100.0, list[Callable[[], object]]()
        loop: Any = SimpleNamespace(
            time=lambda: self.now,
            call_later=lambda *_: SimpleNamespace(cancel=lambda: None),
            call_soon_threadsafe=lambda go_round: self.due.append(go_round),
        )
        self.told: list[tuple[tuple[str, str, str] | None, bool]] = []
        self.heart = LoopHeart(loop, "a:1@7", 30.0, "00112233aabbccdd")
        self.heart._tell = self._note  # type: ignore[method-assign]
        self.heart.start()

    def _note(self, age_s: float, held: Any, stack: str, *, is_final: bool) -> None:
        self.told.append((culprit_of(held), bool(held)))

    def look(self, seconds: float) -> None:
        self.now += seconds
        self.heart.answer()

    def go_round(self) -> None:
        for due in self.due:
            due()


class Actor(Grain):
    """Plain methods stand for calls here. Only the methods that both looks see matter."""

    def _holds(self, stage: Stage) -> None:
        stage.look(0.5)
        stage.look(0.6)

    def _is_short(self, stage: Stage, seconds: float) -> None:
        stage.look(seconds)

    def _calls(self, stage: Stage, other: Actor) -> None:
        other._is_short(stage, 0.5)
        other._is_short(stage, 0.6)

    def _lets_go(self, stage: Stage) -> None:
        stage.look(0.5)
        stage.go_round()
        stage.look(0.6)


def actor() -> Actor:
    return grain_of(Actor, "a1")


def shown_by(act: Callable[[Stage], object]) -> list[tuple[tuple[str, str, str] | None, bool]]:
    """Return the reports while the loop runs `act`."""
    stage = Stage()
    run_once: dict[str, Any] = {"__name__": "asyncio.base_events"}
    exec("def run_once(act, stage):\n    act(stage)", run_once)
    run_once["run_once"](act, stage)
    return stage.told


def test_a_call_that_two_looks_saw_is_blamed() -> None:
    assert shown_by(lambda stage: actor()._holds(stage)) == [(("Actor", "a1", "_holds"), True)]


def test_of_calls_within_each_other_the_innermost_that_two_looks_saw_is_blamed() -> None:
    told = shown_by(lambda stage: actor()._calls(stage, actor()))
    assert told == [(("Actor", "a1", "_calls"), True)]


def test_short_calls_one_after_the_other_are_not_blamed() -> None:
    """Both calls are of the same method, as when sleeping grains continue their turns."""
    stage = Stage()
    run_once: dict[str, Any] = {"__name__": "asyncio.base_events"}
    exec("def run_once(first, second):\n    first()\n    second()", run_once)
    run_once["run_once"](
        lambda: actor()._is_short(stage, 0.5), lambda: actor()._is_short(stage, 0.6)
    )
    assert stage.told == [(None, False)]


def test_a_call_that_one_late_look_saw_is_not_blamed() -> None:
    """As after code that held the interpreter lock, or in a stopped process."""
    assert shown_by(lambda stage: actor()._is_short(stage, 3.0)) == [(None, False)]


def test_a_call_that_was_seen_before_and_after_the_loop_went_round_is_not_blamed() -> None:
    assert shown_by(lambda stage: actor()._lets_go(stage)) == [(None, False)]


def test_a_call_that_began_after_the_loop_went_round_late_is_blamed() -> None:
    def program(stage: Stage) -> None:
        actor()._is_short(stage, 0.45)
        stage.go_round()
        actor()._holds(stage)

    assert shown_by(program) == [(("Actor", "a1", "_holds"), True)]


def test_code_outside_of_grains_that_two_looks_saw_has_held_the_loop() -> None:
    def program(stage: Stage) -> None:
        stage.look(0.5)
        stage.look(0.6)

    assert shown_by(program) == [(None, True)]


def test_what_is_not_known_is_said_to_be_so() -> None:
    held = Held()
    del held.heart._tell
    told = Told(threading.Event())
    logger = logging.getLogger("millstream.loop")
    logger.addHandler(told)
    try:
        held.after(3.0)
        assert told.seen.wait(10)
    finally:
        logger.removeHandler(told)
    text = told.records[0].getMessage()
    assert "has not run for 3.0 s, and the cause is unknown" in text
    assert told.records[0].__dict__["grain"] == ""


# --- no descriptors ------------------------------------------------------------------------------


class NoDescriptors:
    """A context in which this process can open no more files."""

    def __enter__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._taken: list[int] = []
        probe = os.open(os.devnull, os.O_RDONLY)
        self._taken.append(probe)
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 8, self._limits[1]))
        try:
            while True:
                self._taken.append(os.dup(probe))
        except OSError as error:
            assert error.errno == errno.EMFILE

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
        for taken in self._taken:
            os.close(taken)


def test_probes_are_answered_without_free_descriptors_and_after_that() -> None:
    """An EMFILE must not end the thread, because a healthy silo would be evicted."""
    with closing(ProbeListener(Address("127.0.0.1", 0), lambda: b"0.1 7")) as listener:
        clients = [socket.socket() for _ in range(5)]
        for client in clients:
            client.settimeout(10)
        with NoDescriptors():
            for client in clients[:4]:
                client.connect(listener.address)
                assert client.recv(64) == b"0.1 7"
        clients[4].connect(listener.address)
        assert clients[4].recv(64) == b"0.1 7"
        for client in clients:
            client.close()


def test_a_probe_listener_looks_now_and_then_though_nobody_asks() -> None:
    asked = threading.Event()

    def answer() -> bytes:
        asked.set()
        return b""

    with closing(ProbeListener(Address("127.0.0.1", 0), answer)):
        assert asked.wait(10)


async def test_an_answer_that_raises_does_not_end_the_listener() -> None:
    fails = True

    def answer() -> bytes:
        if fails:
            raise ZeroDivisionError
        return b"0.0 1"

    transport = TcpTransport()
    with closing(ProbeListener(Address("127.0.0.1", 0), answer)) as listener:
        assert await transport.probe(listener.address, 5) == b""
        fails = False
        assert await transport.probe(listener.address, 5) == b"0.0 1"
    with pytest.raises((OSError, asyncio.TimeoutError)):
        await transport.probe(listener.address, 1)
