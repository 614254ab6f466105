"""Grains as a user writes them: calls and their results, state, marks, contracts, generics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Generic, TypeVar, assert_type

from millstream.runtime import (
    HASHED,
    LEAST_ACTIVATIONS,
    LEAST_LOADED,
    PREFER_LOCAL,
    RANDOM,
    ActivationTimeout,
    CallCycle,
    CallError,
    CallFilter,
    CallFilters,
    CallTimeout,
    Conflict,
    Contract,
    DeactivationReason,
    Grain,
    GrainCall,
    GrainContext,
    GrainError,
    MillstreamError,
    NoSuitableSilo,
    NotHosted,
    Occurrence,
    Overloaded,
    Placement,
    PlacementCandidate,
    PlacementFailed,
    PlacementRequest,
    Proceed,
    Rejected,
    Reminder,
    Role,
    Runtime,
    State,
    StateField,
    StatelessWorker,
    StateTooNew,
    Timer,
    VersionNotHosted,
    always_interleave,
    grain,
    is_reference,
    one_way,
    open_to,
    read_only,
    register_type,
    reminder,
    shielded,
    state,
    stateless_worker,
    timeout,
    timer,
    upgrade,
    with_options,
)
from millstream.runtime.testing import UnitHome, grain_of, home_of, writes_of

T = TypeVar("T")


class Gate:
    """A class that MessagePack cannot encode."""

    def __init__(self, text: str) -> None:
        self.hall, self.number = text[0], int(text[1:])

    def __str__(self) -> str:
        return f"{self.hall}{self.number}"


register_type(Gate, str, Gate)


class Weather(Enum):
    CLEAR = "clear"
    STORM = "storm"


@dataclass
class Tally:
    flights: int = 0
    delay_min: int = 0


@dataclass(frozen=True)
class Place:
    name: str
    gates: int


# --- a grain -------------------------------------------------------------------------------------


@grain(idle_after=600, placement=PREFER_LOCAL)
class Airport(Grain):
    tally = state(Tally)
    place = state(Place, default=lambda: Place("?", 0), name="where", store="places")
    alert: State[str | None] = state(default=lambda: None, write="turn")
    closed = state(bool)

    def __init__(self) -> None:
        self._seen: list[str] = []

    @property
    def mean(self) -> float:
        return self.tally.value.delay_min / max(1, self.tally.value.flights)

    async def add(self, flights: int, *, delay_min: int = 0) -> int:
        self.tally.value.flights += flights
        self.tally.value.delay_min += delay_min
        await self.tally.write()
        return self.tally.value.flights

    @read_only
    async def counts(self) -> Tally:
        return self.tally.value

    @read_only
    async def weather(self, at: Mapping[str, Weather] | None = None) -> Weather | None:
        return (at or {}).get(self.key)

    async def price(self, flight: str, /, seats: Sequence[int] = ()) -> dict[str, Decimal]:
        return {flight: Decimal(len(seats))}

    @open_to(Role.OPERATOR)
    @one_way
    async def note(self, text: str) -> None:
        self._seen.append(text)

    @timeout(2.5)
    @shielded
    async def settle(self) -> None:
        self.place.value = Place("BOS", 102)
        await self.place.write()

    @always_interleave
    async def seen(self) -> list[str]:
        return self._seen

    @timer(every=5.0, first=0, keep_alive=True, interleave=True)
    async def flush(self) -> None:
        await self.tally.write_if_changed()

    @reminder(cron="0 6 * * *", time_zone="Europe/Berlin", missed="all")
    @timeout(5)
    async def report(self, occurrence: Occurrence) -> None:
        assert_type(occurrence.due, datetime)
        assert_type(occurrence.number, int)

    @reminder(every=3600)
    async def count_hours(self, occurrence: Occurrence) -> None: ...

    @reminder
    async def remind(self, occurrence: Occurrence) -> None:
        found = await self.context.reminders.set("remind", at=occurrence.due, missed="skip")
        assert_type(found, Reminder)
        assert_type(await self.context.reminders.cancel("remind"), bool)
        for one in await self.context.reminders.list():
            assert_type(one, Reminder)

    @reminder()
    async def remind_again(self, occurrence: Occurrence) -> None: ...

    @timer(60)
    @timeout(2.5)
    async def sweep(self) -> None:
        once = self.context.timer(self.flush, every=None, first=1.0)
        assert_type(once, Timer)
        once.change(every=2.0)
        once.cancel()

    async def gate(self, flight: str, wanted: Gate | None = None) -> Gate:
        return wanted or Gate(f"B{len(flight)}")

    async def nearest(self, others: list[Airport]) -> Airport:
        return others[0] if others else self

    async def ask(self, other: Airport) -> int:
        mine = self.grain(Counter, other.key)
        assert_type(mine, Counter)
        return (await other.counts()).flights + await mine.add(1)

    async def on_activate(self) -> None:
        self._seen = [self.key]

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        if reason is not DeactivationReason.STATE_CONFLICT:
            await self.tally.write()


class Hub(Airport):
    """A grain type of its own, which overrides and adds methods."""

    async def add(self, flights: int, *, delay_min: int = 0, late: bool = False) -> int:
        return await super().add(flights * 2, delay_min=delay_min + late)

    async def airlines(self) -> set[str]:
        return set()


@grain
class Small(Grain):
    async def nothing(self) -> None: ...


@grain(placement=stateless_worker(max_local=4))
class Resizer(Grain):
    async def resize(self, width: int) -> int:
        return width


@grain(placement=stateless_worker(), requires={"zone": {"a", "b"}, "disk": "ssd"})
class Decoder(Grain): ...


def choose(request: PlacementRequest) -> PlacementCandidate:
    assert_type(request.candidates, Sequence[PlacementCandidate])
    assert_type(request.key, str)
    return min(request.candidates, key=lambda one: (one.labels.get("zone", ""), one.activations))


@grain(placement=choose)
class Chosen(Grain): ...


@grain(requires={"zone": ["a"]}, placement=lambda request: request.candidates[0])
class Listed(Grain): ...


@grain(placement=StatelessWorker(2))
class Encoder(Grain): ...


@grain(name="Runway", version=2)
class SecondRunway(Grain): ...


@grain(name="Runway", version=2)
class SecondRunwayCalls(Contract): ...


@dataclass
class OldWind:
    knots: int = 0


@dataclass
class Wind:
    speed: float = 0.0


@grain(name="Sock", version=3)
class Sock(Grain):
    wind = state(Wind)
    notes: State[list[str]] = state(default=list)

    @staticmethod
    @upgrade(wind, from_version=1)
    def wind_of_1(old: OldWind) -> Wind:
        return Wind(float(old.knots))

    @upgrade(notes, from_version=2)
    @staticmethod
    def notes_of_2(old: str) -> list[str]:
        return [old]


assert_type(Sock.wind_of_1(OldWind(3)), Wind)


def tell(error: StateTooNew) -> int:
    assert_type(error.stored, int)
    return error.hosted + StateTooNew("too new", stored=2, hosted=1).stored


def compare(error: VersionNotHosted) -> bool:
    assert_type(error.wanted, int)
    assert_type(error.hosted, tuple[int, ...])
    return error.wanted in VersionNotHosted("no such version", wanted=2, hosted=[1]).hosted


@grain(name="v2.Large", reentrant=True, placement=HASHED, direct=False)
@grain(name="v2.Large", reentrant=True, placement=HASHED, direct=False, immovable=True)
class Large(Grain):
    async def state_of(self, etag: str | None) -> tuple[str | None, bool]:
        return etag, True


assert_type(Small, type[Small])
assert_type(Large, type[Large])
assert_type([HASHED, LEAST_ACTIVATIONS, LEAST_LOADED, PREFER_LOCAL, RANDOM], list[Placement])


# --- contracts -----------------------------------------------------------------------------------


class Movable(Grain):
    def __init__(self) -> None:
        self._moves: list[str] = []

    def on_dehydrate(self) -> list[str]:
        return self._moves

    def on_rehydrate(self, value: list[str]) -> None:
        self._moves = value

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        if reason is DeactivationReason.MIGRATING:
            self._moves.append("left")

    async def leave(self, to: str) -> None:
        self.context.migrate_when_idle()
        self.context.migrate_when_idle(to=to)


class CounterApi(Contract):
    async def add(self, by: int, *, times: int = 1) -> int:
        raise NotImplementedError

    @one_way
    async def reset(self) -> None:
        raise NotImplementedError


class Counter(Grain, CounterApi):
    """The silo's side: both checkers compare it with the contract."""

    def __init__(self) -> None:
        self._count = 0

    async def add(self, by: int, *, times: int = 1) -> int:
        self._count += by * times
        return self._count

    async def reset(self) -> None:
        self._count = 0


