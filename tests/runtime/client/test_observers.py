"""Observers: grains call objects of a client, in virtual time.

Each test of Orleans (TDC/ObserverTests) that has a counterpart is named beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.runtime.observer_world import (
    GATES,
    LOG,
    Match,
    Viewer,
    World,
    clear_world,
    in_world,
    note,
    noted,
)

from millstream.runtime import (
    CallCycle,
    CallTimeout,
    Client,
    ConfigError,
    Contract,
    DefinitionError,
    Grain,
    NotAllowed,
    NotHosted,
    NotInCluster,
    Observer,
    ObserverGone,
    Overloaded,
    Role,
    RuntimeOptions,
    grain,
    is_reference,
    open_to,
    state,
    timer,
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    clear_world()
    yield


def in_client(main: Any, **world: Any) -> None:
    """Run a test in a program with a client."""

    async def start(world: World) -> None:
        await world.start(main)

    in_world(start, **world)


# -- the tests of Orleans


def test_a_grain_calls_an_object_of_a_client() -> None:
    """ObserverTests.SimpleNotification."""

    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            assert await match.score("Ada") == ["ann saw Ada"]
        assert noted() == ["ann: Ada"]

    in_client(main)


def test_a_grain_that_is_given_one_reference_twice_has_one_observer() -> None:
    """ObserverTests.DoubleSubscriptionSameReference."""

    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            await match.watch(viewer)
            assert await match.score("Ada") == ["ann saw Ada"]

    in_client(main)


def test_two_contexts_of_one_object_are_two_observers() -> None:
    """ObserverTests.DoubleSubscriptionDifferentReferences."""

    async def main(client: Client) -> None:
        match, ann = client.grain(Match, "final"), Viewer("ann")
        async with client.observe(ann) as first, client.observe(ann) as second:
            assert first != second
            await match.watch(first)
            await match.watch(second)
            assert await match.score("Ada") == ["ann saw Ada"] * 2

    in_client(main)


def test_an_observer_whose_context_has_ended_is_not_called() -> None:
    """ObserverTests.DeleteObject."""

    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
        assert await match.score("Ada") == ["ObserverGone"]
        assert noted() == []
        with pytest.raises(ObserverGone) as caught:
            await viewer.goal("Ada")
        assert isinstance(caught.value, NotHosted)
        assert client.address in str(caught.value) and str(viewer) in str(caught.value)

    in_client(main)


def test_a_grain_that_forgets_its_observer_calls_it_no_more() -> None:
    """ObserverTests.Unsubscribe."""

    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            await match.score("Ada")
            await match.unwatch(viewer)
            assert await match.score("Bob") == []
        assert noted() == ["ann: Ada"]

    in_client(main)


class NotViewer(Observer):
    async def other(self) -> None: ...


class Plain:
    async def goal(self, scorer: str) -> str:
        return scorer


def test_only_references_to_the_right_class_are_arguments() -> None:
    """ObserverTests.SubscriberMustBeGrainReference."""

    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        with pytest.raises(TypeError, match=r"pass `ref` of `async with client.observe\(\.\.\.\)"):
            await match.watch(Viewer("bare"))
        with pytest.raises(TypeError, match="argument `viewer`"):
            await match.watch(Plain())  # type: ignore[arg-type]
        async with client.observe(NotViewer()) as other:
            with pytest.raises(TypeError, match="expected `Viewer`, got `NotViewerReference`"):
                await match.watch(other)  # type: ignore[arg-type]

    in_client(main)


def test_only_objects_of_observer_classes_can_be_observed() -> None:
    """ObserverTests.CreateObjectReference_ThrowsForInvalidArgumentTypes."""

    async def main(client: Client) -> None:
        observe: Any = client.observe
        with pytest.raises(TypeError, match="Plain is not an Observer class: derive it from"):
            observe(Plain())
        with pytest.raises(TypeError, match=r"pass an object, and not the class: observe\(Viewer"):
            observe(Viewer)
        with pytest.raises(TypeError, match="it is a reference already"):
            observe(client.grain(Match, "final"))
        with pytest.raises(TypeError, match="NoneType is not an Observer class"):
            observe(None)

    in_client(main)


# -- references


class LoudViewer(Viewer):
    async def goal(self, scorer: str) -> str:
        return (await super().goal(scorer)).upper()


def test_a_reference_has_the_class_the_key_and_the_equality_of_grains() -> None:
    async def main(client: Client) -> None:
        async with client.observe(LoudViewer("ann")) as viewer:
            assert is_reference(viewer) and isinstance(viewer, LoudViewer)
            assert str(viewer).startswith(f"~LoudViewer/{client.address}/")
            assert viewer.key.startswith(client.address)
            match = client.grain(Match, "final")
            await match.watch(viewer)  # by its base class
            assert await match.score("Ada") == ["ANN SAW ADA"]

    in_client(main)


def test_a_reference_is_stored_in_a_state_and_sent_on_to_other_grains() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.store(viewer)
            assert await match.score_stored("Ada") == ["ann saw Ada"]
            await match.watch(viewer)
            await match.pass_on("other")
            assert await client.grain(Match, "other").score("Bob") == ["ann saw Bob"]

    in_client(main)


class Collector(Grain):
    """Takes references by their base classes."""

    async def take_observer(self, one: Observer) -> str:
        return str(one)

    async def take_grain(self, one: Grain) -> str:
        return str(one)

    async def take_any(self, one: Contract) -> str:
        return str(one)


def test_a_base_class_takes_references_of_its_own_sort() -> None:
    async def main(client: Client) -> None:
        collector: Any = client.grain(Collector, "a")
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            assert await collector.take_observer(viewer) == str(viewer)
            assert await collector.take_grain(match) == "Match/final"
            assert await collector.take_any(viewer) == str(viewer)
            assert await collector.take_any(match) == "Match/final"
            with pytest.raises(TypeError, match="argument `one`"):
                await collector.take_observer(match)
            with pytest.raises(TypeError, match="argument `one`"):
                await collector.take_grain(viewer)

    in_client(main, grains=(Match, Collector))


@grain(name="Collector")
class AnyCollector(Contract):
    """The same grain, as a program with wrong annotations sees it."""

    async def take_observer(self, one: Contract) -> str: ...  # type: ignore[empty-body]
    async def take_grain(self, one: Contract) -> str: ...  # type: ignore[empty-body]


def test_a_reference_of_another_sort_is_refused_where_it_arrives() -> None:
    async def main(client: Client) -> None:
        collector, match = client.grain(AnyCollector, "a"), client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            assert await collector.take_observer(viewer) == str(viewer)
            assert await collector.take_grain(match) == "Match/final"
            with pytest.raises(TypeError, match="expected a reference to an observer, got 'Match/"):
                await collector.take_observer(match)
            with pytest.raises(TypeError, match="expected a reference to a grain, got '~Viewer/"):
                await collector.take_grain(viewer)

    in_client(main, grains=(Match, Collector))


class Board(Grain, Viewer):
    """A grain that is an observer."""

    def __init__(self) -> None:
        Viewer.__init__(self, "board")

    async def goal(self, scorer: str) -> str:
        return f"board shows {scorer}"

    async def fail(self, text: str) -> None: ...
    async def stay(self, gate: str) -> str:
        return gate

    async def stay_briefly(self, gate: str) -> str:
        return gate

    async def ping(self) -> str:
        return "grain"

    async def tell(self, scorer: str) -> None: ...

    async def watch(self, key: str) -> None:
        await self.grain(Match, key).watch(self)

    async def observe(self) -> str:
        client: Client = CLIENTS[0]
        try:
            client.observe(Viewer())
        except (ConfigError, NotInCluster) as error:
            return str(error)
        return "no error"


CLIENTS: list[Client] = []


def test_a_grain_passes_itself_as_an_observer() -> None:
    async def main(client: Client) -> None:
        await client.grain(Board, "hall").watch("final")
        assert await client.grain(Match, "final").score("Ada") == ["board shows Ada"]

    in_client(main, grains=(Match, Board))


def test_a_grain_cannot_observe() -> None:
    async def main(client: Client) -> None:
        CLIENTS[:] = [client]
        text = await client.grain(Board, "hall").observe()
        assert "a grain cannot have observers" in text and "pass `self`" in text

    in_client(main, grains=(Match, Board))


# -- definitions


def test_classes_of_observers_are_checked_like_grains() -> None:
    with pytest.raises(DefinitionError, match="a public method must be `async def`"):

        class Sync(Observer):
            def goal(self) -> None: ...

    with pytest.raises(DefinitionError, match="needs an annotation"):

        class Untyped(Observer):
            async def goal(self, scorer) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(DefinitionError, match=r"Stateful\.seen: an observer cannot have a state"):

        class Stateful(Observer):
            seen = state(int)

    with pytest.raises(DefinitionError, match=r"Timed\._tick: a contract has no timers"):

        class Timed(Observer):
            @timer(every=1.0)
            async def _tick(self) -> None: ...

    with pytest.raises(DefinitionError, match="names that begin with '~' are reserved"):
        type("~Odd", (Grain,), {})().__millstream_type__.resolve()


# -- calls


def test_an_observer_handles_one_call_at_a_time_in_order() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            many = asyncio.create_task(match.call_many("stay", ["a", "b", "c"]))
            await asyncio.sleep(1)
            assert noted() == ["ann: +a"]
            for gate in "abc":
                GATES[gate].set()
            assert await many == ["a", "b", "c"]
        assert noted() == ["ann: +a", "ann: -a", "ann: +b", "ann: -b", "ann: +c", "ann: -c"]

    in_client(main)


def test_a_method_that_always_interleaves_does_not_wait() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            staying = asyncio.create_task(viewer.stay("a"))
            await asyncio.sleep(1)
            assert await viewer.ping() == "pong"
            assert await match.ping() == "pong"
            GATES["a"].set()
            await staying

    in_client(main)


def test_a_one_way_call_is_not_awaited() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            await match.tell("Ada")
            await asyncio.sleep(1)
        assert noted() == ["ann: told Ada"]

    in_client(main)


def test_errors_and_deadlines_of_an_observer_are_those_of_a_grain() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            with pytest.raises(ValueError, match="no goal"):
                await match.call("fail", text="no goal")
            with pytest.raises(CallTimeout, match=r"Viewer\.stay did not end"):
                await match.call("stay", text="a", timeout_s=3.0)
            with pytest.raises(CallTimeout, match=r"Viewer\.stay_briefly did not end"):
                await viewer.stay_briefly("b")
            assert await match.score("Ada") == ["ann saw Ada"]  # it is free again
        assert noted()[:4] == ["ann: +a", "ann: cancelled a", "ann: +b", "ann: cancelled b"]

    in_client(main)


def test_a_caller_that_is_cancelled_cancels_the_call() -> None:
    async def main(client: Client) -> None:
        async with client.observe(Viewer("ann")) as viewer:
            running = asyncio.create_task(viewer.stay("a"))
            waiting = asyncio.create_task(viewer.stay("b"))
            await asyncio.sleep(1)
            waiting.cancel()
            running.cancel()
            await asyncio.sleep(1)
        assert noted() == ["ann: +a", "ann: cancelled a"]

    in_client(main)


class Asker(Viewer):
    """Calls the grain that calls it."""

    async def goal(self, scorer: str) -> str:
        found = await CLIENTS[0].grain(Match, "final").score(scorer)
        return str(found)


def test_an_observer_that_calls_the_calling_grain_is_a_cycle() -> None:
    async def main(client: Client) -> None:
        CLIENTS[:] = [client]
        match = client.grain(Match, "final")
        async with client.observe(Asker("ann")) as viewer:
            await match.watch(viewer)
            with pytest.raises(CallCycle, match="Match/final → .*Asker.* → Match/final"):
                await match.call("goal", text="Ada")

    in_client(main)


def test_a_greedy_sender_meets_the_limit_of_the_queue() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            greedy = asyncio.create_task(match.call_many("stay", ["a"] * 20))
            await asyncio.sleep(1)
            with pytest.raises(Overloaded) as caught:
                await viewer.goal("Ada")
            assert caught.value.limit_name == "waiting_calls_max"
            GATES["a"].set()
            answers = await greedy
            assert answers.count("Overloaded") == 9 and answers.count("a") == 11

    in_client(main, options=RuntimeOptions(waiting_calls_max=10))


class Guarded(Observer):
    @open_to(Role.SILO)
    async def secret(self) -> str:
        return "for silos"


class Guard(Grain):
    async def ask(self, guarded: Guarded) -> str:
        return await guarded.secret()


def test_a_method_may_be_closed_to_other_clients() -> None:
    async def main(client: Client) -> None:
        async with client.observe(Guarded()) as guarded:
            assert await client.grain(Guard, "a").ask(guarded) == "for silos"
            with pytest.raises(NotAllowed):
                await guarded.secret()

    in_client(main, grains=(Guard,))


# -- the end of a context


def test_the_end_of_a_context_fails_waiting_calls_and_awaits_running_ones() -> None:
    async def main(client: Client) -> None:
        match = client.grain(Match, "final")
        async with client.observe(Viewer("ann")) as viewer:
            await match.watch(viewer)
            many = asyncio.create_task(match.call_many("stay", ["a", "b"]))
            await asyncio.sleep(1)
            asyncio.get_running_loop().call_later(5, GATES["a"].set)
        note("ended")
        assert await many == ["a", "ObserverGone"]
        assert noted() == ["ann: +a", "ann: -a", "ended"]

    in_client(main)


class Leaver(Viewer):
    """Ends its own context."""

    async def goal(self, scorer: str) -> str:
        await EXITS[0].__aexit__(None, None, None)
        return "left"


EXITS: list[Any] = []


def test_an_observer_may_end_its_own_context() -> None:
    async def main(client: Client) -> None:
        observing = client.observe(Leaver("ann"))
        EXITS[:] = [observing]
        viewer = await observing.__aenter__()
        assert await viewer.goal("Ada") == "left"
        with pytest.raises(ObserverGone):
            await viewer.goal("Bob")

    in_client(main)


def test_a_client_that_closes_ends_its_observers_at_once() -> None:
    async def main(world: World) -> None:
        async with world.watching("ann"):
            assert await world.score("Ada") == ["ann saw Ada"]
        begun = world.now()
        assert await world.score("Bob") == ["ClientUnavailable"]
        assert world.now() - begun < 0.5

    in_world(main, silos=3)


def test_a_closed_client_ends_contexts_that_wait_for_running_calls() -> None:
    async def main(client: Client) -> None:
        async with client.observe(Viewer("ann")) as viewer:
            asyncio.get_running_loop().call_later(1, lambda: None)
            call = asyncio.create_task(viewer.stay("a"))
            await asyncio.sleep(1)
            await client.aclose()
        with pytest.raises(Exception, match="closed"):
            await call
        with pytest.raises(NotInCluster):
            client.observe(Viewer())

    in_client(main)


# -- processes that know no observers


def test_a_silo_without_observers_is_named() -> None:
    async def main(world: World) -> None:
        del world.silo().assembly.targets._here["$client"]  # as in an older version

        async def program(client: Client) -> None:
            with pytest.raises(NotHosted, match="do not know observers.*update the silos first"):
                async with client.observe(Viewer()):
                    pass

        await world.start(program)

    in_world(main)


def test_a_client_refuses_calls_that_are_not_for_its_observers() -> None:
    async def main(world: World) -> None:
        refused: list[str] = []

        async def program(client: Client) -> None:
            async with client.observe(Viewer("ann")) as viewer:
                for key in (viewer.key, viewer.key + "0", f"{client.address}/0"):
                    for kind in ("Match", "~Other", "~Viewer"):
                        found = await world.on_silo(partial(ask, client, kind, key))
                        refused.append(f"{kind}: {found}")

        async def ask(client: Client, kind: str, key: str, silo: Any) -> str:
            peer = silo.assembly.clients.connection(client.address)
            spec = Viewer.__millstream_type__.specs["goal"]
            try:
                return str(await silo.assembly.engine.remote.call(peer, kind, key, spec, ("x",)))
            except Exception as error:
                return type(error).__name__

        await world.start(program)
        found = [one.partition(": ")[2] for one in refused]
        once = ["NotInCluster", "ObserverGone"]
        assert found == [*once, "ann saw x", *once, "ObserverGone", *once, "ObserverGone"]

    in_world(main)


def test_a_contract_of_observers_is_no_grain() -> None:
    async def main(client: Client) -> None:
        with pytest.raises(TypeError, match="not a Grain or Contract class"):
            client.grain(Observer, "a")
        assert issubclass(Observer, Contract)

    in_client(main)


def test_a_dropped_one_way_call_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        async with world.watching("ann"):
            pass
        with caplog.at_level(logging.WARNING):
            await world.on_silo(lambda silo: silo.grain(Match, "final").score("x"))
        assert LOG == []

    in_world(main)
