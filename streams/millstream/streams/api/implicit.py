"""Implicit subscriptions, as every silo knows them.

Owns: what a `@subscribe` mark tells the cluster, and which implicit subscriptions there are in a
view. Pure. Not: the mark itself (`subscribe`). Invariants: live silos that host a grain type are
the truth about it; while none does, the last that did is, so that events wait for it: until another
silo of that name or address joined without it, or `retention_s` have passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from millstream.runtime import MemberRow, Status, TableView
from millstream.runtime.extending import Backoff, Declaration
from millstream.streams.contracts.identity import StreamId
from millstream.streams.failures.handler import GiveUpDecision

from .filters.key_pattern import matches

__all__ = ["ImplicitSet", "ImplicitSubscription", "SubscriptionKinds", "implicit_in", "is_implicit"]

SubscriptionKinds = Literal["both", "implicit", "explicit"]
KIND = "subscribe"
ID_PREFIX = "implicit/"


class ImplicitSubscription(msgspec.Struct, array_like=True, frozen=True):
    """What an agent has to know of a `@subscribe` mark. What is added comes last, and has a
    default: silos of two versions read each other's."""

    provider: str
    namespace: str
    kinds: SubscriptionKinds
    grain_type: str
    handler: str
    retries: int | None
    keeps_dead_letters: bool
    backoff: Backoff | None = None
    on_give_up: GiveUpDecision | None = None
    key: str = ""  # a pattern
    where: str = ""  # its filter, for people; empty: it has none
    is_manual: bool = False  # it acknowledges by hand

    @property
    def subscription(self) -> str:
        """The id: the same everywhere, so that it needs no storage."""
        return f"{ID_PREFIX}{self.namespace}/{self.grain_type}/{self.handler}"

    def declaration(self) -> Declaration:
        """The form in which a silo's row carries it."""
        return Declaration(KIND, _encode(self))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ImplicitSubscription).decode


class ImplicitSet(msgspec.Struct, frozen=True):
    """The implicit subscriptions of one provider.

    `absent`: grain types of some of them that no live silo hosts; `until_s`: wall time at which
    the first of these is given up.
    """

    of_namespace: dict[str, dict[str, ImplicitSubscription]] = {}
    absent: frozenset[str] = frozenset()
    until_s: float | None = None

    def of(self, stream: StreamId) -> dict[str, ImplicitSubscription]:
        """Those of a stream, by subscription id."""
        found = self.of_namespace.get(stream.namespace, {})
        for one in found.values():
            if one.key:
                return {name: one for name, one in found.items() if matches(one.key, stream.key)}
        return found

    def kinds(self, namespace: str) -> SubscriptionKinds:
        """Which kinds of subscription the namespace has; "both" where nobody says."""
        for one in self.of_namespace.get(namespace, {}).values():
            return one.kinds
        return "both"


def implicit_in(view: TableView, provider: str, now_s: float, retention_s: float) -> ImplicitSet:
    """Those of a provider at a wall time; a dead silo's count for `retention_s`."""
    live = sorted((r for r in view.rows if r.status is not Status.DEAD), key=_age)
    hosted = {name for row in live for name in row.grain_types}
    dead = _last_hosts(view.rows, hosted, now_s - retention_s)
    found: dict[str, dict[str, ImplicitSubscription]] = {}
    absent: dict[str, float] = {}
    for row, names in [*dead, *((row, set(row.grain_types)) for row in live)]:
        for one in _implicit_of(row, provider):
            if one.grain_type in names:
                found.setdefault(one.namespace, {})[one.subscription] = one
                if one.grain_type not in hosted:
                    absent[one.grain_type] = row.last_sign_s + retention_s
    return ImplicitSet(found, frozenset(absent), min(absent.values(), default=None))


def _last_hosts(
    rows: Sequence[MemberRow], hosted: Iterable[str], after_s: float
) -> list[tuple[MemberRow, set[str]]]:
    """Of the types that no live silo hosts: each with the dead row of the last silo that did."""
    known = set(hosted)
    found: list[tuple[MemberRow, set[str]]] = []
    for row in sorted((r for r in rows if r.status is Status.DEAD), key=_age, reverse=True):
        if row.last_sign_s > after_s and not any(_replaces(new, row) for new in rows):
            names = set(row.grain_types) - known
            known |= names
            found.append((row, names))
    return found


def _replaces(new: MemberRow, old: MemberRow) -> bool:
    """Is it the same silo, started again?"""
    is_same = new.name == old.name or new.endpoint == old.endpoint
    return is_same and _age(new) > _age(old)


def _age(row: MemberRow) -> tuple[float, str]:
    return row.started_s, row.silo


def _implicit_of(row: MemberRow, provider: str) -> list[ImplicitSubscription]:
    known = [_decode(one.body) for one in row.declarations if one.kind == KIND]
    return [one for one in known if one.provider == provider]


def is_implicit(subscription: str) -> bool:
    """Is it the id of an implicit subscription?"""
    return subscription.startswith(ID_PREFIX)
