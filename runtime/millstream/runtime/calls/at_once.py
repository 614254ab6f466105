"""Answers of system targets that are given while a frame is read, in no task.

Owns: `AtOnce`: one call alone, and the like calls of one frame together. Not: calls that have to
wait (`callee`). Invariants: no call is answered before one that came earlier has begun, but for
those that its target's own rule allows (`SystemTarget.together`); each call has an answer of its
own.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millstream.runtime.codec.failures import answerable, describe
from millstream.runtime.definition.grain import Runtime
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import Overloaded
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, Failure, Reply

from .callee import Callee
from .system_target import SystemTarget

__all__ = ["AtOnce"]


class AtOnce:
    """Answers calls at once, where their targets can.

    Args:
        runtime: what references in the arguments belong to.
    """

    __slots__ = ("_callee", "_gathered", "_method", "_runtime")

    def __init__(self, callee: Callee, runtime: Runtime) -> None:
        self._callee = callee
        self._runtime = runtime
        self._gathered: list[tuple[Peer, Call, MethodSpec]] = []  # of one frame,
        self._method: tuple[SystemTarget, str] | None = None  # and one method of one target

    def takes(self, peer: Peer, call: Call, spec: MethodSpec, target: SystemTarget) -> bool:
        """Answer a call now, or with what its frame still has; False: it is to be accepted.

        That is so while others wait to be run, which came before. Raises Overloaded.
        """
        if self._callee.is_busy or not call.id:
            return False
        if peer.takes_several and call.method in target.together:
            if self._method != (target, call.method):
                self.settle()
                if self._callee.is_busy:
                    return False
                self._method = target, call.method
            peer.watch_served(call.id, None)
            self._gathered.append((peer, call, spec))
            return True
        quick = target.at_once.get(call.method)
        return quick is not None and self._answers(peer, call, spec, target, quick)

    @property
    def has_gathered(self) -> bool:
        """Do calls wait for the end of their frame?"""
        return self._method is not None

    def settle(self) -> None:
        """Answer what was gathered; what cannot be answered now is accepted, in order."""
        if self._method is None:
            return
        (target, method), self._method = self._method, None
        gathered = [one for one in self._gathered if one[0].serves(one[1].id)]
        self._gathered = []
        results = self._results(target, target.together[method], gathered)
        for (peer, call, spec), result in zip(gathered, results, strict=True):
            if result is NotImplemented:
                peer.forget_served(call.id)
                self._accept(peer, call, spec, target)
            elif isinstance(result, Exception):
                refuse(peer, call, result)
            else:
                body = spec.encode_result(result)
                peer.answer(call.id, Reply(call.id, msgspec.Raw(body)), len(body))

    def _results(
        self,
        target: SystemTarget,
        together: Callable[..., list[object]],
        gathered: list[tuple[Peer, Call, MethodSpec]],
    ) -> list[object]:
        """Of each call; NotImplemented where it is to be accepted, which says what is wrong."""
        try:
            rows = [self._arguments(call, spec) for _, call, spec in gathered]
        except Exception:
            return [NotImplemented] * len(gathered)
        try:
            return together(target, rows)
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

    def _answers(
        self,
        peer: Peer,
        call: Call,
        spec: MethodSpec,
        target: SystemTarget,
        quick: Callable[..., object],
    ) -> bool:
        peer.watch_served(call.id, None)
        try:
            result = quick(target, *spec.arguments.decode(call.body, self._runtime))
            if result is NotImplemented:
                peer.forget_served(call.id)
                return False
            body = spec.encode_result(result)
        except Exception as error:
            refuse(peer, call, error)
        else:
            peer.answer(call.id, Reply(call.id, msgspec.Raw(body)), len(body))
        return True


def refuse(peer: Peer, call: Call, error: Exception) -> None:
    """An error is the answer of a call."""
    text = describe(answerable(error), call.kind)
    peer.refuse(call.id, Failure(call.id, msgspec.Raw(text)))
