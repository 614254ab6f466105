"""Calls that arrive at a silo: run them here, relay them, send them back, or refuse them.

`Arrivals` is the `Inbox` of a silo. `AtOnce` answers calls of system targets directly while their
frame is read, without a task. `callee` runs all other calls, and `relay` relays them.

Invariants:

- A call from a client is relayed unless its grain is here, in a version that may run the call. A
  call from a silo is accepted here or sent back with a redirect. A call to an observer is relayed
  to its client.
- Each call is answered once, by an answer of its own.
- No call is answered at once while an earlier call has not begun, except where its target allows
  that (`SystemTarget.together`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from millstream.runtime.codec.failures import answerable, describe
from millstream.runtime.definition.grain import Runtime
from millstream.runtime.definition.headers import stamp_client
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.definition.names import OBSERVER_SIGN, SYSTEM_SIGN, client_of
from millstream.runtime.errors import (
    MillstreamError,
    NotHosted,
    Overloaded,
    Rejected,
    SiloUnavailable,
)
from millstream.runtime.role import check_role
from millstream.runtime.text import show_text
from millstream.runtime.turns.catalog import Catalog
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, Failure, Redirect, Reply

from .callee import Callee
from .locator import Locator
from .references import References
from .relay import Relay
from .system_target import SystemTarget, Targets

__all__ = ["Arrivals", "ClientLocator"]

OBSERVERS = f"{OBSERVER_SIGN}observer"
"""The one kind of all observers at a gateway, which does not know their classes."""


class ClientLocator(Locator, Protocol):
    """Finds the clients that have this silo as their gateway."""

    def knows(self, client: str, /) -> bool:
        """Return True if the client is attached here, connected or not."""
        ...

    def disown(self, client: str, /) -> None:
        """Remove a row that says that the client is attached here."""


class Arrivals:
    """Accepts the calls of all peers.

    Args:
        check_hosted: raises NotHosted if no silo hosts a grain type, and SiloUnavailable if silos
            that host it are starting or stopping.
        is_settling: returns True if a silo is about to become active.
        clients: finds the clients with observers that have this silo as their gateway.
    """

    def __init__(
        self,
        silo: str,
        turns: Turns,
        references: References,
        catalog: Catalog,
        targets: Targets,
        locator: Locator,
        callee: Callee,
        check_hosted: Callable[[str], None],
        is_settling: Callable[[], bool],
        clients: ClientLocator,
    ) -> None:
        self._silo = silo
        self._turns = turns
        self._references = references
        self._kinds = references.kinds
        self._catalog = catalog
        self._targets = targets
        self._locator = locator
        self._looked_for = locator.looked_for
        self._callee = callee
        self._at_once = AtOnce(callee, references)
        self._check_hosted = check_hosted
        self._is_settling = is_settling
        self._clients = clients
        self._observers = references.kind_named(OBSERVERS)

    def serve(self, peer: Peer, call: Call, /) -> None:
        """Accept a call. If the call is invalid, its answer is the error."""
        if not peer.is_silo:
            call.role = peer.role
            if call.flowing or peer.client_name:
                call.flowing = stamp_client(call.flowing, peer.client_name)
        try:
            sign = call.kind[:1]
            if sign == SYSTEM_SIGN:
                self._take_target_call(peer, call)
            elif sign == OBSERVER_SIGN:
                self._take_observer_call(peer, call)
            else:
                if self._at_once.gathering:
                    self._at_once.settle()  # these calls arrived earlier
                self._take_grain_call(peer, call)
        except MillstreamError as error:
            body = msgspec.Raw(describe(error, f"{call.kind}/{call.key}"))
            peer.served.refuse(call.id, Failure(call.id, body))

    def on_frame_end(self) -> None:
        """Answer the calls that were gathered from the frame."""
        self._at_once.settle()

    # -- grains

    def _take_grain_call(self, peer: Peer, call: Call) -> None:
        activation = self._catalog.find(call.kind, call.key)
        if not peer.is_silo and (
            activation is None
            or call.version > activation.kind.version
            or (self._looked_for and (call.kind, call.key) in self._looked_for)
        ):
            self._relay(peer, call)
            return
        kind = self._kinds.get(call.kind)
        if kind is None or kind.hosted is None:
            raise NotHosted(f"{self._silo} does not host grain type {call.kind!r}")
        if self._turns.ended or (activation is None and not self._catalog.is_accepting):
            self._send_back(peer, call, kind)
            return
        if call.version > kind.version and (
            kind.workers_max or not self._catalog.mover.find_newer(kind, call.key, call.version)
        ):
            self._send_back(peer, call, kind)  # the caller's silo may know a suitable one
            return
        spec = self._callee.admit(kind, call)
        if activation is None:
            # this raises before a refused call creates an activation
            peer.served.watch(call.id, None)
            activation = self._catalog.obtain(kind, call.key)
            peer.served.forget(call.id)
        self._callee.accept(peer, call, spec).submit(activation)

    def _send_back(self, peer: Peer, call: Call, kind: GrainKind) -> None:
        if not call.id:
            self._callee.send_on(kind, call)
            return
        self._ask_again(peer, call)

    def _ask_again(self, peer: Peer, call: Call) -> None:
        """Tell the caller to look up the grain again."""
        peer.served.watch(call.id, None)
        peer.served.answer(call.id, Redirect(call.id, ""))

    def _relay(self, peer: Peer, call: Call) -> None:
        kind = self._kinds.get(call.kind)
        if kind is None:
            try:
                self._check_hosted(call.kind)
            except SiloUnavailable:
                self._ask_again(peer, call)
                return
            kind = self._references.kind_named(call.kind)
        # this raises before a refused call creates an activation
        self._callee.find(kind, call)
        relay = Relay(self._turns, self._locator, self._callee, peer, call, kind)
        peer.served.watch(call.id, relay)
        relay.start()

    # -- observers

    def _take_observer_call(self, peer: Peer, call: Call) -> None:
        """Pass a call on to the client that has the observer, or send it back.

        A call of a client may go to another gateway. A call of a silo goes to a client of this one.
        """
        kind = self._observers
        if not peer.is_silo:
            locator = self._locator
        elif self._clients.knows(client_of(call.key)):
            locator = self._clients
        else:
            self._clients.disown(client_of(call.key))
            self._send_back(peer, call, kind)
            return
        relay = Relay(self._turns, locator, self._callee, peer, call, kind)
        peer.served.watch(call.id, relay)
        relay.start()

    # -- system targets

    def _take_target_call(self, peer: Peer, call: Call) -> None:
        target = self._targets.find(f"{call.kind}/{call.key}" if call.key else call.kind)
        spec = None if target is None else target.target_specs.get(call.method)
        if target is None and not peer.is_silo and self._is_settling():
            raise Rejected(
                f"{self._silo} has no system target {show_text(call.kind)} at the moment; silos "
                "that are starting may have it: try again"
            )
        if target is None or spec is None:
            raise NotHosted(self._explain(call, target))
        assert spec.open_to is not None, "each method of a target says to whom it is open"
        if call.role < spec.open_to:
            check_role(call.role, spec.open_to, f"{call.kind}.{call.method}")
        if call.method in target.together and self._at_once.takes(peer, call, spec, target):
            return
        if self._at_once.gathering:
            self._at_once.settle()  # these calls arrived earlier
        inbound = self._callee.accept(peer, call, spec)
        inbound.target = target.bind(peer)
        self._callee.push(inbound)

    def _explain(self, call: Call, target: SystemTarget | None) -> str:
        """Return an error text that names the missing target or method, and the existing ones."""
        name = f"{call.kind}/{call.key}" if call.key else call.kind
        if target is not None:
            methods = ", ".join(sorted(target.target_specs))
            return f"{self._silo}: {name} has no method {call.method!r}; it has: {methods}"
        kind = name.partition("/")[0]
        names = self._targets.names()
        alike = [other for other in names if other.partition("/")[0] == kind]
        return (
            f"{self._silo} has no system target {name} (for method {call.method}); "
            f"it has: {', '.join(alike or names)}"
        )


class AtOnce:
    """Answers calls of system targets at once, if the targets can do that.

    Args:
        runtime: the owner of references in the arguments.

    `gathering` is the target and the method whose calls wait for the end of their frame.
    """

    __slots__ = ("_callee", "_gathered", "_runtime", "gathering")

    def __init__(self, callee: Callee, runtime: Runtime) -> None:
        self._callee = callee
        self._runtime = runtime
        self._gathered: list[tuple[Peer, Call, MethodSpec]] = []  # calls of one frame and method
        self.gathering: tuple[SystemTarget, str] | None = None

    def takes(self, peer: Peer, call: Call, spec: MethodSpec, target: SystemTarget) -> bool:
        """Answer a call now, or together with the other calls of its frame.

        Returns True if the call is or will be answered. Returns False if nothing was done and the
        call must be queued like others, for example because earlier calls wait to run. Raises
        Overloaded.
        """
        if self._callee.is_busy or not call.id:
            return False
        if peer.takes_several:
            return self._gathers(peer, call, spec, target)
        return self._answers(peer, call, spec, target)

    def _gathers(self, peer: Peer, call: Call, spec: MethodSpec, target: SystemTarget) -> bool:
        if self.gathering != (target, call.method):
            self.settle()
        try:
            peer.served.watch(call.id, None)
        except Overloaded:
            self.settle()  # this frees the places of the answered calls
            peer.served.watch(call.id, None)
        if self._callee.is_busy:  # settling made calls wait
            peer.served.forget(call.id)
            return False
        self.gathering = target, call.method
        self._gathered.append((peer, call, spec))
        return True

    def settle(self) -> None:
        """Answer the gathered calls. Calls that cannot be answered now are accepted, in order."""
        if self.gathering is None:
            return
        (target, method), self.gathering = self.gathering, None
        gathered = [one for one in self._gathered if one[1].id in one[0].served.calls]
        self._gathered = []
        results = self._results(target, target.together[method], gathered)
        for (peer, call, spec), result in zip(gathered, results, strict=True):
            if result is NotImplemented:
                peer.served.forget(call.id)
                self._accept(peer, call, spec, target)
            elif isinstance(result, Exception):
                refuse(peer, call, result)
            else:
                answer(peer, call, spec, result)

    def _results(
        self,
        target: SystemTarget,
        together: Callable[..., list[object]],
        gathered: list[tuple[Peer, Call, MethodSpec]],
    ) -> list[object]:
        """Return the result of each call. NotImplemented means that the call must be accepted."""
        try:
            rows = [self._arguments(call, spec) for _, call, spec in gathered]
        except Exception:
            return [NotImplemented] * len(gathered)
        try:
            results = together(target, rows)
            assert len(results) == len(rows), f"{len(results)} results for {len(rows)} calls"
            return results
        except Exception as error:
            return [error] * len(gathered)

    def _arguments(self, call: Call, spec: MethodSpec) -> tuple[object, ...]:
        decode = spec.quick_arguments
        if decode is None:
            return spec.arguments.decode(call.body, self._runtime)
        return decode(call.body)

    def _accept(self, peer: Peer, call: Call, spec: MethodSpec, target: SystemTarget) -> None:
        try:
            inbound = self._callee.accept(peer, call, spec)
        except Overloaded as error:
            refuse(peer, call, error)
            return
        inbound.target = target
        self._callee.push(inbound)

    def _answers(self, peer: Peer, call: Call, spec: MethodSpec, target: SystemTarget) -> bool:
        peer.served.watch(call.id, None)
        try:
            rows = (spec.arguments.decode(call.body, self._runtime),)
            (result,) = target.together[call.method](target, rows)
        except Exception as error:
            result = error
        if result is NotImplemented:
            peer.served.forget(call.id)
            return False
        if isinstance(result, Exception):
            refuse(peer, call, result)
        else:
            answer(peer, call, spec, result)
        return True


def answer(peer: Peer, call: Call, spec: MethodSpec, result: object) -> None:
    """Answer a call with a result, or with an error if the result is of another type."""
    try:
        body = spec.encode_result(result)
    except Exception as error:
        refuse(peer, call, error)
    else:
        peer.served.answer(call.id, Reply(call.id, msgspec.Raw(body)), len(body))


def refuse(peer: Peer, call: Call, error: Exception) -> None:
    """Answer a call with an error."""
    text = describe(answerable(error), call.kind)
    peer.served.refuse(call.id, Failure(call.id, msgspec.Raw(text)))