async def through_a_contract(runtime: Runtime) -> int:
    counter = runtime.grain(CounterApi, "a")
    assert_type(counter, CounterApi)
    await counter.reset()
    return await counter.add(1, times=2)


# --- generics ------------------------------------------------------------------------------------


class Shelf(Grain, Generic[T]):
    def __init__(self) -> None:
        self._items: list[T] = []

    async def put(self, item: T) -> list[T]:
        self._items.append(item)
        return self._items

    async def first(self) -> T | None:
        return self._items[0] if self._items else None


class PlaceShelf(Shelf[Place]):
    async def gates(self) -> int:
        return sum(place.gates for place in self._items)


async def through_generics(runtime: Runtime) -> None:
    shelf = runtime.grain(PlaceShelf, "a")
    assert_type(await shelf.put(Place("BOS", 102)), list[Place])
    assert_type(await shelf.first(), Place | None)


async def count_all(runtime: Runtime, kind: type[Airport], keys: Sequence[str]) -> int:
    """Use a grain type that is only known by its base class."""
    return sum([(await runtime.grain(kind, key).counts()).flights for key in keys])


# --- calls ---------------------------------------------------------------------------------------


async def call(runtime: Runtime) -> None:
    boston = runtime.grain(Airport, "BOS")
    assert_type(boston, Airport)
    assert_type(boston.key, str)
    assert_type(await boston.add(1, delay_min=5), int)
    assert_type(await boston.counts(), Tally)
    assert_type((await boston.counts()).delay_min, int)
    assert_type(await boston.weather({"BOS": Weather.STORM}), Weather | None)
    assert_type(await boston.price("B6 1", seats=[1, 2]), dict[str, Decimal])
    assert_type(await boston.seen(), list[str])
    assert_type(await boston.gate("B6 1", Gate("B12")), Gate)
    await boston.note("snow")
    await boston.settle()
    assert_type(await boston.nearest([boston]), Airport)
    assert_type(await boston.ask(runtime.grain(Hub, "JFK")), int)
    assert_type(await runtime.grain(Hub, "JFK").add(1, late=True), int)
    assert_type(is_reference(boston), bool)
    assert isinstance(boston, Airport)


