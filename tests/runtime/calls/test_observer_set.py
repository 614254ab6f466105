"""`ObserverSet`: members, expiry, notifications and their limits, in virtual time.

Each test of Orleans (TC/ObserverManagerTests) that has a counterpart is named beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.runtime.observer_world import (
    GATES,
    Viewer,
    World,
    clear_world,
    in_world,
    note,
    noted,
)

from millstream.runtime import (
    Client,
    ConfigError,
    Grain,
    NotInCluster,
    Observer,
    ObserverGone,
    ObserverSet,
    Overloaded,
    timeout,
)
from millstream.runtime.testing import Simulation, grain_of, home_of, run


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    clear_world()
    yield


class Fan(Observer):
    async def goal(self, scorers: list[str], *, minute: int = 0) -> None: ...
    async def end(self) -> None: ...


class FakeFan:
    """A plain object in place of a reference."""

    def __init__(self, name: str, delay_s: float = 0.0, error: Exception | None = None) -> None:
        self.name = name
        self.delay_s = delay_s
        self.error = error
        self.seen: list[Any] = []
        self.running = 0

    async def goal(self, scorers: list[str], *, minute: int = 0) -> None:
        self.running += 1
        assert self.running == 1, "two calls at once"
        await asyncio.sleep(self.delay_s)
        self.running -= 1
        if self.error is not None:
            raise self.error
        self.seen.append((scorers, minute))

    async def end(self) -> None:
        self.seen.append("end")


class Match(Grain):
    def __init__(self) -> None:
        self.fans = ObserverSet(self, Fan, expires_s=60, waiting_max=3, deadline_s=5)

    async def watch(self, fan: Fan) -> None:
        self.fans.add(fan)

    async def score(self, scorer: str) -> None:
        self.fans.notify(Fan.goal, [scorer], minute=7)

    @timeout(1.0)
    async def score_slowly(self, scorer: str) -> None:
        self.fans.notify(Fan.goal, [scorer])
        await asyncio.sleep(0.5)

    async def size(self) -> int:
        return len(self.fans)


def in_time(main: Callable[[Match], Awaitable[None]]) -> None:
    """Run a unit test of a grain in virtual time, without silos."""

    async def driver(sim: Simulation) -> None:
        match = grain_of(Match)
        await main(match)
        for task in home_of(match).tasks:
            task.cancel()

    run(driver, seed=1)


def fan(*args: Any) -> Any:
    return FakeFan(*args)


def test_a_plain_object_is_an_observer_in_a_unit_test() -> None:
    async def main(match: Match) -> None:
        ann = fan("ann")
        await match.watch(ann)
        await match.score("Ada")
        await asyncio.sleep(1)
        assert ann.seen == [(["Ada"], 7)]

    in_time(main)


def test_an_observer_that_is_added_twice_is_called_once() -> None:
    """ObserverManagerTests: subscribing refreshes."""

    async def main(match: Match) -> None:
        ann = fan("ann")
        match.fans.add(ann)
        match.fans.add(ann)
        assert len(match.fans) == 1 and ann in match.fans and list(match.fans) == [ann]
        match.fans.notify(Fan.end)
        await asyncio.sleep(1)
        assert ann.seen == ["end"]

    in_time(main)


def test_an_observer_that_is_not_added_again_in_time_expires() -> None:
    """ObserverManagerTests: expiry with fake time."""

    async def main(match: Match) -> None:
        await asyncio.sleep(1)
        ann, bob = fan("ann"), fan("bob")
        match.fans.add(ann)
        match.fans.add(bob)
        await asyncio.sleep(50)
        match.fans.add(ann)
        await asyncio.sleep(11)
        assert list(match.fans) == [ann] and bob not in match.fans
        match.fans.notify(Fan.end)
        await asyncio.sleep(1)
        assert (ann.seen, bob.seen) == (["end"], [])
        await asyncio.sleep(60)
        assert len(match.fans) == 0

    in_time(main)


def test_an_expired_observer_is_not_notified() -> None:
    async def main(match: Match) -> None:
        ann = fan("ann")
        match.fans.add(ann)
        await asyncio.sleep(61)
        match.fans.notify(Fan.end)
        await asyncio.sleep(1)
        assert ann.seen == []

    in_time(main)


def test_only_an_observer_that_is_gone_is_removed_after_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ObserverManagerTests: removal on failure."""

    async def main(match: Match) -> None:
        ann, bob, eve = fan("ann"), fan("bob", 0, ObserverGone("gone")), fan("eve", 0, ValueError())
        for one in (ann, bob, eve):
            match.fans.add(one)
        with caplog.at_level(logging.WARNING):
            await match.score("Ada")
            await asyncio.sleep(1)
        assert list(match.fans) == [ann, eve]
        (line,) = caplog.messages
        assert "Match/unit: an observer was not notified" in line and "ValueError" in line

    in_time(main)


