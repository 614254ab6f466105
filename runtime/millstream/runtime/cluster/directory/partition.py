"""One silo's part of the grain directory: entries and their compare-and-set. Pure.

Invariants:

- A grain has at most one entry.
- An entry changes only if there is none, if its silo is dead, if its silo registers again, or if
  the activation moves. The entry of a client also changes if the client has attached to a silo
  later: see `CLIENT_KIND`.
- An entry is removed only for the activation that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

__all__ = ["CLIENT_KIND", "Entry", "Partition"]

CLIENT_KIND = "$client"
"""The type in the entries of clients. The key is the name of the client, and the silo its gateway.

`activation_id` is the number of the attachment, which the client counts up whenever it attaches to
another gateway. So the highest number is the present gateway, whichever registration arrives first.
"""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The location of a grain: silo, activation, and the membership version of the registration."""

    silo: str
    activation_id: int
    version: int


class Partition:
    """The entries by grain type and key. They are nested, so that a type is stored once."""

    def __init__(self) -> None:
        self._types: dict[str, dict[str, Entry]] = {}

    def lookup(self, kind: str, key: str) -> Entry | None:
        """Return the entry of a grain, or None."""
        entries = self._types.get(kind)
        return None if entries is None else entries.get(key)

    def register(self, kind: str, key: str, entry: Entry, is_dead: Callable[[str], bool]) -> Entry:
        """Register by compare-and-set. Returns the entry that is stored afterwards."""
        entries = self._types.setdefault(kind, {})
        found = entries.get(key)
        if found is not None and _stays(kind, found, entry, is_dead):
            return found
        entries[key] = entry
        return entry

    def replace(self, kind: str, key: str, entry: Entry, former: tuple[str, int]) -> Entry | None:
        """Replace the entry of a former activation. Returns the entry that is stored afterwards.

        An entry of the same activation is replaced, too, because the answer may have been lost.
        """
        entries = self._types.get(kind, {})
        found = entries.get(key)
        own = (entry.silo, entry.activation_id)
        if found is None or (found.silo, found.activation_id) not in (former, own):
            return found
        entries[key] = entry
        return entry

    def unregister(self, kind: str, key: str, silo: str, activation_id: int) -> None:
        """Remove the entry if it still names this activation."""
        entries = self._types.get(kind, {})
        found = entries.get(key)
        if found is not None and (found.silo, found.activation_id) == (silo, activation_id):
            del entries[key]

    def recover(self, kind: str, key: str, entry: Entry) -> Entry | None:
        """Merge a survivor's entry. Returns the loser of a conflict, which must end, or None.

        The newer registration wins, and for a client the later attachment, independent of the order
        of the answers. Of two registrations at one version, the higher id wins: an activation that
        has moved has a higher id than before.
        """
        entries = self._types.setdefault(kind, {})
        found = entries.get(key)
        if found is None or found == entry:
            entries[key] = entry
            return None
        age = _attachment if kind == CLIENT_KIND else _age
        winner, loser = sorted((found, entry), key=age, reverse=True)
        entries[key] = winner
        return None if winner.silo == loser.silo else loser

    def __len__(self) -> int:
        return sum(map(len, self._types.values()))

    def keys(self) -> list[tuple[str, list[str]]]:
        """Return the keys that have entries, by grain type."""
        return [(kind, list(entries)) for kind, entries in self._types.items() if entries]

    def drop(
        self, kind: str, keys: Iterable[str], is_foreign: Callable[[str, str, Entry], bool]
    ) -> None:
        """Remove the entries of these keys that are foreign."""
        entries = self._types.get(kind, {})
        for key in keys:
            entry = entries.get(key)
            if entry is not None and is_foreign(kind, key, entry):
                del entries[key]


def _stays(kind: str, found: Entry, entry: Entry, is_dead: Callable[[str], bool]) -> bool:
    """Return True if the stored entry must not be replaced by the other one."""
    if found.silo == entry.silo:
        return found.activation_id > entry.activation_id
    if is_dead(found.silo):
        return False
    return kind != CLIENT_KIND or found.activation_id >= entry.activation_id


def _attachment(entry: Entry) -> tuple[int, int, str]:
    return (entry.activation_id, entry.version, entry.silo)


def _age(entry: Entry) -> tuple[int, int, str]:
    return (entry.version, entry.activation_id, entry.silo)
