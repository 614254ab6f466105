"""Implicit subscriptions, as every silo knows them.

Owns: the data of a `@subscribe` mark that the cluster shares, and the implicit subscriptions of a
membership view. Pure. Not: the mark itself (`subscribe`). Invariants: live silos that host a grain
type decide its subscriptions. While no silo hosts it, the last host decides, so that events wait
for the type. That ends when a silo of the same name or address joins without the type, or after
`retention_s`.
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
    """The part of a `@subscribe` mark that an agent has to know.

    Add new fields at the end, with defaults: silos of two versions read each other's.
    """

    provider: str
    namespace: str
    kinds: SubscriptionKinds
    grain_type: str
    handler: str
    retries: int | None
    keeps_dead_letters: bool
    backoff: Backoff | None = None
    on_give_up: GiveUpDecision | None = None
    key: str = ""
    """A pattern of keys. An empty text matches every key."""
    where: str = ""
    """The filter, as people read it, or "" if there is no filter."""
    is_manual: bool = False
    """The grain acknowledges events by hand."""

    @property
    def subscription(self) -> str:
        """The id of the subscription; every silo computes the same one, so it is not stored."""
        return f"{ID_PREFIX}{self.namespace}/{self.grain_type}/{self.handler}"

    def declaration(self) -> Declaration:
        """The form in which the row of a silo carries this."""
        return Declaration(KIND, _encode(self))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ImplicitSubscription).decode


class ImplicitSet(msgspec.Struct, frozen=True):
    """The implicit subscriptions of one provider.

    `absent`: grain types that have subscriptions and that no live silo hosts; `until_s`: the wall
    time at which the first of these types is forgotten.
    """

    of_namespace: dict[str, dict[str, ImplicitSubscription]] = {}
    absent: frozenset[str] = frozenset()
    until_s: float | None = None

    def of(self, stream: StreamId) -> dict[str, ImplicitSubscription]:
        """The subscriptions of a stream, by id."""
        found = self.of_namespace.get(stream.namespace, {})
        for one in found.values():
            if one.key:
                return {name: one for name, one in found.items() if matches(one.key, stream.key)}
        return found

    def kinds(self, namespace: str) -> SubscriptionKinds:
        """The kinds of subscriptions that the namespace takes; "both" if no mark says otherwise."""
        for one in self.of_namespace.get(namespace, {}).values():
            return one.kinds
        return "both"


def implicit_in(view: TableView, provider: str, now_s: float, retention_s: float) -> ImplicitSet:
    """The subscriptions of a provider at a wall time; those of a dead silo count for
    `retention_s`."""
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
    """For each type that no live silo hosts: the dead row of the last silo that hosted it."""
    known = set(hosted)
    found: list[tuple[MemberRow, set[str]]] = []
    for row in sorted((r for r in rows if r.status is Status.DEAD), key=_age, reverse=True):
        if row.last_sign_s > after_s and not any(_replaces(new, row) for new in rows):
            names = set(row.grain_types) - known
            known |= names
            found.append((row, names))
    return found


def _replaces(new: MemberRow, old: MemberRow) -> bool:
    """Whether both rows are of one silo, before and after a restart."""
    is_same = new.name == old.name or new.endpoint == old.endpoint
    return is_same and _age(new) > _age(old)


def _age(row: MemberRow) -> tuple[float, str]:
    return row.started_s, row.silo


def _implicit_of(row: MemberRow, provider: str) -> list[ImplicitSubscription]:
    known = [_decode(one.body) for one in row.declarations if one.kind == KIND]
    return [one for one in known if one.provider == provider]


def is_implicit(subscription: str) -> bool:
    """Whether this is the id of an implicit subscription."""
    return subscription.startswith(ID_PREFIX)
