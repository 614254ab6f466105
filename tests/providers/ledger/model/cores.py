"""The real cores by number. Equal cores share a number, and each step of a core runs once.

Owns: `Kept`, `Columns`. A state of the model holds numbers, so it is small and cheap to compare.
Cores are pure, so a step from one number by one event always leads to the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from millstream.providers.ledger.protocol.append_core import AppendCore
from millstream.providers.ledger.protocol.recovery_core import RecoveryCore

C = TypeVar("C")
T = TypeVar("T", bound=Hashable)


class Numbers(Generic[T]):
    """Values by number, in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self.values: list[T] = []

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def of(self, value: T) -> int:
        """Return the number of a value, which may be new."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


def fields_of(value: object) -> dict[str, Any]:
    """Return all attributes of an object, including those in slots."""
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    slots = {name: getattr(value, name) for name in names}
    return slots | getattr(value, "__dict__", {})


def is_plain(value: object) -> bool:
    """Is the value immutable, so that copies of a core can share it?"""
    return value is None or isinstance(
        value, int | str | bytes | Enum | BaseException | msgspec.Struct
    )


def copied(value: Any) -> Any:
    """Copy a value with all its lists, sets, dictionaries and objects."""
    if is_plain(value):
        return value
    match value:
        case dict():
            return {key: copied(one) for key, one in value.items()}
        case list():
            return [copied(one) for one in value]
        case set():
            return set(value)
        case tuple():
            return value
    new = object.__new__(type(value))
    for name, one in fields_of(value).items():
        setattr(new, name, copied(one))
    return new


def form_of(value: Any) -> Hashable:
    """Turn a value into a hashable form. Values with equal forms behave alike.

    The form ignores the order of a dictionary's keys, because any copy of an entry is as good as
    another.
    """
    if isinstance(value, BaseException):
        return type(value).__name__
    if is_plain(value):
        return value  # type: ignore[no-any-return]
    match value:
        case dict():
            return tuple(sorted((key, form_of(one)) for key, one in value.items()))
        case set():
            return frozenset(value)
        case list() | tuple():
            return tuple(form_of(one) for one in value)
    return tuple((name, form_of(one)) for name, one in sorted(fields_of(value).items()))


class Kept(Generic[C]):
    """The cores of one class, and the result of each event on each core.

    Args:
        columns: splits a core into its shared part and a part for each place.
        form: gives the form that distinguishes cores.
        judge: checks each step, given the core before and after.
    """

    def __init__(
        self,
        columns: Callable[[C], tuple[Hashable, ...]],
        form: Callable[[C], Hashable] | None = None,
        judge: Callable[[C, C], None] | None = None,
    ) -> None:
        self._judge = judge
        self._form: Callable[[C], Hashable] = form or form_of
        self._forms: Numbers[Hashable] = Numbers()
        self._cores: list[C] = []
        self._steps: dict[tuple[Hashable, ...], tuple[int, tuple[Any, ...]]] = {}
        self._columns = columns
        self._views: Numbers[Hashable] = Numbers()
        # by core: the shared part, then the part of each place
        self.columns: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._cores)

    def __getitem__(self, number: int) -> C:
        """Return a core, which must not be changed."""
        return self._cores[number]

    def put(self, core: C) -> int:
        """Return the number of a core, which must not be changed any more."""
        number = self._forms.of(self._form(core))
        if number == len(self._cores):
            self._cores.append(core)
            self.columns.append(tuple(self._views.of(one) for one in self._columns(core)))
        return number

    def step(self, number: int, event: str, *args: Hashable) -> tuple[int, tuple[Any, ...]]:
        """Apply an event to a core, and return the number of the result and its actions."""
        key = (number, event, *args)
        known = self._steps.get(key)
        if known is None:
            core = copied(self._cores[number])
            actions = tuple(getattr(core, event)(*map(thawed, args)))
            if self._judge is not None:
                self._judge(self._cores[number], core)
            known = self._steps[key] = (self.put(core), actions)
        return known


class Frozen(tuple[Any, ...]):
    """A dictionary that can be part of a key."""

    __slots__ = ()


def frozen(pairs: Mapping[Any, Any]) -> Frozen:
    return Frozen(sorted(pairs.items()))


def thawed(value: Hashable) -> Any:
    return dict(value) if isinstance(value, Frozen) else value


def split(core: object, by_place: Mapping[str, Callable[[Any, int], Hashable]], places: int) -> Any:
    """Split a core's form into a shared part and a part for each place.

    An attribute that `by_place` does not name is shared. So a new attribute can only make fewer
    states alike, which is safe.
    """
    fields = fields_of(core)
    shared = tuple((n, form_of(v)) for n, v in sorted(fields.items()) if n not in by_place)
    columns = [tuple(of(fields[n], at) for n, of in by_place.items()) for at in range(places)]
    return (shared, *columns)


def appending_columns(core: AppendCore) -> tuple[Hashable, ...]:
    """The shared part, and for each place the bookie's state and the entries it has or owes."""

    def place(places: Any, at: int) -> Hashable:
        fields = fields_of(places[at])
        return tuple((n, form_of(v)) for n, v in sorted(fields.items()) if n != "bookie")

    def entries(pending: Any, at: int) -> Hashable:
        bits = ((entry, one.acks >> at & 1, one.owed >> at & 1) for entry, one in pending.items())
        return tuple(bits)

    ensemble = core.quorum.ensemble
    shared, *columns = split(core, {"_places": place, "_pending": entries}, ensemble)
    packed = tuple(core.find_packed(entry) for entry in range(core.next_entry))
    return ((shared, packed), *columns)


def recovering_form(core: RecoveryCore) -> Hashable:
    """The form of a recovery. Once the recovery reads, it ignores which other bookies are
    fenced.
    """
    return tuple(recovering_columns(core))


def recovering_columns(core: RecoveryCore) -> tuple[Hashable, ...]:
    """The shared part, and for each place whether it is fenced, silent or asked, and its
    entries.
    """

    def is_in(places: Any, at: int) -> Hashable:
        return at in places

    def of(known: Any, at: int) -> Hashable:
        return form_of(known.get(at))

    def entries(pairs: Any, at: int) -> Hashable:
        return frozenset(entry for place, entry in pairs if place == at)

    by_place: dict[str, Callable[[Any, int], Hashable]] = {
        "_fenced": is_in,
        "_silent": is_in,
        "_asked": of,
        "_known": of,
        "_absent": entries,
        "_unsure": entries,
    }
    fields = fields_of(core)
    if fields["_is_reading"]:
        by_place["_fenced"] = lambda places, at: None
    return tuple(split(core, by_place, fields["_record"].quorum.ensemble))
