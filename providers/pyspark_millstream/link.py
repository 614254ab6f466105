"""Calls to gateways with a sliding window: plain blocking sockets, as a Spark worker needs it.

Owns: reconnecting, sending again, and the idle connections of this process. Not: bytes (`wire`),
rules (`window`), bodies (`rows`). Invariants: what was not answered is sent again, in its order, on
every new connection: the cluster drops what it has by producer and sequence; a connection that
saw an error is never used again; an idle connection has no call out. One thread per `Link`.
Relies on gateways to run the calls of a connection in order, and none after one that failed: with
calls pipelined, a later one would otherwise overtake the one that has to be sent again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event

import msgspec

from millstream.runtime.wire import Call

from .options import WriteOptions
from .window import Rounds, TimeLeft, Window
from .wire import BROKEN, Wire

__all__ = ["Link", "linked"]

ATTEMPT_S_MAX = 5.0  # connecting and greeting
SLICE_S = 1.0  # a wait is counted in slices, so time before a broken wait is lost only below this
IDLE_MAX = 8

_Route = tuple[int, tuple[tuple[str, int], ...], str]
_idle: dict[_Route, Wire] = {}
_call_ids = count(1)


def wait(seconds: float) -> None:
    """Do nothing for so long."""
    Event().wait(seconds)


class Link:
    """Publishes bodies in order; keeps at most `window` of them without an answer."""

    __slots__ = ("_gateways", "_options", "_rounds", "_time_left", "_wait", "_window", "_wire")

    def __init__(
        self, options: WriteOptions, wire: Wire | None = None, wait: Callable[[float], None] = wait
    ) -> None:
        self._options = options
        self._gateways = _round_robin(options.gateways)
        self._window = Window(options.window)
        self._time_left = TimeLeft(options.timeout_s)
        self._rounds = Rounds(len(options.gateways))
        self._wire = wire
        self._wait = wait

    @property
    def accepted(self) -> int:
        """Messages accepted so far."""
        return self._window.accepted

    def publish(self, body: bytes, messages: int, caller: str) -> None:
        """Send a body that carries so many messages; wait while the window is full.

        Raises PublishFailed, GatewayUnavailable, HandshakeRefused, or ValueError (frame too large).
        """
        while self._window.full or (self._window.leaving and len(self._window)):
            self._receive()
        if self._window.leaving:
            self.close()
        data = self._window.add(self._call(body, caller), messages)
        if self._wire is None:
            return self._reconnect(None)
        try:
            self._wire.send(data, self._options.timeout_s)
        except BROKEN as error:
            self._reconnect(error)

    def drain(self) -> None:
        """Wait until everything is answered. Raises as `publish`."""
        while len(self._window):
            self._receive()

    def take_wire(self) -> Wire | None:
        """Give the connection away, if it can be used by another link."""
        assert not len(self._window)
        wire, self._wire = self._wire, None
        if wire is not None and self._window.leaving:
            wire.close()
            return None
        return wire

    def close(self) -> None:
        """Drop the connection. Idempotent."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def check(self) -> None:
        """Assert the bounds of the window."""
        self._window.check()

    def _call(self, body: bytes, caller: str) -> Call:
        return Call(
            id=next(_call_ids),
            kind="$ingest",
            key=self._options.provider,
            method="publish",
            body=msgspec.Raw(body),
            ttl_s=self._options.timeout_s,
            caller=caller,
            chain=[],
            hops=0,
            headers=None,
        )

    def _receive(self) -> None:
        """Take what comes within a slice."""
        assert self._wire is not None
        slice_s = self._time_left.slice_s(SLICE_S)
        try:
            messages = self._wire.receive(slice_s)
        except TimeoutError as error:
            return self._time_left.spend(slice_s, error)
        except BROKEN as error:
            return self._reconnect(error)
        answered = [self._window.take(message) for message in messages]
        if any(answered):
            self._time_left.renew()
            self._rounds.reset()

    def _reconnect(self, cause: BaseException | None) -> None:
        """Connect to the next gateway that answers, and send again what is out."""
        self.close()
        if cause is not None:
            self._pause(0.0, cause)
        while self._wire is None:
            attempt_s = self._time_left.slice_s(ATTEMPT_S_MAX)
            try:
                self._wire = Wire(next(self._gateways), self._options.cluster, attempt_s)
                for data in self._window.moved():
                    self._wire.send(data, attempt_s)
            except BROKEN as error:
                self.close()
                self._pause(attempt_s if isinstance(error, TimeoutError) else 0.0, error)

    def _pause(self, waited_s: float, cause: BaseException) -> None:
        delay_s = self._time_left.slice_s(self._rounds.next_s())
        self._wait(delay_s)
        self._time_left.spend(waited_s + delay_s, cause)


def _round_robin(gateways: tuple[tuple[str, int], ...]) -> Iterator[tuple[str, int]]:
    """Without end; each process begins at another gateway."""
    for number in count(os.getpid()):
        yield gateways[number % len(gateways)]


@contextmanager
def linked(options: WriteOptions) -> Iterator[Link]:
    """A link over this process's idle connection, if it has one; kept for the next if all is well.

    Leaving without an error waits for all answers. Any error drops the connection: answers to
    calls that were given up must not reach the next link.
    """
    route: _Route = (os.getpid(), options.gateways, options.cluster)
    link = Link(options, _resumed(route))
    try:
        yield link
        link.drain()
        wire = link.take_wire()
    except BaseException:
        link.close()
        raise
    if wire is not None:
        _keep(route, wire)


def _resumed(route: _Route) -> Wire | None:
    """The idle connection, unless its gateway said something meanwhile: that it stops, or went."""
    wire = _idle.pop(route, None)
    if wire is None or wire.silent():
        return wire
    wire.close()
    return None


def _keep(route: _Route, wire: Wire) -> None:
    displaced = _idle.pop(route, None)
    _idle[route] = wire
    if displaced is None and len(_idle) > IDLE_MAX:
        displaced = _idle.pop(next(iter(_idle)))
    if displaced is not None:
        displaced.close()
