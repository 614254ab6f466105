"""Mistakes in grains and calls. A line that ends with the mark E must be refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

from millstream.runtime import (
    CallFilters,
    Contract,
    Grain,
    GrainCall,
    GrainError,
    Occurrence,
    Overloaded,
    PlacementCandidate,
    PlacementRequest,
    Runtime,
    State,
    StateTooNew,
    VersionNotHosted,
    always_interleave,
    grain,
    is_reference,
    one_way,
    read_only,
    reminder,
    shielded,
    state,
    stateless_worker,
    timeout,
    timer,
    upgrade,
    with_options,
)

T = TypeVar("T")


@dataclass
class Tally:
    flights: int = 0
    delay_min: int = 0


@dataclass
class Place:
    name: str


class Airport(Grain):
    tally = state(Tally)
    alert: State[str | None] = state(default=lambda: None)

    async def add(self, flights: int, *, delay_min: int = 0) -> int:
        return flights + delay_min

    async def counts(self) -> Tally:
        return self.tally.value

    async def names(self) -> list[str]:
        return [self.key]

    @one_way
    async def note(self, text: str) -> None: ...

    async def nearest(self, other: Airport) -> Airport:
        return other


class Counter(Grain):
    async def count(self, items: list[Place]) -> dict[str, int]:
        return {}


class Shelf(Grain, Generic[T]):
    async def put(self, item: T) -> list[T]:
        return [item]


class PlaceShelf(Shelf[Place]): ...


# --- marks ---------------------------------------------------------------------------------------


class WrongMarks(Grain):
    @one_way  # E
    async def one_way_with_a_result(self) -> int:
        return 1

    @one_way  # E
    def one_way_that_is_not_async(self) -> None: ...

    @read_only  # E
    def read_only_that_is_not_async(self) -> int:
        return 1

    @always_interleave  # E
    def interleaving_that_is_not_async(self) -> None: ...

    @shielded  # E
    def shielded_that_is_not_async(self) -> None: ...

    @timeout(5)  # E
    def timeout_that_is_not_async(self) -> None: ...

    @timer(5)  # E
    def timer_that_is_not_async(self) -> None: ...

    @timer(5)  # E
    async def timer_with_a_result(self) -> int:
        return 1

    @timer("5s")  # E
    async def timer_as_text(self) -> None: ...

    @timer  # E
    async def timer_without_seconds(self) -> None: ...  # E[mypy]

    @reminder(every="60")  # E
    async def reminder_as_text(self, occurrence: Occurrence) -> None: ...

    @reminder  # E
    async def reminder_without_an_occurrence(self) -> None: ...

    @reminder(every=60, cron="* * * * *")  # E
    async def reminder_of_two_schedules(self, occurrence: Occurrence) -> None: ...

    @reminder(every=60)  # E
    async def reminder_with_a_result(self, occurrence: Occurrence) -> int:
        return occurrence.number

    async def reminders_at_run_time(self) -> None:
        await self.context.reminders.set("reminder_as_text", at="tomorrow")  # E
        await self.context.reminders.set("reminder_as_text", every=60, missed="twice")  # E
        await self.context.reminders.set(5, every=60)  # E

    async def timers_at_run_time(self) -> None:
        self.context.timer(self.timer_as_text(), every=5)  # E
        self.context.timer(self.timer_as_text)  # E

    @timeout("5s")  # E
    async def timeout_as_text(self) -> None: ...

    @timeout(seconds=5)  # E
    async def timeout_by_name(self) -> None: ...

    @timeout  # E
    # mypy takes the result of `timeout` for the method, which lacks `self`
    async def timeout_without_seconds(self) -> None: ...  # E[mypy]


@grain(placement="prefer_local")  # E
class PlacementAsText(Grain): ...


@grain(placement=stateless_worker(4))  # E
class LimitByPosition(Grain): ...


@grain(requires={"zone": 1})  # E
class LabelAsNumber(Grain): ...


@grain(requires="zone=a")  # E
class RequirementAsText(Grain): ...


@grain(version="2")  # E
class VersionAsText(Grain): ...


@grain(version=None)  # E
class VersionAsNone(Grain): ...


@grain(version=2)
class Steps(Grain):
    count = state(int)

    @staticmethod
    @upgrade(count)  # E
    def without_version(old: str) -> int:
        return int(old)

    @staticmethod
    @upgrade("count", from_version=1)  # E
    def by_name(old: str) -> int:
        return int(old)

    @staticmethod
    @upgrade(count, from_version="1")  # E
    def by_text(old: str) -> int:
        return int(old)

    @upgrade(count, from_version=1)  # E
    @staticmethod
    def of_two(old: str, base: int) -> int:
        return int(old, base)


StateTooNew("too new", stored="2")  # E
VersionNotHosted("no such version", wanted="2")  # E
VersionNotHosted("no such version", 2)  # E


@grain(placement=lambda request: request.key)  # E
class ChoosesText(Grain): ...


async def choose_later(request: PlacementRequest) -> PlacementCandidate:
    return request.candidates[0]


@grain(placement=choose_later)  # E
class ChoosesLater(Grain): ...


@grain(placement=stateless_worker)  # E
class WorkerWithoutCall(Grain): ...


@grain(placement=stateless_worker(max_local="4"))  # E
class LimitAsText(Grain): ...


@grain(nmae="Counter")  # E
class MisspeltOption(Grain): ...


@grain(immovable="yes")  # E
class AnchoredByText(Grain): ...


@grain(idle_after="10 min")  # E
class IdleAsText(Grain): ...


@grain("Counter")  # E
class NameByPosition(Grain): ...


@grain  # E
def not_a_class() -> None: ...


# mypy reports an error of a class at the line of its name
@grain  # E[pyright]
class NotAGrain: ...  # E[mypy]


@grain(reentrant=True)  # E[pyright]
class NotAGrainEither: ...  # E[mypy]


# --- state ---------------------------------------------------------------------------------------


class WrongState(Grain):
    tally = state(Tally)
    needs_arguments = state(Place)  # E
    nothing = state()  # E
    union = state(int | None)  # E
    # pyright widens the type of the state to `Tally | int`; run time refuses it at start
    other_default = state(Tally, default=lambda: 5)  # E[mypy]
    value_for_a_class = state(Tally())  # E
    name_by_position = state(Tally, "tally")  # E
    misspelt = state(Tally, sotre="default")  # E
    written_sometimes = state(Tally, write="sometimes")  # E
    level: State[int | None] = state(default=lambda: "none")  # E
    of_another_type: State[int] = state(Tally)  # E

    async def use(self) -> int:
        self.tally.value = 5  # E
        self.tally.value.flights = "5"  # E
        self.tally.value.fligths += 1  # E
        self.tally.flights += 1  # E
        self.tally.write()  # E
        self.tally.etag = "1"  # E
        self.tally.exists = False  # E
        await self.tally.save()  # E
        await self.level.write  # E
        return self.tally.value  # E


class AssignsToTheField(Grain):
    tally = state(Tally)

    async def assign(self) -> None:
        # pyright sees a second definition of `tally`; the runtime refuses the assignment
        self.tally = Tally()  # E[mypy]


# --- life cycle, overrides, contracts ------------------------------------------------------------


class WrongLifeCycle(Grain):
    def on_activate(self) -> None: ...  # E

    async def on_deactivate(self) -> None: ...  # E


class WrongReason(Grain):
    async def on_deactivate(self, reason: str) -> None: ...  # E


class WrongName(Grain):
    def key(self) -> str:  # E
        return "a"


class WrongContext(Grain):
    async def use(self) -> None:
        self.context.migrate_when_idle("silo-2:7000@1")  # E
        self.context.migrate_when_idle(to=5)  # E
        self.context.keep_alive("1 min")  # E
        self.context.create_task(self.work)  # E
        self.context.create_task(5)  # E
        self.context.to_thread(print)  # E
        self.context.deactivate()  # E
        self.key = "b"  # E
        self.grain(Airport)  # E
        self.grain(Tally, "a")  # E
        self.work()  # E

    async def work(self) -> int:
        return 1


class AirportApi(Contract):
    async def add(self, flights: int, *, delay_min: int = 0) -> int:
        raise NotImplementedError


class OtherArgument(Grain, AirportApi):
    async def add(self, flights: str, *, delay_min: int = 0) -> int:  # E
        return 1


class OtherResult(Grain, AirportApi):
    async def add(self, flights: int, *, delay_min: int = 0) -> str:  # E
        return ""


class LessArguments(Airport):
    async def add(self, flights: int) -> int:  # E
        return 1


class MoreArguments(Airport):
    async def add(self, flights: int, gate: int, *, delay_min: int = 0) -> int:  # E
        return 1


class NotAsync(Airport):
    def counts(self) -> Tally:  # E
        return Tally()


# --- references ----------------------------------------------------------------------------------


def wrong_references(runtime: Runtime) -> None:
    runtime.grain(Airport)  # E
    runtime.grain(Airport, 5)  # E
    runtime.grain(Airport, key="BOS")  # E
    runtime.grain("Airport", "BOS")  # E
    runtime.grain(Airport(), "BOS")  # E
    runtime.grain(Tally, "BOS")  # E
    runtime.grain(str, "BOS")  # E
    runtime.grain(Shelf[int].put, "BOS")  # E
    counter: Counter = runtime.grain(Airport, "BOS")  # E
    counter = with_options(runtime.grain(Airport, "BOS"), timeout=5)  # E
    print(counter)
    runtime.grain(Airport, "BOS").key = "JFK"  # E
    runtime.grian(Airport, "BOS")  # E
    is_reference()  # E
    with_options(runtime.grain(Airport, "BOS"), timeout="5s")  # E
    with_options(runtime.grain(Airport, "BOS"), 5)  # E
    with_options(runtime.grain(Airport, "BOS"), headers={"tries": 3})  # E
    with_options(runtime.grain(Airport, "BOS"), retries=3)  # E
    with_options("Airport/BOS")  # E
    with_options(Airport)  # E
    with_options(Tally())  # E
    with_options(runtime.grain(Airport, "BOS"), flowing_headers={"tries": 3})  # E


async def takes_one(call: GrainCall) -> object:
    return call.method


def needs_two(call: GrainCall, key: str) -> bool:
    return True


def wrong_filters() -> None:
    CallFilters(incoming=[takes_one])  # E
    CallFilters(incoming=takes_one)  # E
    CallFilters(outgoing=["audit"])  # E
    CallFilters([takes_one])  # E
    grain(filters=[takes_one])  # E
    grain(may_interleave=needs_two)  # E
    grain(may_interleave=True)  # E


# --- calls ---------------------------------------------------------------------------------------


async def wrong_arguments(runtime: Runtime) -> None:
    boston = runtime.grain(Airport, "BOS")
    await boston.add("1")  # E
    await boston.add()  # E
    await boston.add(1, 5)  # E
    await boston.add(1, delay=5)  # E
    await boston.add(1, delay_min=None)  # E
    await boston.ad(1)  # E
    await boston.note(5)  # E
    await runtime.grain(Counter, "a").count([Tally()])  # E
    await runtime.grain(Counter, "a").count(Place("BOS"))  # E
    await runtime.grain(AirportApi, "BOS").counts()  # E
    await runtime.grain(PlaceShelf, "a").put(5)  # E


async def wrong_arguments_that_are_references(runtime: Runtime) -> None:
    boston = runtime.grain(Airport, "BOS")
    await boston.nearest("JFK")  # E
    await boston.nearest(runtime.grain(Counter, "JFK"))  # E
    await boston.nearest(Airport)  # E
    await boston.nearest(boston.nearest(boston))  # E


async def wrong_results(runtime: Runtime) -> None:
    boston = runtime.grain(Airport, "BOS")
    text: str = await boston.add(1)  # E
    text = (await boston.counts()).delay_min  # E
    number: int = await boston.note("snow")  # E
    number = (await boston.counts()).delays  # E
    places: list[int] = await runtime.grain(PlaceShelf, "a").put(Place("BOS"))  # E
    print(text, number, places)


async def forgotten_await(runtime: Runtime) -> None:
    boston = runtime.grain(Airport, "BOS")
    boston.add(1)  # E
    boston.note("snow")  # E
    number: int = boston.add(1)  # E
    number = 1 + boston.add(1)  # E
    number = boston.counts().flights  # E
    for name in boston.names():  # E
        print(name)
    async for name in boston.names():  # E
        print(name)
    async with boston.names():  # E
        print(number)
    await (await boston.add(1))  # E
    await asyncio.gather(boston.add)  # E
    task = asyncio.create_task(boston.add)  # E
    print(task)
    if boston.add(1) > 5:  # E
        print(await boston.add)  # E


async def wrong_recovery(runtime: Runtime) -> None:
    try:
        await runtime.grain(Airport, "BOS").add(1)
    except Overloaded as error:
        print(error.limit.upper())  # E
    except GrainError as error:
        print(error.kind)  # E