def test_a_predicate_chooses_observers() -> None:
    """ObserverManagerTests: predicate filter."""

    async def main(match: Match) -> None:
        ann, bob = fan("ann"), fan("bob")
        match.fans.add(ann)
        match.fans.add(bob)
        wanted: Any = lambda one: one.name == "bob"  # noqa: E731
        match.fans.notify_where(wanted, Fan.goal, ["Ada"])
        await asyncio.sleep(1)
        assert (ann.seen, bob.seen) == ([], [(["Ada"], 0)])

    in_time(main)


def test_a_removed_observer_is_not_called() -> None:
    async def main(match: Match) -> None:
        ann, bob = fan("ann", 1.0), fan("bob", 1.0)
        for one in (ann, bob):
            match.fans.add(one)
        for scorer in ("Ada", "Bea"):
            await match.score(scorer)
        await asyncio.sleep(0.5)
        match.fans.remove(ann)
        match.fans.remove(ann)
        await asyncio.sleep(5)
        assert ann.seen == [(["Ada"], 7)]  # its call ran already
        assert len(bob.seen) == 2
        match.fans.clear()
        assert len(match.fans) == 0

    in_time(main)


def test_a_slow_observer_delays_no_other_one_and_loses_the_oldest() -> None:
    async def main(match: Match) -> None:
        slow, quick = fan("slow", 4.0), fan("quick")
        match.fans.add(slow)
        match.fans.add(quick)
        for minute in range(6):
            match.fans.notify(Fan.goal, [], minute=minute)
            await asyncio.sleep(0.01)
        assert [minute for _, minute in quick.seen] == [0, 1, 2, 3, 4, 5]
        assert match.fans.dropped == 2
        await asyncio.sleep(30)
        assert [minute for _, minute in slow.seen] == [0, 3, 4, 5]

    in_time(main)


def test_an_observer_that_hangs_has_a_deadline_for_each_call() -> None:
    async def main(match: Match) -> None:
        hung = fan("hung", 100.0)
        match.fans.add(hung)
        await match.score("Ada")
        await asyncio.sleep(4)
        hung.delay_s = 0
        match.fans.notify(Fan.end)
        assert hung.seen == []
        await asyncio.sleep(2)
        assert hung.seen == ["end"] and hung in match.fans

    in_time(main)


def test_the_grain_may_change_the_arguments_afterwards() -> None:
    async def main(match: Match) -> None:
        ann, scorers = fan("ann"), ["Ada"]
        match.fans.add(ann)
        match.fans.notify(Fan.goal, scorers)
        scorers.append("Bea")
        await asyncio.sleep(1)
        assert ann.seen == [(["Ada"], 0)]

    in_time(main)