async def call_at_once(runtime: Runtime) -> None:
    boston, newark = runtime.grain(Airport, "BOS"), runtime.grain(Airport, "EWR")
    task = asyncio.create_task(boston.counts())
    assert_type(task, asyncio.Task[Tally])
    async with asyncio.TaskGroup() as group:
        added = group.create_task(newark.add(1))
    assert_type(added.result(), int)
    assert_type(await asyncio.gather(boston.add(1), newark.counts()), tuple[int, Tally])
    async with asyncio.timeout(1):
        assert_type(await task, Tally)


async def call_with_options(runtime: Runtime) -> None:
    boston = runtime.grain(Airport, "BOS")
    patient = with_options(boston, timeout=90, headers={"trace": "1"})
    assert_type(patient, Airport)
    assert_type(await with_options(patient, timeout=0.5).add(1), int)
    assert_type(with_options(boston, flowing_headers={"trace": "1"}), Airport)


async def audit(call: GrainCall, proceed: Proceed) -> object:
    assert_type(call.arguments, dict[str, object])
    call.headers["trace"] = call.grain_id
    return await proceed()


async def count(call: GrainCall, proceed: Proceed) -> int:
    await proceed()
    return len(call.arguments)


class Audit:
    async def __call__(self, call: GrainCall, proceed: Proceed) -> object:
        return await proceed()


def is_quick(call: GrainCall) -> bool:
    return call.method == "quick"


FILTERS: list[CallFilter] = [audit, count, Audit()]


@grain(filters=CallFilters(incoming=[audit, Audit()]), may_interleave=is_quick)
class Audited(Grain):
    async def quick(self) -> None:
        with self.context.allow_call_chain_reentrancy():
            await self.grain(Audited, self.key).quick()
        with self.context.suppress_call_chain_reentrancy():
            await self.grain(Audited, "other").quick()


async def call_and_recover(runtime: Runtime) -> str:
    try:
        await runtime.grain(Airport, "BOS").settle()
    except Overloaded as error:
        assert_type(error.limit, int)
        return error.limit_name
    except CallCycle as error:
        return error.path[0]
    except (NoSuitableSilo, PlacementFailed) as error:
        print(error)
    except (Rejected, NotHosted, CallTimeout):
        return "later"
    except GrainError as error:
        return f"{error.type_name}: {error.message}"
    except CallError as error:
        unknown: MillstreamError = error
        return str(unknown)
    return ""


standard: TimeoutError = CallTimeout("also caught as the standard one")
start: CallTimeout = ActivationTimeout("a deadline, too")


# --- inside a grain ------------------------------------------------------------------------------


class Inside(Grain):
    tally = state(Tally)
    level: State[int | Place] = state(default=lambda: 0)

    async def state_has_the_type_of_its_class(self) -> bool:
        assert_type(self.tally, State[Tally])
        assert_type(self.tally.value, Tally)
        assert_type(self.level, State[int | Place])
        assert_type(self.tally.etag, str | None)
        self.tally.value = Tally(flights=5)
        self.tally.value.flights += 1
        self.level.value = Place("BOS", 102)
        try:
            await self.tally.write()
        except Conflict:
            await self.tally.read()
        await self.level.clear()
        return self.tally.exists

    async def context_has_the_rest(self) -> int:
        assert_type(self.context, GrainContext)
        self.context.keep_alive(60)
        self.context.deactivate_when_idle()
        assert_type(self.context.silo, str)
        assert_type(self.context.headers, Mapping[str, str])
        assert_type(self.context.client, str)
        task = self.context.create_task(self._work(3))
        assert_type(task, asyncio.Task[str])
        assert_type(await self.context.to_thread(self._sum, [3, 1]), int)
        return len(await task)

    async def _work(self, count: int) -> str:
        return "x" * count

    def _sum(self, numbers: Sequence[int]) -> int:
        return sum(numbers)


assert_type(Inside.tally, StateField[Tally])
assert_type(Airport.place, StateField[Place])
assert_type(Airport.closed, StateField[bool])


async def as_plain_objects() -> None:
    gate = grain_of(Airport, key="BOS", state={"tally": Tally()})
    assert_type(gate, Airport)
    assert_type(home_of(gate), UnitHome)
    assert_type(writes_of(gate.tally), list[Tally])