def test_wrong_arguments_are_refused_at_once() -> None:
    async def main(match: Match) -> None:
        bad: Any = print
        with pytest.raises(TypeError, match=r"pass a method of .*Fan, such as `Fan.end`; it has"):
            match.fans.notify(bad)
        bad = Fan.goal
        with pytest.raises(TypeError, match="scorers"):
            match.fans.notify(bad)
        with pytest.raises(TypeError, match="argument `minute`"):
            match.fans.notify(bad, [], minute="7")
        with pytest.raises(TypeError, match="pass `self` of the grain"):
            ObserverSet(bad, Fan, expires_s=1)
        with pytest.raises(TypeError, match="pass a class derived from Observer"):
            ObserverSet(match, bad, expires_s=1)
        for limit in ("expires_s", "deadline_s", "waiting_max", "observers_max"):
            limits: Any = {"expires_s": 1, limit: 0}
            with pytest.raises(ConfigError, match=rf"ObserverSet\({limit}=\.\.\.\) is 0"):
                ObserverSet(match, Fan, **limits)

    in_time(main)


def test_a_full_set_refuses_observers_until_some_expire() -> None:
    async def main(match: Match) -> None:
        fans = ObserverSet[Fan](match, Fan, expires_s=60, observers_max=2)
        for name in ("ann", "bob"):
            fans.add(fan(name))
        with pytest.raises(Overloaded) as caught:
            fans.add(fan("eve"))
        assert (caught.value.limit_name, caught.value.limit) == ("observers_max", 2)
        await asyncio.sleep(61)
        fans.add(fan("eve"))

    in_time(main)


# -- in a cluster


class RealFan(Fan):
    def __init__(self, name: str) -> None:
        self.name = name

    async def goal(self, scorers: list[str], *, minute: int = 0) -> None:
        note(f"{self.name}: {scorers[0]} {minute}")
        if scorers[0] == "stay":
            await GATES["stay"].wait()
            note(f"{self.name}: left")


def in_client(main: Callable[[Client], Awaitable[None]]) -> None:
    async def start(world: World) -> None:
        async def program(client: Client) -> None:
            await main(client)

        await world.start(program)

    in_world(start, silos=3, grains=(Match,))


def test_all_observers_of_a_grain_are_notified() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(RealFan("ann")) as ann, client.observe(RealFan("bob")) as bob:
            await match.watch(ann)
            await match.watch(bob)
            await match.score("Ada")
            await asyncio.sleep(1)
            assert sorted(noted()) == ["ann: Ada 7", "bob: Ada 7"]
        await match.score("Bea")
        await asyncio.sleep(1)
        assert await match.size() == 0 and len(noted()) == 2

    in_client(main)


def test_a_turn_that_notifies_does_not_wait_and_is_no_part_of_the_chain() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(RealFan("ann")) as ann:
            await match.watch(ann)
            await match.score("stay")
            await asyncio.sleep(1)
            assert await match.size() == 1  # the grain is free
            GATES["stay"].set()

    in_client(main)


def test_a_notification_outlives_the_deadline_of_the_turn_that_made_it() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(RealFan("ann")) as ann:
            await match.watch(ann)
            await match.score_slowly("stay")
            await asyncio.sleep(2)
            GATES["stay"].set()
            await asyncio.sleep(1)
            assert noted() == ["ann: stay 0", "ann: left"]

    in_client(main)


def test_notifications_end_with_the_activation() -> None:
    class Short(Match):
        async def stop(self) -> None:
            self.context.deactivate_when_idle()
            LEFT[:] = [self]

    async def start(world: World) -> None:
        async def program(client: Client) -> None:
            short = client.grain(Short, "final")
            async with client.observe(RealFan("ann")) as ann:
                await short.watch(ann)
                await short.score("stay")
                await asyncio.sleep(1)
                await short.stop()
                await asyncio.sleep(1)
                with pytest.raises(NotInCluster):
                    LEFT[0].fans.notify(Fan.end)

        await world.start(program)

    in_world(start, grains=(Short,))


LEFT: list[Match] = []


def test_observers_of_another_class_do_not_enter() -> None:
    async def main(client: Client) -> None:
        async with client.observe(Viewer("ann")) as viewer:
            bad: Any = viewer
            with pytest.raises(TypeError, match="expected `Fan`, got `ViewerReference`"):
                await client.grain(Match, "final").watch(bad)

    in_client(main)
